#!/usr/bin/env bash
# Every GPU check and benchmark in one call of under nine minutes, most telling first; writes
# report.json, report.md and a picture, anew after every part, so that a kill leaves what is done.
#
#   benchmarks/gpu_report.sh [OUT_DIR]                  default: benchmarks/results/gpu-<date>
#   benchmarks/gpu_report.sh --cpu-rehearsal [OUT_DIR]  the same parts, tiny, on the CPU: to try this
#                                                       script; default: a temporary folder
#
# From the environment: PYTHON (python3); BUDGET, seconds for everything (510); LENGTHS, a CSV of
# clip lengths as benchmarks/epoch.py reads it, and SYMBOLS, its metadata (made-up ones without);
# COMMIT, for a copy of the project without its history.
set -uo pipefail

rehearsal=0
if [[ ${1:-} == --cpu-rehearsal ]]; then
  rehearsal=1
  shift
fi
if (($# > 1)) || [[ ${1:-} == -* ]]; then
  sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
if (($# == 0 && rehearsal)); then
  set -- "$(mktemp -d --tmpdir gpu-report.XXXXXX)"
fi
out=$(realpath -m "${1:-$(dirname "$0")/results/gpu-$(date +%F)}")
lengths=${LENGTHS:+$(realpath -m "$LENGTHS")}
symbols=${SYMBOLS:+$(realpath -m "$SYMBOLS")}
python=${PYTHON:-python3}
[[ $python == */* && $python != /* ]] && python=$PWD/$python
cd "$(dirname "$0")/.." || exit 2
budget=${BUDGET:-510}

if ((!rehearsal)) && ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "gpu_report.sh: $python finds no torch with a GPU here; nothing was measured or written." \
    "Name another Python with PYTHON=..., or try the script itself with --cpu-rehearsal" >&2
  exit 1
fi
mkdir -p "$out" || exit 2
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
export PYTHONUNBUFFERED=1

# part NAME SECONDS COMMAND...: run it for at most so long, within what is left of the budget;
# what it prints, and how it ended, go to $parts; then the report is written anew.
part() {
  local name=$1 limit=$2 left=$((budget - SECONDS)) began=$SECONDS status shown
  shift 2
  shown=${*//"$parts/"/}
  shown=${shown//"$out/"/}
  shown=${shown/"$python"/python}
  if ((left < 10)); then
    status="not run: the time was up"
  else
    echo "$name: $shown"
    timeout --kill-after=5 $((limit < left ? limit : left)) "$@" \
      >"$parts/$name.out" 2>"$parts/$name.err"
    case $? in
      0) status=ok ;;
      124 | 137) status="stopped after $((SECONDS - began)) s" ;;
      *) status="failed" ;;
    esac
    echo "$name: $status, $((SECONDS - began)) s"
  fi
  printf '%s\t%s\t%s\t%s\n' "$name" "$status" $((SECONDS - began)) "$shown" >>"$parts/parts.tsv"
  "$python" benchmarks/gpu_report.py "$parts" "$out" >/dev/null
}

# measure NAME SECONDS PROGRAM OPTION...: a benchmark that writes a JSON file.
measure() {
  local name=$1 limit=$2
  shift 2
  part "$name" "$limit" "$python" "$@" --json "$parts/$name.json"
}

tests() {
  part "$1" "$2" "$python" -m pytest tests/test_decoder_kernels.py tests/test_fast_decoder.py \
    -v --durations=5 -p no:cacheprovider -k "$3"
}

if ((rehearsal)); then
  touch "$parts/rehearsal"
  export CUDA_VISIBLE_DEVICES="" OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
  tiny=symbols_embedding_dim=8,encoder_embedding_dim=8,attention_rnn_dim=8,decoder_rnn_dim=8
  tiny+=,prenet_dim=8,attention_dim=8,postnet_embedding_dim=8,hop_time=100
  row=(--batch-size 1 --frames 4 --symbols 4 --repeats 1 --warm-ups 0 --no-memory)
  short=("${row[@]}")
  busy=(--clips 24 --steps 2 --warm-ups 1 --session 1 --hparams "decoder=fast,batch_size=2,$tiny")
  epoch=(--clips 64 --batches 2 --repeats 1 --hparams "batch_size=4,$tiny")
  loader=(--clips 16 --repeats 1 --num-workers 0 --rate 1e6)
  curves=(--steps 2)
  tf32=fp32
else
  row=(--batch-size 16 --frames 774 --symbols 120)
  short=(--batch-size 64 --frames 203 --symbols 32)
  busy=() epoch=(--repeats 2) curves=(--device cuda)
  loader=(--num-workers "0,4" --repeats 1)
  tf32=tf32
fi
epoch=("${epoch[@]}" ${lengths:+"$lengths"} ${symbols:+--symbols "$symbols"})

part environment 30 "$python" benchmarks/gpu_report.py --environment "$parts/environment.json"
tests tests_gpu 120 "(gpu or usual or more) and not compile"
measure decoder_bf16 90 benchmarks/decoder.py --precision bf16 "${row[@]}"
measure decoder_tf32 90 benchmarks/decoder.py --precision $tf32 "${row[@]}"
measure decoder_fp32 90 benchmarks/decoder.py --precision fp32 "${row[@]}"
measure decoder_bf16_64_clips 60 benchmarks/decoder.py --precision bf16 "${short[@]}"
measure busy_bf16 120 benchmarks/busy.py --precision bf16 "${busy[@]}"
measure epoch_bf16 80 benchmarks/epoch.py --precision bf16 "${epoch[@]}"
if [[ -e benchmarks/kernels.py ]] && ((!rehearsal)); then
  measure kernels 60 benchmarks/kernels.py
fi
measure loss_curves 40 benchmarks/loss_curves.py --picture "$out/loss-curves.svg" "${curves[@]}"
measure loader 60 benchmarks/loader.py "${loader[@]}"
measure epoch_fp32 60 benchmarks/epoch.py --precision fp32 "${epoch[@]}" --capacities "" --batches 8
measure epoch_bf16_reference 60 benchmarks/epoch.py --precision bf16 --decoder reference \
  "${epoch[@]}" --capacities "" --batches 4
tests tests_other $((rehearsal ? 10 : 90)) "not (gpu or usual or more)"
echo "wrote $out/report.md and $out/report.json"
