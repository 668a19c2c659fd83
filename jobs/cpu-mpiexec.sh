#!/bin/bash
# dasgd-butterfly-8ranks-seed2-bf9ba7c9 of jobs/cpu.toml, written by mpisgd submit.
# Submit it from the folder that its paths start from, where `mpisgd submit` ran.
#SBATCH --job-name=dasgd-butterfly-8ranks-seed2-bf9ba7c9
#SBATCH --output=results/cpu/dasgd-butterfly-8ranks-seed2-bf9ba7c9.%j.out
#SBATCH --open-mode=append
#SBATCH --time=30
#SBATCH --nodes=2
#SBATCH --ntasks=8
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=1
#SBATCH --signal=B:USR1@60
#SBATCH --requeue

set -e
source .venv/bin/activate
set +e

# Slurm sends USR1 to this shell before the time limit. Passed on, it makes all ranks stop
# together at their next merge, with their results written; half of the time later they are ended
# anyway. On TERM (scancel) they are told as well, at once: Slurm ends them KillWait
# (30 s) later.
ranks=
warned=
heard=
warn() {
    heard=yes
    [ -z "$warned" ] || return
    warned=yes
    ranks=${ranks:-$!}
    kill -USR1 "$ranks"
    { sleep 30; kill -TERM "$ranks"; } >/dev/null 2>&1 &
    timer=$!
}
trap warn USR1
trap 'heard=yes; ranks=${ranks:-$!}; kill -USR1 "$ranks" 2>/dev/null' TERM

mpiexec -n 8 \
    mpisgd train --algorithm=dasgd --tau=4 --delay=3 --hidden=64 --batch=8 --epochs=20.0 --seed=2 \
    --scaling=weak --output=results/cpu/dasgd-butterfly-8ranks-seed2-bf9ba7c9.h5 --resume=auto \
    --checkpoint-every=5min &
ranks=${ranks:-$!}
# A signal ends `wait` early, and then says nothing of the ranks.
while heard=; wait "$ranks"; code=$?; [ -n "$heard" ]; do :; done
[ -z "$warned" ] || kill "$timer"

# Whatever the launcher makes of ranks that were stopped, the code of the job is that of SIGUSR1.
if [ -n "$warned" ] && [ "$code" -ne 0 ]; then
    code=138
    # Back into the queue, at most 1 time.
    [ "${SLURM_RESTART_COUNT:-0}" -ge 1 ] || scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
