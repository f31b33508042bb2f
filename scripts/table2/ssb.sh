#!/usr/bin/env bash
# SSB: sorted by length plus noise, shortest batches first.
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
for seed in $SEEDS; do
  python train.py -o "$OUT/ssb/seed_$seed" --resume --hparams \
    "$SETTINGS,seed=$seed,batching_strategy=semi_sorted,dynamic_batch_size=False,batch_randomization=False,$EXTRA"
done
