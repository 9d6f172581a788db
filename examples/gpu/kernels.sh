#!/usr/bin/env bash
# The kernel tables of the records on a GPU: 30 shapes at batch 1, VPTQ at four sizes of its codebooks against torch, and torch's
# own weight-only kernels. Not yet run on a GPU. Needs: bitbench env create transformers
set -euo pipefail

vptq=vptq-triton-4096-256,vptq-triton-4096-512,vptq-triton-8192-256,vptq-triton-8192-512
bitbench kernels --device cuda --shapes kernel-table --batch 1 --cases "$vptq" --against torch-linear --into kernels-vptq
bitbench report kernels-vptq --format markdown-kernels
bitbench kernels --device cuda --shapes kernel-table --batch 1,8,32 --cases torch-int8,torch-int4-g128 --against torch-linear \
  --into kernels-torch
