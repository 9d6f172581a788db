#!/usr/bin/env bash
#SBATCH --job-name=bitbench
#SBATCH --array=0-3
#SBATCH --ntasks=1
#SBATCH --gres=gpu:1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --time=08:00:00
#SBATCH --output=%x-%A_%a.log
# A study as a job array: each task measures one block. Give the array as many tasks as the study has starts.
#
#   job=$(sbatch --parsable slurm-array.sh study.yaml parts)
#   sbatch --dependency=afterok:$job --wrap 'bitbench join parts/* --into results'
#
# Every node needs bitbench and the study's environments. BITBENCH_VENV names a virtual environment to activate, and
# BITBENCH_HOME the folder with the environments, which all nodes may share. A requeued task resumes its part.
# How it was tried: on a real Slurm of four nodes on one machine, with the null engine; one of four tasks was requeued in the
# middle, resumed its part, and the four were joined.
set -euo pipefail

block=${SLURM_ARRAY_TASK_ID:?run this with sbatch --array}
study=${1:?"sbatch slurm-array.sh STUDY PARTS"}
parts=${2:?"sbatch slurm-array.sh STUDY PARTS"}
if [ -n "${BITBENCH_VENV:-}" ]; then source "$BITBENCH_VENV/bin/activate"; fi

# A block has one machine: on another node or GPU a requeued task repeats it.
export BITBENCH_MACHINE="$SLURMD_NODENAME${SLURM_JOB_GPUS:+:gpu$SLURM_JOB_GPUS}"
exec bitbench run "$study" --block "$block" --into "$parts/$block"
