"""Speech from a model in memory: the torch counterpart of voice.Voice.

speaker = ModelSpeaker(model.eval(), hparams, statistics)
speech = speaker.speak_text(sequence_to_speak("It was a quiet evening.", hparams))
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from audio import mel_filters
from hparams import HParams
from model import Tacotron2
from synthesis.speaker import DecoderSteps, Speaker
from synthesis.speech_statistics import SpeechStatistics


class ModelSpeaker(Speaker):
    """A trained model, ready to speak."""

    shows_progress = True

    def __init__(
        self,
        model: Tacotron2,
        hparams: HParams,
        statistics: SpeechStatistics | None = None,
        longest_text: int | None = None,
        epochs: int = 0,
    ):
        filters = mel_filters(hparams).numpy()
        super().__init__(hparams, filters, statistics, longest_text, epochs)
        self.model = model

    def decode(self, words: Sequence[int], seed: int, max_steps: int) -> Iterator[DecoderSteps]:
        """One text at a time, though a batch takes half the time: its matrix products round
        otherwise, so a text's mel would depend in its last bits on the texts beside it."""
        h, generator = self.hparams, torch.Generator().manual_seed(seed)
        masks = self.model.decoder.draw_masks(max_steps, 1, generator)
        text = torch.tensor([words], device=self.model.embedding.weight.device)
        lengths, shape = torch.tensor([len(words)]), (h.n_frames_per_step, h.n_mel_channels)
        for steps in self.model.speak(text, lengths, masks, max_steps, h.attention_window):
            yield DecoderSteps(
                steps.frames[:, 0].unflatten(1, shape).float().cpu().numpy(),
                torch.sigmoid(steps.gate[:, 0].float()).cpu().numpy(),
                steps.alignments[:, 0].float().cpu().numpy(),
            )

    @torch.no_grad()
    def refine(self, mel: np.ndarray) -> np.ndarray:
        before = torch.from_numpy(mel.copy())[None].to(self.model.embedding.weight.device)
        return (before + self.model.postnet(before))[0].float().cpu().numpy()
