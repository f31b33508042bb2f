#!/usr/bin/env bash
# SB: sorted by length, shortest batch first.
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
for seed in $SEEDS; do
  python train.py -o "$OUT/sb/seed_$seed" --resume --hparams \
    "$SETTINGS,seed=$seed,batching_strategy=sorted,dynamic_batch_size=False,batch_randomization=False,$EXTRA"
done
