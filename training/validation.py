"""Validation: losses that compare runs, and one clip to look at and listen to, of each speaker."""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from audio import mel_filters
from batching import VALIDATION_SEED, validation_batches
from corpus.cache import ClipTable
from data_utils import Batch, make_loader
from export.checkpoint_synthesizer import CheckpointSynthesizer
from hparams import HParams
from loss import sums_of_clips
from model import DropoutMasks, Outputs
from tacotron2_voice.griffin_lim import GriffinLim
from tacotron2_voice.speech_end import FORMED
from tacotron2_voice.synthesizer import TrainingFacts
from tacotron2_voice.utils.console import progress_bar
from tacotron2_voice.utils.errors import UserError
from training.alignment import NOTICED, alignment_sums
from training.distributed import ALONE, Processes
from training.epoch import NoNextBatch, Run, clip_names, next_batches
from training.logging import Example, FreeTake, Take, warn_on_failure
from training.signals import StopRequest
from training.speakers import (
    MAX_SHOWN,
    ClipRow,
    first_places,
    losses_of_speakers,
    short,
)
from training.trainer import hashed_seed

# Updates that published runs took, at one frame a step and 64 clips a batch.
STEPS_TO_ALIGN = 10_000
# Attention of this sharpness whose text has less than this effect after so many updates does not
# read: runs that went on to speak had 0.5 and more, those that babbled 0.04 to 0.11.
SHARP, TEXT_EFFECT, STEPS_TO_READ = 0.6, 0.15, 1000


def make_validation_loader(
    clips: ClipTable, hparams: HParams, pin_memory: bool, processes: Processes = ALONE
) -> DataLoader[Any] | None:
    """Load this process's share of random batches, the same in every run and every epoch. None
    without validation clips."""
    if not len(clips):
        return None
    share = (processes.rank, processes.world_size)
    mine = validation_batches(clips.num_frames, hparams, *share)
    # Workers stay for the next validation. When a loader is dropped, Python 3.12 may collect its
    # queues while their threads still end, and both close the same file descriptors.
    keep = hparams.num_workers > 0
    return make_loader(clips, hparams, pin_memory, mine, persistent_workers=keep)


@torch.no_grad()
def validate(run: Run, stop: StopRequest) -> tuple[dict[str, Any], list[Example]] | None:
    """Validate the model. Returns the record and, in the first process, the examples: one clip, or
    one of each speaker (`first_places` says which).

    Returns None if a process was asked to stop, in all processes. Returns None with a warning if
    validation fails: a clip that cannot be read, a loss that is not finite, too little memory.

    Prenet masks depend on the batch's number alone. The padded loss weights batches by clips, the
    unpadded one by real frames. alignment.py explains sharpness, diagonality and coverage,
    speakers.py the losses of speakers, and `text_effect` the effect of the text.
    """
    assert run.validation_loader is not None  # a run without validation clips does not call this
    trainer, model, processes = run.trainer, run.trainer.model, run.processes
    generator = torch.Generator()
    failure: str | None = None
    mine: list[Any] = []  # of each batch: its number, its sizes, its sums, its clips
    forced: dict[str, Example] = {}  # by speaker, yet to be spoken
    examples: list[Example] = []
    places = example_places(run)
    trainer.optimizer.zero_grad(set_to_none=True)  # the memory check runs without gradients too
    model.eval()
    share, batches = len(run.validation_loader), next_batches(run.validation_loader)
    progress = progress_bar("validation", share, " batches")
    try:
        for place in range(max(processes.gather(share))):
            run.must_stop = processes.any(stop.signal is not None)
            if run.must_stop:
                return None
            if place >= share or failure is not None:
                continue
            number = processes.rank + place * processes.world_size
            generator.manual_seed(hashed_seed(VALIDATION_SEED, number))
            try:  # the others wait for this process, so an error must not end it here
                batch = next(batches)
                outputs, *sums = _validate_batch(run, batch, number, generator)
                mine.append((number, *sums))
                for speaker, (of_batch, row) in places.items():
                    if of_batch == number:
                        forced[speaker] = forced_example(run, batch, outputs, row, speaker)
            except Exception as error:
                is_plain = isinstance(error, (UserError, NoNextBatch))
                failure = str(error) if is_plain else f"{type(error).__name__}: {error}"
            progress.update()
        answers = processes.gather((failure, mine, {} if processes.is_first else forced))
        if failures := [failure for failure, *_ in answers if failure is not None]:
            epoch = run.state.epoch
            print(f"warning: no validation of epoch {epoch}, training continues: {failures[0]}")
            return None
        for *_, theirs in answers:
            forced |= theirs
        # The first process speaks, for the others print no warnings.
        for speaker in places if processes.is_first else ():
            if stop.signal is not None:
                break
            with warn_on_failure("making pictures and sound of a validation clip"):
                examples.append(example_of(run, forced[speaker]))
        run.must_stop = processes.any(stop.signal is not None)
        if run.must_stop:
            return None
    finally:
        model.train()
        progress.close()
    record = _record(run, sorted(itertools.chain(*(batches for _, batches, _ in answers))))
    return record_with_examples(record, examples), examples


