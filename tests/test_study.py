"""scripts/study.py: its runs, their order, and how they stop and fail."""

import json
import re
import shutil
import signal
import threading
import time
from dataclasses import asdict
from unittest.mock import Mock

import numpy as np
import pytest
from helpers import ROOT
from records import write_run

from benchmarks.epoch import PAPER
from common.files import METRICS_FILE
from hparams import batching_options, create_hparams
from length_batching import LengthBatchSampler, plan_epoch
from paper.survey import Surveyor
from paper.transcription import Intelligibility
from scripts import study
from text.spoken_numbers import WEIGHTS
from training.trainer import learning_rate_at


@pytest.fixture(scope="module")
def surveyor():
    """Lengths of 950 clips spread as those of the demo corpus: mostly long, up to 3.7 s."""
    rng = np.random.default_rng(0)
    digits = rng.choice(list(WEIGHTS), 950, p=np.array(list(WEIGHTS.values())) / 33)
    frames = np.clip(rng.normal(55 * digits - 30, 25), 28, 322)
    return Surveyor(frames.round().astype(int), frames_per_step=4)


@pytest.fixture(scope="module")
def experiments(surveyor):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "PLANNED", 3)
        hparams = create_hparams("batch_size=16,n_frames_per_step=4")
        return {name: study.experiments(name, surveyor, hparams) for name in study.STUDIES}


def test_the_ten_rows_pad_in_the_papers_order(surveyor, monkeypatch):
    monkeypatch.setattr(study, "PLANNED", 8)
    matched = study.matched_overrides(surveyor, 16)
    hparams, rates = create_hparams(matched), []
    for strategy in ("semi_sorted", "bucket", "alternated_sort"):
        options = {"bucket_size": hparams.bucket_size, "num_bins": hparams.num_bins}
        found = surveyor.survey(16, strategy, epochs=study.PLANNED, **options)
        rates.append(found.zero_padding_rate)
    assert rates == sorted(rates, reverse=True)
    assert rates[0] - rates[-1] < 0.02
    with pytest.raises(study.UserError, match="3 training clips: too few for"):
        study.matched_overrides(Surveyor([30, 60, 90]), 2)


def test_experiments_are_ten_and_follow_ups(surveyor, experiments):
    """One of the batch sizes makes as many updates as RAND."""
    by_name = {experiment.name: experiment for experiment in experiments["small"]}
    assert [*by_name][:10] == study.TEN
    exponential = create_hparams(by_name["ssb_exp_dbs_br_recommended"].overrides)
    assert exponential.batching_strategy == "semi_sorted_exponential"
    assert 0.01 < exponential.local_randomization_factor < 0.1
    [size] = [int(name.split("_")[-1]) for name in by_name if "batch" in name]
    options = {"dynamic_batch_size": True, "seed": 5}
    batches = len(plan_epoch(surveyor.lengths, size, "semi_sorted", **options))
    assert batches == pytest.approx(60, rel=0.06)  # 950 / 16


def test_studies_compare_what_they_say(experiments):
    names = {name: [x.name for x in found] for name, found in experiments.items()}
    long = ["rand", "ssb_dbs_br", "ssb_dbs_br_random_epochs", "ssb_exp_dbs_br_recommended"]
    assert names["small-long"][:-1] == long
    assert names["small-long"][-1].startswith("ssb_dbs_br_batch_")
    assert names["full"] == ["rand", "ssb_dbs_br", "ssb_dbs_br_random_epochs"]
    assert len(names["small-plateau"]) == 5
    with pytest.raises(SystemExit):
        study.main(["small-lng", "out"])
    [one_frame] = experiments["full-one-frame"]
    assert create_hparams(one_frame.overrides).n_frames_per_step == 1
    attention = [create_hparams(x.overrides) for x in experiments["full-attention"]]
    settings = {(h.attention_location_gradient, h.guided_attention_weight) for h in attention}
    assert settings == {(False, 5), (True, 5), (False, 0), (True, 0)}
    assert {h.random_epochs for h in attention} == {2}


