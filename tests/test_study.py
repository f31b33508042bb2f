"""Test scripts/study.py: settings, runs, stops, failures, and the report."""

import json
import re
import shutil
import signal
import threading
import time
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
from corpora import make_corpus
from helpers import TINY
from records import epoch_line, run_line, validation_line, write_lines

from evaluation.results import Intelligibility, Transcript
from scripts import prepare, study
from tacotron2_voice.utils.errors import UserError

GRID = {"rand": "batching_strategy=random", "ssb": "", "sb": "batching_strategy=sorted"}


def test_named_settings_of_a_study_are_read_from_options_and_files(tmp_path):
    path = tmp_path / "grid.txt"
    path.write_text("# of the paper\nrand: batching_strategy=random\n\nssb :\n")
    given = [f"@{path}", "two: random_epochs=2,batch_size=8"]
    expected = {"rand": GRID["rand"], "ssb": "", "two": "random_epochs=2,batch_size=8"}
    assert study.read_settings(given) == expected
    for text, problem in (
        ("batch_size=8", r"--settings: 'batch_size=8'"),
        ("../up:", "NAME: OVERRIDES"),
        ("ssb: batch_size=9", "'ssb'"),
    ):
        with pytest.raises(UserError, match=problem):
            study.read_settings([f"@{path}", text])
    path.write_text("a:\n=\n")
    with pytest.raises(UserError, match=r"grid.txt:2: '='"):
        study.read_settings([f"@{path}"])


def test_error_lists_all_problems_of_the_named_settings_of_a_study(tmp_path):
    path = tmp_path / "grid.txt"
    path.write_text("a:\n" + "no colon\n" * 30 + "a: seed=1\n")
    with pytest.raises(UserError, match="'a'") as caught:
        study.read_settings([f"@{path}"])
    first, same, twice = str(caught.value).splitlines()[1:]
    assert first.startswith(f"  {path}:2: 'no colon'")
    assert same.startswith("    the same in 29 more: grid.txt:3, grid.txt:4,")
    assert twice.startswith(f"  {path}:32: ")
    settings = {"a": "seed=x", "b": "learning_rat=1", "c": ""}
    with pytest.raises(UserError, match="a: seed=x: expected an integer\n  b: learning_rat: "):
        study.remember(tmp_path / "study.json", "", settings)


def test_settings_are_rejected_when_their_name_already_has_other_settings(tmp_path):
    path = tmp_path / "study.json"
    study.remember(path, "batch_size=4", {"a": "", "b": "seed=3"})
    study.remember(path, "batch_size=4", {"c": ""})
    study.remember(path, "batch_size=4", {"b": "seed=3"})
    for hparams, name in (("batch_size=4", "b"), ("batch_size=8", "a")):
        with pytest.raises(
            UserError, match=rf"study.json: {name} was trained with \['batch_size=4'"
        ):
            study.remember(path, hparams, {name: ""})
    with pytest.raises(UserError, match="batch_sise"):
        study.remember(path, "batch_sise=4", {"d": ""})


# ---------------------------------------------------------------------------- runs of a study


@pytest.fixture
def make_study(tmp_path, monkeypatch):
    """Return a function that makes a study.

    A shell command stands in for training and writes the files of a run. In each transcript, one of
    four words is incorrect.
    """
    real = study.Study.execute

    def make(train="true", points=(2,)):
        made = study.Study(
            tmp_path, "batch_size=4", GRID, list(points), tmp_path / "texts", ["--recognizer", "x"]
        )
        (tmp_path / "logs").mkdir(exist_ok=True)

        def execute(command, log):
            if command[0].name == "evaluate.py":
                assert command[-4:-2] == ["--recognizer", "x"]
                words = Transcript("one two three four", "one two three five")
                heard = Intelligibility(0.25, 0.1, 0.1, 1, "", 0, [words])
                command[-1].write_text(json.dumps(asdict(heard)))
                return
            folder, overrides = command[2], command[-1]
            environment = f"NAME={folder.parent.name} OVERRIDES={overrides}"
            shell = f"import os; os.execvp('bash', ['bash', '-ec', {f'{environment}; {train}'!r}])"
            real(made, ["-c", shell], log)
            folder.mkdir(parents=True, exist_ok=True)
            lines = [run_line()]
            epochs = [int(path.stem.split("_")[1]) for path in folder.glob("checkpoint_*")]
            epochs.append(int(overrides.rpartition("epochs=")[2]))
            for epoch in range(1, max(epochs) + 1):
                lines.append(epoch_line(epoch, gradient_norm=epoch / 2))
                lines.append(validation_line(epoch, 3.0 / epoch, alignment_sharpness=epoch / 4))
            write_lines(folder, lines)
            (folder / f"checkpoint_{epoch}.pt").touch()

        monkeypatch.setattr(made, "execute", execute)
        return made

    return make


