"""Synthesize speech with a checkpoint or with a model in memory.

synthesizer = load_checkpoint_synthesizer("runs/ljspeech/best.pt")
speech = synthesizer.synthesize("It was a quiet evening.")
synthesizer = CheckpointSynthesizer(model.eval(), hparams)  # during training
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from audio import mel_filters
from export.checkpoint_file import is_of_this_recipe, load_weights, read_checkpoint
from hparams import HParams, create_hparams, hparams_from_dict, read_symbols
from model import Tacotron2, free_running
from tacotron2_voice.settings import change_speaking_settings, check_text_settings
from tacotron2_voice.speech_statistics import LJSPEECH, SpeakerStatistics, SpeechStatistics
from tacotron2_voice.synthesizer import DecoderSteps, Synthesizer, TrainingFacts
from tacotron2_voice.text.lexicon import with_lexicon
from tacotron2_voice.utils.errors import UserError

# Training settings that the synthesis programs replace with command-line options.
SPEAKING_OPTIONS = {"seed": "--seed", "drop_unknown": "--drop-unknown"}


class CheckpointSynthesizer(Synthesizer):
    """Synthesize texts with a trained model."""

    settings: HParams

    def __init__(
        self,
        model: Tacotron2,
        hparams: HParams,
        training: TrainingFacts | None = None,
        source: str | Path = "the model",
    ):
        super().__init__(hparams, mel_filters(hparams).numpy(), training, source)
        self.model = model

    def decode(
        self, ids: Sequence[int], seed: int, max_steps: int, speaker: int | None = None
    ) -> Iterator[DecoderSteps]:
        """Yield the decoder steps of one text.

        Each text is synthesized separately, although batches would take about half the time. In a
        batch, matrix products are rounded differently, so the last bits of a log-mel would depend
        on the other texts in the batch.
        """
        settings = self.settings
        generator = torch.Generator().manual_seed(seed)
        masks = self.model.decoder.draw_masks(max_steps, 1, generator)
        device = self.model.embedding.weight.device
        text = torch.tensor([ids], device=device)
        lengths = torch.tensor([len(ids)])
        labels = {} if speaker is None else {"speaker": torch.tensor([speaker], device=device)}
        frames_shape = (settings.n_frames_per_step, settings.n_mel_channels)
        window = settings.attention_window
        for steps in self.model.speak(text, lengths, masks, max_steps, window, labels):
            yield DecoderSteps(
                steps.frames[:, 0].unflatten(1, frames_shape).float().cpu().numpy(),
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
    """Load a checkpoint from this project or from NVIDIA's project. A checkpoint from NVIDIA's
    project is loaded with the default settings.

    Args:
        overrides: settings in the format of --hparams. With the setting `decoder=reference`,
            decoder steps run one by one, even on a GPU.
        device: device of the model (default: a GPU, or the CPU if there is no GPU).

    Raises:
        UserError: if the checkpoint cannot be read or does not match its settings.
    """
    if device is None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    saved = read_checkpoint(path)
    hparams = _settings_of(saved, overrides, path)
    model = Tacotron2(hparams, speaking_decoder=choose_speaking_decoder(hparams.decoder))
    load_weights(model, saved, path, hparams)
    training = training_facts(saved, hparams)
    return CheckpointSynthesizer(model.to(device).eval(), hparams, training, path)


def _settings_of(saved: dict[str, Any], overrides: str, path: str | Path) -> HParams:
    """Return the settings of a checkpoint, changed by `overrides`. Raise a UserError if an override
    contradicts the checkpoint."""
    trained = hparams_from_dict(saved.get("hparams", {}))
    if is_of_this_recipe(saved):
        hparams = change_speaking_settings(trained, overrides)
        for name, option in SPEAKING_OPTIONS.items():
            value = getattr(hparams, name)
            if value != getattr(trained, name):
                raise UserError(f"{name}={value}: use {option} instead")
    else:
        hparams = with_lexicon(create_hparams(overrides, trained))
    if hparams.speaker_embedding_dim and not hparams.speakers:
        width = f"speaker_embedding_dim={hparams.speaker_embedding_dim}"
        raise UserError(f"{width}: {path} was trained without speaker names (expected 0)")
    hparams = check_text_settings(hparams)
    if not trained.symbol_table:
        return read_symbols(hparams)  # checkpoints from other projects contain no symbol table
    if hparams.symbols != trained.symbols:
        expected = f"{path} was trained with {trained.symbols}"
        raise UserError(f"symbols={hparams.symbols}: {expected}")
    return hparams


def choose_speaking_decoder(name: str) -> Callable[..., Any]:
    """Return the function that runs the decoder for the setting `decoder`.

    If the folder fast_decoder/ is missing, return the reference function.
    """
    if name != "reference":
        with contextlib.suppress(ImportError):
            from fast_decoder import captured_steps

            return captured_steps.free_running
    return free_running


def training_facts(saved: dict[str, Any], hparams: HParams) -> TrainingFacts:
    """Return the facts about the training that a checkpoint contains.

    A checkpoint without statistics, such as a checkpoint from NVIDIA, gets the statistics of
    LJSpeech if its symbols are English. If the checkpoint has neither statistics nor English
    symbols, the speaking rate is unknown.
    """
    statistics = LJSPEECH if hparams.table.is_english else None
    if saved.get("speech_statistics") is not None:
        statistics = SpeechStatistics(**saved["speech_statistics"])
    longest_text = statistics.longest_text if statistics else None
    speakers = [
        SpeakerStatistics(one["name"], one["minutes"], SpeechStatistics(**one["statistics"]))
        for one in saved.get("speaker_statistics", ())
    ]
    return TrainingFacts(
        statistics=statistics,
        speaker_statistics=speakers,
        longest_text=saved.get("longest_text") or longest_text,
        epochs=saved["loop"]["epoch"] - 1 if "loop" in saved else 0,
        text_rules=saved.get("text_rules", ""),
        trained_phones=saved.get("trained_phones"),
    )
