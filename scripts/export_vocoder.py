"""Export HiFi-GAN's published weights as a vocoder: an ONNX file for --vocoder.

    python scripts/export_vocoder.py --weights LJ_V1/generator_v1 -o vocoder.onnx
    python scripts/export_vocoder.py --weights UNIVERSAL_V1/g_02500000 -o vocoder.onnx --voice voice

The settings are read from the config.json beside the weights, or that of --config. With --voice or
--checkpoint its mels must be those of the voice; --vocoder compares them again, for the file holds
their settings. --fp16 stores the weights in half as many bytes; computing remains in float32. The
graph is compared with torch before the file is written. It needs requirements/onnx.txt besides
requirements.txt (docs/voices.md).
"""

import project_root

import io
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from export.hifi_gan import CONFIG, Generator, load_generator
from export.loading import load_synthesizer
from export.voice_export import write_graph
from tacotron2_voice.onnx_graph import Graph
from tacotron2_voice.utils.arguments import make_parser, output_file
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import write_bytes
from tacotron2_voice.utils.program import run_program
from tacotron2_voice.vocoder import refuse_other_mels

COMPARED_FRAMES = (16, 100)
MAX_DIFFERENCE = {False: 5e-5, True: 2e-2}  # of the largest sample, by --fp16; ten times those seen


def make_graph(generator: Generator) -> onnx.ModelProto:
    """The generator's graph in float32, with the settings of its mels as metadata."""
    file, mel = io.BytesIO(), torch.zeros(1, generator.config.num_mels, COMPARED_FRAMES[0])
    write_graph(generator, [mel], file, ["mel"], ["sound"], {"mel": [2], "sound": [2]})
    graph = onnx.load_from_string(file.getvalue())
    settings = generator.config.mel_settings()
    helper.set_model_props(graph, {name: str(value) for name, value in settings.items()})
    return graph


def to_fp16(graph: onnx.ModelProto) -> None:
    """Store the weights in float16, and convert them to float32 where they are used: processors
    rarely compute in float16."""
    casts = []
    for weight in graph.graph.initializer:
        if weight.data_type == TensorProto.FLOAT:
            name, half = weight.name, f"{weight.name}_fp16"
            array = numpy_helper.to_array(weight).astype(np.float16)
            weight.CopyFrom(numpy_helper.from_array(array, half))
            casts.append(helper.make_node("Cast", [half], [name], to=TensorProto.FLOAT))
    nodes = [*casts, *graph.graph.node]
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)


@torch.no_grad()
def difference_from_torch(content: bytes, path: Path, generator: Generator) -> float:
    """How far the graph's sound of random mels is from torch's, as a share of the largest sample.
    Mels of speech lie between -11.5 and 2."""
    graph, rng = Graph(path, content, 1), np.random.default_rng(0)
    config, largest = generator.config, 0.0
    for frames in COMPARED_FRAMES:
        mel = rng.uniform(-11.5, 2, (1, config.num_mels, frames)).astype(np.float32)
        seconds = frames * config.hop_size / config.sampling_rate
        expected = generator(torch.from_numpy(mel)).numpy()
        [sound] = graph.run({"mel": mel}, seconds)
        difference = np.abs(sound - expected).max() / np.abs(expected).max()
        largest = float(np.maximum(largest, difference))  # nan stays
    return largest


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    weights_help = "generator_v1, g_02500000, ..."
    parser.add_argument("--weights", type=Path, required=True, metavar="FILE", help=weights_help)
    config_help = f"default: the {CONFIG} beside the weights"
    parser.add_argument("--config", type=Path, metavar="FILE", help=config_help)
    parser.add_argument("-o", "--out", type=output_file, required=True, metavar="FILE")
    voice = parser.add_mutually_exclusive_group()
    voice.add_argument("--voice", type=Path, metavar="FOLDER", help="that will use the vocoder")
    voice.add_argument("--checkpoint", type=Path, dest="voice", metavar="FILE", help="the same")
    parser.add_argument("--fp16", action="store_true", help="half the size")
    args = parser.parse_args(arguments)
    config_path = args.config or args.weights.with_name(CONFIG)
    generator = load_generator(args.weights, config_path)
    settings = generator.config.mel_settings()
    if args.voice:
        refuse_other_mels(config_path, settings, load_synthesizer(args.voice).hparams)
    graph = make_graph(generator)
    if args.fp16:
        to_fp16(graph)
    content = graph.SerializeToString()
    difference = difference_from_torch(content, args.out, generator)
    if not difference <= (most := MAX_DIFFERENCE[args.fp16]):  # true for nan as well
        raise UserError(
            f"{args.weights}: the graph differs from torch by {difference:.1e} of the largest "
            f"sample, expected at most {most:.0e}; nothing was written"
        )
    write_bytes(args.out, content)
    print(f"beside torch: {difference:.1e} of the largest sample")
    print("for mels of " + ", ".join(f"{name}={value:g}" for name, value in settings.items()))
    voice_path = args.voice or "..."
    speak = f"python synthesize.py --voice {voice_path} --vocoder {args.out} --text ... -o out.wav"
    print(f"wrote {args.out}, {len(content) / 1e6:.1f} MB: {speak}")


if __name__ == "__main__":
    run_program(main)
