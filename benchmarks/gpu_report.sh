#!/usr/bin/env bash
# Every GPU check and benchmark, in calls of under ten minutes, most telling first:
#
#   benchmarks/gpu_report.sh 1 [OUT_DIR]         150 s: exactness of the kernels, their times
#   benchmarks/gpu_report.sh 2 [OUT_DIR]         480 s: decoder and training steps over the targets
#   benchmarks/gpu_report.sh 3 [OUT_DIR]         480 s: other tests, kill and resume, speech
#   benchmarks/gpu_report.sh training [OUT_DIR]  400 s: minutes per epoch of RAND and SSB-DBS-BR
#   benchmarks/gpu_report.sh all [OUT_DIR]       one after another
#
# OUT_DIR (default: research/results/gpu-<date>) gets report.md, written again after every part,
# so that a kill leaves what is done, and the files it is made from. A later call adds to it, on
# another machine too if the folder is taken there, and replaces parts of its own.
# --cpu-dry-run before the call runs its parts with tiny sizes on the CPU, to try this script; by
# default into a temporary folder.
#
# From the environment: PYTHON (python3); BUDGET, other seconds for each call; LENGTHS, a filelist
# or CSV of clip lengths as benchmarks/epoch.py reads it (synthetic ones without); COMMIT, for a
# copy of the project without its history.
set -uo pipefail

usage() {
  sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

dry_run=0
if [[ ${1:-} == --cpu-dry-run ]]; then
  dry_run=1
  shift
fi
case ${1:-} in
  1 | 2 | 3 | training) calls=("$1") ;;
  all) calls=(1 2 3 training) ;;
  *) usage ;;
