#!/usr/bin/env bash
# SLURM from Debian's packages, as root. Nothing is started: start.sh does that. With --list, only their names are printed.
set -euo pipefail
packages="slurm-wlm slurm-client slurmdbd munge mariadb-server iproute2 util-linux"
[ "${1:-}" != --list ] || { echo "$packages"; exit 0; }
# One at a time: of several names, `command -v` is content with any.
missing=$(for name in slurmctld slurmd slurmdbd munged mariadbd ip unshare; do command -v "$name" >/dev/null || echo "$name"; done)
[ -n "$missing" ] || exit 0
[ "$(id -u)" = 0 ] || { echo "the throw-away cluster needs root (or SLURM's packages installed)" >&2; exit 1; }
# Debian's scripts would start the daemons as services.
printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d.rlsweep
chmod 755 /usr/sbin/policy-rc.d.rlsweep
kept=
if [ ! -e /usr/sbin/policy-rc.d ]; then mv /usr/sbin/policy-rc.d.rlsweep /usr/sbin/policy-rc.d; kept=1; else rm /usr/sbin/policy-rc.d.rlsweep; fi
trap '[ -z "$kept" ] || rm -f /usr/sbin/policy-rc.d' EXIT
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $packages >/dev/null
