#!/usr/bin/env bash
# SB-BR: sorted by length, batches shuffled.
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
train sb_br batching_strategy=sorted,dynamic_batch_size=False,batch_randomization=True
