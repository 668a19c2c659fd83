#!/bin/bash
# dasgd-ring-16ranks-seed0-5e0ffc11 of jobs/gpu.toml, written by mpisgd submit.
# Submit it from the folder that its paths start from, where `mpisgd submit` ran.
#SBATCH --job-name=dasgd-ring-16ranks-seed0-5e0ffc11
#SBATCH --output=results/gpu/dasgd-ring-16ranks-seed0-5e0ffc11.%j.out
#SBATCH --open-mode=append
#SBATCH --partition=gpu
#SBATCH --time=1:00:00
#SBATCH --nodes=4
#SBATCH --ntasks=16
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-task=1
#SBATCH --signal=B:USR1@60
#SBATCH --requeue

set -e
source .venv/bin/activate
set +e

# Slurm sends USR1 to this shell before the time limit. Passed on, it makes all ranks stop
# together at their next merge, with their results written; half of the time later they are ended
# anyway. On TERM (scancel) Slurm tells the ranks itself, and this shell only waits for them.
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
trap 'heard=yes' TERM

srun --mpi=pmix --ntasks=16 --cpus-per-task=8 --gpus-per-task=1 --gpu-bind=none --kill-on-bad-exit=1 \
    mpisgd train --algorithm=dasgd --tau=4 --delay=3 --allreduce=ring --chunks=8 \
    --hidden=4096,4096,4096 --data=synthetic --batch=256 --steps=1000 --backend=cupy \
    --evaluate-every=0 --scaling=weak --output=results/gpu/dasgd-ring-16ranks-seed0-5e0ffc11.h5 \
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
