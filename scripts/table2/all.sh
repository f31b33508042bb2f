#!/usr/bin/env bash
# The ten experiments of the paper's Table 2, then the report that puts ours beside the paper's.
#
#   scripts/table2/all.sh                            all of it: 34 days on the paper's GPU
#   scripts/table2/all.sh --quick                    a small model, few clips and epochs: under
#                                                    20 minutes on 2 CPU cores
#   scripts/table2/all.sh --quick-gpu --minutes 60   the full-size model, as many whole epochs of
#                                                    all ten as fit into the minutes
#
# CORPUS, OUT, EPOCHS, SEEDS, EXTRA, PYTHON: see settings.sh. Without CORPUS the quick modes make a
# demo corpus. The same command resumes where it stopped.

set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
refuse() { echo "all.sh: $1; the first lines of $here/all.sh say what it takes" >&2; exit 2; }
mode=full minutes=
while [ $# -gt 0 ]; do
  case $1 in
    --quick | --quick-gpu) mode=${1#--} ;;
    --minutes) shift; minutes=${1:-nothing} ;;
    *) refuse "$1: not an option" ;;
  esac
  shift || true
done
if [ $mode = quick-gpu ]; then
  [[ $minutes =~ ^[1-9][0-9]*$ ]] || refuse "--quick-gpu needs --minutes and a whole number"
elif [ -n "$minutes" ]; then
  refuse "--minutes goes with --quick-gpu"
fi

source "$here/python.sh"
if ! python -c 'import jinja2, pandas, seaborn, statsmodels' 2>/dev/null; then # not after the training
  echo "all.sh: the report needs more packages: $PYTHON -m pip install -r requirements-report.txt" >&2
  exit 1
fi
if [ $mode != full ]; then
  OUT=${OUT:-runs/table2-$mode} EPOCHS=${EPOCHS:-6}
  if [ -z "${CORPUS:-}" ]; then
    CORPUS=$OUT/corpus
    python "$here/../make_demo_corpus.py" "$CORPUS" --clips 85
  elif [ $mode = quick ]; then
    python "$here/../quick_mode.py" corpus "$CORPUS" "$OUT/corpus"
    CORPUS=$OUT/corpus
  fi
fi
source "$here/settings.sh" # prepares the filelists
if [ $mode != full ]; then
  scaled=$(python "$here/../quick_mode.py" $mode "$OUT/filelists/train_mel.txt")
  echo "Scaled down, so it reproduces no figure of the paper: $scaled"
  EXTRA="$scaled,$EXTRA"
  [ $mode = quick-gpu ] || export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # fastest for a small model
fi
export CORPUS OUT EPOCHS SEEDS EXTRA

broken=() # experiments that stopped in training; the others continue
ten() { # all experiments, up to epoch $EPOCHS
  local name status number=0
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
    [[ " ${broken[*]} " == *" $name "* ]] || broken+=("$name")
  done
}

now() { date +%s; }
began=$(now)
if [ $mode = quick-gpu ]; then
  # Round by round, so that all ten reach the same epoch. What the next round can hold is never
  # overestimated: the last one's time an epoch, and the first one's time for starting, are both
  # more than they need be.
  target=$(cat "$OUT/epochs" 2>/dev/null || echo 0) step=1 starting=0
  if [ "$target" -gt 0 ]; then # a round may have been interrupted
    EPOCHS=$target ten
    step=$(($(now) - began < 60 * minutes))
  fi
  while [ $step -gt 0 ]; do
    round_began=$(now)
    echo $((target += step)) >"$OUT/epochs"
    EPOCHS=$target ten
    took=$(($(now) - round_began + 1)) left=$((60 * minutes - ($(now) - began)))
    step=$(((left - starting) * step * 19 / 20 / took))
    starting=$((starting > 0 ? starting : took))
    echo -e "\n== all ten reached epoch $target; $left s left, enough for $((step > 0 ? step : 0)) more"
  done
else
  ten
fi

python scripts/report.py "$OUT" -o "$OUT/report"
echo "all of it took $((($(now) - began + 59) / 60)) minutes"
if [ ${#broken[@]} -gt 0 ]; then
  echo "all.sh: stopped by an error, and left out of the report: ${broken[*]}" >&2
  exit 1
fi
