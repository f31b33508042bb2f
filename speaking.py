"""Speech from a trained checkpoint.

speaker = load_speaker("runs/ljspeech/best.pt")
sequence = sequence_to_speak("It was a quiet evening.", speaker.hparams)
speech = speaker.speak_text(sequence)
speaker.write_speech(Path("out/evening"), speech)
"""

import io
from pathlib import Path

import numpy as np
import torch

import captured_steps
import voice
from audio import mel_filters
from errors import UserError
from files import naming, read_bytes
from hparams import HParams, check_text_settings, create_hparams, hparams_from_dict, read_symbols
from model import Tacotron2, free_running
from speech import Part, Speaker, Vocoder
from training.checkpoint import load_checkpoint, load_weights


class ModelSpeaker(Speaker):
    """A trained model, ready to speak."""

    shows_progress = True

    def __init__(
        self, model: Tacotron2, hparams: HParams, longest_text: int | None = None, epochs: int = 0
    ):
        super().__init__(hparams, mel_filters(hparams).numpy(), longest_text, epochs)
        self.model = model

    def speak_part(self, words: list[int], seed: int) -> Part:
        """One text at a time, though a batch takes half the time: its matrix products round
        otherwise, so a text's mel would depend in its last bits on the texts beside it."""
        model, generator = self.model, torch.Generator().manual_seed(seed)
        masks = model.decoder.draw_masks(model.max_decoder_steps, 1, generator)
        text = torch.tensor([words], device=model.embedding.weight.device)
        outputs = model.infer(text, torch.tensor([len(words)]), masks)
        yield outputs.mel_postnet[0].float().cpu().numpy()
        ended = torch.sigmoid(outputs.gate[0, -1]).item() > model.gate_threshold
        return outputs.alignments[0].float().cpu().numpy(), ended


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
    return ModelSpeaker(model.to(device).eval(), hparams, saved.get("longest_text"), epochs)


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
