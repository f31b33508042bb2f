"""Test the memory check with worst-case batches: its batches, side effects and suggestions."""

import copy

import numpy as np
import pytest
import torch
from helpers import ROOT, assert_same, tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from batch import synthetic_batch
from corpus.cache import ClipTable
from corpus.clips import Clip
from hparams import create_hparams
from length_batching import STRATEGIES, plan_epoch
from tacotron2_voice.utils.errors import UserError
from training import memory_check
from training.cpu_memory import RESERVE, CpuEstimate, _available_of_group
from training.memory_check import Memory, check_memory, worst_case_shapes
from training.trainer import MicroBatch, Trainer

CPU = torch.device("cpu")
corpora = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 60)), min_size=1, max_size=40)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Make the memory check run the worst-case batches on a CPU, as on a GPU."""
    monkeypatch.setattr(memory_check, "available_memory", lambda: None)
    monkeypatch.setattr(Memory, "fits", Memory._can_run)


def devices() -> list[torch.device]:
    return [CPU, *([torch.device("cuda")] if torch.cuda.is_available() else [])]


@settings(max_examples=150)
@given(
    corpus=corpora,
    batch_size=st.integers(1, 12),
    dynamic=st.booleans(),
    capacity=st.none() | st.floats(1, 6),
    strategy=st.sampled_from(STRATEGIES),
    factor=st.sampled_from([0.0, 0.1, 1.0, 10.0]),
    seed=st.integers(0, 5),
)
def test_no_batch_of_any_plan_exceeds_the_worst_case_batches(
    corpus, batch_size, dynamic, capacity, strategy, factor, seed
):
    """The limits are the numbers of padded frames, clips, frames and symbols in the worst case."""
    frames, symbols = map(np.array, zip(*corpus, strict=True))
    capacity = int((capacity or batch_size) * frames.max()) if dynamic else None
    shapes = worst_case_shapes(frames, symbols, batch_size, capacity)
    most_clips = max(clips for clips, _, _ in shapes)
    most_frames = max(clips * length for clips, length, _ in shapes)
    widest = {clips: text for clips, _, text in shapes}[most_clips]
    limit = capacity or np.inf
    for clips, length, _ in shapes:
        assert clips * length <= limit  # no training batch exceeds the limit
        assert clips <= len(frames)
    assert max(text for _, _, text in shapes) == symbols.max()
    for epoch in range(3):
        plan = plan_epoch(
            frames,
            batch_size,
            strategy,
            seed=seed,
            epoch=epoch,
            local_randomization_factor=factor,
            bucket_size=batch_size + 3,
            num_bins=min(4, len(frames)),
            num_buckets=3,
            dynamic_batch_size=dynamic,
            batch_capacity=capacity,
        )
        for batch in plan:
            assert len(batch) <= most_clips
            assert len(batch) * frames[batch].max() <= most_frames
            if len(batch) == most_clips:
                assert symbols[batch].max() <= widest


def test_shapes_of_worst_case_batches_equal_shapes_computed_by_hand():
    """A budget of 200 frames allows five clips if the longest clip has 40 frames. A budget of 150
    frames allows one 100-frame clip or three 50-frame clips."""
    frames, symbols = [10] * 5 + [40] * 2 + [100], [3] * 5 + [9, 8, 50]
    assert worst_case_shapes(frames, symbols, 2, 200) == [(2, 100, 50), (5, 40, 9)]
    assert worst_case_shapes([100, 50, 50, 50], [9, 2, 2, 2], 2, 150)[0] == (3, 50, 9)


# ---------------------------------------------------------------------------- side effects


def clips(num_frames: list[int], num_symbols: list[int]) -> ClipTable:
    pairs = zip(num_frames, num_symbols, strict=True)
    synthetic = [Clip("", "", (1,) * symbols, frames, "") for frames, symbols in pairs]
    return ClipTable.of("list.txt", enumerate(synthetic, 1))


VALIDATION = clips([12, 5, 8], [6, 4, 7])


class WatchedTrainer(Trainer):
    """A trainer of a small model. Before each forward pass, the trainer records the batch and calls
    `act(kind, batch)`."""

    def __init__(self, text: str = "", device: torch.device = CPU, act=None):
        super().__init__(create_hparams(f"{tiny(n_mel_channels=4)},{text}"), device)
        self.batches: list[tuple] = []
        self.act = act
        self.model.register_forward_pre_hook(self._watch)

    def _watch(self, model, arguments):
        (batch,) = arguments
        assert all(parameter.grad is None for parameter in model.parameters())
        kind = "training" if model.training else "validation"
        self.batches.append((kind, batch))
        if self.act is not None:
            self.act(kind, batch)

    def shapes(self, kind: str) -> list[tuple]:
        of_kind = [batch for found, batch in self.batches if found == kind]
        return [(tuple(batch.mel.shape), tuple(batch.text.shape)) for batch in of_kind]


def state_of(trainer: Trainer) -> dict:
    """Return all state that the check could change."""
    model, on_gpu = trainer.model, trainer.device.type == "cuda"
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    state = {"model": dict(model.state_dict()), "gradients": gradients, "mode": model.training}
    state["random"] = [torch.get_rng_state(), torch.cuda.get_rng_state() if on_gpu else None]
    return copy.deepcopy(state)


@pytest.mark.parametrize("device", devices(), ids=str)
@pytest.mark.parametrize("with_gradients", [False, True])
def test_memory_check_has_no_side_effects(device, with_gradients):
    trainer = WatchedTrainer(device=device)
    for parameter in trainer.model.parameters() if with_gradients else ():
        parameter.grad = torch.randn_like(parameter)
    before = state_of(trainer)
    training = clips([9, 20, 7, 3, 3, 3, 3], [4, 9, 2, 1, 1, 1, 1])
    peak = check_memory(trainer, training, VALIDATION)
    # On a CPU, the memory estimate first runs a batch with one clip.
    on_cpu = device.type == "cpu"
    first = [((1, 4, 20), (1, 9))] if on_cpu else []
    assert trainer.shapes("training") == [*first, ((3, 4, 20), (3, 9)), ((6, 4, 9), (6, 4))]
    first = [((1, 4, 12), (1, 7))] * 2 if on_cpu else []
    # `text_effect` runs the model twice for each validation batch.
    validation = [((3, 4, 12), (3, 7))] * 2
    assert trainer.shapes("validation") == [*first, *validation]
    assert all(batch.mel.device.type == device.type for _, batch in trainer.batches)
    # On a CPU, the estimate needs values from the operating system. If these values are missing, the
    # peak is 0.
    assert peak > 0 or device.type == "cpu"
    assert_same(state_of(trainer), before)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("GET was unable to find an engine to execute this computation"),
    ],
)
def test_memory_check_has_no_side_effects_when_memory_runs_out(error, as_on_a_gpu):
    def fail(*_):
        raise error

    trainer = WatchedTrainer(act=fail)
    before = state_of(trainer)
    with pytest.raises(UserError, match="clip of 20 frames does not fit") as refusal:
        check_memory(trainer, clips([9, 20, 7], [4, 6, 2]), VALIDATION)
    # The message also reports that the validation batch does not fit.
    assert "clip of 12 frames does not fit" in str(refusal.value)
    assert_same(state_of(trainer), before)


def advice(limit: int, frames: list[int], text: str, kind: str = "training") -> tuple[str, int]:
    """Check the memory as if only batches with at most `limit` padded frames fit into memory.

    Args:
        kind: kind of batches to which the limit applies: "training" or "validation".

    Returns:
        The error message, and the number of batches that the memory check tried.
    """

    def run_out(found, batch):
        clip_count, _, longest = batch.mel.shape
        if found == kind and clip_count * longest > limit:
            raise torch.OutOfMemoryError("CUDA out of memory")

    trainer = WatchedTrainer(text, act=run_out)
    vars(trainer.model)["forward"] = lambda batch: None
    vars(trainer).update(loss=lambda outputs, batch: None, compute_gradients=trainer.model)
    of_kind = clips(frames, [5] * len(frames))
    lists = (of_kind, VALIDATION) if kind == "training" else (VALIDATION, of_kind)
    with pytest.raises(UserError) as refusal:
        check_memory(trainer, *lists)
    return str(refusal.value), len(trainer.shapes(kind))


DYNAMIC = "batch_size=64,dynamic_batch_size=True"
FIXED = "batch_size=64,dynamic_batch_size=False"


@pytest.mark.parametrize("fitting", [1, 31, 63])
@pytest.mark.parametrize(
    ("settings", "kind", "name"),
    [
        ("validation_batch_size=64", "validation", "validation_batch_size"),
        (FIXED, "training", "batch_size"),
        (DYNAMIC, "training", "batch_capacity"),
    ],
)
def test_memory_check_suggests_the_largest_setting_that_fits(
    settings, kind, name, fitting, as_on_a_gpu
):
    message, tried = advice(100 * fitting + 99, [100] * 70, settings, kind)
    value = fitting * 100 if name == "batch_capacity" else fitting
    assert message.endswith(f"--hparams {name}={value}")
    assert "64 clips of 100 frames and 5 symbols" in message
    assert ("for validation" in message) == (kind == "validation")
    assert tried <= 14  # with dynamic batch sizes, the check runs two batches for each value


@pytest.mark.parametrize(
    ("limit", "frames", "settings", "expected"),
    [
        # Ten 100-frame clips fit into memory, but the given budget would allow eleven 95-frame
        # clips.
        (1000, [100] * 12 + [95] * 30, f"{DYNAMIC},batch_capacity=1050", "batch_capacity=1000"),
        (450, [100] * 5, FIXED, "batch_size=4"),  # the corpus has only five clips
    ],
)
def test_memory_check_tries_only_values_below_the_given_setting(
    limit, frames, settings, expected, as_on_a_gpu
):
    message, _ = advice(limit, frames, settings)
    assert message.endswith(f"--hparams {expected}")


# ---------------------------------------------------------------------------- memory check on a CPU


@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ((40, 400, 60), "decoder=fast"),
        pytest.param((300, 50, 20), "decoder=fast", marks=pytest.mark.thorough),
        pytest.param((16, 1500, 200), "decoder=fast", marks=pytest.mark.thorough),
    ],
)
def test_cpu_memory_estimate_is_close_to_the_measured_peak(shape, settings, one_thread):
    """The test allows a difference of 30%, because other work in the process also needs memory. On
    an idle machine, the estimates were between 8% too low and 15% too high."""
    file = ROOT / "scripts" / "sentences_model.txt"
    trainer = Trainer(create_hparams(f"@{file},{settings}"), CPU)
    estimate = CpuEstimate(trainer, trainer.compute_gradients, [shape])
    measured = estimate._peak(shape)
    estimated = estimate.bytes_of([shape]) - estimate._optimizer
    assert 0.7 < estimated / measured < 1.3


def test_cpu_memory_estimate_runs_only_a_few_clips():
    trainer = WatchedTrainer()
    CpuEstimate(trainer, trainer.compute_gradients, [(640, 200, 5)])
    assert [mel[0] for mel, _ in trainer.shapes("training")] == [1, 32]


class OneBytePerFrame:
    """Stand in for CpuEstimate: every padded frame needs one byte."""

    def __init__(self, *_):
        pass

    def bytes_of(self, shapes):
        return max(clip_count * frames for clip_count, frames, _ in shapes)


@pytest.mark.parametrize(
    ("settings", "advised"), [(FIXED, "batch_size=24"), (DYNAMIC, "batch_capacity=9600")]
)
def test_memory_check_suggests_the_largest_setting_that_fits_on_a_cpu(
    settings, advised, monkeypatch
):
    training = clips([400] * 70, [50] * 70)
    monkeypatch.setattr(memory_check, "CpuEstimate", OneBytePerFrame)
    monkeypatch.setattr(memory_check, "reset_peak_memory", lambda device: True)
    available = 24 * 400 / (1 - RESERVE) + 10
    monkeypatch.setattr(memory_check, "available_memory", lambda: int(available))
    with pytest.raises(UserError) as problem:
        check_memory(WatchedTrainer(settings), training, VALIDATION)
    assert str(problem.value).endswith(f"--hparams {advised}")
    assert "64 clips of 400 frames and 50 symbols" in str(problem.value)
    check_memory(WatchedTrainer(f"{settings},{advised}"), training, VALIDATION)


def test_available_memory_respects_the_limit_of_a_control_group(tmp_path):
    assert _available_of_group(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("300\n")
    assert _available_of_group(tmp_path) is None
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.stat").write_text("anon 200\ninactive_file 50\n")
    assert _available_of_group(tmp_path) == 750


# ---------------------------------------------------------------------------- memory check on a GPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_training_succeeds_with_the_suggested_frame_budget_on_a_gpu():
    """The full-size model trains with a limit of 4 GB, which is too little for 64 clips of 870
    frames."""
    device, training = torch.device("cuda", 0), clips([870] * 70, [150] * 70)
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(4e9 / total, device)
    try:
        with pytest.raises(UserError, match="do not fit into the GPU memory") as refusal:
            check_memory(Trainer(create_hparams("batch_size=64"), device), training, VALIDATION)
        setting = str(refusal.value).rpartition(" ")[2]
        del refusal  # the traceback would keep the first model in memory
        assert setting.startswith("batch_capacity=")
        torch.cuda.empty_cache()
        hparams = create_hparams(f"batch_size=64,{setting}")
        trainer = Trainer(hparams, device)
        assert check_memory(trainer, training, VALIDATION) <= 4e9
        count = hparams.batch_capacity // 870
        losses = trainer.step([MicroBatch(synthetic_batch([870] * count, [150] * count, hparams))])
        losses.copied.synchronize()
        assert torch.isfinite(losses.values[0])
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
