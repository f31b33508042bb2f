#!/usr/bin/env bash
# Every GPU check and benchmark, in calls of under ten minutes, most telling first:
#
#   benchmarks/gpu_report.sh 1 [OUT_DIR]         300 s: exactness of the kernels, their times
#   benchmarks/gpu_report.sh 2 [OUT_DIR]         540 s: decoder and training steps over the targets
#   benchmarks/gpu_report.sh 3 [OUT_DIR]         540 s: kernels' variants, precisions, kill and resume
#   benchmarks/gpu_report.sh training [OUT_DIR]  540 s: minutes per epoch of whole training
#   benchmarks/gpu_report.sh all [OUT_DIR]       one after another
#
# OUT_DIR (default: benchmarks/results/gpu-<date>) gets report.json, report.md and pictures. They
# are written anew after every part, so that a kill leaves what is done. report.json holds
# everything: a later call goes on from it, on another machine too, and replaces parts of its own.
# --cpu-rehearsal before the call runs its parts tiny on the CPU, to try this script; by default
# into a temporary folder.
#
# From the environment: PYTHON (python3); BUDGET, other seconds for each call; LENGTHS, a CSV of
# clip lengths as benchmarks/epoch.py reads it, and SYMBOLS, its metadata (made-up ones without);
# COMMIT, for a copy of the project without its history.
set -uo pipefail

usage() {
  sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

rehearsal=0
if [[ ${1:-} == --cpu-rehearsal ]]; then
  rehearsal=1
  shift
fi
case ${1:-} in
  1 | 2 | 3 | training) calls=("$1") ;;
  all) calls=(1 2 3 training) ;;
  *) usage ;;
