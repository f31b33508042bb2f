"""Reproduce Gonzalez et al. 2023 on a small scale: compare batching strategies for speech
enhancement.

    python -m examples.speech_enhancement OUT            # the whole table: up to an hour on a CPU
    python -m examples.speech_enhancement OUT --quick    # two minutes: less speech, one seed

The paper is Gonzalez, Alstrøm, May, "On batching variable size inputs for training end-to-end
speech enhancement systems", ICASSP 2023. The authors of the paper trained a causal Conv-TasNet on
speech with noise and reverberation. This example trains a small Conv-TasNet on spoken numbers
(eSpeak NG) in synthetic rooms and noise. Lightning trains the model, and LengthBatches plans the
batches.

OUT will contain report.md and the finished runs. If you stop the program, resume it with the same
command. Install requirements/frameworks.txt and requirements/pesq.txt first.
"""

import logging
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.signal import fftconvolve, resample_poly
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from corpus.demo_corpus import SAMPLE_RATE as SPOKEN_RATE
from examples.numbers_in_noise import Utterance, make_noise, make_room, mix, speak_corpus
from examples.paper_table import Claim, Column, PaperTable, Row, memory_of
from length_batching import LengthBatches, RankSampler, SegmentDataset, padding_stats, segments_of

SAMPLE_RATE = 8_000  # sampling rate in Hz; narrow-band PESQ requires 8 kHz
SNRS = (-5, 10)  # lowest and highest signal-to-noise ratio, in dB
# Shortest and longest reverberation time in seconds (time in which the level falls by 60 dB).
REVERBERATION = (0.2, 0.6)
# Lowest and highest level of the direct speech in dB, relative to the reverberation.
DIRECT = (0, 10)
EARLY = 0.05  # reflections within this number of seconds belong to the clean speech
# Noise in each test condition. The training clips contain street noise.
NOISES = {"matched": "street", "mismatched": "crowd"}
# Our longest utterance is about a quarter as long as the longest utterance in the paper, so the
# paper's frame budgets are scaled by the same factor.
SCALE = 1 / 4


@dataclass(frozen=True)
class Settings:
    utterances: int = 220
    test_utterances: int = 24
    epochs: int = 4
    seeds: int = 3


QUICK = Settings(24, 6, epochs=2, seeds=1)
Clip = torch.Tensor  # [T, 2], noisy and clean samples


class CumulativeNorm(nn.Module):
    """Normalize each frame in [B, channels, T] by the mean and variance of this and all previous
    frames.

    This layer has no gain and no bias, because the next layer can learn both.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = x.shape[1] * torch.arange(1, x.shape[2] + 1, device=x.device)
        mean = x.sum(1, keepdim=True).cumsum(2) / count
        square = x.square().sum(1, keepdim=True).cumsum(2) / count
        return (x - mean) * ((square - mean.square()).clamp(min=0) + 1e-5).rsqrt()


class Block(nn.Module):
    """A causal dilated convolution over three frames, between two convolutions with a kernel size
    of 1."""

    def __init__(self, channels: int, hidden: int, dilation: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(channels, hidden, 1),
            nn.PReLU(),
            CumulativeNorm(),
            nn.ZeroPad1d((2 * dilation, 0)),
            nn.Conv1d(hidden, hidden, 3, dilation=dilation, groups=hidden),
            nn.PReLU(),
            CumulativeNorm(),
            nn.Conv1d(hidden, 2 * channels, 1),
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (input for the next block, contribution of this block to the mask)."""
        residual, skip = self.layers(x).chunk(2, dim=1)
        return x + residual, skip


