#!/usr/bin/env bash
#SBATCH --job-name=bitbench
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --gres=gpu:8
#SBATCH --no-requeue
#SBATCH --time=08:00:00
#SBATCH --output=%x-%j.log
# A study on whole nodes, with a Ray cluster for as long as the job runs: sbatch slurm-ray.sh STUDY FOLDER
# Every node needs bitbench[fleet] and the study's environments, of one version. BITBENCH_VENV names a virtual environment to
# activate, and BITBENCH_HOME the folder with the environments. The same command resumes an interrupted study.
# How it was tried: with stand-ins for scontrol and srun, a real `ray symmetric-run` on one node, and the null engine.
set -euo pipefail

nodes=${SLURM_JOB_NODELIST:?run this with sbatch}
study=${1:?"sbatch slurm-ray.sh STUDY FOLDER"}
folder=${2:?"sbatch slurm-ray.sh STUDY FOLDER"}
if [ -n "${BITBENCH_VENV:-}" ]; then source "$BITBENCH_VENV/bin/activate"; fi
first=$(scontrol show hostnames "$nodes" | head -n 1)

# Without a token anybody on the cluster's network could run code as this user.
umask 077
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$SLURM_SUBMIT_DIR/.bitbench-token-$SLURM_JOB_ID"
trap 'rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT
od -An -N32 -tx1 /dev/urandom | tr -d ' \n' > "$RAY_AUTH_TOKEN_PATH"

# A lost node is noticed within seconds, and an engine that fills the memory is not killed by Ray.
export RAY_health_check_period_ms=2000 RAY_health_check_timeout_ms=3000 RAY_health_check_failure_threshold=3
export RAY_grpc_client_keepalive_time_ms=5000 RAY_grpc_client_keepalive_timeout_ms=5000
export RAY_memory_monitor_refresh_ms=0 RAY_worker_oom_score_adjustment=0

# Starts Ray on every node, runs the command on the first, and ends Ray with it. `?per=gpu`: a block on each GPU.
srun --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --kill-on-bad-exit=1 \
  ray symmetric-run --address "$first:6379" --min-nodes "$SLURM_NNODES" -- \
  bitbench run "$study" --into "$folder" --on "ray://$first:6379?per=${BITBENCH_PER:-gpu}"
