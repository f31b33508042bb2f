"""benchmarks/epoch.py: the sample stands for its epoch."""

import contextlib
import io
import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import fork_server, free_port, train_with_others

from benchmarks import epoch
from corpus.lengths import synthetic_lengths
from hparams import create_hparams
from length_batching import STRATEGIES, BatchingError
from tacotron2_voice.utils.errors import UserError

MODEL = (
    "symbols_embedding_dim=8,encoder_embedding_dim=8,attention_rnn_dim=8,decoder_rnn_dim=8,"
    "prenet_dim=8,attention_dim=8,attention_location_n_filters=2,postnet_embedding_dim=8,"
    "n_mel_channels=4,batch_size=4,hop_time=700"
)
PAPER = create_hparams("batch_size=16,win_time=50,hop_time=12.5")
FRAMES = np.arange(9, 37)


def test_estimate_is_unbiased_with_its_error():
    """Over all samples that could be drawn, against the population itself."""
    population = [[3.0, 5.0, 10.0], [1.0, 1.5, 2.0, 7.0]]
    sizes = [len(stratum) for stratum in population]
    draws = itertools.product(*(itertools.combinations(stratum, 2) for stratum in population))
    found = [epoch.estimate(sizes, [list(values) for values in draw]) for draw in draws]
    totals, errors = np.array(found).T
    assert totals.mean() == pytest.approx(sum(map(sum, population)))
    assert np.square(errors).mean() == pytest.approx(totals.var())
    assert epoch.estimate([1, 2], [[4.0], [1.0, 3.0]]) == (8.0, 0.0)  # drawn in full
    assert math.isnan(epoch.estimate([5], [[2.0]])[1])


def test_strata_hold_every_update_by_length():
    clips = synthetic_lengths(500, PAPER)
    for plan in epoch.make_plans(clips, PAPER, ["RAND", "SSB-DBS-BR"], [30_000]):
        parts = epoch.strata(plan, 7)
        assert len(parts) == 3
        assert sorted(np.concatenate(parts).tolist()) == list(range(len(plan.steps)))
        frames = [plan.shapes[part, 1] for part in parts]
        assert all(a.max() <= b.min() for a, b in itertools.pairwise(frames))
        assert np.ptp([len(part) for part in parts]) <= 1


@pytest.mark.parametrize("per_update", [1, 2])
def test_every_clip_is_planned_within_capacity(per_update):
    clips = synthetic_lengths(500, PAPER)
    hparams = replace(PAPER, batches_per_update=per_update)
    longest = int(clips.frames.max())
    batchings = ["RAND", "SSB-DBS-BR", "batching_strategy=bucket,bucket_size=96"]
    plans = epoch.make_plans(clips, hparams, batchings, [16 * longest, 30_000])
    assert [plan.capacity for plan in plans] == [16 * longest] * 3 + [30_000] * 3
    for plan in plans:
        batches = [batch for update in plan.steps for batch in update]
        assert sorted(np.concatenate(batches).tolist()) == list(range(500))
        assert max(len(b) * clips.frames[b].max() for b in batches) <= plan.capacity
        for update, (count, frames, symbols) in zip(plan.steps, plan.shapes, strict=True):
            assert count == sum(map(len, update))
            assert frames == sum(clips.frames[batch].max() for batch in update)
            assert symbols == max(clips.symbols[batch].max() for batch in update)
    with pytest.raises(UserError, match="expected at least"):
        epoch.make_plans(clips, PAPER, ["RAND"], [100])