def test_settings_are_those_of_the_script():
    for path in (ROOT / "scripts" / "table2").glob("*.sh"):
        found = re.search(r"^train (\w+) (\S+)$", path.read_text(), re.MULTILINE)
        if found and path.stem in study.TEN:
            expected = batching_options(create_hparams(f"{found[2]},batch_size=16"))
            ours = batching_options(study.settings_of(study.Experiment("x", path.stem), ""))
            assert ours == expected


def test_learning_rates_fall_at_equal_shares(surveyor, experiments):
    """Constant through three quarters of the epochs, a sixteenth of that at the end."""
    for experiment in experiments["small-long"]:
        hparams = study.settings_of(experiment, "learning_rate=0.002")
        rate = study.falling_rate(surveyor.lengths, hparams, 8)
        falling = create_hparams(rate, hparams)
        options = batching_options(hparams) | {"random_epochs": hparams.random_epochs}
        counts = [len(LengthBatchSampler(surveyor.lengths, **options).plan_of(e)) for e in range(8)]
        assert learning_rate_at(sum(counts[:6]), falling) == 0.002
        assert learning_rate_at(sum(counts), falling) == pytest.approx(0.002 / 16, rel=0.1)


# ---------------------------------------------------------------------------- running


JOBS = [(study.Experiment(name, "rand"), 1) for name in ("a", "b", "c")]


@pytest.fixture
def make_study(tmp_path, monkeypatch):
    """A study whose programs are shell commands: training, then transcribing."""
    real = study.Study.execute

    def make(train="true", epochs=2, points=(2,)):
        made = study.Study(tmp_path, epochs, "batch_size=4", JOBS, points)
        (tmp_path / "logs").mkdir(exist_ok=True)

        def execute(command, log, environment=None):
            if environment is None:
                trained = int(command[5].stem.removeprefix("epoch_"))
                transcribed = Intelligibility(0.25, 0.1, 0.1, 1, command[5].name, trained, [])
                shell = f"echo '{json.dumps(asdict(transcribed))}' >{command[3]}"
            else:
                folder, shell = tmp_path / environment["NAME"] / "seed_1", train
                (folder / METRICS_FILE).unlink(missing_ok=True)
                write_run(folder, epochs=int(environment["EPOCHS"]), step=1)
                (folder / "checkpoint_9.pt").touch()
            return real(made, ["bash", "-ec", shell], log, environment)

        monkeypatch.setattr(made, "execute", execute)
        return made

    return make


def test_all_runs_are_trained_and_transcribed(make_study, capsys):
    """After each point; finished ones stay, and those of fewer epochs are resumed."""
    made = make_study(train="echo $NAME $SEEDS $EXTRA $EPOCHS", points=(1, 2))
    made.run(side_by_side=2)
    assert made.failed == []
    output = capsys.readouterr().out
    assert "3 runs of 2 epochs, 3 left" in output
    assert "c, seed 1: word error rate 0.250" in output
    log = (made.out / "logs" / "b-seed_1.log").read_text()
    assert log == "b 1 batch_size=4 1\nb 1 batch_size=4 2\n"
    assert sorted(path.name for path in made.folder(*JOBS[1]).glob("epoch_*")) == [
        "epoch_1.pt",
        "epoch_2.pt",
    ]
    for folder in (made.folder(*job) for job in JOBS):
        shutil.rmtree(folder)  # the raw values are enough
    again = make_study(train="false")
    again.run(side_by_side=1)
    assert again.failed == []
    assert again.values["word_error_rate"].tolist() == [0.25] * 6
    make_study(epochs=3, points=(3,)).run(side_by_side=1)
    assert "3 runs of 3 epochs, 3 left" in capsys.readouterr().out


def test_a_failing_run_stops_no_other(make_study, capsys):
    made = make_study(train='[ "$NAME" != b ] || exit 3')
    made.run(side_by_side=1)
    transcribed = [(made.folder(*job) / "intelligibility_2.json").exists() for job in JOBS]
    assert transcribed == [True, False, True]
    [problem] = made.failed
    assert problem.startswith("b, seed 1: training ended with status 3, see ")
    assert problem in capsys.readouterr().out


