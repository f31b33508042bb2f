#!/usr/bin/env bash
# RAND: random batches, the baseline of all comparisons.
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
train rand batching_strategy=random,dynamic_batch_size=False,batch_randomization=False
