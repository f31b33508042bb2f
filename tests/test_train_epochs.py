"""benchmarks/train_epochs.py: its plan, the time of an epoch from a part of it, and a whole run."""

import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_epoch import TINY

from analysis import training_steps
from analysis.epoch_minutes_figure import draw_epoch_minutes
from analysis.figures import STYLES
from benchmarks import train_epochs
from clip_table import Clip, ClipTable
from hparams import create_hparams

pytest.importorskip("fast_decoder.graphs", reason="the fast decoder was taken out")
SHORT = "batch_size=2,num_workers=0,hop_time=900"
PAPER = create_hparams("batch_size=16,win_time=50,hop_time=12.5")


def table(count: int = 400) -> ClipTable:
    rng = np.random.default_rng(0)
    clips = [Clip("", "", bytes([1] * 9), int(n), "") for n in rng.integers(90, 800, count)]
    return ClipTable.of("list.txt", enumerate(clips, 1))


# ---------------------------------------------------------------------------- the plan


@pytest.mark.parametrize(
    ("seconds", "wanted", "shares"),
    [
        (100, [10, 20, 30], [10, 20, 30]),
        (30, [40, 40, 40], [10, 10, 10]),
        (30, [50, 4, 50], [13, 4, 13]),  # what the small job leaves goes to the others
        (-5, [1, 2], [0, 0]),
    ],
)
def test_each_setting_gets_what_it_wants_or_an_equal_part(seconds, wanted, shares):
    assert train_epochs.share_out(seconds, wanted) == pytest.approx(shares)


@pytest.mark.parametrize(
    ("seconds", "steps"),
    [
        (100, 2 * 50),  # two epochs at most, of 20 s and 50 batches
        (39, 50),
        (20, 50),
        (19, 47),
        (1, 7),  # no fewer than 7
        (0, 7),
    ],
)
def test_whole_epochs_where_they_fit_and_else_a_part(seconds, steps):
    assert train_epochs.steps_for(seconds, 20, 50, epochs=2, least=7) == steps
    assert train_epochs.steps_for(seconds, 20, 5, epochs=2, least=7) <= 10  # nor more than there is


def test_settings_are_the_papers_batchings_in_each_precision_with_larger_capacities_last():
    settings = train_epochs.make_settings(PAPER, ["bf16", "fp32"], table())
    assert [s.hparams.precision for s in settings] == ["bf16"] * 5 + ["fp32"] * 5
    names = [s.name for s in settings[:5]]
    assert names == ["SSB-DBS-BR", "RAND", "SSB-exp-DBS-BR", "SSB-DBS-BR", "SSB-DBS-BR"]
    first, random, _, twice, four_times = settings[:5]
    assert (twice.capacity, four_times.capacity) == (2 * first.capacity, 4 * first.capacity)
    for setting in settings[:5]:
        assert (setting.shapes[:, 0] * setting.shapes[:, 1]).max() <= setting.capacity
        assert setting.shapes[:, 0].sum() == 400
    assert set(random.shapes[:, 0]) == {16}
    assert twice.shapes[:, 0].max() > first.shapes[:, 0].max()


def test_what_was_measured_stands_for_what_follows_until_that_is_measured_too():
    settings = train_epochs.make_settings(PAPER, ["bf16", "tf32", "fp32"], table())
    steps = [float(setting.shapes[:, 1].sum()) for setting in settings]
    predicted = train_epochs.predict(settings, {0: 0.01, 1: 0.02, 5: 0.03})
    slower = train_epochs.NEXT_PRECISION_TAKES
    speeds = [0.01, *[0.02] * 4, *[0.03] * 5, *[0.03 * slower] * 5]
    assert predicted == pytest.approx([a * b for a, b in zip(steps, speeds, strict=True)])


# ---------------------------------------------------------------------------- an epoch's time


def test_a_part_tells_the_time_of_its_epoch_within_the_error_that_it_states():
    """Over random orders of an epoch whose steps take time by frames, clips and chance."""
    rng = np.random.default_rng(0)
    decoder_steps = rng.integers(90, 870, 300)
    took = 0.008 + 45e-6 * decoder_steps + rng.normal(0, 0.002, 300)
    found = []
    for _ in range(400):
        order = rng.permutation(300)
        seconds = took[order][:60]
        found.append(train_epochs.epoch_time(seconds, decoder_steps[order]))
    totals, errors, shares = map(np.array, zip(*found, strict=True))
    assert set(shares) == {0.2}
    assert totals.mean() == pytest.approx(took.sum(), rel=2e-3)
    assert np.sqrt(np.square(errors).mean()) == pytest.approx(totals.std(), rel=0.12)
    assert totals.std() < 0.3 * 300 / math.sqrt(60) * took.std()  # what the regression is for


def test_steps_that_take_time_by_decoder_steps_alone_leave_no_error():
    decoder_steps = np.array([100, 300, 200, 800, 50])
    total, error, share = train_epochs.epoch_time(1 + decoder_steps[:3] / 100, decoder_steps)
    assert (total, share) == (pytest.approx(5 + 14.5), 0.6)
    assert error == pytest.approx(0, abs=1e-9)
    same = train_epochs.epoch_time(np.array([1.0, 2.0]), np.full(4, 70))
    assert same == (6.0, None, 0.5)


