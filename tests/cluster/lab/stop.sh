#!/usr/bin/env bash
# Stop what start.sh started: only processes that its own pid files name. --wipe also removes the files.
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lab.env"; S=$LAB_STATE
stop_pid() { local f=$1 want=$2 p; [ -s "$f" ] || return 0; p=$(cat "$f")
  # guard against pid reuse: the process must be the program that we recorded
  if [ -r "/proc/$p/comm" ] && [[ $(cat "/proc/$p/comm") == "$want"* ]]; then
    kill "$p"; for _ in $(seq 1 150); do kill -0 "$p" 2>/dev/null || break; sleep 0.1; done
    kill -0 "$p" 2>/dev/null && kill -9 "$p"
  fi; rm -f "$f"; return 0; }
if [ -s "$S/run/slurmctld.pid" ] && timeout 5 scontrol ping 2>/dev/null | grep -q UP; then
  timeout 20 scancel -f --user=root --state=PENDING 2>/dev/null; timeout 20 scancel -f --user=root 2>/dev/null
  for _ in $(seq 1 100); do [ -z "$(squeue -h 2>/dev/null)" ] && break; sleep 0.1; done
fi
for f in "$S"/run/slurmd-*.pid; do stop_pid "$f" slurmd & done
stop_pid "$S/run/slurmctld.pid" slurmctld &
wait
stop_pid "$S/run/slurmdbd.pid" slurmdbd
stop_pid "$S/run/mariadb.pid" maria
stop_pid "$S/run/munged.pid" munged
[ "${1:-}" = --wipe ] && rm -rf "$S"
echo "SLURM is stopped"
