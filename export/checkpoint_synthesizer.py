"""Speaks with a trained checkpoint, or with a model in memory.

speaker = load_checkpoint_synthesizer("runs/ljspeech/best.pt")
samples = speaker.speak("It was a quiet evening.")  # float32 [N] in [-1, 1]
speaker = CheckpointSynthesizer(model.eval(), hparams, statistics)  # while it is trained
samples = speaker.speak("It was a quiet evening.", speaker="anna")  # where there are several
"""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from audio import mel_filters
from export.checkpoint_file import (
    is_of_this_recipe,
    load_weights,
    read_checkpoint,
    refuse_misfit,
)
from hparams import HParams, check_text_settings, create_hparams, hparams_from_dict, read_symbols
from model import Tacotron2, free_running
from tacotron2_voice.speech_statistics import LJSPEECH, SpeakerStatistics, SpeechStatistics
from tacotron2_voice.synthesis_settings import speaking_hparams
from tacotron2_voice.synthesizer import DecoderSteps, Synthesizer
from tacotron2_voice.utils.errors import UserError


class CheckpointSynthesizer(Synthesizer):
    """Speaks with a trained model, one text at a time."""

    shows_progress = True

    def __init__(
        self,
        model: Tacotron2,
        hparams: HParams,
        statistics: SpeechStatistics | None = None,
        speaker_statistics: Sequence[SpeakerStatistics] = (),
        longest_text: int | None = None,
        epochs: int = 0,
    ):
        filters = mel_filters(hparams).numpy()
        super().__init__(hparams, filters, statistics, longest_text, epochs, speaker_statistics)
        self.model = model

    def decode(
        self, words: Sequence[int], seed: int, max_steps: int, index: int | None = None
    ) -> Iterator[DecoderSteps]:
        """One text at a time, though a batch takes half the time: its matrix products round
        otherwise, so a text's mel would depend in its last bits on the texts beside it."""
        h, generator = self.hparams, torch.Generator().manual_seed(seed)
        masks = self.model.decoder.draw_masks(max_steps, 1, generator)
        device = self.model.embedding.weight.device
        text = torch.tensor([words], device=device)
        labels = {} if index is None else {"speaker": torch.tensor([index], device=device)}
        lengths, shape = torch.tensor([len(words)]), (h.n_frames_per_step, h.n_mel_channels)
        spoken = self.model.speak(text, lengths, masks, max_steps, h.attention_window, labels)
        for steps in spoken:
            yield DecoderSteps(
                steps.frames[:, 0].unflatten(1, shape).float().cpu().numpy(),
                torch.sigmoid(steps.gate[:, 0].float()).cpu().numpy(),
                steps.alignments[:, 0].float().cpu().numpy(),
            )

    @torch.no_grad()
    def refine(self, mel: np.ndarray) -> np.ndarray:
        before = torch.from_numpy(mel.copy())[None].to(self.model.embedding.weight.device)
        return (before + self.model.postnet(before))[0].float().cpu().numpy()


def load_checkpoint_synthesizer(
    path: str | Path, overrides: str = "", device: torch.device | None = None
) -> CheckpointSynthesizer:
    """Load a checkpoint, this recipe's or NVIDIA's (whose settings are the defaults), to speak.

    Args:
        overrides: settings as in --hparams. `decoder=reference` takes the decoder's steps one by
            one on a GPU too.
        device: by default a GPU if there is one.

    Raises:
        UserError: if the checkpoint cannot be read or does not fit its settings.
    """
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    saved = read_checkpoint(path)
    kept = hparams_from_dict(saved.get("hparams", {}))
    has_settings = is_of_this_recipe(saved)
    hparams = (speaking_hparams if has_settings else create_hparams)(overrides, kept)
    if hparams.speaker_embedding_dim and not hparams.speakers:
        dim = hparams.speaker_embedding_dim
        raise UserError(f"speaker_embedding_dim={dim}: leave it out; {path} names no speakers")
    hparams = check_text_settings(hparams)
    if not kept.symbol_table:
        hparams = read_symbols(hparams)  # of another recipe's voice, by --hparams symbols=FILE
    elif hparams.symbols != kept.symbols:
        raise UserError(f"symbols={hparams.symbols}: leave it out; {path} holds its own")
    with torch.device("meta"):  # settings of a file may ask for terabytes
        refuse_misfit(Tacotron2(hparams).state_dict(), saved, path)
    model = Tacotron2(hparams, speaking_decoder=choose_speaking_decoder(hparams.decoder))
    load_weights(model, saved, path)
    epochs = saved.get("loop", {"epoch": 1})["epoch"] - 1
    statistics = statistics_of(saved, hparams)
    longest_text = saved.get("longest_text", statistics and statistics.longest_text)
    known = statistics, speaker_statistics_of(saved), longest_text, epochs
    speaker = CheckpointSynthesizer(model.to(device).eval(), hparams, *known)
    speaker.source = path
    return speaker


def choose_speaking_decoder(name: str) -> Callable[..., Any]:
    """The loop of decoder steps that the hyper-parameter `decoder` names. The recipe works without
    the folder fast_decoder/."""
    package = importlib.util.find_spec("fast_decoder")
    is_missing = package is None or package.origin is None  # or compiled files are left over
    if name == "reference" or is_missing:
        return free_running
    from fast_decoder import captured_steps

    return captured_steps.free_running


def statistics_of(saved: dict[str, Any], hparams: HParams) -> SpeechStatistics | None:
    """What a checkpoint says of the speech of its clips; of one that says nothing, as NVIDIA's, in
    English letters LJSpeech's; None for other symbols, whose pace is not known."""
    if saved.get("speech_statistics") is not None:
        return SpeechStatistics(**saved["speech_statistics"])
    return LJSPEECH if hparams.table.is_english else None


def speaker_statistics_of(saved: dict[str, Any]) -> list[SpeakerStatistics]:
    """What a checkpoint says of the speech of each speaker; nothing of one voice."""
    return [
        SpeakerStatistics(one["name"], one["minutes"], SpeechStatistics(**one["statistics"]))
        for one in saved.get("speaker_statistics", ())
    ]
