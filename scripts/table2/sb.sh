#!/usr/bin/env bash
# SB: sorted by length, shortest batch first.
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
train sb batching_strategy=sorted,dynamic_batch_size=False,batch_randomization=False
