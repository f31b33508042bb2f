"""Test the examples speech_recognition.py, paper_table.py and numbers_in_noise.py at a small
scale."""

import importlib
import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import ROOT
from hypothesis import given
from hypothesis import strategies as st

from examples.paper_table import Claim, Column, PaperTable, Row
from examples.speech_recognition import QUICK, ROWS, AcousticModel, Experiment, WordSearch
from length_batching import segments_of
from tacotron2_voice.utils.errors import UserError

LEXICON = {"six": (1, 2, 3), "seven": (3, 4), "sixty": (1, 2, 3, 5), "no": (4, 4)}


@given(st.lists(st.sampled_from(sorted(LEXICON)), max_size=5), st.randoms())
def test_beam_search_finds_the_spoken_words(spoken, random):
    labels = [0]
    for phone in (phone for word in spoken for phone in LEXICON[word]):
        labels += [0] * (phone == labels[-1] or random.random() < 0.3) + [phone]
    repeated = [label for label in labels for _ in range(random.randint(1, 3))]
    log_probs = np.where(np.eye(6)[repeated] > 0, 0, -20).astype(np.float32)
    assert WordSearch({*LEXICON.items()}).words(log_probs) == spoken


def test_recognizer_output_does_not_change_when_a_clip_is_padded(one_thread):
    model = AcousticModel(cells=4, labels=6)
    clip = torch.randn(9, 40)
    alone, _ = model(clip[None], torch.tensor([9]))
    padded = torch.stack([torch.cat([clip, torch.ones(8, 40)]), torch.randn(17, 40)])
    together, steps = model(padded, torch.tensor([9, 17]))
    assert steps.tolist() == [3, 6]
    torch.testing.assert_close(together[0, :3], alone[0])


def test_experiment_results_are_finite_for_utterances_and_chunks(one_thread):
    settings = replace(QUICK, utterances=8, test_utterances=4, epochs=1, cells=4)
    experiment = Experiment(settings)
    for clip in experiment.train:
        assert clip.middles[0] > 0
        assert (clip.middles.diff() > 0).all()
        spans = segments_of([len(clip.frames)], 50)
        phones = [clip.cut(start, stop).phones for _, start, stop in spans]
        assert torch.cat(phones).tolist() == clip.phones.tolist()
    pytest.importorskip("accelerate")
    for row in (ROWS[3], ROWS[-1]):
        assert all(map(math.isfinite, experiment.run(row, seed=0).values()))


def table(measure, settings=QUICK, processes=1) -> PaperTable:
    """Return a table whose runs get their results from `measure(row, seed)`."""
    rows = [Row("fast", {}, (500.0,)), Row("slow", {}, (5.0,)), Row("new", {})]
    rows.append(Row("odd", {}, (1000.0,)))
    speed = Column("speed", "clips/s", "paper")
    claims = [Claim("speed", "fast", "slow"), Claim("speed", "odd", "fast")]
    claims += [Claim("speed", "odd", "new", margin=margin) for margin in (5, 20)]
    return PaperTable(
        description="",
        introduction="# A table",
        settings=settings,
        quick=settings,
        experiment=lambda _: measure,
        rows=rows,
        columns=[speed],
        more_columns=[],
        claims=claims,
        processes=processes,
    )


def test_experiments_of_a_table_are_resumed_and_reported_when_they_were_stopped(tmp_path):
    made = []
    settings = replace(QUICK, seeds=3)
    arguments = [str(tmp_path)]

    def measure(row, seed):
        made.append((row.name, seed))
        if len(made) == 5:
            raise MemoryError
        speeds = {"fast": 300.0, "slow": 3.0, "new": 7.0, "odd": 6.0}
        return {"speed": speeds[row.name] * (1 + 0.001 * seed)}

    with pytest.raises(MemoryError):
        table(measure, settings).main(arguments)
    table(measure, settings).main(arguments)
    assert made[4] == made[5]
    assert len(set(made)) == len(made) - 1 == 12
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    for expected in ("300.3 ± 0.2", "500.0", "+9900.0 %", "+9900.0 ± 0.0 %"):
        assert expected in report
    ends = [line.split()[-2] for line in report.splitlines() if line.startswith("| clips/s: ")]
    assert ends == ["confirmed", "contradicted", "contradicted", "confirmed"]
    with pytest.raises(UserError, match=r"fast, 0\.json: "):
        table(measure).main(arguments)


def test_experiments_of_a_table_are_shared_by_two_processes(tmp_path):
    def measure(row, seed):
        return {"speed": 1.0, "process": float(os.getpid())}

    shared = table(measure, processes=2)
    runs = shared.make_runs(tmp_path, shared.settings)
    makers = [run["process"] for row in runs.values() for run in row]
    assert len(makers) == 4 * QUICK.seeds
    assert makers.count(os.getpid()) == len(makers) // 2


def test_error_names_the_missing_experiment_when_the_second_process_crashed(tmp_path):
    parent = os.getpid()

    def measure(row, seed):
        if os.getppid() == parent:
            os._exit(1)
        return {"speed": 2.0}

    shared = table(measure, processes=2)
    with pytest.raises(UserError, match=r"slow, 0\.json: "):
        shared.make_runs(tmp_path, shared.settings)
    made = [path.name for path in tmp_path.glob("runs/*.json")]
    assert sorted(made) == ["fast, 0.json", "new, 0.json"]
    # The next call runs the missing experiments.
    assert table(measure).make_runs(tmp_path, shared.settings)


@pytest.mark.parametrize("name", ["speech_recognition", "speech_enhancement"])
def test_experiment_table_contains_every_row_when_the_option_quick_is_given(name, tmp_path):
    """The test of each experiment takes two minutes."""
    for package in ("accelerate", "lightning", "pesq"):
        pytest.importorskip(package)
    program = [sys.executable, "-m", f"examples.{name}", str(tmp_path), "--quick"]
    run = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    rows = importlib.import_module(f"examples.{name}").ROWS
    assert all(f"\n| {row.name} " in run.stdout for row in rows)
    assert len([*tmp_path.glob("runs/*.json")]) == len(rows)