def test_whole_epochs_are_their_own_time_and_differ_by_their_error():
    steps = np.array([10, 20, 30])
    assert train_epochs.epoch_time(np.array([1.0, 2.0, 3.0]), steps) == (6.0, None, 1.0)
    total, error, _ = train_epochs.epoch_time(np.array([1.0, 2.0, 3.0, 1.0, 2.0, 4.0]), steps)
    assert (total, error) == (6.5, pytest.approx(0.5))


def test_savings_are_against_random_batches_of_the_same_precision():
    def row(precision, batching, minutes, error):
        return {
            "precision": precision,
            "batching": batching,
            "minutes_per_epoch": minutes,
            "standard_error_minutes": error,
        }

    rows = [row("bf16", "SSB-DBS-BR", 3.0, 0.03), row("bf16", "RAND", 4.0, 0.04)]
    rows += [row("fp32", "SSB-DBS-BR", 9.0, None), row("fp32", "RAND", 10.0, 0.1)]
    rows.append({"precision": "tf32", "batching": "SSB-DBS-BR"})
    train_epochs.add_savings(rows)
    assert rows[0]["saved"] == pytest.approx(0.25)
    assert rows[0]["saved_standard_error"] == pytest.approx(0.75 * math.sqrt(2) * 0.01)
    assert rows[2]["saved"] == pytest.approx(0.1)
    assert rows[2]["saved_standard_error"] is None
    assert not any("saved" in rows[i] for i in (1, 3, 4))


def test_busy_is_what_kernels_cover_and_unknown_where_some_were_lost():
    session = training_steps.Session(1, 0, 100, [], [("a", 0, 40), ("b", 30, 60), ("c", 90, 100)])
    assert training_steps.busy_share(session) == 0.7
    session.kernels.pop()
    assert training_steps.busy_share(session) is None


# ---------------------------------------------------------------------------- with a GPU


class Moment:
    """As torch's events on a GPU: milliseconds from one to the next."""

    def __init__(self, at: float):
        self.at = at

    def elapsed_time(self, later: "Moment") -> float:
        return later.at - self.at


def test_seconds_of_steps_are_those_between_the_gpus_events():
    moments = [Moment(at) for at in (5.0, 45.0, 125.0)]
    assert train_epochs.seconds_between(moments).tolist() == [0.04, 0.08]
    assert train_epochs.seconds_between([1.0, 1.5, 3.5]).tolist() == [0.5, 2.0]


def test_before_a_setting_is_timed_every_bucket_has_met_its_costliest_batch(monkeypatch):
    (setting, *_) = train_epochs.make_settings(PAPER, ["bf16"], table())
    met, cleared = [], []
    monkeypatch.setattr(
        train_epochs,
        "synthetic_batch",
        lambda mel, text, _: SimpleNamespace(to=lambda device: (len(mel), mel[0], text[0])),
    )
    monkeypatch.setattr(train_epochs, "synchronize", lambda device: None)
    trainer = SimpleNamespace(
        device=torch.device("cuda"),
        hparams=setting.hparams,
        compute_gradients=met.append,
        model=SimpleNamespace(zero_grad=lambda set_to_none: cleared.append(set_to_none)),
    )
    train_epochs.capture(trainer, setting)
    buckets = [train_epochs.bucket(clips, symbols) for clips, _, symbols in met]
    shapes = setting.shapes.tolist()
    assert len(buckets) == len(set(buckets)) > 1
    assert set(buckets) == {train_epochs.bucket(clips, symbols) for clips, _, symbols in shapes}
    for (clips, frames, _), of_bucket in zip(met, buckets, strict=True):
        others = [b * t for b, t, n in shapes if train_epochs.bucket(b, n) == of_bucket]
        assert clips * frames == max(others)
    assert cleared == [True] * len(met)


def test_the_profiler_says_how_busy_a_measured_setting_keeps_the_gpu(tmp_path, monkeypatch):
    def profiled(training, steps):
        results = SimpleNamespace(events=lambda: [(0, 30), (40, 100)])
        profiler = SimpleNamespace(profiler=SimpleNamespace(kineto_results=results))
        return training_steps.Session(steps, 0, 100, []), profiler

    def collect(session, events):
        session.kernels += [("kernel", start, end) for start, end in events]

    monkeypatch.setattr(train_epochs, "Trainer", lambda *_: None)
    monkeypatch.setattr(
        train_epochs, "Training", lambda *_: SimpleNamespace(run=lambda steps: None)
    )
    monkeypatch.setattr(train_epochs, "profiled", profiled)
    monkeypatch.setattr(train_epochs, "collect", collect)
    args = train_epochs.parse_arguments(["--device", "cpu", "--budget", "60"])
    benchmark = train_epochs.Benchmark(args, None, table(), PAPER)
    args.device = torch.device("cuda")
    benchmark.count_busy(benchmark.settings[0])
    assert benchmark.settings[0].row["busy_at_most"] == 0.9
    args.began -= 60  # the time is up
    benchmark.count_busy(benchmark.settings[1])
    assert "busy_at_most" not in benchmark.settings[1].row


