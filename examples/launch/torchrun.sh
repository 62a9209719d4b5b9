#!/bin/sh
# Four ranks on one host with four cards, as torchrun starts them; NCCL connects them. Needs the program, built with --features cuda,
# and NCCL where the loader or AMBITUS_CUDA_LIBS finds it (PyTorch brings it). Written, not run.
#   examples/launch/torchrun.sh RECIPE RUN_FOLDER
# On several hosts, on each: NNODES=2 NODE_RANK=0 (and 1) MASTER_ADDR=host-of-0, and two free ports from MASTER_PORT on.
set -eu
exec torchrun --no-python --nproc-per-node "${NPROC_PER_NODE:-4}" \
    --nnodes "${NNODES:-1}" --node-rank "${NODE_RANK:-0}" \
    --master-addr "${MASTER_ADDR:-127.0.0.1}" --master-port "${MASTER_PORT:-29500}" \
    ambitus train "$1" --run-dir "$2" --device cuda --sharding full --watchdog 600
