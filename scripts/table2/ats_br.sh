#!/usr/bin/env bash
# ATS-BR: bins sorted alternately up and down, batches shuffled.
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
train ats_br batching_strategy=alternated_sort,dynamic_batch_size=False,batch_randomization=True