def example_places(run: Run) -> dict[str, tuple[int, int]]:
    """The batch's number and the row of each example, by speaker; "" is the one voice's."""
    clips = run.clips.validation
    if not run.hparams.speakers:
        return {"": (0, 0)}
    return first_places(validation_batches(clips.num_frames, run.hparams), clips)


def _validate_batch(
    run: Run, batch: Batch, number: int, generator: torch.Generator
) -> tuple[Any, ...]:
    """The model's outputs; (clips, frames, steps, symbols); padded loss, unpadded loss,
    alignment.alignment_sums and `text_effect`, which is NaN but for the first batch; a ClipRow of
    each clip, for a model of several speakers."""
    model, trainer = run.trainer.model, run.trainer
    num_steps = batch.mel.shape[2] // model.n_frames_per_step
    masks = model.decoder.draw_masks(num_steps, len(batch.text), generator)
    moved = batch.to(trainer.device)
    with trainer.autocast():
        outputs = model(moved, masks)
    losses = trainer.validation_loss(outputs, moved)
    steps = batch.num_steps(model.n_frames_per_step)
    aligned = alignment_sums(outputs.alignments, steps, batch.text_lengths)
    sums = torch.cat([torch.stack([losses.total, losses.total_unpadded]), aligned]).tolist()
    assert batch.clip_indices is not None  # a loader's batch has them
    if not np.isfinite(sums).all():
        names = clip_names(run.clips.validation, batch.clip_indices.tolist())
        raise UserError(f"the validation loss became {sums[0]} on these clips:\n{names}")
    lengths = (batch.mel_lengths, steps, batch.text_lengths)
    sizes = (len(steps), *(int(length.sum()) for length in lengths))
    is_first, loss = number == 0, float(losses.total_unpadded)
    sums.append(text_effect(run, moved, masks, loss) if is_first else math.nan)
    rows: list[ClipRow] = []
    if run.hparams.speakers:
        columns = [batch.clip_indices, batch.mel_lengths, steps, *sums_of_clips(outputs, moved)]
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
    return outputs, sizes, sums, rows


def text_effect(run: Run, batch: Batch, masks: DropoutMasks, loss: float) -> float:
    """By how much the batch's unpadded loss rises above `loss`, as a fraction of it, when the
    symbols of each text are shuffled. Near 0 the model predicts frames from the frames before them
    alone, and speaks no words, however sharp its alignments are."""
    text, generator = batch.text.clone(), torch.Generator().manual_seed(VALIDATION_SEED)
    for row, length in zip(text, batch.text_lengths.tolist(), strict=True):
        row[:length] = row[torch.randperm(length, generator=generator)]
    with run.trainer.autocast():
        outputs = run.trainer.model(replace(batch, text=text), masks)
    return float(run.trainer.validation_loss(outputs, batch).total_unpadded) / loss - 1


