#!/usr/bin/env bash
# The ten experiments of the paper's Table 2, then the report that puts ours beside the paper's.
#
#   scripts/table2/all.sh            all of it: 34 days on the paper's GPU
#
# CORPUS, OUT, EPOCHS, SEEDS, EXTRA, PYTHON: see settings.sh. The same command resumes where it stopped.

set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
if [ $# -gt 0 ]; then
  echo "all.sh: $*: it takes no arguments; the first lines of $here/all.sh say what it reads" >&2
  exit 2
fi

source "$here/python.sh"
if ! python -c 'import jinja2, pandas, seaborn, statsmodels' 2>/dev/null; then # not after the training
  echo "all.sh: the report needs more packages: $PYTHON -m pip install -r requirements/report.txt" >&2
  exit 1
fi
source "$here/settings.sh" # prepares the filelists
export CORPUS OUT EPOCHS SEEDS EXTRA

broken=() # experiments that stopped in training; the others continue
number=0
for name in rand sb_br ssb_br bkt_br ats_br sb ssb sb_dbs ssb_dbs ssb_dbs_br; do
  echo -e "\n== $((number += 1)) of 10, $name, to epoch $EPOCHS"
  status=0
  bash "$here/$name.sh" || status=$?
  [ $status -eq 0 ] && continue
  # Stopped by a signal, or by a mistake before training that all ten would share.
  if [ $status -ge 128 ] || ! compgen -G "$OUT/$name/seed_*/metrics.jsonl" >/dev/null; then
    echo "all.sh: stopped in $name; the same command resumes there" >&2
    exit $status
  fi
  broken+=("$name")
done

python -m scripts.table2.report "$OUT" -o "$OUT/report"
echo "all of it took $(((SECONDS + 59) / 60)) minutes"
if [ ${#broken[@]} -gt 0 ]; then
  echo "all.sh: stopped by an error, and left out of the report: ${broken[*]}" >&2
  exit 1
fi
