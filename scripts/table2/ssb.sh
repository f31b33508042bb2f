#!/usr/bin/env bash
# SSB: sorted by length plus noise, shortest batches first.
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
train ssb batching_strategy=semi_sorted,dynamic_batch_size=False,batch_randomization=False
