#!/bin/bash
# Runs once on each node. The variables for torchrun are set, so it needs no addresses.
set -eu
steps=${1:-100}
ranks=1
if command -v nvidia-smi >/dev/null 2>&1; then
    ranks=$(nvidia-smi -L | wc -l)
fi
echo "node $NODE_RANK of $NNODES starts $ranks ranks"
exec python -m torch.distributed.run --nproc-per-node="$ranks" train.py --steps "$steps"