def _record(run: Run, batches: list[Any]) -> dict[str, Any]:
    """The means over all batches, in the order of their numbers."""
    values = np.array([sums for _, _, sums, _ in batches])
    clips, frames, steps, symbols = np.array([sizes for _, sizes, _, _ in batches]).T
    record: dict[str, Any] = {
        "epoch": run.state.epoch,
        "iteration": run.state.iteration,
        "validation_loss": float(values[:, 0] @ clips / clips.sum()),
        "validation_loss_unpadded": float(values[:, 1] @ frames / frames.sum()),
        "alignment_sharpness": float(values[:, 2].sum() / steps.sum()),
        "alignment_coverage": float(values[:, 4].sum() / symbols.sum()),
        "alignment_diagonality": float(values[:, 3].sum() / steps.sum()),
        "text_effect": float(values[0, 5]),
    }
    rows = list(itertools.chain(*(rows for *_, rows in batches)))
    if rows:
        losses = losses_of_speakers(run.clips.validation, rows)
        record["speakers"] = {name: {"loss_unpadded": loss} for name, loss in losses.items()}
    return record


def forced_example(run: Run, batch: Batch, outputs: Outputs, row: int, speaker: str) -> Example:
    """The clip in a row of a batch, teacher-forced."""
    h, ids = run.hparams, batch.text[row, : int(batch.text_lengths[row])].tolist()
    frames = int(batch.mel_lengths[row])
    steps, recording = -(-frames // h.n_frames_per_step), batch.mel[row, :, :frames].numpy()
    forced = Take(
        [h.table.symbols[i] for i in ids],
        outputs.alignments[row, :steps, : len(ids)].float().cpu().numpy(),
        outputs.mel_postnet[row, :, :frames].float().cpu().numpy(),
        torch.sigmoid(outputs.gate[row, :steps].float()).cpu().numpy(),
    )
    target = batch.gate[row, :steps].numpy()
    silent: dict[str, Any] = {"spoken": None, "sounds": {}}
    return Example(
        speaker, recording, target, forced, ids, h.gate_threshold, h.sampling_rate, **silent
    )


def example_of(run: Run, forced: Example) -> Example:
    """The example with its text spoken freely, and its sounds."""
    h, mels, spoken = run.hparams, {"predicted": forced.forced.mel}, None
    with warn_on_failure("speaking the text of a validation clip"):
        spoken = speak_freely(run, forced.ids, forced.speaker or None)
        mels["spoken"] = spoken.mel
    # Once in a run, as it stays the same; also after clips were changed.
    if run.state.best_iteration < 0 or run.clips.change is not None:
        mels["recording"] = forced.recording
    sounds = {}
    with warn_on_failure("making the sound of a validation clip"):
        griffin_lim = GriffinLim(h, mel_filters(h).numpy())
        for name, mel in mels.items():
            sounds[name] = griffin_lim.samples(mel)
    return replace(forced, spoken=spoken, sounds=sounds)


def speak_freely(run: Run, ids: list[int], speaker: str | None = None) -> FreeTake:
    """Synthesize the symbols of a text once, as `speaker` where there are several. The model must
    be in evaluation mode; no global random state changes. The text's length limits the steps, and
    attention without progress ends it."""
    training = TrainingFacts(run.statistics, run.speaker_statistics)
    synthesizer = CheckpointSynthesizer(run.trainer.model, run.hparams, training)
    stream = synthesizer.stream_mels(ids, seed=VALIDATION_SEED, retries=0, speaker=speaker)
    mel = np.concatenate([*stream], axis=1)
    [chunk] = stream.chunks
    symbols = [run.hparams.table.symbols[i] for i in chunk.ids]
    return FreeTake(symbols, chunk.alignment, mel, np.array(chunk.gates), chunk.stop_reason)


def spoken_numbers(example: Example) -> dict[str, float]:
    """The record's numbers about free running; empty if that failed."""
    spoken = example.spoken
    if spoken is None:
        return {}
    return {
        "spoken_stopped": int(spoken.end.is_found),
        "spoken_seconds_ratio": spoken.mel.shape[1] / example.recording.shape[1],
        "spoken_coverage": float((spoken.alignment.max(axis=0) >= NOTICED).mean()),
    }


def how_spoken(run: Run, example: Example) -> str:
    """A phrase on an example's free running; empty if that failed."""
    if example.spoken is None:
        return ""
    end, frame = example.spoken.end, run.hparams.hop_length / run.hparams.sampling_rate
    seconds, recorded = (x.shape[1] * frame for x in (example.spoken.mel, example.recording))
    how = "stopped" if end.is_found else f"did not stop: {end.value}"
    return (
        f"spoken freely: {how} after {seconds:.1f} s (the recording has {recorded:.1f}), "
        f"coverage {spoken_numbers(example)['spoken_coverage']:.2f}"
    )


def record_with_examples(record: dict[str, Any], examples: Sequence[Example]) -> dict[str, Any]:
    """The record with the numbers about free running: the means over the examples that were spoken,
    and those of each speaker."""
    numbers = {example.speaker: spoken_numbers(example) for example in examples}
    for name, values in numbers.items() if "speakers" in record else ():
        record["speakers"][name] |= values
    spoken = [values for values in numbers.values() if values]
    names = spoken[0] if spoken else ()
    return record | {name: statistics.mean(values[name] for values in spoken) for name in names}


def log_validation(run: Run, record: dict[str, Any], examples: Sequence[Example]) -> None:
    """Log and print a validation, and record the best."""
    if run.logger is not None:
        run.logger.log_validation(record, examples)
    run.recent_sharpness = record["alignment_sharpness"]
    print(
        f"  validation loss {record['validation_loss']:.4f}, "
        f"unpadded {record['validation_loss_unpadded']:.4f}, "
        f"alignment sharpness {record['alignment_sharpness']:.3f}, "
        f"coverage {record['alignment_coverage']:.2f}, "
        f"diagonality {record['alignment_diagonality']:.2f}, "
        f"text effect {record['text_effect']:.2f}"
    )
    how = {example.speaker: line for example in examples if (line := how_spoken(run, example))}
    if "" in how:
        print(f"  {how['']}")
    losses = {name: each["loss_unpadded"] for name, each in record.get("speakers", {}).items()}
    for name in list(losses)[:MAX_SHOWN]:
        print(
            "; ".join(
                [f"  {short(name)}: unpadded {losses[name]:.4f}", *filter(None, [how.get(name)])]
            )
        )
    if rest := list(losses)[MAX_SHOWN:]:
        best, worst = min(rest, key=losses.__getitem__), max(rest, key=losses.__getitem__)
        print(
            f"  {len(rest):,} more: unpadded {losses[best]:.4f} ({short(best)}) to "
            f"{losses[worst]:.4f} ({short(worst)})"
        )
    warn_of_attention(run, record)
    is_good = not run.state.diverges(record["validation_loss"])
    if is_good and record["validation_loss_unpadded"] < run.state.best_validation_loss:
        run.state.best_validation_loss = record["validation_loss_unpadded"]
        run.state.best_iteration = run.state.iteration


def warn_of_attention(run: Run, record: dict[str, Any]) -> None:
    """Warn once in a run if the alignment has not formed, and once if attention ignores the
    text."""
    state, sharpness = run.state, record["alignment_sharpness"]
    if not state.alignment_warned and record["iteration"] >= STEPS_TO_ALIGN and sharpness < FORMED:
        state.alignment_warned = 1
        # Longer training rarely mends it.
        print(
            f"warning: the alignment has not formed after {record['iteration']:,} updates: "
            f"sharpness {sharpness:.2f} is below {FORMED}. With one frame a "
            f"step and 64 clips a batch, others report some {STEPS_TO_ALIGN:,}. What usually "
            "helps:\n"
            "  1. trim silence at the clips' ends (prepare.py --trim-silence)\n"
            "  2. start a new run with n_frames_per_step=2 (or 3): alignments are shorter\n"
            "  3. start a new run with guided_attention_weight=1, if it was lower\n"
            "  4. keep training, if sharpness has been rising; smaller batches give more updates",
            flush=True,
        )
    if (
        not state.text_warned
        and record["iteration"] >= STEPS_TO_READ
        and sharpness >= SHARP
        and record["text_effect"] < TEXT_EFFECT
    ):
        state.text_warned = 1
        less = "guided_attention_weight=1,guided_attention_sigma=0.4"
        print(
            f"warning: attention is sharp ({sharpness:.2f}) but ignores the text: with the symbols "
            f"shuffled, the loss is only {max(0, record['text_effect']):.0%} higher. It moves at a "
            "fixed pace, and speech will have no words. What helps is less guidance, also of this "
            f"run: {run.resume_command} --hparams {less}; if it is already so, keep training",
            flush=True,
        )
