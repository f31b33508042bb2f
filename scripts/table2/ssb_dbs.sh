#!/usr/bin/env bash
# SSB-DBS: sorted by length plus noise, dynamic batch sizes.
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
train ssb_dbs batching_strategy=semi_sorted,dynamic_batch_size=True,batch_randomization=False
