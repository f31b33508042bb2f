"""Export published HiFi-GAN weights as a vocoder: an ONNX file for --vocoder.

    python scripts/export_vocoder.py --weights LJ_V1/generator_v1 -o vocoder.onnx
    python scripts/export_vocoder.py --weights UNIVERSAL_V1/g_02500000 -o vocoder.onnx --voice voice

The program reads the vocoder's settings from config.json in the folder of the weights, or from
--config. With --voice or --checkpoint, the program checks that the vocoder was trained with the
same log-mel settings as the voice. The ONNX file contains the vocoder's log-mel settings. Programs
with the option --vocoder compare the settings in the file with the settings of the voice. --fp16
halves the size of the file; the vocoder still computes in float32. Before the program writes the
file, it compares the audio from the graph with the audio from PyTorch. The export needs
requirements/onnx.txt in addition to requirements.txt (docs/guides/deploy.md).
"""

import project_root

import io
import shlex
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from export.hifi_gan import CONFIG, Generator, load_generator
from export.loading import load_synthesizer
from export.voice_export import write_graph
from tacotron2_voice.onnx_graph import OnnxGraph
from tacotron2_voice.utils.arguments import make_parser, output_file
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import write_bytes
from tacotron2_voice.utils.program import run_program
from tacotron2_voice.vocoder import check_mel_settings

# Lengths (in frames) of the log-mels used to compare the graph with PyTorch.
COMPARED_FRAMES = (16, 100)
# Maximum difference between the audio from the graph and PyTorch's audio, relative to the largest
# sample. These limits are ten times the measured differences.
MAX_DIFFERENCE = 5e-5
MAX_DIFFERENCE_FP16 = 2e-2


def make_graph(generator: Generator) -> onnx.ModelProto:
    """Return the generator as an ONNX graph in float32, with its log-mel settings as metadata."""
    file = io.BytesIO()
    mel = torch.zeros(1, generator.config.num_mels, COMPARED_FRAMES[0])
    write_graph(generator, [mel], file, ["mel"], ["audio"], {"mel": [2], "audio": [2]})
    graph = onnx.load_from_string(file.getvalue())
    settings = generator.config.mel_settings()
    helper.set_model_props(graph, {name: str(value) for name, value in settings.items()})
    return graph


def to_fp16(graph: onnx.ModelProto) -> None:
    """Store the weights in float16, and insert casts to float32 for the computation.

    The graph computes in float32 because few processors compute in float16.
    """
    casts = []
    for weight in graph.graph.initializer:
        if weight.data_type == TensorProto.FLOAT:
            name = weight.name
            half = f"{name}_fp16"
            array = numpy_helper.to_array(weight).astype(np.float16)
            weight.CopyFrom(numpy_helper.from_array(array, half))
            casts.append(helper.make_node("Cast", [half], [name], to=TensorProto.FLOAT))
    nodes = [*casts, *graph.graph.node]
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)


@torch.no_grad()
def difference_from_torch(content: bytes, generator: Generator) -> float:
    """Compare the audio from the graph with PyTorch's audio, for random log-mels.

    The values of the log-mels are between -11.5 and 2, as in speech.

    Returns:
        The largest difference between two samples, relative to the largest sample.
    """
    graph = OnnxGraph(content, threads=1)
    rng = np.random.default_rng(0)
    largest = 0.0
    for frames in COMPARED_FRAMES:
        shape = (1, generator.config.num_mels, frames)
        mel = rng.uniform(-11.5, 2, shape).astype(np.float32)
        expected = generator(torch.from_numpy(mel)).numpy()
        [audio] = graph.run({"mel": mel})
        difference = np.abs(audio - expected).max() / np.abs(expected).max()
        # np.maximum returns NaN if a value is NaN, whereas max may ignore NaN.
        largest = float(np.maximum(largest, difference))
    return largest


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add(
        "--weights",
        type=Path,
        required=True,
        metavar="FILE",
        help="export these weights, such as generator_v1 or g_02500000",
    )
    add(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"read the settings from this file (default: {CONFIG} in the folder of the weights)",
    )
    add(
        "-o",
        "--out",
        type=output_file,
        required=True,
        metavar="FILE",
        help="write the vocoder to this file",
    )
    matching = parser.add_mutually_exclusive_group()
    matching.add_argument(
        "--voice",
        type=Path,
        metavar="FOLDER",
        help="check that the vocoder matches this exported voice",
    )
    matching.add_argument(
        "--checkpoint",
        type=Path,
        dest="voice",
        metavar="FILE",
        help="check that the vocoder matches this checkpoint",
    )
    add("--fp16", action="store_true", help="store the weights in float16")
    args = parser.parse_args(arguments)
    config_path = args.config or args.weights.with_name(CONFIG)
    generator = load_generator(args.weights, config_path)
    settings = generator.config.mel_settings()
    model = "--voice VOICE"
    if args.voice:
        voice_settings = load_synthesizer(args.voice).settings
        check_mel_settings(config_path, settings, voice_settings)
        option = "--checkpoint" if args.voice.is_file() else "--voice"
        model = f"{option} {shlex.quote(str(args.voice))}"
        if len(voice_settings.speakers) > 1:
            model += f" --speaker {shlex.quote(voice_settings.speakers[0])}"
    graph = make_graph(generator)
    if args.fp16:
        to_fp16(graph)
    content = graph.SerializeToString()
    difference = difference_from_torch(content, generator)
    largest = MAX_DIFFERENCE_FP16 if args.fp16 else MAX_DIFFERENCE
    if not difference <= largest:  # `not ... <=` is also true for NaN
        raise UserError(
            f"{args.weights}: the audio from the graph differs from PyTorch's audio by "
            f"{difference:.1e}, relative to the largest sample (expected at most {largest:.0e})"
        )
    write_bytes(args.out, content)
    print(
        "largest difference between the audio from the graph and the audio from PyTorch, relative "
        f"to the largest sample: {difference:.1e}"
    )
    print(
        "log-mel settings of the vocoder: "
        + ", ".join(f"{name}={value:g}" for name, value in settings.items())
    )
    print(f"wrote {args.out}, {len(content) / 1e6:.1f} MB")
    options = f"{model} --vocoder {shlex.quote(str(args.out))} --text ... -o out.wav"
    print(f"To synthesize speech with this vocoder, run: python synthesize.py {options}")


if __name__ == "__main__":
    run_program(main)
