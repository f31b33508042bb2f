#!/usr/bin/env bash
# BKT-BR: shuffled inside buckets of similar length, batches shuffled.
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
for seed in $SEEDS; do
  python train.py -o "$OUT/bkt_br/seed_$seed" --resume --hparams \
    "$SETTINGS,seed=$seed,batching_strategy=bucket,dynamic_batch_size=False,batch_randomization=True,$EXTRA"
done
