"""Export a checkpoint as a voice: a folder that works without PyTorch.

    python scripts/export_voice.py --checkpoint runs/ljspeech/best.pt -o voice
    python scripts/export_voice.py --checkpoint runs/ljspeech/best.pt -o voice --fp32
    python scripts/export_voice.py --checkpoint runs/ljspeech/best.pt -o voice --packed

By default, the weights are quantized to int8. An int8 voice is a quarter as large and several times
as fast as a float32 voice. The program prints how much the quantization changes the log-mels of
twenty texts. --fp32 keeps the float32 weights. --packed rounds the int8 weights further and
compresses the graphs, which reduces the size by another third. Before the program writes the
folder, it compares the output of the graphs with PyTorch's output. The folder is written completely
or not at all. The export needs requirements/onnx.txt in addition to requirements.txt
(docs/guides/deploy.md).
"""

import project_root

import itertools
from pathlib import Path

import torch

from corpus.filelist import split_filelist_line
from export.checkpoint_synthesizer import load_checkpoint_synthesizer
from export.voice_export import ComparedText, export_voice
from hparams import HParams
from tacotron2_voice.utils.arguments import make_parser
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import check_is_folder, numbered_lines
from tacotron2_voice.utils.program import run_program
from tacotron2_voice.utterance import text_to_ids

NUM_COMPARED = 20  # number of texts for measuring the effect of the quantization


def read_texts_to_compare(hparams: HParams, path: Path | None) -> list[ComparedText]:
    """Return the first NUM_COMPARED texts of a file, with alternating speakers.

    If `path` is None, the texts are read from the run's validation filelist, or from its training
    filelist if the run has no validation filelist.
    """
    chosen = path or Path(hparams.validation_files or hparams.training_files)
    missing = "no such file; --text-file needs a file with one text per line"
    lines = [line for _, line in numbered_lines(chosen, missing)[:NUM_COMPARED]]
    texts = lines if path else [split_filelist_line(line).text for line in lines]
    if not texts:
        raise UserError(f"{chosen}: contains no texts (expected one text per line)")
    speakers = itertools.cycle(hparams.speakers or [None])
    ids = [text_to_ids(text, hparams, drop_unknown=True) for text in texts]
    return [ComparedText(*pair) for pair in zip(ids, speakers, strict=False)]


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="export this checkpoint")
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="write the voice to this new folder",
    )
    precision = parser.add_mutually_exclusive_group()
    precision.add_argument(
        "--int8", action="store_true", help="quantize the weights to int8 (this is the default)"
    )
    packed_help = "quantize the weights to int8, round them further, and compress the graphs"
    precision.add_argument("--packed", action="store_true", help=packed_help)
    precision.add_argument("--fp32", action="store_true", help="keep the weights in float32")
    text_help = (
        "measure the effect of the quantization with the texts in this file, one per line "
        "(default: the validation filelist)"
    )
    parser.add_argument("--text-file", type=Path, help=text_help)
    hparams_help = "override settings, for example gate_threshold=0.4"
    parser.add_argument("--hparams", default="", help=hparams_help)
    args = parser.parse_args(arguments)
    check_is_folder(args.out, "-o")
    if args.out.is_dir() and any(args.out.iterdir()):
        raise UserError(f"-o {args.out}: the folder is not empty (expected a new or empty folder)")
    synthesizer = load_checkpoint_synthesizer(args.checkpoint, args.hparams, torch.device("cpu"))
    texts = None if args.fp32 else read_texts_to_compare(synthesizer.settings, args.text_file)
    export_voice(synthesizer, args.out, texts, args.packed)


if __name__ == "__main__":
    run_program(main)