def test_batchings_are_named_as_in_the_papers():
    for strategy, dynamic, mixed in itertools.product(STRATEGIES, (False, True), (False, True)):
        name = epoch.batching_name(strategy, dynamic, mixed)
        h = epoch.batching_settings(name, PAPER)
        assert (h.batching_strategy, h.dynamic_batch_size) == (strategy, dynamic)
        assert epoch.batching_name(strategy, dynamic, h.batch_randomization) == name
    with pytest.raises(UserError, match="--batchings SSB-DSB: expected a name such as SSB-DBS-BR"):
        epoch.batching_settings("SSB-DSB", PAPER)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """What is printed, and the file."""
    pytest.importorskip("fast_decoder.graphs", reason="the fast decoder was taken out")
    path, printed = tmp_path_factory.mktemp("epoch") / "epoch.json", io.StringIO()
    options = ["--device", "cpu", "--hparams", MODEL, "--clips", "32", "--batches", "2"]
    with contextlib.redirect_stdout(printed):
        epoch.main([*options, "--json", str(path)])
    return " ".join(printed.getvalue().split()), path


def test_minutes_are_those_of_the_sampled_updates(measured):
    printed, path = measured
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert [row["batching"] for row in rows] == ["RAND", "SSB-DBS-BR"] * 2
    assert rows[2]["capacity"] == 2 * rows[0]["capacity"]
    assert printed.count("| fast |") == 4
    for row in rows:
        assert sum(row["sizes"]) == row["num_batches"]
        means = [np.mean(seconds) for seconds in row["seconds"]]
        minutes = np.dot(row["sizes"], means) / 60
        assert row["minutes_per_epoch"] == pytest.approx(minutes)
        assert row["padded_frames_per_second"] == pytest.approx(
            row["padded_frames"] / (60 * minutes)
        )
        assert row["peak_memory_bytes"] > 1e6
    assert rows[1]["saved"] == pytest.approx(
        1 - rows[1]["minutes_per_epoch"] / rows[0]["minutes_per_epoch"]
    )


def test_plans_beyond_memory_are_reported(capsys, monkeypatch):
    def peak_bytes(trainer, clips, update):
        if len(update[0]) > 4:
            raise MemoryError
        return 10**9

    monkeypatch.setattr(epoch, "step_peak_bytes", peak_bytes)
    options = ["--device", "cpu", "--clips", "30", "--batches", "2", "--batchings", "RAND"]
    epoch.main([*options, "--hparams", f"{MODEL},decoder=reference"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| RAND")]
    assert "1.00 GB" in lines[0]
    assert "does not fit into memory" in lines[1]


def _measure_in_process(rank: int, port: int, arguments: list[str]) -> None:
    train_with_others(rank, 2, port)
    torch.set_num_threads(1)
    epoch.main(arguments)


def test_processes_measure_together(tmp_path):
    """Two processes step their own batches of the same updates; the first one writes."""
    path, port = tmp_path / "epoch.json", free_port()
    command = ["--device", "cpu", "--clips", "20", "--batches", "2", "--json", str(path)]
    command += ["--capacities", "", "--hparams", f"{MODEL},batches_per_update=2,decoder=reference"]
    arguments = [(rank, port, command) for rank in (0, 1)]
    children = [fork_server().Process(target=_measure_in_process, args=a) for a in arguments]
    for child in children:
        child.start()
    for child in children:
        child.join(100)
        assert child.exitcode == 0
    result = json.loads(path.read_text())
    assert result["processes"] == 2
    assert [row["batching"] for row in result["rows"]] == ["RAND", "SSB-DBS-BR"]


def test_too_few_clips_are_a_message():
    with pytest.raises(BatchingError, match=r"num_bins=58: .* 1 to 20"):
        epoch.main(["--clips", "20", "--batchings", "ATS", "--hparams", "decoder=reference"])


def test_a_batching_may_name_its_batch_size():
    hparams = create_hparams("batch_size=4")
    clips = epoch.synthetic_lengths(40, hparams)
    longest = int(clips.frames.max())
    own = epoch.BATCHINGS["SSB-DBS-BR"] + ",batch_size=3"
    plans = epoch.make_plans(clips, hparams, ["SSB-DBS-BR", own], [4 * longest])
    assert [plan.capacity for plan in plans] == [4 * longest, 3 * longest]
    assert plans[1].shapes[:, 1].max() == longest
    assert max(clips.frames[b].max() * len(b) for [b] in plans[1].steps) <= 3 * longest
