"""benchmarks/scaling.py and its model, against cases worked out by hand and against the sampler."""

import json
import os
import socket
from dataclasses import asdict
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import TINY, fork_server
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.clips import Clips, synthetic_clips
from analysis.published import TABLE_2
from analysis.scaling import (
    MeasuredScaling,
    Reduction,
    ScalingMeasurement,
    batch_costs,
    epoch_at,
    every_batching,
    faster,
    modelled_speed_up,
    published_costs,
    read_measurement,
    scaling_curve,
)
from analysis.scaling_figure import draw_efficiency
from analysis.step_costs import TERMS, StepCosts
from batching import EpochPlan, LengthBatchSampler, plan_epoch
from benchmarks import scaling
from errors import UserError
from hparams import create_hparams, hparams_from_dict
from model import Tacotron2

FREE = Reduction(0, 0)


def costs(**per_term):
    """Seconds of a step: so many for each padded frame of each clip, and so on."""
    names = {name.replace(" ", "_").replace(",", ""): name for name in TERMS}
    seconds = dict.fromkeys(TERMS, 0.0) | {names[name]: v for name, v in per_term.items()}
    return StepCosts("made up", {}, {"n_frames_per_step": 1}, seconds, None, {}, [])


PER_FRAME = costs(per_clip_and_decoder_step=1.0)


def clips_of(frames):
    return Clips(np.array(frames), np.ones(len(frames), dtype=int), "by hand")


# ---------------------------------------------------------------------------- the model


def test_a_ring_sends_all_but_its_own_part_twice_and_waits_for_every_neighbour():
    reduction = Reduction(bytes=8000, calls=3, bandwidth=1000, latency=0.5)
    assert reduction.seconds(1) == 0
    assert reduction.seconds(4) == pytest.approx(2 * 3 / 4 * 8 + 3 * 2 * 3 * 0.5)
    hidden = Reduction(bytes=8000, calls=3, bandwidth=1000, latency=0.5, overlapped=0.75)
    assert hidden.seconds(4) == pytest.approx(reduction.seconds(4) / 4)


def test_an_update_lasts_as_long_as_its_costliest_batch_and_the_reduction():
    # Batches of 10 + 10, 6 + 6, 9 + 9 and 5 + 5 frames: of similar length are the first and third.
    clips = clips_of([10, 10, 6, 6, 9, 9, 5, 5])
    plan = EpochPlan(np.arange(8), np.array([0, 2, 4, 6]))
    batches = batch_costs(plan, clips, PER_FRAME)
    reduction = Reduction(bytes=100, calls=0, bandwidth=100)  # 1 s for two processes
    two = epoch_at(2, plan, batches, clips, PER_FRAME, reduction)
    assert two.updates == 2
    assert two.seconds == 20 + 12 + 2 * 1
    assert two.seconds_in_plan_order == 20 + 18 + 2 * 1
    assert two.imbalance == pytest.approx((20 / 19 + 12 / 11) / 2)
    # Three processes: the shortest batch is left and cut into its two clips.
    three = epoch_at(3, plan, batches, clips, PER_FRAME, FREE)
    assert three.seconds == 20 + 5
    assert three.imbalance == pytest.approx((20 / (50 / 3) + 5 / (10 / 3)) / 2)


def test_a_curve_compares_with_one_process_and_one_batch_an_update():
    clips = clips_of([10, 10, 6, 6, 9, 9, 5, 5])
    hparams = create_hparams("batch_size=2,batching_strategy=sorted,dynamic_batch_size=False")
    curve = scaling_curve(clips, hparams, PER_FRAME, FREE, [1, 2])
    assert curve.alone == 60
    one, two = curve.points
    assert (one.updates, one.imbalance, curve.efficiency(one)) == (4, 1, 1)
    assert curve.speed_up(two) == 60 / (20 + 12)
    assert curve.efficiency(two) == 60 / (20 + 12) / 2


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    frames=st.lists(st.integers(1, 30), min_size=1, max_size=60),
    processes=st.integers(2, 9),
    dynamic=st.booleans(),
)
def test_the_model_has_the_updates_that_the_sampler_makes(frames, processes, dynamic):
    options = {"dynamic_batch_size": dynamic, "batch_randomization": True}
    clips = clips_of(frames)
    sampler = LengthBatchSampler(frames, 3, "semi_sorted", batches_per_update=processes, **options)
    bounds = [*sampler.update_starts.tolist(), len(sampler.plan)]
    padded = [
        [len(batch) * max(frames[i] for i in batch) for batch in sampler.plan[start:end]]
        for start, end in pairwise(bounds)
    ]
    plan = plan_epoch(frames, 3, "semi_sorted", **options)
    found = epoch_at(processes, plan, batch_costs(plan, clips, PER_FRAME), clips, PER_FRAME, FREE)
    assert found.updates == len(padded)
    assert found.seconds == sum(map(max, padded))
    assert found.imbalance == pytest.approx(np.mean([processes * max(p) / sum(p) for p in padded]))


