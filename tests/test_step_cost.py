"""benchmarks/step_cost.py: what it measures and predicts, on a tiny model."""

import json
import shutil
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import SENTENCES, Child, metrics
from scipy.spatial import Delaunay

from analysis.lengths import ClipLengths
from analysis.step_costs import TERMS, StepCosts, read_costs, write_costs
from batching import STRATEGIES, plan_epoch
from benchmarks import step_cost
from hparams import create_hparams

TINY = (
    "symbols_embedding_dim=8,encoder_embedding_dim=8,attention_rnn_dim=8,decoder_rnn_dim=8,"
    "prenet_dim=8,attention_dim=8,attention_location_n_filters=2,postnet_embedding_dim=8,"
    "n_mel_channels=4,batch_size=4"
)
GRID = ["--batch-sizes", "1,2,4", "--frames", "6,12,24", "--symbols", "5,10,20", "--capacity", "48"]
CPU = torch.device("cpu")


def arguments(*options: str):
    return step_cost.parse_arguments(["-o", "costs.json", *options])


# ---------------------------------------------------------------------------- the whole program


def test_it_measures_fits_and_writes_costs_that_predict_what_was_measured(tmp_path, capsys):
    options = ["--device", "cpu", "--hparams", TINY, *GRID, "--repeats", "2", "--minutes", "1"]
    step_cost.main([*options, "-o", str(tmp_path / "costs.json")])
    printed = capsys.readouterr().out
    costs = read_costs(tmp_path / "costs.json")
    expected = set(product((1, 2, 4), (6, 12, 24), (5, 10, 20)))
    expected -= set(product((4,), (24,), (5, 10, 20)))  # 96 padded frames, 48 are allowed
    assert {(m.clips, m.frames, m.symbols) for m in costs.measurements} == expected
    assert {m.repeats for m in costs.measurements} == {2}
    held_out = [m for m in costs.measurements if m.held_out]
    assert len(held_out) == round(0.2 * len(expected)) == costs.held_out_errors["points"]
    shapes = np.array([(m.clips, m.frames, m.symbols) for m in costs.measurements])
    seconds = np.array([m.seconds for m in costs.measurements])
    assert 0.5 < costs.seconds(*shapes.T).sum() / seconds.sum() < 2  # other programs run too
    if sys.platform == "linux":
        memory = np.array([m.bytes for m in costs.measurements])
        assert memory.min() > 50e6  # of the whole process, torch and all
        np.testing.assert_allclose(costs.bytes(*shapes.T), memory, rtol=0.1)
    assert costs.hparams["batch_size"] == 4
    assert costs.hparams["decoder_rnn_dim"] == 8
    assert costs.machine["device"] == "cpu"
    assert "fp32" in costs.description
    assert "3 over 48 padded frames" in printed
    for term in TERMS:
        assert f"µs {term}\n" in printed
    assert "time: on 5 held-out batch shapes the prediction is wrong by" in printed
    use = "python scripts/compare_batching.py FILELIST --cost {} --recommend"
    assert use.format(tmp_path / "costs.json") in printed


def test_without_time_what_was_not_reached_is_named_and_little_is_refused(tmp_path, capsys):
    output = tmp_path / "costs.json"
    options = ["--device", "cpu", "--hparams", TINY, *GRID, "-o", str(output)]
    with pytest.raises(SystemExit) as stop:
        step_cost.main([*options, "--minutes", "1e-9"])
    assert "0 batch shapes cannot tell" in str(stop.value)
    assert "raise --minutes" in str(stop.value)
    said = capsys.readouterr().out
    assert "skipped: 4 clips of 12 frames and 20 symbols: not reached in 1e-09 minutes" in said
    assert not output.exists()


# ---------------------------------------------------------------------------- the grid


def batches_of(hparams, frames, symbols) -> set[tuple[int, int, int]]:
    """The shapes of all batches that any strategy makes of these clips, over two epochs."""
    shapes = set()
    for strategy, dynamic, epoch in product(STRATEGIES, (False, True), (0, 1)):
        plan = plan_epoch(
            frames, hparams.batch_size, strategy, epoch=epoch, dynamic_batch_size=dynamic
        )
        shapes |= {(len(b), int(frames[b].max()), int(symbols[b].max())) for b in plan}
    return shapes


