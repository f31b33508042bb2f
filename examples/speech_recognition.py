"""Reproduce Doetsch et al. 2017 on a small scale: compare batching strategies for speech
recognition.

    python -m examples.speech_recognition OUT            # the whole table: up to an hour on a CPU
    python -m examples.speech_recognition OUT --quick    # two minutes: less speech, one seed

The paper is Doetsch, Golik, Ney, "A comparative study of batch construction strategies for
recurrent neural networks in MXNet", arXiv 1705.02414. The authors of the paper trained a
bidirectional LSTM on CHiME-4. This example trains a small bidirectional LSTM on spoken numbers in
noise. The LSTM learns phones with the CTC loss, and a Viterbi search finds the words. eSpeak NG
reports the time of each phone, so the phones in every chunk of an utterance are known.

The training loop uses accelerate. If you stop the program, resume it with the same command. Install
requirements/frameworks.txt first.
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

MELS = create_hparams("hop_length=220,win_length=551,n_mel_channels=40")  # 10 ms per frame
FRAMES_PER_STEP = 3  # number of frames that the LSTM reads per step
SNRS = (-5, 0, 5, 10)  # signal-to-noise ratios of the utterances, in dB
# Number of training utterances in the paper, used to scale the paper's numbers of bins to the size
# of our corpus.
PAPER_UTTERANCES = 8_738


@dataclass(frozen=True)
class Settings:
    utterances: int = 1200
    test_utterances: int = 240
    epochs: int = 5
    cells: int = 128  # number of cells per LSTM layer and direction
    learning_rate: float = 0.01
    seeds: int = 3
    frames_per_batch: int = 5_000  # maximum number of frames per batch, including padding


QUICK = Settings(160, 40, epochs=4, cells=64, seeds=1, frames_per_batch=1_500)


@dataclass
class Clip:
    """An utterance in noise, or a chunk of such an utterance."""

    frames: torch.Tensor  # [T, 40] log-mel frames
    phones: torch.Tensor  # [L] label of each phone, 1 or larger
    middles: torch.Tensor  # [L] frame index of the middle of each phone

    def cut(self, start: int, stop: int) -> "Clip":
        """Return the part of the clip from frame `start` to frame `stop`, with the phones whose
        middles are in this range."""
        inside = (self.middles >= start) & (self.middles < stop)
        return Clip(self.frames[start:stop], self.phones[inside], self.middles[inside] - start)


# ---------------------------------------------------------------------------- the recognizer


class AcousticModel(nn.Module):
    """Two bidirectional LSTM layers whose outputs do not depend on padding.

    The backward LSTM starts at the last frame of each clip, not at the end of the padding.
    """

    def __init__(self, cells: int, labels: int):
        super().__init__()
        sizes = (FRAMES_PER_STEP * MELS.n_mel_channels, 2 * cells)
        self.forwards = nn.ModuleList(nn.LSTM(size, cells, batch_first=True) for size in sizes)
        self.backwards = nn.ModuleList(nn.LSTM(size, cells, batch_first=True) for size in sizes)
        self.output = nn.Linear(2 * cells, labels)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities [B, steps, labels] and the number of steps of each clip [B].

        Args:
            x: log-mel frames [B, T, 40].
            lengths: number of frames of each clip [B].
        """
        x = nn.functional.pad(x, (0, 0, 0, -x.shape[1] % FRAMES_PER_STEP))
        x = x.reshape(len(x), x.shape[1] // FRAMES_PER_STEP, -1)
        steps = -(-lengths // FRAMES_PER_STEP)
        positions = torch.arange(x.shape[1], device=x.device)
        # Reverse the order of the steps in each clip. The same indices restore the original order.
        mirror = ((steps[:, None] - 1 - positions) % x.shape[1])[:, :, None]
        for forward, backward in zip(self.forwards, self.backwards, strict=True):
            mirrored = backward(x.gather(1, mirror.expand_as(x)))[0]
            x = torch.cat([forward(x)[0], mirrored.gather(1, mirror.expand_as(mirrored))], dim=2)
        return self.output(x).log_softmax(2), steps


class WordSearch:
    """Find the most probable words of an utterance with the Viterbi algorithm.

    The states of the search graph are the phones of all words, with CTC blanks (label 0) between
    phones. Any word can follow any other word. State 0 is the CTC blank between words.
    """

    def __init__(self, lexicon: set[tuple[str, tuple[int, ...]]]):
        labels = [0]  # label of each state
        starts = [0]  # states in which a path can start
        arcs = [(0, 0)]
        self.word_at: dict[int, str] = {}  # maps the last state of each word to the word
        for word, phones in sorted(lexicon):
            first = len(labels)
            last = first + 2 * len(phones) - 2
            labels += [label for phone in phones for label in (phone, 0)][:-1]
            starts.append(first)
            self.word_at[last] = word
            for source in range(first, last + 1):
                arcs += [(source, target) for target in range(source, min(source + 2, last) + 1)]
        arcs += [(0, start) for start in starts]
        arcs += [(last, start) for last in self.word_at for start in starts]
        self.labels = np.array(labels)
        self.starts = starts
        self.arcs = np.full((len(labels), len(labels)), -np.inf, dtype=np.float32)  # [to, from]
        for source, target in arcs:
            # CTC requires a blank between two identical phones.
            if source == target or labels[source] != labels[target]:
                self.arcs[target, source] = 0

    def words(self, log_probs: np.ndarray) -> list[str]:
        """Return the words of an utterance, given its log-probabilities [steps, labels]."""
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
        states = path[::-1]
        words = []
        for state, next_state in zip(states, [*states[1:], -1], strict=True):
            if state in self.word_at and state != next_state:
                words.append(self.word_at[state])
        return words


# ---------------------------------------------------------------------------- training

# Maps the number of bins to the published values.
ALTERNATED = {8: (10.1, 4.8, 9.9), 64: (10.0, 5.3, 9.5), 256: (8.8, 6.0, 9.1)}
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
    """Return frames [B, longest, 40], their lengths [B], all phones, and the number of phones per
    clip [B]."""
    frames = [clip.frames for clip in clips]
    phones = [clip.phones for clip in clips]
    lengths = torch.tensor([len(clip.frames) for clip in clips])
    phone_counts = torch.tensor([len(clip.phones) for clip in clips])
    return pad_sequence(frames, batch_first=True), lengths, torch.cat(phones), phone_counts


class Experiment:
    """Generate the corpus, and train and test models on this corpus."""

    def __init__(self, settings: Settings):
        self.settings = settings
        spoken = speak_corpus(settings.utterances + settings.test_utterances, most_numbers=3)
        train = spoken[: settings.utterances]
        test = spoken[settings.utterances :]
        lexicon = {word for utterance in train for word in utterance.words}
        phones = sorted({phone for _, phones in lexicon for phone in phones})
        self.labels = {phone: label for label, phone in enumerate(phones, 1)}
        self.search = WordSearch({(w, tuple(self.labels[p] for p in ps)) for w, ps in lexicon})
        self.train = self.clips_of(train, seed=0)
        self.test = self.clips_of(test, seed=1)
        self.texts = [" ".join(word for word, _ in utterance.words) for utterance in test]
        deviation, mean = torch.std_mean(torch.cat([clip.frames for clip in self.train]), dim=0)
        for clip in (*self.train, *self.test):
            clip.frames = (clip.frames - mean) / deviation

    def clips_of(self, utterances: Sequence[Utterance], seed: int) -> list[Clip]:
        """Add noise to the utterances, using each signal-to-noise ratio equally often."""
        rng = np.random.default_rng(seed)
        clips = []
        for i, each in enumerate(utterances):
            noise = make_noise(rng.choice(NOISES), len(each.samples), utterances, rng)
            samples = torch.from_numpy(mix(each.samples, noise, SNRS[i % len(SNRS)]))
            phones = [self.labels.get(phone, 0) for _, phones in each.words for phone in phones]
            middles = torch.tensor(each.middles) / MELS.hop_length
            samples /= samples.abs().max().clamp(min=1)
            frames = log_mel_spectrogram(samples, MELS).T.contiguous()
            clips.append(Clip(frames, torch.tensor(phones), middles))
        return clips

    def run(self, row: Row, seed: int) -> dict[str, float]:
        """Train a model on the batches of `row`, and test it."""
        from accelerate import Accelerator

        torch.manual_seed(seed)
        accelerator = Accelerator(cpu=True)
        settings = self.settings
        options = dict(row.options)
        chunk = options.pop("chunk", None)
        if "bins" in options:
            bins = options.pop("bins") * len(self.train) / PAPER_UTTERANCES
            # Use at least 2 bins, because a single bin would sort all clips by length.
            options["num_bins"] = max(2, round(bins))
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
            loss = nn.functional.ctc_loss(
                log_probs.transpose(0, 1),
                phones,
                steps,
                phone_counts,
                reduction="sum",
                zero_infinity=True,
            )
            return loss / counts.sum()

        trained = 0  # number of frames trained on so far
        total = settings.epochs * sum(lengths)
        start = time.process_time()
        for epoch in range(settings.epochs):
            loader.set_epoch(epoch)
            for batch in loader:
                trained += int(batch[1].sum())
                # The learning rate increases during the first tenth of the training, and then
                # decreases to zero.
                factor = min(10 * trained / total, 1 - trained / total)
                optimizer.param_groups[0]["lr"] = settings.learning_rate * factor
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
        """Return {name: word error rate in percent}.

        The dict contains the error rates over all test utterances, over the utterances at each
        signal-to-noise ratio, and over all test utterances cut into chunks as in training.
        """
        model.eval().cpu()

        def recognize(clip: Clip, size: int) -> str:
            chunks = [clip.cut(*span) for _, *span in segments_of([len(clip.frames)], size)]
            frames, lengths, *_ = pad(chunks)
            with torch.no_grad():
                log_probs, steps = model(frames, lengths)
            unpadded = [output[:count] for output, count in zip(log_probs, steps, strict=True)]
            return " ".join(self.search.words(torch.cat(unpadded).numpy()))

        texts = self.texts
        recognized = [recognize(clip, len(clip.frames)) for clip in self.test]
        in_chunks = recognized
        if chunk:
            in_chunks = [recognize(clip, chunk) for clip in self.test]
        rates = {"errors": jiwer.wer(texts, recognized), "in_chunks": jiwer.wer(texts, in_chunks)}
        for i, level in enumerate(SNRS):
            rates[f"at_{level}"] = jiwer.wer(texts[i :: len(SNRS)], recognized[i :: len(SNRS)])
        return {key: 100 * float(rate) for key, rate in rates.items()}


# ---------------------------------------------------------------------------- the report

INTRODUCTION = """
# Batching strategies for speech recognition: Doetsch et al. 2017 on a small scale

A bidirectional LSTM learns spoken numbers in noise. Number of seeds: {seeds}.

- Speed: training utterances per second of CPU time on one core.
- Memory: peak memory that a training step on the largest batch adds to the process.
- Bins: the row names contain the paper's numbers of bins. This run has fewer utterances than
  CHiME-4 (8,738), so the actual numbers of bins are reduced in proportion, to at least 2.
- Buckets: the paper does not state the number of buckets. This run uses 10 buckets of equal width.
- Chunks: we do not know the paper's values. The chunks of this run are in random order. The row
  "random" trains on whole utterances.
- Word errors in chunks: the test utterances are cut into chunks as in training.
"""
TABLE = PaperTable(
    description=__doc__ or "",
    introduction=INTRODUCTION,
    settings=Settings(),
    quick=QUICK,
    experiment=lambda settings: Experiment(settings).run,
    rows=ROWS,
    columns=(
        Column("speed", "utterances/s", "paper"),
        Column("memory", "memory, MB", "paper, GB", digits=0),
        Column("errors", "word errors, %", "paper, %"),
    ),
    more_columns=(
        Column("updates", "optimizer steps per epoch", digits=0),
        Column("padding", "padding, %"),
        Column("in_chunks", "word errors in chunks, %"),
        *(Column(f"at_{level}", f"word errors at {level} dB, %") for level in SNRS),
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
