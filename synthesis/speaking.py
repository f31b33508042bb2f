"""Speech from a trained checkpoint.

speaker = load_speaker("runs/ljspeech/best.pt")
sequence = sequence_to_speak("It was a quiet evening.", speaker.hparams)
speech = speaker.speak_text(sequence)
speaker.write_speech(Path("out/evening"), speech)
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common.errors import UserError
from common.files import naming, read_bytes
from fast_decoder import captured_steps
from hparams import HParams, check_text_settings, create_hparams, hparams_from_dict, read_symbols
from model import Tacotron2, free_running
from synthesis import voice
from synthesis.speaker import Vocoder
from synthesis.speech_statistics import LJSPEECH, SpeechStatistics
from synthesis.torch_speaker import ModelSpeaker
from training.checkpoint import load_checkpoint, load_weights


def load_speaker(
    path: str | Path, overrides: str = "", device: torch.device | None = None
) -> ModelSpeaker:
    """The model of a checkpoint, this recipe's or NVIDIA's (whose settings are the defaults), on a
    GPU if there is one; UserError if it cannot be read or does not fit its settings.
    `decoder=reference` takes its steps one by one on a GPU too."""
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    saved = load_checkpoint(path)
    kept = hparams_from_dict(saved.get("hparams", {}))
    hparams = check_text_settings(create_hparams(overrides, kept))
    if not kept.symbol_table:
        hparams = read_symbols(hparams)  # of another recipe's voice, by --hparams symbols=FILE
    elif hparams.symbols != kept.symbols:
        raise UserError(f"symbols={hparams.symbols}: leave it out; {path} holds its own")
    decoder = captured_steps.free_running if hparams.decoder == "fast" else free_running
    model = Tacotron2(hparams, speaking_decoder=decoder)
    load_weights(model, saved, path)
    epochs = saved.get("loop", {"epoch": 1})["epoch"] - 1
    statistics = statistics_of(saved, hparams)
    longest_text = saved.get("longest_text", statistics and statistics.longest_text)
    return ModelSpeaker(model.to(device).eval(), hparams, statistics, longest_text, epochs)


def statistics_of(saved: dict[str, Any], hparams: HParams) -> SpeechStatistics | None:
    """What a checkpoint says of the speech of its clips; of one that says nothing, as NVIDIA's, in
    English letters LJSpeech's; None for other symbols, whose pace is not known."""
    if saved.get("speech_statistics") is not None:
        return SpeechStatistics(**saved["speech_statistics"])
    return LJSPEECH if hparams.table.is_english else None


def load_vocoder(path: Path, hparams: HParams) -> Vocoder:
    """A vocoder in a file of ONNX, as voice.load_vocoder, or of TorchScript (.pt, .ts, ...), which
    may have an attribute `sampling_rate`."""
    if path.suffix == ".onnx":
        return voice.load_vocoder(path, hparams)
    with naming(path):
        try:
            module = torch.jit.load(io.BytesIO(read_bytes(path, voice.LARGEST_GRAPH)), "cpu").eval()
        except RuntimeError as error:
            reason = (str(error).splitlines() or [""])[0][:120]
            raise UserError(f"no TorchScript ({reason}); name an ONNX file .onnx") from None

    def run(mel: np.ndarray) -> np.ndarray:
        try:
            with torch.no_grad():
                return module(torch.from_numpy(mel)[None]).numpy()
        except Exception as error:  # of many kinds
            last = (str(error).strip().splitlines() or [""])[-1]
            raise UserError(f"a module that cannot be run on a mel ({last:.120})") from None

    return voice.checked_vocoder(path, run, getattr(module, "sampling_rate", None), hparams)
