#!/usr/bin/env bash
# SSB-BR: sorted by length plus noise, batches shuffled.
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
for seed in $SEEDS; do
  python train.py -o "$OUT/ssb_br/seed_$seed" --resume --hparams \
    "$SETTINGS,seed=$seed,batching_strategy=semi_sorted,dynamic_batch_size=False,batch_randomization=True,$EXTRA"
done
