#!/bin/sh
# Four ranks over two hosts by Open MPI's mpirun. Needs, on each: ssh without a password, Open MPI 4 or 5, and the program,
# the recipe, the model, the clips and the run folder at these paths.
#   examples/launch/mpirun.sh RECIPE RUN_FOLDER
set -eu
exec mpirun -np 4 --host "${HOSTS:-localhost:4}" \
    ambitus train "$1" --run-dir "$2" --sharding full --watchdog 120
# Two hosts: HOSTS=a:2,b:2. If they have several networks: --mca btl_tcp_if_include 10.0.0.0/24
