#!/usr/bin/env bash
# SB-DBS: sorted by length, dynamic batch sizes.
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
train sb_dbs batching_strategy=sorted,dynamic_batch_size=True,batch_randomization=False
