#!/bin/bash
# vlalign-train in several processes on the nodes of a Slurm allocation, one for each GPU, without Ray. Run from the top
# folder of a checkout that all nodes see:
#
#   make .venv/installed
#   sbatch --nodes 4 --gpus-per-node 8 --time 48:00:00 ray_jobs/slurm_torchrun.sh \
#       --dataset howto100m --recipe taco-howto100m
#
# Options before the file are sbatch's, those after it vlalign-train's. Without GPUs, there is one process for each node.
# After the time limit, submit the same job again: training resumes from the run's last checkpoint. After a node failure,
# Slurm starts it again by itself (--requeue), unless the cluster forbids that.
#SBATCH --job-name=vlalign-train
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -euo pipefail
if [ -z "${SLURM_JOB_ID:-}" ]; then
    echo "usage: sbatch [--nodes 4 --gpus-per-node 8 ...] ray_jobs/slurm_torchrun.sh [OPTIONS OF vlalign-train]" >&2
    exit 2
fi
export PATH="$PWD/.venv/bin:$PATH"
ip=$(hostname --all-ip-addresses | cut --delimiter=" " --fields=1)  # this file runs on the first node
options=(--nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "${SLURM_GPUS_ON_NODE:-1}" --master-addr "$ip" --master-port 29500)

# --cpus-per-task, because a step gets one core by default. Each node has its own SLURM_NODEID.
# shellcheck disable=SC2016
exec srun --cpus-per-task="$SLURM_CPUS_ON_NODE" \
    bash -c 'exec torchrun --node-rank "$SLURM_NODEID" "$@"' torchrun "${options[@]}" --no-python vlalign-train "$@"
