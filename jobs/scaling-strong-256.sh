#!/bin/bash
# dasgd-halving-doubling-256ranks-seed2-0374f8d4 of jobs/scaling-strong.toml, written by mpisgd submit.
# Submit it from the folder that its paths start from, where `mpisgd submit` ran.
#SBATCH --job-name=dasgd-halving-doubling-256ranks-seed2-0374f8d4
#SBATCH --output=results/scaling-strong/dasgd-halving-doubling-256ranks-seed2-0374f8d4.%j.out
#SBATCH --open-mode=append
#SBATCH --time=30
#SBATCH --nodes=16
#SBATCH --ntasks=256
#SBATCH --ntasks-per-node=16
#SBATCH --cpus-per-task=1
#SBATCH --signal=B:USR1@60
#SBATCH --requeue
#SBATCH --exclusive

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

mpiexec -n 256 \
    mpisgd train --algorithm=dasgd --tau=4 --delay=3 --allreduce=halving-doubling \
    --hidden=256,256 --batch=1 --steps=200 --seed=2 --evaluate-every=0 --scaling=strong \
    --output=results/scaling-strong/dasgd-halving-doubling-256ranks-seed2-0374f8d4.h5 \
    --resume=auto --checkpoint-every=5min &
ranks=${ranks:-$!}
# A signal ends `wait` early, and then says nothing of the ranks.
while heard=; wait "$ranks"; code=$?; [ -n "$heard" ]; do :; done
[ -z "$warned" ] || kill "$timer"

# Whatever the launcher makes of ranks that were stopped, the code of the job is that of SIGUSR1.
if [ -n "$warned" ] && [ "$code" -ne 0 ]; then
    code=138
fi
exit "$code"
