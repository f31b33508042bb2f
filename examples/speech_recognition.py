"""Doetsch et al. 2017 in small: how the batches of a speech recognizer are made, against its speed,
memory and word errors.

    python -m examples.speech_recognition OUT            # the whole table, within an hour on a CPU
    python -m examples.speech_recognition OUT --quick    # two minutes: less speech, one seed

Doetsch, Golik, Ney, "A comparative study of batch construction strategies for recurrent neural
networks in MXNet", arXiv 1705.02414, trained a bidirectional LSTM on CHiME-4. Here a small one
learns the phones of spoken numbers in noise by CTC, and a search finds the words. eSpeak NG speaks
them, and says when each phone sounds, so chunks of utterances have their phones too. Training is a
plain loop with accelerate. A table that was stopped resumes. Needs requirements/frameworks.txt.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import jiwer
import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from audio import log_mel_spectrogram
from examples.numbers_in_noise import NOISES, Utterance, make_noise, mix, speak_corpus
from examples.paper_table import Claim, Column, PaperTable, Row, memory_of
from hparams import create_hparams
from length_batching import LengthBatches, SegmentDataset, padding_stats, segments_of

MELS = create_hparams("hop_length=220,win_length=551,n_mel_channels=40")  # frames of 10 ms
FRAMES_PER_STEP = 3  # of the LSTM
LEVELS = (-5, 0, 5, 10)  # of speech over noise, dB
PAPER_UTTERANCES = 8_738  # in CHiME-4's training set, for which the paper's numbers of bins are


@dataclass(frozen=True)
class Settings:
    utterances: int = 1200
    test_utterances: int = 240
    epochs: int = 5
    cells: int = 128  # of an LSTM layer in each direction
    learning_rate: float = 0.01
    seeds: int = 3
    frames_per_batch: int = 5_000  # with padding


QUICK = Settings(160, 40, epochs=4, cells=64, seeds=1, frames_per_batch=1_500)


@dataclass
class Clip:
    """An utterance in noise, or a chunk of one."""

    frames: torch.Tensor  # [T, 40] log-mels
    phones: torch.Tensor  # [L] labels from 1
    middles: torch.Tensor  # [L] of the phones, in frames

    def cut(self, start: int, stop: int) -> "Clip":
        """A chunk of it, with the phones whose middles are inside."""
        inside = (self.middles >= start) & (self.middles < stop)
        return Clip(self.frames[start:stop], self.phones[inside], self.middles[inside] - start)


# ---------------------------------------------------------------------------- the recognizer


class AcousticModel(nn.Module):
    """Two bidirectional LSTM layers. Padding costs time but has no influence: a backward LSTM
    begins at the last frame of each clip."""

    def __init__(self, cells: int, labels: int):
        super().__init__()
        sizes = (FRAMES_PER_STEP * MELS.n_mel_channels, 2 * cells)
        self.forwards = nn.ModuleList(nn.LSTM(size, cells, batch_first=True) for size in sizes)
        self.backwards = nn.ModuleList(nn.LSTM(size, cells, batch_first=True) for size in sizes)
        self.output = nn.Linear(2 * cells, labels)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Frames [B, T, 40] -> log probabilities [B, steps, labels], and each clip's steps [B]."""
        x = nn.functional.pad(x, (0, 0, 0, -x.shape[1] % FRAMES_PER_STEP))
        x = x.reshape(len(x), x.shape[1] // FRAMES_PER_STEP, -1)
        steps = -(-lengths // FRAMES_PER_STEP)
        places = torch.arange(x.shape[1], device=x.device)
        mirror = ((steps[:, None] - 1 - places) % x.shape[1])[:, :, None]  # its own inverse
        for forward, backward in zip(self.forwards, self.backwards, strict=True):
            mirrored = backward(x.gather(1, mirror.expand_as(x)))[0]
            x = torch.cat([forward(x)[0], mirrored.gather(1, mirror.expand_as(mirrored))], dim=2)
        return self.output(x).log_softmax(2), steps


class WordSearch:
    """Viterbi search for the most probable words: a graph of every word's phones with CTC's blanks
    (label 0) between them, where any word may follow any. State 0 is the blank between words."""

    def __init__(self, lexicon: set[tuple[str, tuple[int, ...]]]):
        labels, starts, arcs = [0], [0], [(0, 0)]
        self.word_at: dict[int, str] = {}  # by its last state
        for word, phones in sorted(lexicon):
            first, last = len(labels), len(labels) + 2 * len(phones) - 2
            labels += [label for phone in phones for label in (phone, 0)][:-1]
            starts.append(first)
            self.word_at[last] = word
            arcs += [
                (s, to) for s in range(first, last + 1) for to in range(s, min(s + 2, last) + 1)
            ]
        arcs += [(0, start) for start in starts]
        arcs += [(last, start) for last in self.word_at for start in starts]
        self.labels, self.starts = np.array(labels), starts
        self.arcs = np.full((len(labels), len(labels)), -np.inf, dtype=np.float32)  # to, from
        for source, to in arcs:
            if source == to or labels[source] != labels[to]:  # a blank parts equal phones
                self.arcs[to, source] = 0

    def words(self, log_probs: np.ndarray) -> list[str]:
        """The words of one utterance, [steps, labels]."""
        observed = log_probs[:, self.labels]
        score = np.full(len(self.labels), -np.inf, dtype=np.float32)
        score[self.starts] = observed[0, self.starts]
        sources = []
        for step in observed[1:]:
            candidates = score + self.arcs
            sources.append(candidates.argmax(1))
            score = candidates.max(1) + step
        ends = [0, *self.word_at]
        path = [ends[int(score[ends].argmax())]]
        for source in reversed(sources):
            path.append(int(source[path[-1]]))
        changes = zip(path[::-1], [*path[-2::-1], -1], strict=True)  # each state and the next
        return [self.word_at[s] for s, after in changes if s in self.word_at and s != after]


# ---------------------------------------------------------------------------- training

ALTERNATED = {8: (10.1, 4.8, 9.9), 64: (10.0, 5.3, 9.5), 256: (8.8, 6.0, 9.1)}  # by bins
ROWS = [
    Row("random", {"strategy": "random"}, (7.0, 5.4, 8.9)),
    Row("sorted", {"strategy": "sorted"}, (10.2, 4.2, 10.2)),
    Row("buckets", {"strategy": "bucket_by_width", "batch_randomization": True}, (9.5, 6.3, 9.6)),
    *(
        Row(f"alternated, {bins} bins", {"strategy": "alternated_sort", "bins": bins}, published)
        for bins, published in ALTERNATED.items()
    ),
    *(Row(f"chunks of {n}", {"strategy": "random", "chunk": n}) for n in (10, 50, 100, 500)),
]


def pad(clips: Sequence[Clip]) -> tuple[torch.Tensor, ...]:
    """Frames [B, longest, 40], their lengths [B], all phones in one row, and how many each has."""
    frames, phones = [clip.frames for clip in clips], [clip.phones for clip in clips]
    lengths, counts = (torch.tensor([len(x) for x in each]) for each in (frames, phones))
    return pad_sequence(frames, batch_first=True), lengths, torch.cat(phones), counts


class Experiment:
    """The corpus, and how a model is trained and tested on it."""

    def __init__(self, settings: Settings):
        self.settings = settings
        spoken = speak_corpus(settings.utterances + settings.test_utterances, most_numbers=3)
        train, test = spoken[: settings.utterances], spoken[settings.utterances :]
        lexicon = {word for utterance in train for word in utterance.words}
        phones = sorted({phone for _, phones in lexicon for phone in phones})
        self.labels = {phone: label for label, phone in enumerate(phones, 1)}
        self.search = WordSearch({(w, tuple(self.labels[p] for p in ps)) for w, ps in lexicon})
        self.train, self.test = self.clips_of(train, seed=0), self.clips_of(test, seed=1)
        self.texts = [" ".join(word for word, _ in utterance.words) for utterance in test]
        deviation, mean = torch.std_mean(torch.cat([clip.frames for clip in self.train]), dim=0)
        for clip in (*self.train, *self.test):
            clip.frames = (clip.frames - mean) / deviation

    def clips_of(self, utterances: Sequence[Utterance], seed: int) -> list[Clip]:
        """The utterances in noise, each level equally often."""
        rng, clips = np.random.default_rng(seed), []
        for i, each in enumerate(utterances):
            noise = make_noise(rng.choice(NOISES), len(each.samples), utterances, rng)
            samples = torch.from_numpy(mix(each.samples, noise, LEVELS[i % len(LEVELS)]))
            phones = [self.labels.get(phone, 0) for _, phones in each.words for phone in phones]
            middles = torch.tensor(each.middles) / MELS.hop_length
            samples /= samples.abs().max().clamp(min=1)
            frames = log_mel_spectrogram(samples, MELS).T.contiguous()
            clips.append(Clip(frames, torch.tensor(phones), middles))
        return clips

    def run(self, row: Row, seed: int) -> dict[str, float]:
        """Train a model on batches of this row, and test it."""
        from accelerate import Accelerator

        torch.manual_seed(seed)
        settings, options, accelerator = self.settings, dict(row.options), Accelerator(cpu=True)
        chunk = options.pop("chunk", None)
        if bins := options.pop("bins", None):  # of the paper; 1 would be sorted
            options["num_bins"] = max(2, round(bins * len(self.train) / PAPER_UTTERANCES))
        lengths = [len(clip.frames) for clip in self.train]
        segments = segments_of(lengths, chunk or max(lengths))
        options |= {"dynamic_batch_size": True, "batch_capacity": settings.frames_per_batch}
        clips = SegmentDataset(self.train, segments, Clip.cut)
        batches = LengthBatches(clips, segments.lengths, 8, seed=seed, collate=pad, **options)
        loader = torch.utils.data.DataLoader(batches, batch_size=1, collate_fn=batches.unwrap)
        model = AcousticModel(settings.cells, 1 + len(self.labels))
        optimizer = torch.optim.Adam(model.parameters())
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

        def loss_of(batch: Sequence[torch.Tensor]) -> torch.Tensor:
            frames, counts, phones, phone_counts = batch
            log_probs, steps = model(frames, counts)
            arguments = log_probs.transpose(0, 1), phones, steps, phone_counts
            loss = nn.functional.ctc_loss(*arguments, reduction="sum", zero_infinity=True)
            return loss / counts.sum()

        trained, total, start = 0, settings.epochs * sum(lengths), time.process_time()
        for epoch in range(settings.epochs):
            loader.set_epoch(epoch)
            for batch in loader:
                trained += int(batch[1].sum())
                share = min(10 * trained / total, 1 - trained / total)  # of the highest rate
                optimizer.param_groups[0]["lr"] = settings.learning_rate * share
                optimizer.zero_grad()
                accelerator.backward(loss_of(batch))
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        seconds = time.process_time() - start
        largest = max(batches.plan, key=lambda batch: len(batch) * segments.lengths[batch].max())
        padded = pad([clips[i] for i in largest])
        return {
            "speed": settings.epochs * len(self.train) / seconds,
            "memory": memory_of(lambda: loss_of(padded).backward()),
            "updates": float(len(batches.plan)),
            "padding": 100 * padding_stats(segments.lengths, batches.plan).padded_fraction,
            **self.word_errors(model, chunk),
        }

    def word_errors(self, model: nn.Module, chunk: int | None) -> dict[str, float]:
        """Word error rates in per cent: of all test utterances, of those at each level, and of all
        where the model gets them in chunks."""
        model.eval().cpu()

        def recognize(clip: Clip, size: int) -> str:
            parts = [clip.cut(*span) for _, *span in segments_of([len(clip.frames)], size)]
            with torch.no_grad():
                log_probs, steps = model(*pad(parts)[:2])
            kept = [part[:count] for part, count in zip(log_probs, steps, strict=True)]
            return " ".join(self.search.words(torch.cat(kept).numpy()))

        texts, heard = self.texts, [recognize(clip, len(clip.frames)) for clip in self.test]
        in_chunks = [recognize(clip, chunk) for clip in self.test] if chunk else heard
        found = {"errors": jiwer.wer(texts, heard), "in_chunks": jiwer.wer(texts, in_chunks)}
        for i, level in enumerate(LEVELS):
            found[f"at_{level}"] = jiwer.wer(texts[i :: len(LEVELS)], heard[i :: len(LEVELS)])
        return {key: 100 * float(rate) for key, rate in found.items()}


# ---------------------------------------------------------------------------- the report

INTRODUCTION = """
# Batches for a speech recognizer: Doetsch et al. 2017 in small

A bidirectional LSTM on spoken numbers in noise, {seeds} seeds. Speed is utterances a second of one
core's time; memory is what a step on the largest batch adds to the process. Numbers of bins are the
paper's: here they are scaled by the utterances, of which CHiME-4 has 8,738, to at least 2. The
paper's number of buckets and its figures for chunks are not known to us: here are 10 buckets of
equal width, and chunks in random order, beside "random", which has whole utterances. The word
errors "in chunks" are those where the utterances of the test are cut as in training.
"""
TABLE = PaperTable(
    description=__doc__ or "",
    introduction=INTRODUCTION,
    settings=Settings(),
    quick=QUICK,
    experiment=lambda settings: Experiment(settings).run,
    rows=ROWS,
    columns=(
        Column("speed", "utterances/s", "there"),
        Column("memory", "memory, MB", "there, GB", digits=0),
        Column("errors", "word errors, %", "there, %"),
    ),
    more_columns=(
        Column("updates", "updates an epoch", digits=0),
        Column("padding", "padding, %"),
        Column("in_chunks", "word errors in chunks, %"),
        *(Column(f"at_{level}", f"at {level} dB, %") for level in LEVELS),
    ),
    claims=[
        Claim("speed", "sorted", "random"),
        Claim("speed", "alternated, 64 bins", "random"),
        Claim("speed", "alternated, 8 bins", "alternated, 256 bins"),
        Claim("speed", "alternated, 64 bins", "buckets"),
        Claim("errors", "sorted", "random"),
        Claim("errors", "alternated, 8 bins", "alternated, 256 bins"),
        Claim("errors", "buckets", "random"),
        Claim("memory", "random", "sorted"),
    ],
)

if __name__ == "__main__":
    TABLE.main()
