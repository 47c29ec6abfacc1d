#!/bin/bash
# A step of vlalign on a Ray cluster inside a Slurm allocation. Run from the top folder of a checkout that all nodes see:
#
#   make .venv/installed
#   sbatch --nodes 4 --gpus-per-node 4 --time 24:00:00 ray_jobs/slurm.sh \
#       ray_jobs/extract_howto100m.py --dataset howto100m --features s3d,resnet152 --device cuda
#
# Options before the file are sbatch's, such as --partition and --account; those after the script are the script's. The
# data is in $VLALIGN_ROOT, or else in vlalign_data of this folder. Two minutes before the time limit, the script is stopped, and
# workers write the videos that they have finished: submit the same job again to resume. After a node failure, Slurm starts
# it again by itself (--requeue), unless the cluster forbids that. repeat.sh is not for Slurm.
#SBATCH --job-name=vlalign
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -euo pipefail
if [ "$#" -eq 0 ] || [ -z "${SLURM_JOB_ID:-}" ]; then
    echo "usage: sbatch [--nodes 4 ...] ray_jobs/slurm.sh ray_jobs/extract_howto100m.py [OPTIONS OF THE SCRIPT]" >&2
    exit 2
fi
export PATH="$PWD/.venv/bin:$PATH"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN  # a secret of this job, because other users may reach Ray's ports
RAY_AUTH_TOKEN=$(python -c "import secrets; print(secrets.token_hex(32))")
export folder  # Ray lets everybody write to its own folder, so it is inside a private one
folder=$(mktemp --directory)
ip=$(hostname --all-ip-addresses | cut --delimiter=" " --fields=1)  # this file runs on the first node

start_ray() {  # more than once, because Ray gives up after 30 seconds, and packages on a shared file system load slowly
    for _ in 1 2 3 4 5; do
        ray start --num-cpus "$SLURM_CPUS_ON_NODE" --disable-usage-stats "$@" && return
        ray stop
    done
    return 1
}

end_ray() {
    ray stop
    rm --recursive --force "$folder"
}

trap end_ray EXIT
start_ray --head --temp-dir "$folder/ray" --node-ip-address "$ip" --port 6379 --include-dashboard=false
others=$((SLURM_JOB_NUM_NODES - 1))
if [ "$others" -gt 0 ]; then  # --cpus-per-task, because a step gets one core by default
    srun --nodes="$others" --ntasks="$others" --relative=1 --cpus-per-task="$SLURM_CPUS_ON_NODE" \
        bash -c "$(declare -f start_ray end_ray); umask 077; mkdir -p $folder; trap end_ray EXIT
            start_ray --address $ip:6379 --block" &
fi
export RAY_ADDRESS="$ip:6379"
python "$@" &
script=$!

leave() {
    trap "" TERM
    kill -TERM "$script" 2> /dev/null || true
    wait "$script" || true
    python -m vlalign.ray_jobs.drain --all --seconds 90 || true
    exit 143
}

trap leave TERM
wait "$script"  # the end of this file also ends the other nodes' steps
