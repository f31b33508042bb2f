#!/usr/bin/env bash
# SB-BR: sorted by length, batches shuffled.
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
for seed in $SEEDS; do
  python train.py -o "$OUT/sb_br/seed_$seed" --resume --hparams \
    "$SETTINGS,seed=$seed,batching_strategy=sorted,dynamic_batch_size=False,batch_randomization=True,$EXTRA"
done
