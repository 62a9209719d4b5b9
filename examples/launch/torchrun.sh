#!/bin/sh
# torchrun does not work yet: its variables (RANK, WORLD_SIZE, MASTER_ADDR) are read, but what connects such processes is NCCL, which
# is absent. `torchrun --no-python --nproc-per-node 4 ambitus …` ends with a message that says so. What works on the same hosts:
#   examples/launch/torchrun.sh RECIPE RUN_FOLDER
set -eu
: "${NPROC_PER_NODE:=4}" # torchrun's --nproc-per-node
: "${NODES:=localhost}"  # the hosts that torchrun would be started on, with commas between
ranks=0 hosts=
for node in $(printf %s "$NODES" | tr , ' '); do
    hosts="$hosts${hosts:+,}$node:$NPROC_PER_NODE"
    ranks=$((ranks + NPROC_PER_NODE))
done
exec mpirun -np "$ranks" --host "$hosts" ambitus train "$1" --run-dir "$2" --sharding full