def test_published_costs_give_back_the_published_minutes():
    hparams = create_hparams(scaling.PAPER)
    clips = synthetic_clips(10_480, hparams, seed=3)  # others than those of the fit
    curves = {}
    for batching in every_batching(hparams):
        curve = scaling_curve(clips, batching, published_costs(), FREE, [1])
        curves[curve.name] = curve.alone / 60
    for name in ("RAND", "SB-BR", "SSB-BR", "BKT-BR", "ATS-BR", "SSB-DBS-BR"):
        assert curves[name] == pytest.approx(TABLE_2[name].minutes, rel=0.05), name


def test_every_batching_has_fixed_and_dynamic_sizes():
    hparams = every_batching(create_hparams("batch_capacity=20000,dynamic_batch_size=True"))
    assert len(hparams) == 18
    assert {h.batch_capacity for h in hparams if not h.dynamic_batch_size} == {None}
    assert {h.batch_capacity for h in hparams if h.dynamic_batch_size} == {20000}


def test_steps_said_to_be_faster_leave_a_larger_share_to_the_reduction():
    clips = synthetic_clips(500, create_hparams(scaling.PAPER))
    hparams = create_hparams(scaling.PAPER)
    reduction = Reduction(10**9, 5)
    slow, fast = (
        scaling_curve(clips, hparams, faster(published_costs(), factor), reduction, [4])
        for factor in (1, 50)
    )
    assert fast.alone == pytest.approx(slow.alone / 50)
    assert fast.efficiency(fast.points[0]) < slow.efficiency(slow.points[0])


def test_the_modelled_speed_up_of_measured_updates_follows_their_imbalance_and_reduction():
    # 4 s and 8 s alone; in two processes 2 s x 1.25, 4 s x 1, and half a second each to add up.
    assert modelled_speed_up([4, 8], [1.25, 1], 2, 0.5) == pytest.approx(12 / (2.5 + 4 + 1))


# ---------------------------------------------------------------------------- measuring

JOB = {
    "hparams": asdict(
        create_hparams(
            ",".join(f"{name}={value}" for name, value in TINY.items())
            + ",batches_per_update=2,batching_strategy=sorted,dynamic_batch_size=False"
        )
    ),
    "frames": [4, 5, 4, 6, 5, 6, 7, 8, 7, 8, 9, 9],
    "symbols": [3] * 12,
    "updates": 2,
}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def run_worker(job_file, rank: int, port: int) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in names.items()}
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    import torch

    torch.set_num_threads(1)
    torch.cuda.is_available = lambda: False
    scaling.work(job_file)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Of one process and of two, as torchrun would start them."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.cuda.is_available", lambda: False)
        found[1] = scaling.train_updates(JOB, scaling.Processes())
    job_file = tmp_path_factory.mktemp("job") / "job.json"
    job_file.write_text(json.dumps(JOB), encoding="utf-8")
    port = free_port()
    started = [fork_server().Process(target=run_worker, args=(job_file, r, port)) for r in (0, 1)]
    for process in started:
        process.start()
    for process in started:
        process.join(60)
        assert process.exitcode == 0
    found[2] = json.loads(job_file.with_name("result.json").read_text(encoding="utf-8"))
    return found


