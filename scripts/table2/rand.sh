#!/usr/bin/env bash
# RAND: random batches, what everything is measured against.
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
for seed in $SEEDS; do
  python train.py -o "$OUT/rand/seed_$seed" --resume --hparams \
    "$SETTINGS,seed=$seed,batching_strategy=random,dynamic_batch_size=False,batch_randomization=False,$EXTRA"
done
