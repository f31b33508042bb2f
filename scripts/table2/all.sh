#!/usr/bin/env bash
# Run the ten experiments of the paper's Table 2, and compare our results with the paper's in a report.
#
#   scripts/table2/all.sh            everything takes 34 days on the paper's GPU
#
# settings.sh explains CORPUS, OUT, EPOCHS, SEEDS, EXTRA and PYTHON. The same command resumes a stopped run.

set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
if [ $# -gt 0 ]; then
  echo "all.sh: $*: expected no arguments; the first lines of $here/all.sh explain its variables" >&2
  exit 2
fi

source "$here/python.sh"
if ! python -c 'import jinja2, pandas, seaborn, statsmodels' 2>/dev/null; then # checked before the training
  echo "all.sh: the report needs more packages: $PYTHON -m pip install -r requirements/report.txt" >&2
  exit 1
fi
source "$here/settings.sh" # prepares the filelists
export CORPUS OUT EPOCHS SEEDS EXTRA

broken=() # experiments that failed in training; the loop continues with the next experiment
number=0
for name in rand sb_br ssb_br bkt_br ats_br sb ssb sb_dbs ssb_dbs ssb_dbs_br; do
  echo -e "\n== $((number += 1)) of 10, $name, to epoch $EPOCHS"
  status=0
  bash "$here/$name.sh" || status=$?
  [ $status -eq 0 ] && continue
  # Stop after a signal, or after an error before training that all ten experiments would share.
  if [ $status -ge 128 ] || ! compgen -G "$OUT/$name/seed_*/metrics.jsonl" >/dev/null; then
    echo "all.sh: stopped in $name; run the same command to resume" >&2
    exit $status
  fi
  broken+=("$name")
done

python -m scripts.table2.report "$OUT" -o "$OUT/report"
echo "finished in $(((SECONDS + 59) / 60)) minutes"
if [ ${#broken[@]} -gt 0 ]; then
  echo "all.sh: these experiments failed and are missing from the report: ${broken[*]}" >&2
  exit 1
fi