def filters_at_start(window: int) -> torch.Tensor:
    """Return the filters [window, window] of a modified discrete cosine transform.

    Each filter occurs twice, with positive and with negative sign, so that the signal can be
    restored from non-negative outputs.
    """
    half = window // 2
    time = torch.arange(window, dtype=torch.float64) + 0.5
    frequency = torch.arange(half, dtype=torch.float64) + 0.5
    cosines = torch.cos(torch.pi / half * (time + half / 2) * frequency[:, None])
    basis = np.sqrt(2 / half) * torch.sin(torch.pi / window * time) * cosines
    return torch.cat([basis, -basis])


class ConvTasNet(nn.Module):
    """A causal Conv-TasNet (Luo, Mesgarani 2019) with one output, for speech enhancement.

    Padding does not change the output, because an output sample does not depend on input samples
    that are more than `window` samples later.
    """

    def __init__(self, window: int = 128, channels: int = 32, hidden: int = 64, dilations: int = 5):
        super().__init__()
        self.hop = window // 2
        self.encoder = nn.Conv1d(1, window, window, self.hop, bias=False)
        self.bottleneck = nn.Sequential(CumulativeNorm(), nn.Conv1d(window, channels, 1))
        self.blocks = nn.ModuleList(
            Block(channels, hidden, 2**i) for _ in range(2) for i in range(dilations)
        )
        self.mask = nn.Sequential(nn.PReLU(), nn.Conv1d(channels, window, 1))
        self.decoder = nn.ConvTranspose1d(window, 1, window, self.hop, bias=False)
        with torch.no_grad():
            for layer in (self.encoder, self.decoder):
                layer.weight[:, 0] = filters_at_start(window)

    def forward(self, noisy: torch.Tensor) -> torch.Tensor:
        """Return the enhanced samples [B, T] for noisy samples [B, T]."""
        length = noisy.shape[1]
        padded = nn.functional.pad(noisy, (self.hop, self.hop + -length % self.hop))
        encoded = self.encoder(padded[:, None]).relu()
        x = self.bottleneck(encoded)
        total = torch.zeros(())
        for block in self.blocks:
            x, skip = block(x)
            total = total + skip
        # Add 2, so that the mask passes most of the signal at the beginning of training.
        mask = torch.sigmoid(2 + self.mask(total))
        return self.decoder(encoded * mask)[:, 0, self.hop : self.hop + length]