def test_a_report_is_of_what_did_not_fail(make_study, monkeypatch):
    """In the background, where a Ctrl-C is ignored: by the study, not by its programs."""
    made, handlers = make_study(train='[ "$NAME" != b ] || exit 3'), {}
    monkeypatch.setattr(study, "set_up", lambda *_: made)
    monkeypatch.setattr(study.signal, "getsignal", lambda _: signal.SIG_IGN)
    monkeypatch.setattr(study.signal, "signal", handlers.setdefault)
    with pytest.raises(SystemExit, match="left out of the report:\nb, seed 1: training ended with"):
        study.main(["full-attention", str(made.out)])
    handlers.pop(signal.SIGINT)(signal.SIGINT, None)
    assert (handlers, made.stops) == ({}, 0)
    report = (made.out / "report" / "report.md").read_text("utf-8")
    assert re.findall(r"^\| (\w) +\| `rand.sh`", report, re.MULTILINE) == ["a", "c"]


def test_stop_saves_and_starts_nothing_more(make_study):
    made = make_study(train="trap 'echo saved; exit 130' INT; echo up; sleep 30 & wait")
    thread = threading.Thread(target=made.run, args=(2,))
    thread.start()
    logs = [made.out / "logs" / f"{name}-seed_1.log" for name in "ab"]
    deadline = time.monotonic() + 20
    while not all(log.exists() and "up" in log.read_text() for log in logs):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    made.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert all("saved" in log.read_text() for log in logs)
    assert not (made.out / "logs" / "c-seed_1.log").exists()
    assert made.failed == []


def test_another_corpus_than_the_demos_is_refused(tmp_path, monkeypatch):
    for name, value in {"EXTRA": "", "SEEDS": "1", "EPOCHS": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CORPUS", str(tmp_path))
    with pytest.raises(study.UserError, match="leave CORPUS unset to have one made"):
        study.set_up("small", tmp_path, 3)
    (tmp_path / "demo_corpus.json").write_text("[]")
    with pytest.raises(study.UserError, match="expected clips and seed; make"):
        study.set_up("small", tmp_path, 3)
    monkeypatch.setenv("SEEDS", "1 x")
    with pytest.raises(study.UserError, match=r"environment: .*'x'; scripts/table2/all.sh"):
        study.set_up("small", tmp_path, 3)


def test_other_settings_need_another_folder(tmp_path):
    for _ in range(2):
        study.remember(tmp_path / "study.json", {"study": "full", "settings": "batch_size=4"})
    with pytest.raises(study.UserError, match=r"batch_size=4.*choose another OUT"):
        study.remember(tmp_path / "study.json", {"study": "full", "settings": "batch_size=8"})


def test_time_is_measured_in_turns(make_study, monkeypatch):
    """Random epochs take RAND's minutes; each batching is timed once, with the runs' frames."""
    made = make_study(points=(2,))
    made.jobs = [(study.Experiment(name, name), 1) for name in ("rand", "ssb_dbs_br")]
    made.jobs += [(study.Experiment("mixed", "ssb_dbs_br", "random_epochs=1"), 1)]
    made.run(side_by_side=1)

    def time_batchings(command, **_):
        timed = command[command.index("--batchings") + 1 :]
        assert ["strategy=random" in x for x in timed] == [True, False]
        paper = create_hparams(PAPER)
        timed_with = create_hparams(command[command.index("--hparams") + 1], base=paper)
        assert timed_with.hop_length == create_hparams().hop_length != paper.hop_length
        rows = [{"minutes_per_epoch": m, "standard_error_minutes": 0.1} for m in (3.0, 2.0)]
        (made.out / "minutes.json").write_text(json.dumps({"rows": rows}))
        return Mock(returncode=0)

    monkeypatch.setattr(study.subprocess, "run", time_batchings)
    study.time_in_turns(made)
    minutes = made.values.groupby("name")["minutes"].apply(list)
    assert minutes.to_dict() == {"rand": [3, 6], "ssb_dbs_br": [2, 4], "mixed": [3, 5]}
    study.report("small-long", made)
    assert "all.sh --small --long" in (made.out / "report" / "report.md").read_text("utf-8")
