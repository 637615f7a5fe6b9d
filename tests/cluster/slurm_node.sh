#!/bin/bash
# A Slurm cluster of one node on this machine, for as long as this script runs: node.sh FOLDER [CPUS]
# Everything of it but Debian's packages lies in FOLDER; `export SLURM_CONF=FOLDER/slurm.conf` and it is the cluster.
# FOLDER/up appears when it takes jobs. TERM, or the end of what started the script, ends it.
set -eu
folder=$1
cpus=${2:-8}
if [ "${CONSENT:-}" != yes ]; then
    echo "This installs slurm-wlm and munge on this machine and starts their daemons as root." >&2
    echo "To agree: CONSENT=yes make test-slurm" >&2
    exit 2
fi
command -v slurmctld >/dev/null && command -v munged >/dev/null ||
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends slurm-wlm munge; }

mkdir -p "$folder"/{state,spool,munge}
chmod 755 "$folder" && chmod 700 "$folder/munge" && chown munge: "$folder/munge"
host=$(hostname -s)
dd if=/dev/urandom of="$folder/munge/key" bs=128 count=1 status=none
chown munge: "$folder/munge/key" && chmod 400 "$folder/munge/key"
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'; }
cat >"$folder/slurm.conf" <<CONF
ClusterName=ludus
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_min_interval=100000,bf_interval=1
MinJobAge=300
KillWait=20
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cpus State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$folder/slurm.conf

pids=()
end() {
    trap - EXIT
    # A job that is just ending would tell of it for minutes if nobody listened any more, and slurmd would wait for it.
    scancel --user="$(id -un)" 2>/dev/null || true
    for _ in $(seq 100); do
        [ -n "$(squeue --noheader 2>/dev/null)" ] || break
        sleep 0.2
    done
    kill "${pids[@]}" 2>/dev/null || true
    for _ in $(seq 50); do
        [ -n "$(jobs -pr)" ] || break
        sleep 0.2
    done
    kill -KILL "${pids[@]}" 2>/dev/null || true
    wait || true
}
trap end EXIT
trap 'exit 0' TERM INT

chmod 711 "$folder"
touch "$folder/munged.log" && chown munge: "$folder/munged.log"
mkdir -p "$folder/run" && chown munge: "$folder/run"
sed -i "s|$folder/munge.socket|$folder/run/munge.socket|" "$folder/slurm.conf"
setpriv --reuid=munge --regid=munge --clear-groups munged --foreground --force --key-file="$folder/munge/key" \
    --socket="$folder/run/munge.socket" --pid-file="$folder/run/pid" --seed-file="$folder/run/seed" \
    --log-file="$folder/munged.log" &
pids+=($!)
until [ -S "$folder/run/munge.socket" ]; do sleep 0.1; done
slurmctld -D -c &
pids+=($!)
until scontrol ping 2>/dev/null | grep -q UP; do sleep 0.2; done
slurmd -D -c &
pids+=($!)
until sinfo --noheader --format=%T | grep -q idle; do sleep 0.2; done
touch "$folder/up"
# Ends with whoever started it.
while kill -0 $PPID 2>/dev/null; do sleep 1 & wait $!; done
