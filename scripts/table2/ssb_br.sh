#!/usr/bin/env bash
# SSB-BR: sorted by length plus noise, batches shuffled.
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
train ssb_br batching_strategy=semi_sorted,dynamic_batch_size=False,batch_randomization=True