@pytest.mark.parametrize("batch_size", [1, 4, 16, 64])
def test_every_batch_of_clips_like_ljspeech_lies_inside_the_default_grid(batch_size):
    hparams = create_hparams(f"batch_size={batch_size},win_time=50,hop_time=12.5")
    grid = np.array(step_cost.make_grid(arguments(), hparams), dtype=float)
    rng = np.random.default_rng(3)
    seconds = np.append(rng.triangular(1.11, 8.5, 10.1, 10_000), [1.11, 10.1])
    frames = 1 + (22_050 * seconds).astype(int) // 276
    symbols = np.clip((seconds * rng.normal(15, 2, len(seconds))).astype(int), 12, 190)
    shapes = np.array(sorted(batches_of(hparams, frames, symbols)), dtype=float)
    unit = grid.max(axis=0)
    outside = Delaunay(grid / unit).find_simplex(shapes / unit) < 0
    assert not outside.any(), shapes[outside][:5]


def test_what_is_held_out_lies_inside_what_is_fitted_and_follows_from_the_seed():
    shapes = step_cost.make_grid(arguments(), create_hparams("batch_size=16"))
    measured = [step_cost.MeasuredStep(*shape, 1.0, None, 1) for shape in shapes]
    choices = []
    for seed in (0, 0, 1, 2):
        marked = step_cost.hold_out(measured, seed)
        inside = np.array([shape for shape, m in zip(shapes, marked, strict=True) if m.held_out])
        fitted = np.array([s for s, m in zip(shapes, marked, strict=True) if not m.held_out])
        assert len(inside) == round(0.2 * len(shapes))
        unit = fitted.max(axis=0)
        assert (Delaunay(fitted / unit).find_simplex(inside / unit) >= 0).all()
        choices.append(inside.tolist())
    assert choices[0] == choices[1]
    assert choices[0] != choices[2] != choices[3]


def test_a_grid_that_cannot_be_fitted_is_refused_before_anything_is_measured(tmp_path):
    options = ["-o", str(tmp_path / "costs.json"), "--hparams", TINY]
    with pytest.raises(SystemExit) as stop:
        step_cost.main([*options, "--batch-sizes", "4,8", "--frames", "8,16", "--symbols", "5,9"])
    assert "batches of one clip" in str(stop.value)
    with pytest.raises(SystemExit) as stop:
        step_cost.main([*options, "--batch-sizes", "100", "--capacity", "50"])
    assert "0 batch shapes cannot tell" in str(stop.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--batch-sizes", "1,x"], "'x': expected a whole number from 1"),
        (["--frames", "0"], "'0': expected a whole number from 1"),
        (["--minutes", "-1"], "'-1': expected a number above 0"),
        (["--repeats", "0"], "--repeats: '0': expected a whole number from 1"),
        (["-o", "no/such/folder/costs.json"], "no such folder"),
        (["-o", "."], "-o/--output: '.': is a folder"),
        (["--check", "costs.json"], "costs and one run at least"),
    ],
)
def test_bad_options_are_refused(options, said, capsys):
    with pytest.raises(SystemExit):
        arguments(*options)
    assert said in capsys.readouterr().err


# ---------------------------------------------------------------------------- one step


def test_made_up_batches_are_of_the_shape_asked_for_and_their_clips_differ():
    hparams = create_hparams("n_frames_per_step=2")
    batch = step_cost.make_batch((8, 101, 40), hparams, np.random.default_rng(0), pinned=False)
    assert batch.text.shape == (8, 40)
    assert batch.mel.shape == (8, 80, 102)
    assert batch.mel_lengths.max() == 101
    assert len(set(batch.mel_lengths.tolist())) > 3
    assert batch.mel_lengths.min() >= 76
    assert batch.text_lengths.min() >= 30
    same = step_cost.make_batch((8, 101, 40), hparams, np.random.default_rng(0), pinned=False)
    assert torch.equal(batch.mel, same.mel)
    assert torch.equal(batch.text, same.text)