def test_processes_train_the_same_updates_and_count_what_they_send(results):
    one, two = results[1], results[2]
    assert one["frames"] == two["frames"]
    assert [len(result["seconds"]) for result in (one, two)] == [2, 2]
    assert one["imbalances"] == [1, 1]
    # Batches of 3 clips sorted by length, 5 and 6 frames long, then 8 and 9.
    assert two["imbalances"] == pytest.approx([6 / 5.5, 9 / 8.5])
    assert (one["bytes"], one["calls"], one["waited_seconds"]) == (0, 0, 0)
    # So small a model is one bucket; and the vector of losses and of batch norm's statistics.
    assert two["calls"] == 2
    model = Tacotron2(hparams_from_dict(JOB["hparams"]))
    norms = [len(buffer) for name, buffer in model.named_buffers() if ".running_" in name]
    assert two["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert two["bytes"] == 4 * (two["parameters"] + 5 + sum(norms))
    assert two["waited_seconds"] > 0
    assert two["reduction_seconds"] > 0


def test_bytes_of_an_update_are_those_that_two_processes_send(results):
    hparams = create_hparams(",".join(f"{name}={value}" for name, value in TINY.items()))
    assert scaling.reductions_of(hparams) == (results[2]["bytes"], results[2]["calls"])


def test_ratios_are_between_runs_of_the_same_round():
    def result(processes, seconds):
        return {
            "seconds": seconds,
            "waited_seconds": 0.1 * sum(seconds) * (processes > 1),
            "imbalances": [1.0, 1.2],
            "frames": 600,
            "bytes": 10,
            "calls": 2,
            "reduction_seconds": 0.0,
        }

    found = {
        1: [result(1, [2, 4]), result(1, [4, 8]), result(1, [2, 4])],
        2: [result(2, [1, 2]), result(2, [2, 4]), result(2, [2, 2])],
    }
    one, two = scaling.measured_rows(found)
    assert (one.speed_up, one.speed_up_range, one.modelled_speed_up) == (1, [1, 1], 6 / 6.8)
    assert (two.speed_up, two.speed_up_range) == (2, [1.5, 2])
    assert two.frames_per_second == 600 / 4
    assert two.modelled_speed_up == pytest.approx(6 / (1 + 2.4))
    assert two.waited_share == pytest.approx(0.1)
    assert two.step_imbalance == pytest.approx(1.1)


def measurement():
    rows = [
        MeasuredScaling(
            n, 100.0 * n, 0.9 * n, [0.8 * n, n], 0.95 * n, 1.0, 0.1, 0.01, 8, 2, [[1.0]]
        )
        for n in (1, 2)
    ]
    named = dict.fromkeys(("updates", "batches_per_update", "rounds", "parameters"), 2)
    return ScalingMeasurement(
        "a CPU", {"torch": "2"}, "2026-11-22", {}, "clips", **named, hparams={}, rows=rows
    )


def test_a_measurement_stands_beside_the_model_in_table_and_picture(tmp_path, capsys):
    path = tmp_path / "measured.json"
    path.write_text(json.dumps(asdict(measurement())), encoding="utf-8")
    tiny = ",".join(f"{name}={value}" for name, value in TINY.items())
    arguments = ["--clips", "90", "--processes", "1,4", "--measured", str(path)]
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("id,frames\n" + "".join(f"c{i},{20 + i}\n" for i in range(70)), "utf-8")
    scaling.main([str(lengths), *arguments, "-o", str(tmp_path / "out"), "--hparams", tiny])
    printed = capsys.readouterr().out
    assert "## Modelled: 70 clips of lengths.csv" in printed
    assert "1.80 (1.60 to 2.00)" in printed
    values = json.loads((tmp_path / "out" / "scaling.json").read_text(encoding="utf-8"))
    assert values["reduction"]["calls"] == 2
    (curves, _) = values["corpora"].values()
    random = next(curve for curve in curves if curve["name"] == "RAND")
    four = random["points"][1]
    assert four["efficiency"] == pytest.approx(random["alone"] / four["seconds"] / 4)
    assert f"{four['efficiency']:.1%}" in printed
    assert (tmp_path / "out" / "efficiency.svg").is_file()
    assert read_measurement(path) == measurement()


def test_fixed_sizes_are_drawn_hollow_and_measurements_in_a_panel_of_their_own():
    clips = clips_of(range(1, 71))
    batchings = every_batching(create_hparams("batch_size=2,bucket_size=8,num_bins=3"))
    curves = [scaling_curve(clips, h, PER_FRAME, FREE, [1, 2]) for h in batchings]
    figure = draw_efficiency({"a corpus": curves}, measurement().rows)
    modelled, measured = figure.axes
    assert [line.get_markerfacecolor() == "white" for line in modelled.lines] == [
        not curve.dynamic_batch_size for curve in curves
    ]
    drawn = [list(line.get_ydata()) for line in measured.lines]
    assert [90, 90] in drawn
    assert [95, 95] in drawn


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "-o FOLDER"),
        (["--measure", "-o", "x"], "-o FOLDER"),
        (["--measure", "--processes", "2,4"], "expected 1 and divisors"),
        (["--measure", "--processes", "1,2,3"], "expected 1 and divisors"),
        (["--overlapped", "2", "-o", "x"], "0 to 1"),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments, said, capsys):
    with pytest.raises(SystemExit):
        scaling.parse_arguments(arguments)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", '{"rows": 1}'])
def test_another_file_than_a_measurement_is_refused(text, tmp_path):
    path = tmp_path / "measured.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"measured\.json: not a measurement .* --measure"):
        read_measurement(path)


def test_a_failure_of_the_processes_is_shown(monkeypatch):
    failed = SimpleNamespace(returncode=1, stderr="first\nlast words")
    monkeypatch.setattr(scaling.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(UserError, match="in 2 processes failed:\nfirst\nlast words"):
        scaling.start_processes(2, JOB)
