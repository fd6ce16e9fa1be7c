#!/usr/bin/env bash
# Lose a node: kill -9 its slurmd, and its jobs unless --keep-jobs is said. kill_node.sh n2 [--keep-jobs]
. "$(dirname "${BASH_SOURCE[0]}")/lab.env"; n=$1
p=$(cat "$LAB_STATE/run/slurmd-$n.pid"); echo "kill slurmd $n pid $p"; kill -9 "$p"; rm -f "$LAB_STATE/run/slurmd-$n.pid"
[ "${2:-}" = --keep-jobs ] && exit 0
log=$(readlink -f "$LAB_STATE/log/slurmd-$n.log")
descend() { local c; echo $1; for c in $(cat /proc/$1/task/*/children 2>/dev/null); do descend $c; done; }
for d in /proc/[0-9]*; do
  c=$(cat $d/cmdline 2>/dev/null | tr '\0' ' ')
  # slurmstepd is titled "slurmstepd: [JOBID.step]"; the log that it holds open names its cluster and its node
  [[ $c == slurmstepd:* ]] || continue
  sp=${d#/proc/}
  if ls -l "$d/fd" 2>/dev/null | grep -qF " -> $log"; then
    # A node dies all at once. Stopped first, from the parent down, no process lives to report the death of another.
    all=$(descend $sp); kill -STOP $all; kill -9 $all; echo "killed stepd $sp ($c)"
  fi
done