def test_costs_are_measured_in_tf32_and_bf16_too(tmp_path):
    grid = ["--batch-sizes", "1,2,3", "--frames", "4,8", "--symbols", "3,6", "--capacity", "24"]
    for precision in ("tf32", "bf16"):
        output = tmp_path / f"{precision}.json"
        options = ["--device", "cpu", "--hparams", f"{TINY},precision={precision}", *grid]
        step_cost.main([*options, "--repeats", "1", "-o", str(output)])
        assert torch.backends.cudnn.allow_tf32 == (precision == "tf32")
        costs = read_costs(output)
        assert costs.hparams["precision"] == precision
        assert len(costs.measurements) == 12


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
        RuntimeError("CUDA driver error: out of memory"),
    ],
)
def test_a_step_out_of_memory_is_skipped_and_named(error):
    trainer = step_cost.Trainer(create_hparams(TINY), CPU)
    original = trainer.step

    def step(parts):
        if len(parts[0].batch.text) >= 4:
            raise error
        original(parts)

    trainer.step = step
    args = arguments(*GRID, "--repeats", "1")
    grid = step_cost.make_grid(args, trainer.hparams)
    found = step_cost.measure_grid(trainer, grid, args)
    assert {shape for shape in grid if shape[0] >= 4} == found.skipped.keys()
    assert set(found.skipped.values()) == {"more than the GPU's memory"}
    assert {m.clips for m in found.measurements()} == {1, 2}


def test_a_step_that_would_fill_the_ram_is_not_tried(monkeypatch):
    trainer = step_cost.Trainer(create_hparams(TINY), CPU)
    known = list(product((1, 2, 4), (100, 200), (10, 20)))
    found = step_cost.GridTimes(
        first_seconds=dict.fromkeys(known, 1.0),
        bytes={(b, t, n): 10_000 * b * t * n for b, t, n in known},
    )
    free = {"MemAvailable:": 1_000_000_000, "VmRSS:": 100_000_000}
    monkeypatch.setattr(step_cost, "proc_bytes", lambda _, name: free[name])
    # 0.9 of what is free and what is in use already make 1e9 bytes: 1e5 clip-frame-symbols
    assert not step_cost.needs_too_much_ram((8, 400, 30), found, trainer)
    assert step_cost.needs_too_much_ram((8, 400, 33), found, trainer)
    assert not step_cost.needs_too_much_ram((8, 400, 33), step_cost.GridTimes(), trainer)


def test_a_fault_of_the_fit_is_not_taken_for_too_few_measurements(monkeypatch):
    def fail(*_):
        raise ValueError("operands could not be broadcast together")

    monkeypatch.setattr(step_cost, "fit", fail)
    trainer = step_cost.Trainer(create_hparams(TINY), CPU)
    with pytest.raises(ValueError, match="broadcast"):
        step_cost.needs_too_much_ram((8, 400, 30), step_cost.GridTimes(), trainer)


def test_a_full_disk_is_a_message(monkeypatch):
    def fail(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(step_cost, "measure", fail)
    with pytest.raises(SystemExit, match="No space left on device"):
        step_cost.main(["-o", "costs.json"])


# ---------------------------------------------------------------------------- checking runs


@pytest.fixture(scope="module")
def runs(corpus, tmp_path_factory):
    """A run of two epochs, and the same with the settings of batches of one clip."""
    folder = tmp_path_factory.mktemp("runs")
    overrides = {"dynamic_batch_size": True, "batching_strategy": "semi_sorted"}
    ended = Child(["-o", folder / "dynamic", "--hparams", corpus.hparams(**overrides)]).end()
    assert ended.code == 0, ended.output
    shutil.copytree(folder / "dynamic", folder / "singles")
    records = metrics(folder / "singles")
    for record in records:
        if record["kind"] == "run":
            record["hparams"] |= {"batch_size": 1, "dynamic_batch_size": False}
        elif record["kind"] == "epoch":
            record["num_batches"] = len(SENTENCES)
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "singles" / "metrics.jsonl").write_text(lines, encoding="utf-8")
    return folder


def costs_with(path: Path, hparams: dict, **seconds_per_term: float) -> Path:
    terms = {name.replace(" ", "_").replace(",", ""): name for name in TERMS}
    per_term = dict.fromkeys(TERMS, 0.0)
    per_term |= {terms[name]: value for name, value in seconds_per_term.items()}
    costs = StepCosts("made up", {}, hparams, per_term, dict.fromkeys(TERMS, 1.0), {}, [])
    write_costs(costs, path)
    return path


def predicted_seconds(output: str) -> list[float]:
    rows = [line.split() for line in output.splitlines()]
    return [
        float(row[2].replace(",", ""))
        for row in rows
        if row and row[0].isdecimal() and row[1].isdecimal()
    ]


