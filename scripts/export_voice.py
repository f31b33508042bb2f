"""Export a trained checkpoint as a voice: a folder that speaks without PyTorch.

    python scripts/export_voice.py --checkpoint runs/ljspeech/best.pt -o voice
    python scripts/export_voice.py --checkpoint runs/ljspeech/best.pt -o voice --fp32
    python scripts/export_voice.py --checkpoint runs/ljspeech/best.pt -o voice --packed

Weights become 8-bit integers, a quarter of the size and several times as fast, unless --fp32 keeps
them; what that changes is measured on twenty texts and printed. --packed rounds them further and
packs the graphs: two thirds of that size. The graphs are compared with torch before the folder is
written, whole or not at all. It needs requirements/onnx.txt besides requirements.txt
(docs/voices.md).
"""

import project_root

import itertools
from pathlib import Path

import torch

from corpus.filelist import split_filelist_line
from export.checkpoint_synthesizer import load_checkpoint_synthesizer
from export.voice_export import SpokenText, export_voice
from hparams import HParams
from tacotron2_voice.utils.arguments import make_parser
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import numbered_lines, refuse_no_folder
from tacotron2_voice.utils.program import run_program
from tacotron2_voice.utterance import sequence_to_speak

NUM_COMPARED = 20  # texts


def read_texts_to_compare(hparams: HParams, path: Path | None) -> list[SpokenText]:
    """NUM_COMPARED texts: the first lines of a file, or of the run's validation list, or of its
    training list if it had no other. The speakers take turns."""
    chosen = path or Path(hparams.validation_files or hparams.training_files)
    missing = "no such file; name one with a text on each line, by --text-file, or choose --fp32"
    lines = [line for _, line in numbered_lines(chosen, missing)[:NUM_COMPARED]]
    texts = lines if path else [split_filelist_line(line).text for line in lines]
    if not texts:
        raise UserError(f"{chosen}: no text in it; write one per line")
    speakers = itertools.cycle(hparams.speakers or [None])
    ids = [sequence_to_speak(text, hparams, drop_unknown=True) for text in texts]
    return [SpokenText(*pair) for pair in zip(ids, speakers, strict=False)]


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FOLDER", help="a new one")
    precision = parser.add_mutually_exclusive_group()
    precision.add_argument("--int8", action="store_true", help="8-bit weights, the default")
    packed_help = "8-bit weights, rounded further and packed: the smallest"
    precision.add_argument("--packed", action="store_true", help=packed_help)
    precision.add_argument("--fp32", action="store_true", help="as the checkpoint has them")
    default = f"default: {NUM_COMPARED} of the run's validation list"
    text_help = f"to compare, one on each line; {default}"
    parser.add_argument("--text-file", type=Path, help=text_help)
    parser.add_argument("--hparams", default="", help="for example gate_threshold=0.4")
    args = parser.parse_args(arguments)
    refuse_no_folder(args.out, "-o")
    if args.out.is_dir() and any(args.out.iterdir()):
        raise UserError(f"{args.out}: not empty; choose another -o, or delete it")
    speaker = load_checkpoint_synthesizer(args.checkpoint, args.hparams, torch.device("cpu"))
    texts = None if args.fp32 else read_texts_to_compare(speaker.hparams, args.text_file)
    export_voice(speaker, args.out, texts, args.packed)


if __name__ == "__main__":
    run_program(main)
