"""Speech from a trained checkpoint, with warnings of what is wrong with it.

speaker = load_speaker("runs/ljspeech/best.pt")
sequence = sequence_to_speak("It was a quiet evening.", speaker.hparams)
speech = speak_text(speaker, sequence)
write_speech(Path("out/evening"), speech, speaker.hparams)
"""

import io
import math
import textwrap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import captured_steps
import voice
from audio import griffin_lim, write_mel
from errors import UserError
from files import naming, read_bytes, write_atomically
from hparams import HParams, check_symbols, create_hparams, hparams_from_dict
from model import Tacotron2, free_running
from pictures import draw_alignment
from progress import progress_bar
from reading import PAUSE, alignment_warnings, parts_to_speak
from text import sequence_to_text
from training.checkpoint import load_checkpoint, load_weights
from voice import Vocoder
from waveform import SILENCE, write_wav


@dataclass(frozen=True)
class Speaker:
    """A trained model, ready to speak."""

    model: Tacotron2
    hparams: HParams
    longest_text: int | None  # symbols of its longest training text; None where it is not known


@dataclass(frozen=True)
class Speech:
    mel: torch.Tensor  # [n_mels, frames], float32 on the CPU
    alignments: list[np.ndarray]  # [steps, symbols] of each part
    warnings: list[str]  # what is wrong with it, empty if it looks well
    parts: str = ""  # into how many parts the text was split, and why; empty for one


def load_speaker(
    path: str | Path, overrides: str = "", device: torch.device | None = None
) -> Speaker:
    """The model of a checkpoint, this recipe's or NVIDIA's (whose settings are the defaults), on a
    GPU if there is one; UserError if it cannot be read or does not fit its settings.
    `decoder=reference` takes its steps one by one on a GPU too."""
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    saved = load_checkpoint(path)
    hparams = create_hparams(overrides, hparams_from_dict(saved.get("hparams", {})))
    check_symbols(hparams)
    decoder = captured_steps.free_running if hparams.decoder == "fast" else free_running
    model = Tacotron2(hparams, speaking_decoder=decoder)
    load_weights(model, saved, path)
    return Speaker(model.to(device).eval(), hparams, saved.get("longest_text"))


def speak_text(
    speaker: Speaker,
    sequence: list[int],
    seed: int = 0,
    max_symbols: int | None = None,
    pause: float = PAUSE,
) -> Speech:
    """Speak a text, in parts of at most `max_symbols` symbols (by default the longest training
    text's, if known), each as if it were alone. Their mels are joined by silence, so that Griffin-
    Lim smooths the joins: `pause` seconds after a sentence, less after other endings (PAUSES)."""
    hparams = speaker.hparams
    limit = max_symbols or speaker.longest_text or math.inf
    parts = parts_to_speak(sequence, limit, pause, hparams)
    mels, alignments, warnings = [], [], []
    progress = progress_bar("Speaking", len(parts), " parts", iterable=parts)
    for number, (words, silent_frames) in enumerate(progress, 1):
        speech = speak(speaker.model, words, seed)
        mels.append(speech.mel)
        alignments += speech.alignments
        shown = textwrap.shorten(sequence_to_text(words), 30, placeholder="...")
        where = f"part {number} of {len(parts)} ({shown!r}): " if len(parts) > 1 else ""
        warnings += [where + warning for warning in speech.warnings]
        mels.append(speech.mel.new_full((len(speech.mel), silent_frames), SILENCE))
    split = f"in {len(parts)} parts, to keep to {limit} symbols each" if len(parts) > 1 else ""
    return Speech(torch.cat(mels, dim=1), alignments, warnings, split)


def speak(model: Tacotron2, sequence: list[int], seed: int) -> Speech:
    """Speak a sequence of symbol ids, with prenet dropout from `seed`. One text at a time, though a
    batch takes half the time: its matrix products round otherwise, so a text's mel would depend in
    its last bits on the texts beside it."""
    generator = torch.Generator().manual_seed(seed)
    masks = model.decoder.draw_masks(model.max_decoder_steps, 1, generator)
    text = torch.tensor([sequence], device=model.embedding.weight.device)
    outputs = model.infer(text, torch.tensor([len(sequence)]), masks)
    alignment = outputs.alignments[0].float().cpu().numpy()
    warnings = alignment_warnings(alignment, sequence)
    if not torch.sigmoid(outputs.gate[0, -1]).item() > model.gate_threshold:
        warnings.append(
            f"no stop within {model.max_decoder_steps} steps, cut there: raise max_decoder_steps, "
            "split the text with a lower --max-symbols, or train longer"
        )
    return Speech(outputs.mel_postnet[0].float().cpu(), [alignment], warnings)


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
            except (RuntimeError, AttributeError) as error:
                last = str(error).strip().splitlines()[-1:]
                raise UserError(f"a module that cannot be run on a mel ({last})") from None

        return voice.checked_vocoder(run, getattr(module, "sampling_rate", None), hparams)


def write_speech(
    base: Path,
    speech: Speech,
    hparams: HParams,
    *,
    save_mel: bool = False,
    vocoder: Vocoder | None = None,
) -> float:
    """Write `base`.wav by a vocoder or Griffin-Lim, the alignment as `base`.png and, if asked, the
    mel as .npy. Returns its seconds of sound; UserError if a file cannot be written."""
    samples = vocoder(speech.mel.numpy()) if vocoder else griffin_lim(speech.mel, hparams)
    rate = hparams.sampling_rate
    picture = draw_alignment(*speech.alignments)
    try:
        write_wav(base.with_suffix(".wav"), samples, rate)
        write_atomically(base.with_suffix(".png"), lambda file: picture.savefig(file, format="png"))
        if save_mel:
            write_mel(base.with_suffix(".npy"), speech.mel.numpy())
    except OSError as error:
        raise UserError(
            f"the files {base}.* could not be written ({error}): make room, or choose another "
            "folder with -o; every file that is there is complete"
        ) from None
    return len(samples) / rate
