#!/usr/bin/env bash
# SB-DBS: sorted by length, dynamic batch sizes.
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
for seed in $SEEDS; do
  python train.py -o "$OUT/sb_dbs/seed_$seed" --resume --hparams \
    "$SETTINGS,seed=$seed,batching_strategy=sorted,dynamic_batch_size=True,batch_randomization=False,$EXTRA"
done