esac
shift
(($# <= 1)) && [[ ${1:-} != -* ]] || usage
if (($# == 0 && dry_run)); then
  set -- "$(mktemp -d)"
fi
out=$(realpath -m "${1:-$(dirname "$0")/results/gpu-$(date +%F)}")
lengths=${LENGTHS:+$(realpath -m "$LENGTHS")}
python=${PYTHON:-python3}
[[ $python == */* && $python != /* ]] && python=$PWD/$python
cd "$(dirname "$0")/.." || exit 2

finds_gpu='import sys, importlib.util as util
sys.exit(util.find_spec("torch") is None or not __import__("torch").cuda.is_available())'
if ((!dry_run)) && ! "$python" -c "$finds_gpu"; then
  echo "gpu_report.sh: $python finds no torch with a GPU here; nothing was measured or written." \
    "Name another Python with PYTHON=..., or try the script itself with --cpu-dry-run" >&2
  exit 1
fi
for file in "$out"/{parts.tsv,dry_run}; do
  if [[ -L $file || (-e $file && ! -f $file) ]]; then
    echo "gpu_report.sh: $file: no regular file; delete it, or name another folder" >&2
    exit 2
  fi
done
was_dry=$([[ -e $out/dry_run ]] && echo 1 || echo 0)
if [[ -e $out/parts.tsv ]] && ((was_dry != dry_run)); then
  echo "gpu_report.sh: $out has the report of $( ((was_dry)) && echo a dry run || echo a GPU)," \
    "expected one of $( ((dry_run)) && echo a dry run || echo a GPU): name another folder" >&2
  exit 2
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$out" || exit 2
((dry_run)) && touch "$out/dry_run"
export PYTHONUNBUFFERED=1

# record NAME STATUS SECONDS COMMAND
record() {
  local begun
  begun=$(date -d "-$3 seconds" "+%F %H:%M")
  printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$call" "$1" "$begun" "$2" "$3" "$4" >>"$out/parts.tsv"
  "$python" benchmarks/gpu_report.py "$out"
}

# part NAME SECONDS COMMAND...: run it for at most so long, within what is left of the call.
part() {
  local name=$1 limit=$2 left=$((until - SECONDS)) began=$SECONDS status shown
  shift 2
  shown=${*//"$out/"/}
  shown=${shown//"$scratch/"/}
  [[ $lengths ]] && shown=${shown//"$lengths"/"${lengths##*/}"}
  shown=${shown/"$python"/python}
  rm -f "$out/$call-$name".*
  if ((left <= budget / 40)); then
    record "$name" "not run: the time was up" 0 "$shown"
    return
  fi
  record "$name" running 0 "$shown"
  echo "$name: $shown"
  timeout --kill-after=5 $((limit < left ? limit : left)) "$@" \
    >"$out/$call-$name.txt" 2>"$out/$call-$name.err"
  case $? in
    0) status=ok ;;
    124 | 137) status="stopped after $((SECONDS - began)) s" ;;
    *) status="failed" ;;
  esac
  echo "$name: $status, $((SECONDS - began)) s"
  record "$name" "$status" $((SECONDS - began)) "$shown"
}

# measure NAME SECONDS PROGRAM OPTION...: a benchmark that writes a JSON file.
measure() {
  local name=$1 limit=$2
  shift 2
  part "$name" "$limit" "$python" "$@" --json "$out/$call-$name.json"
}

# tests NAME SECONDS EXPRESSION FILE...: in several processes, since most of it is compiling, and
# what breaks the GPU's state for one of them leaves the others.
tests() {
  local name=$1 limit=$2 chosen=$3
  shift 3
  part "$name" "$limit" env OMP_NUM_THREADS=1 "$python" -m pytest "$@" -v --durations=5 \
    -p no:cacheprovider "${processes[@]}" -k "$chosen"
}

# sanitize TOOL SECONDS [NAME=VALUE]: the kernels' usual case under compute-sanitizer.
sanitize() {
  local tool=$1 limit=$2
  shift 2
  if [[ -z $sanitizer ]]; then
    record "$tool" "not run: compute-sanitizer is not here" 0 compute-sanitizer
    return
  fi
  part "$tool" "$limit" env "$@" "$sanitizer" --tool "$tool" --error-exitcode 9 "$python" -m pytest \
    tests/test_decoder_kernels.py -q -p no:cacheprovider -k "every_gradient and usual"
}

kernel_tests=(tests/test_decoder_kernels.py tests/test_fast_decoder.py tests/test_self_check.py
  tests/test_captured_steps.py tests/test_encoder_kernels.py)
sanitizer=$(command -v compute-sanitizer || compgen -G "/usr/local/cuda*/bin/compute-sanitizer" |
  head -n 1)
if ((dry_run)); then
  export CUDA_VISIBLE_DEVICES="" OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
  sanitizer="" processes=()
  tiny=symbols_embedding_dim=8,encoder_embedding_dim=8,attention_rnn_dim=8,decoder_rnn_dim=8
  tiny+=,prenet_dim=8,attention_dim=8,attention_location_n_filters=2,postnet_embedding_dim=8
  tiny+=,hop_time=400
  row=(--batch-size 1 --frames 4 --symbols 4 --repeats 1 --warm-ups 0 --hparams "$tiny")
  short=("${row[@]}") memory=("${row[@]}")
  busy=(--clips 24 --steps 2 --hparams "batch_size=2,$tiny")
  soak=(SOAK_STOPS=1) speech=(--texts 1,2 --symbols 4 --steps 5 --repeats 1 --hparams "$tiny")
  training=(--clips 64 --batches 2 --precision fp32 --hparams "batch_size=4,$tiny")
  tf32=fp32
else
  "$python" -c 'import xdist' 2>/dev/null && processes=(--numprocesses 12 --dist worksteal) ||
    processes=()
  row=(--batch-size 16 --frames 774 --symbols 120 --repeats 3 --warm-ups 1 --steps 5)
  memory=(--batch-size 16 --frames 774 --symbols 120)
  short=(--batch-size 64 --frames 203 --symbols 32 --repeats 5 --warm-ups 1 --steps 5)
  busy=() speech=()
  small=symbols_embedding_dim=64,encoder_embedding_dim=64,attention_rnn_dim=128
  small+=,decoder_rnn_dim=128,prenet_dim=32,attention_dim=32,postnet_embedding_dim=64
  soak=(SOAK_STOPS=3 SOAK_SEED=6 SOAK_HPARAMS="$small") # large enough for the kernels
  training=(--capacities 25824,51648 --precision bf16,tf32,fp32)
  tf32=tf32
fi
corpus=(${lengths:+"$lengths"})

call_1() {
  tests tests_gpu 100 "(gpu or usual or more) and not compile" "${kernel_tests[@]}" \
    tests/test_kernels_benchmark.py
  # the kernels' benchmark runs nowhere but on a GPU
  ((dry_run)) || measure kernels 60 benchmarks/kernels.py --repeats 5
}

call_2() {
  measure decoder_bf16 90 benchmarks/decoder.py --precision bf16 "${row[@]}" --only speed
  measure busy 150 benchmarks/busy.py --precision bf16 "${busy[@]}"
  measure decoder_64 60 benchmarks/decoder.py --precision bf16 "${short[@]}" --only speed
  measure decoder_tf32 90 benchmarks/decoder.py --precision $tf32 "${row[@]}" --only speed
  measure decoder_fp32 90 benchmarks/decoder.py --precision fp32 "${row[@]}" --only speed
  # TF32 changes no tensor's size.
  measure memory_bf16 90 benchmarks/decoder.py --precision bf16 "${memory[@]}" --only memory
  measure memory_fp32 90 benchmarks/decoder.py --precision fp32 "${memory[@]}" --only memory
}

call_3() {
  part kill_and_resume 220 env SOAK_ONLY=SIGKILL "${soak[@]}" "$python" -m pytest -m slow -v \
    -p no:cacheprovider --basetemp "$scratch/soak" tests/test_soak.py
  tests out_of_memory 120 "gpu or cuda" tests/test_memory_check.py
  measure synthesis 60 benchmarks/speaking.py "${speech[@]}"
  sanitize memcheck 70 PYTORCH_NO_CUDA_MEMORY_CACHING=1
  sanitize racecheck 70
  tests tests_other $((dry_run ? 10 : 120)) "not (gpu or usual or more)" "${kernel_tests[@]}"
}

call_training() {
  measure epoch 380 benchmarks/epoch.py "${training[@]}" "${corpus[@]}"
}

for call in "${calls[@]}"; do
  declare -A budgets=([1]=150 [2]=480 [3]=480 [training]=400)
  budget=60 until=$((SECONDS + 60))
  # a copy of the working tree without .git knows its commit only from whoever sent it
  part environment 60 sh -c 'echo "commit: ${COMMIT:-$(git describe --always --dirty)}"; exec "$@"' \
    - "$python" -W ignore -m torch.utils.collect_env
  budget=${BUDGET:-${budgets[$call]}} until=$((SECONDS + budget))
  "call_$call"
done
echo "wrote $out/report.md"
