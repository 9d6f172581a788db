#!/usr/bin/env bash
#SBATCH --job-name=bitbench
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --exclusive
#SBATCH --gres=gpu:8
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --time=08:00:00
#SBATCH --output=%x-%j.log
# A study on one node, a block on each of its GPUs: sbatch slurm.sh STUDY FOLDER
# The node needs bitbench[fleet] and the study's environments. BITBENCH_VENV names a virtual environment to activate, and
# BITBENCH_HOME the folder with the environments. The same command resumes an interrupted study.
# How it was tried: as a job of a real Slurm on one machine, with stand-ins for two GPUs and the null engine.
set -euo pipefail

: "${SLURM_JOB_ID:?run this with sbatch}"
study=${1:?"sbatch slurm.sh STUDY FOLDER"}
folder=${2:?"sbatch slurm.sh STUDY FOLDER"}
if [ -n "${BITBENCH_VENV:-}" ]; then source "$BITBENCH_VENV/bin/activate"; fi

on=()
if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then on=(--on gpus); fi
exec bitbench run "$study" --into "$folder" "${on[@]}"
