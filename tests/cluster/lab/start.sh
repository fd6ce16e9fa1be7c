#!/usr/bin/env bash
# A real SLURM with several slurmd on this host, on loopback, as root, without systemd. Starts what does not run yet.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lab.env"
S=$LAB_STATE; H=$(hostname -s)
mkdir -p "$S"/{etc,run,log,ctld,dbd,gpudev,munge}
chmod 755 "$S" "$S"/*
# A process that was just killed may stay as a zombie for a while, and is not alive.
alive() { [ -s "$1" ] && grep -q '^State:.[^ZX]' "/proc/$(cat "$1")/status" 2>/dev/null; }
wait_for() { local n=0; until "${@:2}" >/dev/null 2>&1; do n=$((n+1)); [ $n -gt "$1" ] && { echo "timeout: ${*:2}" >&2; return 1; }; sleep 0.1; done; }

# A slurmctld that is killed forgets the ids that it gave last, and a slurmd refuses ids that it has seen before: each
# start begins with ids of its own.
STARTS=$(cat "$S/run/starts" 2>/dev/null || echo 0)
alive "$S/run/slurmctld.pid" || { STARTS=$((STARTS+1)); echo "$STARTS" > "$S/run/starts"; }

# ---- config ------------------------------------------------------------------------------
DBPORT=$((LAB_PORT+100)); DBDPORT=$((LAB_PORT+2))
if [ "$LAB_DBD" = 1 ]; then
  ACCT="AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$DBDPORT
AccountingStoragePass=$S/run/munge.socket
AccountingStoreFlags=job_comment,job_env,job_script
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations,limits
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=5"
else
  ACCT="AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/filetxt
JobCompLoc=$S/log/jobcomp.txt"
fi
cat > "$S/etc/slurm.conf.new" <<CONF
ClusterName=lab
SlurmctldHost=$H(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$S/run/munge.socket,cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmctldPort=$LAB_PORT
SlurmdPort=$((LAB_PORT+1))
StateSaveLocation=$S/ctld
SlurmdSpoolDir=$S/spool-%n
SlurmctldPidFile=$S/run/slurmctld.pid
SlurmdPidFile=$S/run/slurmd-%n.pid
SlurmctldLogFile=$S/log/slurmctld.log
SlurmdLogFile=$S/log/slurmd-%n.log
SlurmctldDebug=info
SlurmdDebug=info
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmctldTimeout=10
# On a busy machine a slurmd may be silent for a while; a node that is to be dead is set DOWN by hand.
SlurmdTimeout=60
InactiveLimit=0
MinJobAge=300
KillWait=3
BatchStartTimeout=10
JobRequeue=1
MaxJobCount=20000
FirstJobId=$((10000*(STARTS-1)+1))
DebugFlags=NO_CONF_HASH
MaxArraySize=$LAB_ARRAY
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,bf_window=1440,batch_sched_delay=0,default_queue_depth=1000,sched_min_interval=100000,requeue_setup_env_fail
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
DefMemPerCPU=100
GresTypes=gpu
$ACCT
NodeName=n[1-$LAB_NODES] NodeHostname=$H NodeAddr=127.0.0.1 Port=$((LAB_PORT+11))-$((LAB_PORT+10+LAB_NODES)) CPUs=$LAB_CPUS Boards=1 SocketsPerBoard=2 CoresPerSocket=$((LAB_CPUS/2)) ThreadsPerCore=1 RealMemory=$LAB_MEM Gres=gpu:h100:$LAB_GPUS State=UNKNOWN
PartitionName=main    Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=preempt Nodes=ALL Default=NO  MaxTime=INFINITE State=UP PriorityTier=1  PreemptMode=REQUEUE GraceTime=10
PartitionName=high    Nodes=ALL Default=NO  MaxTime=INFINITE State=UP PriorityTier=100 PreemptMode=OFF
CONF
mv "$S/etc/slurm.conf.new" "$S/etc/slurm.conf"
# gres.conf: fake GPUs
# Device files: counts alone are refused.
for i in $(seq 0 $((LAB_GPUS-1))); do [ -c "$S/gpudev/gpu$i" ] || { rm -f "$S/gpudev/gpu$i"; mknod "$S/gpudev/gpu$i" c 1 3; }; done
echo "NodeName=n[1-$LAB_NODES] Name=gpu Type=h100 File=$S/gpudev/gpu[0-$((LAB_GPUS-1))]" > "$S/etc/gres.conf"
echo "CgroupAutomount=no" > "$S/etc/cgroup.conf"
cat > "$S/etc/slurmdbd.conf" <<CONF
AuthType=auth/munge
AuthInfo=socket=$S/run/munge.socket
DbdHost=$H
DbdAddr=127.0.0.1
CommunicationParameters=NoInAddrAny
DbdPort=$DBDPORT
SlurmUser=root
PidFile=$S/run/slurmdbd.pid
LogFile=$S/log/slurmdbd.log
DebugLevel=info
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$DBPORT
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct
CONF
chmod 600 "$S/etc/slurmdbd.conf"

# ---- munge ---------------------------------------------------------------------------------
[ -s "$S/munge/munge.key" ] || { dd if=/dev/urandom of="$S/munge/munge.key" bs=128 count=1 status=none; chmod 400 "$S/munge/munge.key"; }
chmod 700 "$S/munge"
if ! alive "$S/run/munged.pid"; then
  rm -f "$S/run/munge.socket"*
  munged --key-file="$S/munge/munge.key" --socket="$S/run/munge.socket" --pid-file="$S/run/munged.pid" \
         --log-file="$S/log/munged.log" --seed-file="$S/munge/munged.seed" --num-threads=4
fi
wait_for 50 munge --socket="$S/run/munge.socket" -n
# ---- mariadb + slurmdbd --------------------------------------------------------------------
if [ "$LAB_DBD" = 1 ]; then
  if [ ! -d "$S/mysql/mysql" ]; then
    mkdir -p "$S/mysql"
    mariadb-install-db --no-defaults --user=root --datadir="$S/mysql" --auth-root-authentication-method=normal --skip-test-db >"$S/log/mariadb-install.log" 2>&1 \
      || { cat "$S/log/mariadb-install.log"; exit 1; }
  fi
  if ! alive "$S/run/mariadb.pid"; then
    setsid mariadbd --no-defaults --user=root --datadir="$S/mysql" --socket="$S/run/mysql.sock" --pid-file="$S/run/mariadb.pid" \
      --bind-address=127.0.0.1 --port="$DBPORT" --skip-name-resolve --innodb-buffer-pool-size=128M --innodb-lock-wait-timeout=900 \
      --innodb-flush-log-at-trx-commit=2 >"$S/log/mariadb.log" 2>&1 </dev/null &
    wait_for 300 mariadb-admin --no-defaults --socket="$S/run/mysql.sock" -uroot ping
  fi
  mariadb --no-defaults --socket="$S/run/mysql.sock" -uroot -e "create database if not exists slurm_acct; create user if not exists slurm@'127.0.0.1' identified by 'slurm'; grant all on slurm_acct.* to slurm@'127.0.0.1';"
  if ! alive "$S/run/slurmdbd.pid"; then slurmdbd; fi
  wait_for 300 bash -c "exec 3<>/dev/tcp/127.0.0.1/$DBDPORT"
  sacctmgr -n -P show cluster lab format=cluster 2>/dev/null | grep -q lab || sacctmgr -i add cluster lab >/dev/null
  sacctmgr -n -P show account lab format=account 2>/dev/null | grep -q lab || sacctmgr -i add account lab Cluster=lab Description=lab Organization=lab >/dev/null
  sacctmgr -n -P show user root format=user 2>/dev/null | grep -q root || sacctmgr -i add user root Account=lab >/dev/null
fi
# ---- slurmctld, slurmd ---------------------------------------------------------------------
alive "$S/run/slurmctld.pid" || slurmctld
wait_for 100 bash -c "scontrol ping | grep -q UP"
for i in $(seq 1 "$LAB_NODES"); do
  alive "$S/run/slurmd-n$i.pid" || { mkdir -p "$S/spool-n$i"; slurmd -N "n$i"; }
done
for i in $(seq 1 "$LAB_NODES"); do case $(sinfo -h -N -n "n$i" -p main -o %T) in drain*|down*|inval*) sleep 0.5; scontrol update nodename="n$i" state=resume 2>/dev/null || :;; esac; done
wait_for 200 bash -c "[ \$(sinfo -h -N -p main -t idle,alloc,mix -o %N | sort -u | wc -l) -eq $LAB_NODES ]" || { sinfo -N -l; exit 1; }
echo "SLURM is up: export SLURM_CONF=$SLURM_CONF"