esac
shift
(($# <= 1)) && [[ ${1:-} != -* ]] || usage
if (($# == 0 && rehearsal)); then
  set -- "$(mktemp -d --tmpdir gpu-report.XXXXXX)"
fi
out=$(realpath -m "${1:-$(dirname "$0")/results/gpu-$(date +%F)}")
lengths=${LENGTHS:+$(realpath -m "$LENGTHS")}
symbols=${SYMBOLS:+$(realpath -m "$SYMBOLS")}
python=${PYTHON:-python3}
[[ $python == */* && $python != /* ]] && python=$PWD/$python
cd "$(dirname "$0")/.." || exit 2

if ((!rehearsal)) && ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "gpu_report.sh: $python finds no torch with a GPU here; nothing was measured or written." \
    "Name another Python with PYTHON=..., or try the script itself with --cpu-rehearsal" >&2
  exit 1
fi
work=$out/under_way # what the part that runs has printed and measured so far
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$work" || exit 2
export PYTHONUNBUFFERED=1

record() { "$python" benchmarks/gpu_report.py "$out" "$@"; }

# part NAME SECONDS COMMAND...: run it for at most so long, within what is left of the call.
part() {
  local name=$1 limit=$2 left=$((until - SECONDS)) began=$SECONDS status shown
  shift 2
  shown=${*//"$work/"/}
  shown=${shown//"$out/"/}
  shown=${shown//"$scratch/"/}
  shown=${shown/"$python"/python}
  local about=(--part "$name" --call "$call" --command "$shown")
  if ((left <= budget / 40)); then
    record "${about[@]}" --status "not run: the time was up"
    return
  fi
  record "${about[@]}"
  echo "$name: $shown"
  timeout --kill-after=5 $((limit < left ? limit : left)) "$@" \
    >"$work/output.txt" 2>"$work/errors.txt"
  case $? in
    0) status=ok ;;
    124 | 137) status="stopped after $((SECONDS - began)) s" ;;
    *) status="failed" ;;
  esac
  echo "$name: $status, $((SECONDS - began)) s"
  record "${about[@]}" --status "$status" --seconds $((SECONDS - began))
}

# measure NAME SECONDS PROGRAM OPTION...: a benchmark that writes a JSON file.
measure() {
  local name=$1 limit=$2
  shift 2
  part "$name" "$limit" "$python" "$@" --json "$work/result.json"
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
    record --part "$tool" --call "$call" --command compute-sanitizer \
      --status "not run: compute-sanitizer is not here"
    return
  fi
  part "$tool" "$limit" env "$@" "$sanitizer" --tool "$tool" --error-exitcode 9 "$python" -m pytest \
    tests/test_decoder_kernels.py -q -p no:cacheprovider -k "gradient_are_those and usual"
}

kernel_tests=(tests/test_decoder_kernels.py tests/test_fast_decoder.py tests/test_self_check.py
  tests/test_captured_steps.py)
sanitizer=$(command -v compute-sanitizer || compgen -G "/usr/local/cuda*/bin/compute-sanitizer" |
  head -n 1)
if ((rehearsal)); then
  export CUDA_VISIBLE_DEVICES="" OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
  sanitizer="" processes=()
  tiny=symbols_embedding_dim=8,encoder_embedding_dim=8,attention_rnn_dim=8,decoder_rnn_dim=8
  tiny+=,prenet_dim=8,attention_dim=8,attention_location_n_filters=2,postnet_embedding_dim=8
  tiny+=,hop_time=400
  row=(--batch-size 1 --frames 4 --symbols 4 --repeats 1 --warm-ups 0 --hparams "$tiny")
  short=("${row[@]}") memory=("${row[@]}")
  busy=(--clips 24 --steps 2 --warm-ups 1 --session 1 --hparams "decoder=fast,batch_size=2,$tiny")
  epoch=(--clips 64 --batches 2 --repeats 1 --hparams "batch_size=4,$tiny")
  loader=(--clips 16 --repeats 1 --num-workers 0 --rate 1e6)
  curves=(--steps 2) precisions=(--steps 2 --hparams "$tiny")
  soak=(--stops 1) speaking=(--texts 1,2 --symbols 4 --steps 5 --repeats 1 --hparams "$tiny")
  training=(--clips 24 --budget 10 --least-steps 3 --warm-ups 1 --reference-batches 2
    --hparams "batch_size=2,$tiny")
  tf32=fp32
else
  processes=(--numprocesses 6 --dist worksteal)
  row=(--batch-size 16 --frames 774 --symbols 120 --repeats 5)
  memory=(--batch-size 16 --frames 774 --symbols 120 --repeats 1 --warm-ups 1)
  short=(--batch-size 64 --frames 203 --symbols 32 --repeats 5)
  busy=() epoch=(--repeats 2) curves=(--device cuda) precisions=()
  loader=(--num-workers "0,4" --repeats 1) speaking=()
  small=symbols_embedding_dim=64,encoder_embedding_dim=64,attention_rnn_dim=128
  small+=,decoder_rnn_dim=128,prenet_dim=32,attention_dim=32,postnet_embedding_dim=64
  soak=(--stops 3 --seed 6 --hparams "$small") # large enough for the kernels
  training=(--budget 500)
  tf32=tf32
fi
corpus=(${lengths:+"$lengths"} ${symbols:+--symbols "$symbols"})
gpu_only() { ((rehearsal)) || "$@"; } # the kernels' benchmark runs nowhere else

call_1() {
  tests tests_gpu 150 "(gpu or usual or more) and not compile" "${kernel_tests[@]}"
  gpu_only measure kernels 90 benchmarks/kernels.py --repeats 5
  gpu_only measure launches 90 benchmarks/kernels.py --repeats 5 --launches
}

call_2() {
  measure decoder_bf16 90 benchmarks/decoder.py --precision bf16 "${row[@]}" --no-memory
  measure decoder_tf32 90 benchmarks/decoder.py --precision $tf32 "${row[@]}" --no-memory
  measure decoder_fp32 90 benchmarks/decoder.py --precision fp32 "${row[@]}" --no-memory
  measure decoder_bf16_64_clips 60 benchmarks/decoder.py --precision bf16 "${short[@]}" --no-memory
  measure busy_bf16 180 benchmarks/busy.py --precision bf16 "${busy[@]}"
  measure memory_bf16 70 benchmarks/decoder.py --precision bf16 "${memory[@]}"
  measure memory_tf32 70 benchmarks/decoder.py --precision $tf32 "${memory[@]}"
  measure memory_fp32 70 benchmarks/decoder.py --precision fp32 "${memory[@]}"
}

call_3() {
  gpu_only measure variants 180 benchmarks/kernels.py --variants
  part kill_and_resume 150 "$python" scripts/soak.py --cached-mels --only SIGKILL --out "$scratch/soak" \
    "${soak[@]}"
  tests out_of_memory 60 "memory and gpu" tests/test_rehearsal.py
  measure precisions 90 benchmarks/precisions.py "${precisions[@]}" \
    --picture "$out/precisions.svg"
  measure synthesis 60 benchmarks/synthesis.py "${speaking[@]}"
  sanitize memcheck 70 PYTORCH_NO_CUDA_MEMORY_CACHING=1
  sanitize racecheck 70
  measure loss_curves 60 benchmarks/loss_curves.py --picture "$out/loss-curves.svg" "${curves[@]}"
  measure loader 40 benchmarks/loader.py "${loader[@]}"
  measure epoch_bf16 80 benchmarks/epoch.py --precision bf16 "${epoch[@]}" "${corpus[@]}"
  tests tests_other $((rehearsal ? 10 : 90)) "not (gpu or usual or more)" "${kernel_tests[@]}"
}

call_training() {
  measure train_epochs 535 benchmarks/train_epochs.py --picture "$out/train-epochs.svg" \
    "${training[@]}" "${corpus[@]}"
}

((rehearsal)) && begin=(--begin --rehearsal) || begin=(--begin)
record "${begin[@]}" || exit 2
for call in "${calls[@]}"; do
  budget=${BUDGET:-$([[ $call == 1 ]] && echo 300 || echo 540)}
  until=$((SECONDS + budget))
  part environment 30 "$python" benchmarks/gpu_report.py --environment "$work/result.json"
  "call_$call"
done
rmdir "$work"
echo "wrote $out/report.md and $out/report.json"
