# Define what all ten experiments share; each experiment sources this file. Environment variables:
#
#   CORPUS   folder in LJSpeech's layout                   (data/LJSpeech-1.1)
#   OUT      folder for filelists, mels, runs and report     (runs/table2)
#   EPOCHS   number of epochs (222, because the loss at epoch 220 is smoothed with the next validation)
#   SEEDS    seeds (0); with several, such as "0 1 2", the report has means and standard errors
#   EXTRA    overrides of all other settings, such as "precision=bf16,num_workers=8"
#   PYTHON   the Python of the environment that requirements.txt was installed into (python)
#
# An existing run is resumed; a finished run prints a message and does not change.

set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/python.sh"
CORPUS=$(realpath -m "${CORPUS:-data/LJSpeech-1.1}")
OUT=$(realpath -m "${OUT:-runs/table2}")
EPOCHS=${EPOCHS:-222}
SEEDS=${SEEDS:-0}
EXTRA=${EXTRA:-}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

AUDIO="win_time=50,hop_time=12.5" # ms
CLEANERS="text_cleaners=[english_cleaners]" # NVIDIA's
LISTS="training_files=$OUT/filelists/train_mel.txt,validation_files=$OUT/filelists/val_mel.txt"
SETTINGS="$LISTS,load_mel_from_disk=True,$AUDIO,$CLEANERS,batch_size=16,precision=fp32,loss=padded"
SETTINGS+=",epochs=$EPOCHS,epochs_per_validation=2,prepare_trainset_per_epoch=True,random_epochs=0"
SETTINGS+=",local_randomization_factor=0.1,bucket_size=1024,num_bins=58,guided_attention_weight=0"
SETTINGS+=",gate_positive_weight=1"

train() { # arguments: name of the experiment, settings of its batching
  for seed in $SEEDS; do
    python train.py -o "$OUT/$1/seed_$seed" --resume --hparams "$SETTINGS,seed=$seed,$2,$EXTRA"
  done
}

prepare() { # runs once for all ten experiments
  if [ -e "$OUT/corpus.txt" ] && [ "$(cat "$OUT/corpus.txt")" != "$CORPUS" ]; then
    echo "$OUT contains runs on $(cat "$OUT/corpus.txt"), but CORPUS is $CORPUS: choose another OUT" >&2
    exit 1
  fi
  [ -e "$OUT/corpus.txt" ] && return
  python scripts/prepare.py "$CORPUS" --out "$OUT/filelists" --cache-mels "$OUT/mels" \
    --hparams "$AUDIO,$CLEANERS${EXTRA:+,$EXTRA}"
  echo "$CORPUS" >"$OUT/.corpus.tmp"
  mv "$OUT/.corpus.tmp" "$OUT/corpus.txt" # written last, so that an interrupted preparation is repeated
}

mkdir -p "$OUT"
for file in "$OUT"/{.prepare.lock,.corpus.tmp,corpus.txt}; do
  if [[ -L $file || (-e $file && ! -f $file) ]]; then
    echo "$file: not a regular file; delete it, or choose another OUT" >&2
    exit 1
  fi
done
exec 9>>"$OUT/.prepare.lock"
flock 9 # two experiments may start at the same time, on two GPUs
prepare
exec 9>&-
