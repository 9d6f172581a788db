#!/usr/bin/env bash
#SBATCH --job-name=bitbench
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --no-requeue
#SBATCH --time=08:00:00
#SBATCH --output=%x-%j.log
# A study on whole nodes of a Slurm cluster, with a Ray cluster for as long as the job runs: sbatch slurm.sh STUDY FOLDER
# Not run on a cluster. Needs, on every node, Ray 2.60 and bitbench[fleet] of one version with the study's environments (a home
# that all nodes see, in BITBENCH_HOME, will do). The same command resumes a study that was interrupted.
set -euo pipefail

study=${1:?"sbatch slurm.sh STUDY FOLDER"}
folder=${2:?"sbatch slurm.sh STUDY FOLDER"}
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# Without a token anybody on the cluster's network could run code as this user.
umask 077
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$SLURM_SUBMIT_DIR/.bitbench-token-$SLURM_JOB_ID"
trap 'rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT
od -An -N32 -tx1 /dev/urandom | tr -d ' \n' > "$RAY_AUTH_TOKEN_PATH"

export RAY_memory_monitor_refresh_ms=0  # it would kill an engine that fills the memory on purpose
# Starts Ray on every node, runs the command on the first, and ends Ray with it.
srun --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --kill-on-bad-exit=1 \
  ray symmetric-run --address "$first:6379" --min-nodes "$SLURM_NNODES" -- \
  bitbench run "$study" --into "$folder" --on "ray://$first:6379"
