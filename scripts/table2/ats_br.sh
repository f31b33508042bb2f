#!/usr/bin/env bash
# ATS-BR: bins sorted up and down in turn, batches shuffled.
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
for seed in $SEEDS; do
  python train.py -o "$OUT/ats_br/seed_$seed" --resume --hparams \
    "$SETTINGS,seed=$seed,batching_strategy=alternated_sort,dynamic_batch_size=False,batch_randomization=True,$EXTRA"
done
