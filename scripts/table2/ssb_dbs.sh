#!/usr/bin/env bash
# SSB-DBS: sorted by length plus noise, dynamic batch sizes.
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
for seed in $SEEDS; do
  python train.py -o "$OUT/ssb_dbs/seed_$seed" --resume --hparams \
    "$SETTINGS,seed=$seed,batching_strategy=semi_sorted,dynamic_batch_size=True,batch_randomization=False,$EXTRA"
done
