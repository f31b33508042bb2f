#!/usr/bin/env bash
# The ten experiments of the paper's Table 2, then the report that puts ours beside the paper's.
#
#   scripts/table2/all.sh            all of it: 34 days on the paper's GPU
#   scripts/table2/all.sh --small    a study of learning: a small model that learns to speak numbers,
#                                    several seeds, in hours on 2 CPU cores; see scripts/study.py
#
# CORPUS, OUT, EPOCHS, SEEDS, EXTRA, PYTHON: see settings.sh. Without CORPUS --small makes one. The
# same command resumes where it stopped.

set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
refuse() { echo "all.sh: $1; the first lines of $here/all.sh say what it takes" >&2; exit 2; }
[ $# = 0 ] || [ "$*" = --small ] || refuse "$*: not an option"

source "$here/python.sh"
if ! python -c 'import jinja2, pandas, seaborn, statsmodels' 2>/dev/null; then # not after the training
  echo "all.sh: the report needs more packages: $PYTHON -m pip install -r requirements-report.txt" >&2
  exit 1
fi
if [ $# = 1 ]; then # --small
  export OUT=${OUT:-runs/table2-small} EPOCHS=${EPOCHS:-10} SEEDS=${SEEDS:-1 2 3 4 5}
  export AUDIO=win_time=None,hop_time=None VAL_FRACTION=0.05 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
  # A schedule counts updates, and would lower the rate sooner where batches are smaller.
  fixed=learning_rate_schedule=constant,epochs_per_validation=1,keep_checkpoints=1,num_workers=0
  EXTRA=@scripts/speaking_model.txt,$fixed,${EXTRA:-}
  if [ -z "${CORPUS:-}" ]; then
    CORPUS=$OUT/corpus
    python "$here/../make_demo_corpus.py" "$CORPUS"
  fi
  source "$here/settings.sh" # prepares the filelists
  export CORPUS EXTRA
  exec "$PYTHON" scripts/study.py "$OUT"
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

python scripts/report.py "$OUT" -o "$OUT/report"
echo "all of it took $(((SECONDS + 59) / 60)) minutes"
if [ ${#broken[@]} -gt 0 ]; then
  echo "all.sh: stopped by an error, and left out of the report: ${broken[*]}" >&2
  exit 1
fi
