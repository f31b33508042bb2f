#!/usr/bin/env bash
# SSB-DBS-BR: sorted by length plus noise, dynamic sizes, batches shuffled; the paper's best.
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
train ssb_dbs_br batching_strategy=semi_sorted,dynamic_batch_size=True,batch_randomization=True
