"""Validate a model, and prepare one example clip per speaker for TensorBoard.

result = validate(run, stop)
if result is not None:
    log_validation(run, *result)
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader

from audio import mel_filters
from batch import Batch
from batching import VALIDATION_SEED, validation_batches
from corpus.cache import ClipTable
from data_utils import make_loader
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
from training.clips import clip_names
from training.distributed import ALONE, Processes
from training.epoch import NoNextBatch, next_batches
from training.run import Run
from training.signals import StopRequest
from training.speakers import MAX_SHOWN, ClipRow, first_positions, losses_of_speakers, short
from training.tensorboard import Example, FreeRunningPrediction, Prediction, warn_on_failure
from training.trainer import hashed_seed

# Number of optimizer steps after which attention formed an alignment in published runs (r = 1, 64
# clips per batch).
STEPS_TO_ALIGN = 10_000
# Attention ignores the text if, after STEPS_TO_READ optimizer steps, the focus rate is at least
# SHARP and the text effect is below TEXT_EFFECT. In runs that learned to speak, the text effect was
# at least 0.5. In runs with unintelligible speech, it was 0.04 to 0.11.
SHARP = 0.6
TEXT_EFFECT = 0.15
STEPS_TO_READ = 1000


def make_validation_loader(
    clips: ClipTable,
    hparams: HParams,
    processes: Processes = ALONE,
    *,
    pin_memory: bool,
) -> DataLoader[Any] | None:
    """Return a DataLoader for this process's validation batches; None if there are no clips.

    The clips are grouped into batches at random, but the batches are the same in every run and
    every epoch.
    """
    if not len(clips):
        return None
    batches = validation_batches(clips.num_frames, hparams, processes.rank, processes.world_size)
    return make_loader(clips, hparams, batches, pin_memory=pin_memory)


class BatchResult(NamedTuple):
    """The validation results of one batch, in a form that processes can exchange."""

    number: int  # index of the batch among all validation batches
    sizes: tuple[int, ...]  # numbers of clips, frames, decoder steps and symbols in the batch
    # The padded loss, the masked loss, the three sums from `alignment_sums`, and the text effect.
    sums: list[float]
    rows: list[ClipRow]  # one row of losses per clip; [] for a single-speaker model


@torch.no_grad()
def validate(run: Run, stop: StopRequest) -> tuple[dict[str, Any], list[Example]] | None:
    """Validate the model.

    The prenet's dropout masks depend only on the batch number. In the mean padded loss, the weight
    of a batch is its number of clips. In the mean masked loss, the weight of a batch is its number
    of real frames. alignment.py defines focus rate, diagonality and coverage. speakers.py computes
    the validation loss of each speaker.

    Returns:
        A tuple of the record for metrics.jsonl and a list of examples, one per speaker (only in the
        first process). The result is None in all processes if a process was asked to stop or if
        validation failed. A warning is printed if validation fails. Possible reasons are a clip
        that cannot be read, a loss that is not finite, and too little memory.
    """
    # `validate` is never called in a run without validation clips.
    assert run.validation_loader is not None
    trainer = run.trainer
    processes = run.processes
    generator = torch.Generator()
    failure: str | None = None
    mine: list[BatchResult] = []
    forced: dict[str, Example] = {}  # examples that have no free-running prediction yet
    positions = example_positions(run)
    # Free the gradients, because the memory check measured the peak memory of validation without
    # gradients.
    trainer.optimizer.zero_grad(set_to_none=True)
    trainer.model.eval()
    share = len(run.validation_loader)
    batches = next_batches(run.validation_loader)
    progress = progress_bar("validation", share, " batches")
    try:
        for i in range(max(processes.gather(share))):
            run.must_stop = processes.any(stop.signal is not None)
            if run.must_stop:
                return None
            if i >= share or failure is not None:
                continue
            number = processes.rank + i * processes.world_size
            generator.manual_seed(hashed_seed(VALIDATION_SEED, number))
            try:
                batch = next(batches)
                outputs, result = _validate_batch(run, batch, number, generator)
                mine.append(result)
                for speaker, (of_batch, row) in positions.items():
                    if of_batch == number:
                        forced[speaker] = forced_example(run, batch, outputs, row, speaker)
            # Do not raise the error here, because the other processes wait for results from this
            # process.
            except Exception as error:
                is_plain = isinstance(error, (UserError, NoNextBatch))
                failure = str(error) if is_plain else f"{type(error).__name__}: {error}"
            progress.update()
        answers = processes.gather((failure, mine, {} if processes.is_first else forced))
        failures = [answer[0] for answer in answers if answer[0] is not None]
        if failures:
            epoch = run.state.epoch
            print(
                f"warning: the validation of epoch {epoch} failed, but training "
                f"continues: {failures[0]}"
            )
            return None
        for _, _, theirs in answers:
            forced |= theirs
        examples = []
        # Synthesize the examples only in the first process, because only the first process prints
        # warnings.
        for speaker in positions if processes.is_first else ():
            if stop.signal is not None:
                break
            examples.append(example_of(run, forced[speaker]))
        run.must_stop = processes.any(stop.signal is not None)
        if run.must_stop:
            return None
    finally:
        trainer.model.train()
        progress.close()
    results = sorted(itertools.chain(*(results for _, results, _ in answers)))
    return record_with_examples(_record(run, results), examples), examples


def example_positions(run: Run) -> dict[str, tuple[int, int]]:
    """Return the batch number and the row of each speaker's example clip, keyed by speaker.

    The example is the speaker's first clip in the validation filelist. A single-speaker model has
    one speaker, with the name "".
    """
    clips = run.clips.validation
    batches = validation_batches(clips.num_frames, run.hparams)
    if run.hparams.speakers:
        return first_positions(batches, clips)
    [number] = (number for number, batch in enumerate(batches) if 0 in batch)
    return {"": (number, batches[number].index(0))}


def _validate_batch(
    run: Run, batch: Batch, number: int, generator: torch.Generator
) -> tuple[Outputs, BatchResult]:
    trainer = run.trainer
    model = trainer.model
    num_steps = batch.mel.shape[2] // model.n_frames_per_step
    masks = model.decoder.draw_masks(num_steps, len(batch.text), generator)
    moved = batch.to(trainer.device)
    with trainer.autocast():
        outputs = model(moved, masks)
    losses = trainer.validation_loss(outputs, moved)
    steps = batch.num_steps(model.n_frames_per_step)
    aligned = alignment_sums(outputs.alignments, steps, batch.text_lengths)
    sums = torch.cat([torch.stack([losses.total, losses.total_unpadded]), aligned]).tolist()
    # Every DataLoader sets the clip indices.
    assert batch.clip_indices is not None
    if not np.isfinite(sums).all():
        names = clip_names(run.clips.validation, batch.clip_indices.tolist())
        raise UserError(f"the validation loss became {sums[0]} on these clips:\n{names}")
    # Measure the text effect only on the first validation batch, because the measurement needs an
    # additional forward pass.
    is_first = number == 0
    loss = float(losses.total_unpadded)
    sums.append(text_effect(run, moved, masks, loss) if is_first else math.nan)
    lengths = (batch.mel_lengths, steps, batch.text_lengths)
    sizes = (len(steps), *(int(length.sum()) for length in lengths))
    rows: list[ClipRow] = []
    if run.hparams.speakers:
        columns = [batch.clip_indices, batch.mel_lengths, steps, *sums_of_clips(outputs, moved)]
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
    return outputs, BatchResult(number, sizes, sums, rows)


def text_effect(run: Run, batch: Batch, masks: DropoutMasks, loss: float) -> float:
    """Return the text effect: the relative increase of the masked loss if the symbols of each text
    are shuffled.

    If the text effect is near 0, the model ignores the text and predicts frames only from the
    previous frames. A model that ignores the text cannot speak words,
    even if its attention is focused.

    Args:
        loss: masked loss with the correct texts.
    """
    text = batch.text.clone()
    generator = torch.Generator().manual_seed(VALIDATION_SEED)
    for row, length in zip(text, batch.text_lengths.tolist(), strict=True):
        row[:length] = row[torch.randperm(length, generator=generator)]
    with run.trainer.autocast():
        outputs = run.trainer.model(replace(batch, text=text), masks)
    return float(run.trainer.validation_loss(outputs, batch).total_unpadded) / loss - 1


def _record(run: Run, results: list[BatchResult]) -> dict[str, Any]:
    """Return the mean results over all validation batches as a record for metrics.jsonl.

    `results` must be sorted by batch number.
    """
    values = np.array([result.sums for result in results])
    clips, frames, steps, symbols = np.array([result.sizes for result in results]).T
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
    rows = list(itertools.chain(*(result.rows for result in results)))
    if rows:
        losses = losses_of_speakers(run.clips.validation, rows)
        record["speakers"] = {name: {"loss_unpadded": loss} for name, loss in losses.items()}
    return record


# ---------------------------------------------------------------------------- examples


def forced_example(run: Run, batch: Batch, outputs: Outputs, row: int, speaker: str) -> Example:
    """Return the example for the clip in row `row` of the batch, with the teacher-forced
    prediction."""
    h = run.hparams
    ids = batch.text[row, : int(batch.text_lengths[row])].tolist()
    frames = int(batch.mel_lengths[row])
    steps = -(-frames // h.n_frames_per_step)
    prediction = Prediction(
        symbols=[h.table.symbols[i] for i in ids],
        alignment=outputs.alignments[row, :steps, : len(ids)].float().cpu().numpy(),
        mel=outputs.mel_postnet[row, :, :frames].float().cpu().numpy(),
        gate=torch.sigmoid(outputs.gate[row, :steps].float()).cpu().numpy(),
    )
    return Example(
        speaker=speaker,
        recording=batch.mel[row, :, :frames].numpy(),
        gate_target=batch.gate[row, :steps].numpy(),
        teacher_forced=prediction,
        ids=ids,
        gate_threshold=h.gate_threshold,
        sampling_rate=h.sampling_rate,
        free_running=None,
        audio={},
    )


def example_of(run: Run, forced: Example) -> Example:
    """Return a copy of the example with audio and a free-running prediction of the example's
    text."""
    mels = {"predicted": forced.teacher_forced.mel}
    spoken = None
    with warn_on_failure("synthesizing the text of a validation clip"):
        spoken = speak(run, forced.ids, forced.speaker or None)
        mels["spoken"] = spoken.mel
    # Write the recording to TensorBoard once per run, and again if the clips have changed.
    if run.state.best_iteration < 0 or run.clips.change is not None:
        mels["recording"] = forced.recording
    audio = {}
    with warn_on_failure("creating audio for a validation clip"):
        griffin_lim = GriffinLim(run.hparams, mel_filters(run.hparams).numpy())
        for name, mel in mels.items():
            audio[name] = griffin_lim.samples(mel)
    return replace(forced, free_running=spoken, audio=audio)


def speak(run: Run, ids: list[int], speaker: str | None = None) -> FreeRunningPrediction:
    """Synthesize speech for symbol ids without retries. For a model with several speakers,
    `speaker` is required.

    The model must be in evaluation mode. The function does not change the global random state.
    Synthesis also ends if the speech is too long for the text or if attention makes no progress.
    """
    training = TrainingFacts(run.statistics, run.speaker_statistics)
    synthesizer = CheckpointSynthesizer(run.trainer.model, run.hparams, training)
    stream = synthesizer.stream_mels(ids, seed=VALIDATION_SEED, retries=0, speaker=speaker)
    mel = np.concatenate([*stream], axis=1)
    [chunk] = stream.chunks
    symbols = [run.hparams.table.symbols[i] for i in chunk.ids]
    return FreeRunningPrediction(
        symbols, chunk.alignment, mel, np.array(chunk.gates), chunk.stop_reason
    )


def free_running_record(example: Example) -> dict[str, float]:
    """Return the metrics of free-running inference for an example; {} if inference failed."""
    spoken = example.free_running
    if spoken is None:
        return {}
    return {
        "spoken_stopped": int(spoken.end.is_found),
        "spoken_seconds_ratio": spoken.mel.shape[1] / example.recording.shape[1],
        "spoken_coverage": float((spoken.alignment.max(axis=0) >= NOTICED).mean()),
    }


def describe_free_running(run: Run, example: Example) -> str:
    """Return a phrase about the free-running inference of an example; "" if inference failed."""
    spoken = example.free_running
    if spoken is None:
        return ""
    frame_seconds = run.hparams.hop_length / run.hparams.sampling_rate
    seconds = spoken.mel.shape[1] * frame_seconds
    recorded = example.recording.shape[1] * frame_seconds
    end = "ended" if spoken.end.is_found else f"cut ({spoken.end.value})"
    return (
        f"free-running: {end} after {seconds:.1f} s (recording: {recorded:.1f} s), "
        f"coverage {free_running_record(example)['spoken_coverage']:.2f}"
    )


def record_with_examples(record: dict[str, Any], examples: Sequence[Example]) -> dict[str, Any]:
    """Return a copy of the record that also contains the metrics of free-running inference.

    The added metrics are means over all examples. If the record contains speakers, the metrics of
    each speaker's example are also added.
    """
    entries = {example.speaker: free_running_record(example) for example in examples}
    if "speakers" in record:
        for speaker, values in entries.items():
            record["speakers"][speaker] |= values
    spoken = [values for values in entries.values() if values]
    names = spoken[0] if spoken else ()
    return record | {name: statistics.mean(values[name] for values in spoken) for name in names}


# ---------------------------------------------------------------------------- messages


def log_validation(run: Run, record: dict[str, Any], examples: Sequence[Example]) -> None:
    """Log and print the results of a validation, and update the lowest validation loss."""
    if run.logger is not None:
        run.logger.log_validation(record, examples)
    run.recent_focus_rate = record["alignment_sharpness"]
    print(
        f"  validation loss {record['validation_loss']:.4f}, "
        f"masked loss {record['validation_loss_unpadded']:.4f}, "
        f"focus rate {record['alignment_sharpness']:.3f}, "
        f"coverage {record['alignment_coverage']:.2f}, "
        f"diagonality {record['alignment_diagonality']:.2f}, "
        f"text effect {record['text_effect']:.2f}"
    )
    phrases = {example.speaker: describe_free_running(run, example) for example in examples}
    if phrases.get(""):
        print(f"  {phrases['']}")
    _print_speakers(record.get("speakers", {}), phrases)
    warn_about_attention(run, record)
    state = run.state
    is_good = not state.diverges(record["validation_loss"])
    if is_good and record["validation_loss_unpadded"] < state.best_validation_loss:
        state.best_validation_loss = record["validation_loss_unpadded"]
        state.best_iteration = state.iteration


def _print_speakers(speakers: dict[str, dict[str, float]], phrases: dict[str, str]) -> None:
    losses = {name: values["loss_unpadded"] for name, values in speakers.items()}
    names = list(losses)
    for name in names[:MAX_SHOWN]:
        phrase = f"; {phrases[name]}" if phrases.get(name) else ""
        print(f"  {short(name)}: masked loss {losses[name]:.4f}{phrase}")
    rest = names[MAX_SHOWN:]
    if rest:
        best = min(rest, key=losses.__getitem__)
        worst = max(rest, key=losses.__getitem__)
        print(
            f"  {len(rest):,} more: masked loss {losses[best]:.4f} ({short(best)}) to "
            f"{losses[worst]:.4f} ({short(worst)})"
        )


def warn_about_attention(run: Run, record: dict[str, Any]) -> None:
    """Print a warning if no alignment has formed or if attention ignores the text."""
    state = run.state
    focus_rate = record["alignment_sharpness"]
    is_late = record["iteration"] >= STEPS_TO_ALIGN
    if not state.alignment_warned and is_late and focus_rate < FORMED:
        state.alignment_warned = 1
        print(
            f"warning: no alignment has formed after {record['iteration']:,} optimizer steps: "
            f"focus rate {focus_rate:.2f}, expected at least {FORMED}. See "
            "docs/guides/troubleshooting.md",
            flush=True,
        )
    can_read = record["iteration"] >= STEPS_TO_READ and focus_rate >= SHARP
    if not state.text_warned and can_read and record["text_effect"] < TEXT_EFFECT:
        state.text_warned = 1
        settings = "guided_attention_weight=1,guided_attention_sigma=0.4"
        fix = ""
        if command := run.resume_command:
            fix = (
                f"Stop the run and resume it with weaker guided attention: {command} --hparams "
                f"{settings}. If the run already has these settings, keep training"
            )
        print(
            f"warning: attention is focused (focus rate {focus_rate:.2f}) but ignores the text. "
            f"Shuffling the symbols raises the loss by only {max(0, record['text_effect']):.0%}. "
            f"Attention moves at a constant rate, so the speech will be unintelligible. {fix}",
            flush=True,
        )