def snr(estimated: torch.Tensor, clean: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return the signal-to-noise ratio of each clip [B] in dB, ignoring padding.

    The ratio of a silent clip is a constant, so it has no gradient.

    Args:
        estimated, clean: samples [B, T].
        lengths: number of samples of each clip [B].
    """
    inside = torch.arange(clean.shape[1], device=clean.device) < lengths[:, None]
    signal = clean.square().mul(inside).sum(1)
    noise = (clean - estimated).square().mul(inside).sum(1)
    return 10 * torch.log10(signal / (noise + 1e-8) + 1e-8)


def record(utterances: Sequence[Utterance], noise: str, seed: int) -> list[Clip]:
    """Simulate each utterance in a different room with different noise.

    Returns:
        Clips with noisy samples and clean samples (the direct speech and its early reflections).
    """
    rng = np.random.default_rng(seed)
    clips = []
    for utterance in utterances:
        speech = utterance.samples
        room = make_room(rng, rng.uniform(*REVERBERATION), rng.uniform(*DIRECT))
        early = fftconvolve(speech, room[: round(EARLY * SPOKEN_RATE)])[: len(speech)]
        reverberant = fftconvolve(speech, room)[: len(speech)]
        background = make_noise(noise, len(speech), utterances, rng)
        noisy = mix(reverberant, background, rng.uniform(*SNRS))
        clip = resample_poly(np.stack([noisy, early], axis=1), SAMPLE_RATE, SPOKEN_RATE)
        clips.append(torch.tensor(clip, dtype=torch.float32))
    return clips


# ---------------------------------------------------------------------------- training

SIZES: dict[str, dict[str, Any]] = {f"{n} clips": {"batch_size": n} for n in (2, 4, 8)}
for seconds in (2, 4, 8, 16, 32, 64, 128):
    dynamic = {"dynamic_batch_size": True, "batch_capacity": int(SCALE * seconds * SAMPLE_RATE)}
    SIZES[f"{seconds} s"] = {"batch_size": 1, **dynamic}
STRATEGIES = {"random": "random", "sorted": "sorted", "buckets": "bucket_by_width"}
PUBLISHED = {  # maps each row name to training time in hours, memory in GB, and padding in percent
    "random, 8 clips": (7.25, 23.0, 24.5),
    "sorted, 8 clips": (5.93, 21.9, 0.2),
    "buckets, 8 clips": (6.22, 23.0, 5.2),
    "random, 128 s": (7.3, 20.2, 24.1),
    "sorted, 128 s": (5.8, 20.1, 0.4),
    "buckets, 128 s": (6.17, 20.1, 5.2),
}
ROWS = [
    Row(f"{name}, {size}", {"strategy": strategy} | options, PUBLISHED.get(f"{name}, {size}", ()))
    for name, strategy in STRATEGIES.items()
    for size, options in SIZES.items()
]
ROWS.append(Row("1 clip", {"strategy": "random", "batch_size": 1}))


def pad(clips: Sequence[Clip]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return padded clips [B, longest, 2] and their lengths [B]."""
    return pad_sequence(list(clips), batch_first=True), torch.tensor([len(clip) for clip in clips])


class Experiment:
    """Generate the recordings, and train and test models on these recordings."""

    def __init__(self, settings: Settings):
        self.settings = settings
        spoken = speak_corpus(settings.utterances + settings.test_utterances, most_numbers=1)
        train = spoken[: settings.utterances]
        test = spoken[settings.utterances :]
        self.train = record(train, NOISES["matched"], seed=0)
        self.tests = {name: record(test, noise, seed=1) for name, noise in NOISES.items()}
        self.unprocessed = self.scores(lambda noisy: noisy)

    def run(self, row: Row, seed: int) -> dict[str, float]:
        """Train a model on the batches of `row` with Lightning, and test it."""
        import lightning

        torch.manual_seed(seed)
        lengths = [len(clip) for clip in self.train]
        segments = segments_of(lengths, row.options.get("batch_capacity", max(lengths)))
        options = {"batch_randomization": True, **row.options}
        clips = SegmentDataset(self.train, segments)
        batches = LengthBatches(clips, segments.lengths, seed=seed, collate=pad, **options)

        class Task(lightning.LightningModule):
            def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
                clips, lengths = batch
                noisy, clean = clips.unbind(2)
                return -snr(self.model(noisy), clean, lengths).mean()

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.Adam(self.parameters(), lr=2e-3, fused=True)

        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", ".*(does not have many workers|LeafSpec)")
        off = ("logger", "enable_checkpointing", "enable_model_summary", "enable_progress_bar")
        options = dict.fromkeys(off, False)
        start = time.process_time()
        task = Task()
        task.model = ConvTasNet()
        trainer = lightning.Trainer(
            "cpu", max_epochs=self.settings.epochs, gradient_clip_val=5, **options
        )
        trainer.fit(task, DataLoader(batches, batch_size=None, sampler=RankSampler(batches)))
        seconds = time.process_time() - start
        largest = max(batches.plan, key=lambda batch: len(batch) * segments.lengths[batch].max())
        batch = pad([clips[i] for i in largest])
        after = self.scores(task.model)
        return {
            "seconds": seconds,
            "memory": memory_of(lambda: task.training_step(batch).backward()),
            "padding": 100 * padding_stats(segments.lengths, batches.plan).padded_to_original_rate,
            "updates": float(len(batches.plan)),
            **{key: float(after[key] - before) for key, before in self.unprocessed.items()},
        }

    @torch.no_grad()
    def scores(self, enhance: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, float]:
        """Return the mean PESQ, ESTOI (in percent) and SNR (in dB) for both kinds of noise."""
        from pesq import pesq
        from pystoi import stoi

        means: dict[str, float] = {}
        for name, clips in self.tests.items():
            pairs = [(clip[:, 1].numpy(), enhance(clip[None, :, 0])[0].numpy()) for clip in clips]
            means |= {
                f"pesq_{name}": np.mean([pesq(SAMPLE_RATE, *pair, "nb") for pair in pairs]),
                f"estoi_{name}": np.mean([100 * stoi(*pair, SAMPLE_RATE, True) for pair in pairs]),
                f"snr_{name}": np.mean(
                    [10 * np.log10((x @ x) / ((x - y) @ (x - y))) for x, y in pairs]
                ),
            }
        return means


# ---------------------------------------------------------------------------- the report

GAINS = [
    Column(f"{key}_{name}", f"{title}, {name}", digits=digits, in_per_cent=False)
    for name in NOISES
    for key, title, digits in (("pesq", "PESQ", 2), ("estoi", "ESTOI, %", 1), ("snr", "SNR, dB", 1))
]
INTRODUCTION = """
# Batches for speech enhancement: Gonzalez et al. 2023 on a small scale

A causal Conv-TasNet learns to remove noise and late reverberation from spoken numbers. It is
trained with the SNR loss, and every row trains for the same number of epochs. Number of seeds:
{seeds}.

- Training: CPU time on one core while the other core is busy too.
- Memory: peak memory that a training step on the largest batch adds to the process.
- Padding: samples of padding per sample of audio.
- PESQ (narrow-band), ESTOI and SNR: gains over the unprocessed recordings. "Matched" noise is of
  the same kind as in training. "Mismatched" noise is a crowd.

Clips that are longer than a dynamic batch are cut.

## Differences from the paper

- The paper's longest utterances are about four times as long as ours. Therefore, our dynamic
  batches are a quarter as long as the seconds in the row names.
- "1 clip" has only one row, because all strategies make the same batches of one clip.
- The filters start as a cosine transform instead of random values. Therefore a few minutes of
  training are enough.
- The table shows the paper's values where we know them.
- We test two findings from the paper's text. First, smaller batches lead to larger gains. Second,
  sorted batches and bucket batches of dynamic size lead to the same gains as random batches of 8
  clips. We chose the margin of the second finding.
"""
EIGHT = "random, 8 clips"
SORTED = "sorted, 128 s"
BUCKETS = "buckets, 128 s"
CLAIMS = [
    *(Claim(key, EIGHT, row) for key in ("seconds", "memory") for row in (SORTED, BUCKETS)),
    *(Claim("memory", f"{name}, 8 clips", f"{name}, 128 s") for name in STRATEGIES),
    Claim("padding", EIGHT, "buckets, 8 clips"),
]
for metric, margin in (("pesq", 0.05), ("snr", 0.5)):
    for key in (f"{metric}_{noise}" for noise in NOISES):
        for name in STRATEGIES:
            CLAIMS.append(Claim(key, f"{name}, 2 clips", f"{name}, 8 clips"))
            CLAIMS += [Claim(key, f"{name}, {n} s", f"{name}, 128 s") for n in (2, 8)]
        CLAIMS += [Claim(key, row, EIGHT, margin) for row in (SORTED, BUCKETS)]

TABLE = PaperTable(
    description=__doc__ or "",
    introduction=INTRODUCTION,
    settings=Settings(),
    quick=QUICK,
    experiment=lambda settings: Experiment(settings).run,
    rows=ROWS,
    columns=(
        Column("seconds", "training, s", "paper, h"),
        Column("memory", "memory, MB", "paper, GB", digits=0),
        Column("padding", "padding, %", "paper, %"),
    ),
    more_columns=(*GAINS, Column("updates", "optimizer steps per epoch", digits=0)),
    claims=CLAIMS,
)

if __name__ == "__main__":
    TABLE.main()