def test_a_check_sums_the_costs_over_the_batches_of_each_epoch(runs, tmp_path, capsys):
    epochs = metrics(runs / "dynamic", "epoch")
    hparams = metrics(runs / "dynamic", "run")[0]["hparams"]
    costs = costs_with(
        tmp_path / "costs.json",
        hparams,
        per_batch=1.0,
        per_decoder_step=100.0,
        per_clip_and_decoder_step=1e5,
    )
    step_cost.main(["--check", str(costs), str(runs / "dynamic")])
    output = capsys.readouterr().out
    padded = [round(len(SENTENCES) * epoch["average_batch_length"]) for epoch in epochs]
    assert predicted_seconds(output) == [
        epoch["num_batches"] + 100 * epoch["decoder_steps"] + 1e5 * frames
        for epoch, frames in zip(epochs, padded, strict=True)
    ]
    measured = 60 * epochs[0]["minutes"] - epochs[0]["data_wait_seconds"]
    first = next(line.split() for line in output.splitlines() if line.split()[:1] == ["1"])
    assert float(first[3]) == pytest.approx(measured, abs=0.06)
    error = predicted_seconds(output)[0] / measured - 1
    assert float(first[5].rstrip("%")) / 100 == pytest.approx(error, rel=1e-3)
    assert "2 epochs: predicted / measured - 1 is" in output


def test_a_batch_is_as_long_as_its_longest_clip_and_its_longest_text():
    hparams = create_hparams(
        "batch_size=2,batching_strategy=sorted,dynamic_batch_size=False,batch_randomization=False"
    )
    frames, symbols = np.array([40, 10, 30, 20, 50]), np.array([2, 5, 9, 1, 7])
    lengths = ClipLengths(list("abcde"), frames, symbols)
    clips, longest, most_symbols = step_cost.epoch_shapes(lengths, hparams, epoch=3)
    assert clips.tolist() == [2, 2, 1]
    assert longest.tolist() == [20, 40, 50]
    assert most_symbols.tolist() == [5, 9, 7]
    # Of updates of two batches the last has one, which is cut in two.
    two = replace(hparams, batches_per_update=2)
    assert sorted(step_cost.epoch_shapes(lengths, two, epoch=3)[1]) == [10, 20, 40, 50]


def test_a_check_counts_the_symbols_of_the_texts(runs, tmp_path, capsys):
    hparams = metrics(runs / "singles", "run")[0]["hparams"]
    costs = costs_with(
        tmp_path / "costs.json", hparams, per_symbol=1.0, per_decoder_step_of_several_clips=1e9
    )
    step_cost.main(["--check", str(costs), str(runs / "singles")])
    total = sum(map(len, SENTENCES))  # plain letters and stops: each is a symbol
    assert predicted_seconds(capsys.readouterr().out) == [total, total]


def test_a_check_warns_of_another_model_or_machine(runs, tmp_path, capsys):
    hparams = metrics(runs / "singles", "run")[0]["hparams"] | {"prenet_dim": 99}
    costs = costs_with(tmp_path / "costs.json", hparams, per_batch=1.0)
    step_cost.main(["--check", str(costs), str(runs / "singles")])
    output = capsys.readouterr().out
    assert "prenet_dim=8, measured with 99" in output
    assert "threads=1, measured with unknown" in output


@pytest.mark.parametrize("case", ["no run", "broken line", "no epoch", "other clips"])
def test_a_check_refuses_what_is_no_finished_run(runs, tmp_path, case):
    run = tmp_path / "run"
    run.mkdir()
    lines = (runs / "singles" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    (run / "lengths.csv").write_text("id,frames\ntrain00,12\n", encoding="utf-8")
    content, said = {
        "no run": (None, "metrics.jsonl: no such file"),
        "broken line": ([lines[0], '{"kind": "epo', *lines[1:]], "metrics.jsonl:2: "),
        "no epoch": (lines[:1], "no finished epoch in it"),
        "other clips": (lines, "it changed since the run"),
    }[case]
    if content is not None:
        (run / "metrics.jsonl").write_text("\n".join(content), encoding="utf-8")
    hparams = json.loads(lines[0])["hparams"]
    costs = costs_with(tmp_path / "costs.json", hparams, per_batch=1.0)
    with pytest.raises(SystemExit) as stop:
        step_cost.main(["--check", str(costs), str(run)])
    assert said in str(stop.value)
    assert str(run) in str(stop.value)