def test_study_trains_and_transcribes_each_run_once(make_study, capsys):
    """Epochs whose speech was already transcribed are not transcribed again, even if the run
    folders were deleted."""
    made = make_study(train="echo $NAME $OVERRIDES", points=(1, 2))
    made.run([1], concurrent_runs=2)
    assert made.failed == []
    output = capsys.readouterr().out
    assert "3 runs of 2 epochs, 3 left" in output
    assert "ssb, seed 1: word error rate 0.250" in output
    log = (made.out / "logs" / "sb-seed_1.log").read_text()
    expected = f"sb epochs_per_validation=1,batch_size=4,{GRID['sb']},seed=1,epochs="
    assert log == f"{expected}1\n{expected}2\n"
    kept = {path.name for path in (made.out / "sb" / "seed_1").glob("epoch_*")}
    assert kept == {"epoch_1.pt", "epoch_2.pt"}
    for name in GRID:
        shutil.rmtree(made.out / name)  # the report needs only values.csv
    again = make_study(train="false", points=(1, 2))
    again.run([1], concurrent_runs=1)
    assert again.failed == []
    assert again.values["word_error_rate"].tolist() == [0.25] * 6
    longer = make_study(points=(2, 3))
    longer.run([1], concurrent_runs=1)
    assert "3 runs of 3 epochs, 3 left" in capsys.readouterr().out
    assert longer.values["word_error_rate"].tolist() == [0.25] * 9


def test_study_values_are_summed_over_the_epochs_of_a_run(make_study):
    made = make_study()
    made.run([7], concurrent_runs=1)
    own = study.read_values(made.out / "values.csv").loc[("rand", 7)]
    assert own["updates"].tolist() == [12, 24]
    assert own["decoder_steps"].tolist() == [1501, 3003]
    assert own["minutes"].tolist() == [3, 6]
    assert own["validation_loss_unpadded"].tolist() == [6, 3]
    assert own["gradient_norm"].tolist() == [0.5, 1]
    assert own["alignment_sharpness"].tolist() == [0.25, 0.5]
    assert own["words"].tolist()[1] == 4


@pytest.mark.thorough
def test_lost_values_of_a_study_are_restored_from_its_runs(make_study):
    """Finished runs are not trained again. Adding an epoch to --points is an error if a finished
    run is already past this epoch."""
    make_study(points=(1, 2)).run([1], concurrent_runs=1)
    (made := make_study()).out.joinpath("values.csv").unlink()
    again = make_study(train="false", points=(1, 2))
    again.run([1], concurrent_runs=1)
    assert again.values["word_error_rate"].count() == 6
    make_study(points=(4,)).run([1], concurrent_runs=1)
    passed = make_study(points=(3,))
    passed.run([1], concurrent_runs=1)
    assert "epoch 4" in passed.failed[0]
    assert "remove 3 from --points" in passed.failed[0]
    assert made.failed == []


def test_study_continues_when_a_run_fails(make_study, capsys):
    made = make_study(train='[ "$NAME" != ssb ] || exit 3')
    made.run([1], concurrent_runs=1)
    assert set(made.values.index.unique("name")) == {"rand", "sb"}
    [problem] = made.failed
    assert problem.startswith("ssb, seed 1: -c exited with status 3, see ")
    assert problem in capsys.readouterr().out
    study.write_report(made)
    report = (made.out / "report.md").read_text("utf-8")
    assert "| ssb  | " in report  # only the table of settings lists this strategy
    assert re.findall(r"^\| (\w+) +\| +3.000", report, re.MULTILINE)[:2] == ["rand", "sb"]


def test_stopped_study_waits_for_running_programs_and_starts_no_others(make_study):
    made = make_study(train="trap 'echo saved; exit 143' TERM; echo up; sleep 30 & wait")
    thread = threading.Thread(target=made.run, args=([1], 2))
    thread.start()
    logs = [made.out / "logs" / f"{name}-seed_1.log" for name in ("rand", "ssb")]
    deadline = time.monotonic() + 20
    while not all(log.exists() and "up" in log.read_text() for log in logs):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    made.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert all("saved" in log.read_text() for log in logs)
    assert not (made.out / "logs" / "sb-seed_1.log").exists()
    assert made.failed == []


def test_study_ignores_signals_when_its_parent_ignored_them(tmp_path, monkeypatch):
    handlers = {}
    monkeypatch.setattr(study.Study, "run", lambda *_: None)
    monkeypatch.setattr(study, "read_recordings", lambda _: [])
    ignored = {signal.SIGINT: signal.SIG_IGN}
    monkeypatch.setattr(study.signal, "getsignal", ignored.get)
    monkeypatch.setattr(study.signal, "signal", handlers.setdefault)
    study.main([str(tmp_path / "out"), "--settings", "a:", "--points", "2", "--texts", "x"])
    assert set(handlers) == {signal.SIGTERM, signal.SIGHUP}


# ---------------------------------------------------------------------------- the report


