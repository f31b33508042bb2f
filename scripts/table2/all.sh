#!/usr/bin/env bash
# The ten experiments of the paper's Table 2, then the report that puts ours beside the paper's.
#
#   scripts/table2/all.sh            all of it: 34 days on the paper's GPU
#
# Studies of learning: models that learn to speak numbers, several seeds; see scripts/study.py.
#
#   scripts/table2/all.sh --small             the ten, and follow-ups, in ten epochs
#   scripts/table2/all.sh --small --long      five batchings in sixty epochs
#   scripts/table2/all.sh --small --plateau   whether attention forms: fifty runs of three epochs
#   scripts/table2/all.sh --full              the full-size model under three batchings
#   scripts/table2/all.sh --full --attention  the same with four settings of attention
#   scripts/table2/all.sh --full --one-frame  the same with one frame a step
#
# CORPUS, OUT, EPOCHS, SEEDS, EXTRA, PYTHON: see settings.sh. Studies make a corpus without CORPUS and
# train two runs side by side, with one thread each; SIDE_BY_SIDE=1 OMP_NUM_THREADS=2 is as fast for
# the full-size model. The same command resumes where it stopped.

set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
refuse() { echo "all.sh: $1; the first lines of $here/all.sh say what it takes" >&2; exit 2; }
study=$(IFS=-; words=("${@#--}"); echo "${words[*]}")
[[ " $*" != *" "[^-]* ]] || study=unknown
case $study in
  "") ;;
  small) epochs=10 seeds="1 2 3" ;;
  small-long) epochs=60 seeds="1 2 3" ;;
  small-plateau) epochs=3 seeds="1 2 3 4 5 6 7 8 9 10" ;;
  full) epochs=20 seeds="1 2 3" ;;
  full-attention) epochs=10 seeds="1 2" ;;
  full-one-frame) epochs=20 seeds=1 ;;
  *) refuse "$*: not an option" ;;
esac

source "$here/python.sh"
if ! python -c 'import jinja2, pandas, seaborn, statsmodels' 2>/dev/null; then # not after the training
  echo "all.sh: the report needs more packages: $PYTHON -m pip install -r requirements/report.txt" >&2
  exit 1
fi
if [ -n "$study" ]; then
  export OUT=${OUT:-runs/table2-$study} EPOCHS=${EPOCHS:-$epochs} SEEDS=${SEEDS:-$seeds}
  export AUDIO=win_time=None,hop_time=None VAL_FRACTION=0.05 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
  model=scripts/speaking_model.txt
  [[ $study = small* ]] || model=scripts/full_size_model.txt
  # A schedule counts updates, and would lower the rate sooner where batches are smaller.
  fixed=learning_rate_schedule=constant,epochs_per_validation=1,keep_checkpoints=1,num_workers=0
  EXTRA=@$model,$fixed,${EXTRA:-}
  if [ -z "${CORPUS:-}" ]; then
    CORPUS=$OUT/corpus
    python "$here/../make_demo_corpus.py" "$CORPUS"
  fi
  source "$here/settings.sh" # prepares the filelists
  export CORPUS EXTRA
  exec "$PYTHON" scripts/study.py "$study" "$OUT" --side-by-side "${SIDE_BY_SIDE:-2}"
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
