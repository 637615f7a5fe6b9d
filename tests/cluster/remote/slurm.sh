#!/bin/sh
# Stands for sbatch, squeue and scancel, by the name that it is called by: jobs are processes of this machine, begun as
# soon as $SLURM_STAND/go exists. Options are noted in $SLURM_STAND/options.
set -eu
cd "$SLURM_STAND"
case "$(basename "$0")" in
sbatch)
    printf '%s\n' "$@" >> options
    while [ $# -gt 1 ]; do
        case "$1" in
            --chdir) folder=$2; shift ;;
            --output) log=$2; shift ;;
        esac
        shift
    done
    num_jobs=$(ls | grep -c '^job-' || true)
    id=$((41 + num_jobs))
    touch "job-$id"
    (
        until [ -e go ]; do sleep 0.05; done
        cd "$folder"
        exec setsid sh "$1"
    ) > "$log" 2>&1 < /dev/null &
    echo $! > "job-$id"
    echo "$id;cluster"
    ;;
squeue)
    [ -e "job-$3" ] || { echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }
    [ ! -e away ] || { echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; }
    if ! kill -0 "$(cat "job-$3")" 2>/dev/null; then echo "FAILED (NonZeroExitCode)"
    elif [ -e go ]; then echo "RUNNING (None)"
    else echo "PENDING (Resources)"; fi
    ;;
scancel)
    kill -TERM "$(cat "job-$1")" 2>/dev/null || true
    ;;
esac