def made_up(name, seed, *, updates, steps, factor=1.0):
    """Return the epochs of a run whose loss halves every 100 optimizer steps.

    The loss is multiplied by a factor that depends on the seed.
    """
    epoch = np.arange(1, 5)
    frame = pd.DataFrame({"epoch": epoch, "updates": updates * epoch, "minutes": 0.01 * epoch})
    loss = factor * (1 + seed / 10) * 0.5 ** (frame["updates"] / 100)
    frame = frame.assign(name=name, seed=seed, validation_loss_unpadded=loss, words=500)
    frame = frame.assign(decoder_steps=steps * epoch, alignment_sharpness=0.5, gradient_norm=1.0)
    return frame.assign(word_error_rate=loss.where(epoch % 2 == 0))


@pytest.fixture
def values():
    """Return the results of a made-up study with RAND and a second strategy.

    The second strategy has half as many optimizer steps per epoch. After the same number of
    optimizer steps, the loss of the second strategy is 1.5 times the loss of RAND.
    """
    runs = [made_up("rand", seed, updates=100, steps=40) for seed in (1, 2, 3)]
    runs += [made_up("ssb", seed, updates=50, steps=20, factor=1.5) for seed in (1, 2, 3)]
    return pd.concat(runs, ignore_index=True)


def table_of(values, quantity, spent):
    lines = study.budget_table(values, quantity, spent, (2, 4)).splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_budget_table_compares_strategies_at_equal_budgets(values):
    """The expected values were calculated by hand. After the same number of epochs, RAND has twice
    as many optimizer steps. After the same number of optimizer steps, the losses differ by a factor
    of 1.5."""
    titles, _, rand, ssb = table_of(values, study.LOSS, "updates")
    assert titles == ["name", "100 optimizer steps", "200 optimizer steps"]
    # The losses of the three seeds are multiplied by 1.1, 1.2 and 1.3.
    errors = [0.1 / 3**0.5 * 0.5, 0.1 / 3**0.5 * 0.25]
    assert rand[1:] == [f"{1.2 * 0.5:.3f} ± {errors[0]:.3f}", f"{1.2 * 0.25:.3f} ± {errors[1]:.3f}"]
    assert [cell.split(" (")[1] for cell in ssb[1:]] == ["+50%\\*)"] * 2
    titles, _, rand, ssb = table_of(values, study.RATE, "epoch")
    assert titles == ["name", "2 epochs", "4 epochs"]
    assert [cell.split(" (")[1] for cell in ssb[1:]] == ["+200%\\*)", "+500%\\*)"]
    titles, _, rand, ssb = table_of(values, study.RATE, "decoder_steps")
    assert titles[1:] == ["40 decoder steps", "80 decoder steps"]
    assert rand[1] == "–"  # the first word error rate was measured after 80 optimizer steps
    assert ssb[1].startswith("0.900 ± ")


def test_budget_table_shows_a_dash_when_one_seed_has_too_few_epochs(values):
    """A mean over fewer seeds cannot be compared with the means in the other cells."""
    is_behind = (values["name"] == "ssb") & (values["seed"] == 3) & (values["epoch"] > 2)
    *_, ssb = table_of(values[~is_behind], study.LOSS, "epoch")
    assert ssb[1].startswith("0.900 ± ")
    assert ssb[2].startswith("–")


def test_budget_table_shows_no_standard_errors_when_there_is_one_seed(values):
    *_, ssb = table_of(values[values["seed"] == 1], study.LOSS, "minutes")
    assert ssb[2] == "0.413 (+500%)"


def test_budget_table_counts_half_an_error_when_all_words_are_correct(values):
    values.loc[values["name"] == "ssb", study.RATE] *= 0
    *_, ssb = table_of(values, study.RATE, "epoch")
    assert ssb[2].startswith("0.001 ± 0.000")


# ---------------------------------------------------------------------------- real programs


@pytest.mark.thorough
@pytest.mark.usefixtures("clean_process")
def test_study_trains_real_runs_and_does_not_repeat_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_corpus(tmp_path / "corpus", 12, text="No. {} text.")
    tiny = ",".join(f"{name}={value}" for name, value in TINY.items() if "epochs" not in name)
    prepare.main(["corpus", "--out", "lists", "--hparams", tiny])
    command = ["out", "--hparams", f"@lists/settings.txt,{tiny},max_decoder_steps=20"]
    command += ["--settings", "rand: batching_strategy=random", "default:"]
    command += ["--points", "1", "--texts", "lists/val.txt", "--concurrent-runs", "2"]
    study.main(command)
    values = study.read_values(tmp_path / "out" / "values.csv")
    assert values.index.tolist() == [("default", 1, 1), ("rand", 1, 1)]
    assert values[[study.RATE, study.LOSS]].notna().all().all()
    assert "2 runs of 1 epochs, 2 left" in capsys.readouterr().out
    before = (tmp_path / "out" / "report.md").read_bytes()
    study.main(command)
    assert "2 runs of 1 epochs, 0 left" in capsys.readouterr().out
    assert (tmp_path / "out" / "report.md").read_bytes() == before
    assert (tmp_path / "out" / "report.svg").stat().st_size > 10_000