# ---------------------------------------------------------------------------- the whole program


def test_it_trains_and_reports_every_setting_beside_the_reference(tmp_path, capsys):
    path = tmp_path / "train_epochs.json"
    options = ["--device", "cpu", "--clips", "8", "--least-steps", "3", "--warm-ups", "1"]
    options += ["--budget", "60", "--epochs", "1", "--reference-batches", "2", "--json", str(path)]
    options += ["--picture", str(tmp_path / "minutes.svg")]
    train_epochs.main([*options, "--hparams", f"{TINY},{SHORT}"])
    printed, said = capsys.readouterr()
    result = json.loads(path.read_text(encoding="utf-8"))
    rows = result["rows"]
    assert [row["status"] for row in rows] == ["measured"] * 5
    for row in rows:
        assert row["epochs"] == 1
        assert row["steps"] == row["epoch"]["num_batches"]
        seconds = 60 * row["minutes_per_epoch"]
        padded = row["epoch"]["padded_frames"]
        assert row["padded_frames_per_second"] == pytest.approx(padded / seconds)
        padding = row["epoch"]["padded_fraction"]
        assert row["real_frames_per_second"] == pytest.approx(padded * (1 - padding) / seconds)
        assert 0 <= row["waited_for_data"] < 1
    saved = 1 - rows[0]["minutes_per_epoch"] / rows[1]["minutes_per_epoch"]
    assert rows[0]["saved"] == pytest.approx(saved)
    reference = rows[0]["reference"]
    ratio = reference["minutes_per_epoch"] / reference["fast_minutes_per_epoch"]
    assert reference["fast_over_reference"] == pytest.approx(ratio)
    assert not any("reference" in row for row in rows[1:])
    assert "GPU busy" in printed
    assert "not measured" in printed
    assert "an epoch may take" in said
    assert "SSB-exp-DBS-BR" in (tmp_path / "minutes.svg").read_text(encoding="utf-8")


def test_when_the_time_is_up_the_first_setting_is_measured_and_the_others_say_so(tmp_path, capsys):
    options = ["--device", "cpu", "--clips", "8", "--least-steps", "3", "--warm-ups", "1"]
    options += ["--budget", "1e-3", "--json", str(tmp_path / "t.json")]
    train_epochs.main([*options, "--hparams", f"{TINY},{SHORT}"])
    rows = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["rows"]
    assert [row["status"] for row in rows] == ["measured", *["not run: the time was up"] * 4]
    assert rows[0]["steps"] == 3
    assert 0 < rows[0]["share_of_epoch"] < 1
    page = re.sub(" +", " ", capsys.readouterr().out)
    assert f"| 3 steps, {rows[0]['share_of_epoch']:.0%} of an epoch |" in page


def test_a_setting_that_does_not_fit_into_memory_is_said_and_the_next_ones_go_on(
    tmp_path, monkeypatch
):
    def measure(self, index, setting, speeds):
        if index == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        done = {"minutes_per_epoch": 1.0, "standard_error_minutes": None}
        setting.row |= done

    monkeypatch.setattr(train_epochs.Benchmark, "measure", measure)
    options = ["--device", "cpu", "--clips", "8", "--json", str(tmp_path / "t.json")]
    train_epochs.main([*options, "--hparams", f"{TINY},{SHORT}"])
    rows = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["rows"]
    assert rows[1]["status"] == "does not fit into memory"
    assert [row.get("minutes_per_epoch") for row in rows] == [1.0, None, 1.0, 1.0, 1.0]


def test_bars_are_of_what_was_measured_in_the_batchings_colours():
    row = {"status": "measured", "precision": "bf16", "batching": "SSB-DBS-BR", "capacity": 900}
    row |= {"strategy": "semi_sorted", "minutes_per_epoch": 2.0, "standard_error_minutes": None}
    figure = draw_epoch_minutes([row, row | {"precision": "fp32"}, row | {"status": "not run"}])
    bars = [bar for axes in figure.axes for bar in axes.patches]
    assert [bar.get_width() for bar in bars] == [2.0, 2.0]
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["bf16", "fp32"]
    blue = tuple(int(STYLES["semi_sorted"].colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    assert bars[0].get_facecolor()[:3] == pytest.approx(blue)
    assert draw_epoch_minutes([row | {"status": "not run"}]) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--precisions", "bf16,half"], "'bf16,half': expected some of fp32, tf32, bf16, fp16"),
        (["--symbols", "metadata.csv"], "name the lengths of its clips too"),
        (["--budget", "0"], "expected a number above 0"),
    ],
)
def test_wrong_options_are_refused(options, message, capsys):
    with pytest.raises(SystemExit):
        train_epochs.main(["--device", "cpu", *options])
    assert message in capsys.readouterr().err
