#!/usr/bin/env bash
# BKT-BR: shuffled inside buckets of similar length, batches shuffled.
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
train bkt_br batching_strategy=bucket,dynamic_batch_size=False,batch_randomization=True
