"""Test scripts/my_voice.py: its commands, its settings, and how it continues after a stop."""

from dataclasses import asdict
from pathlib import Path

import pytest
from helpers import ROOT

from evaluation.recognizers import make_recognizer
from evaluation.results import Intelligibility
from hparams import create_hparams
from scripts import my_voice
from scripts.commands import run_stage
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import read_json, write_json
from training.start import read_weights


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Replace each program with a function that writes the program's output files.

    The fixture is a list of the commands of all calls.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rec").mkdir()
    run = []
    out = tmp_path / "out"

    def stage(program, *arguments, **_):
        run.append([program, *map(str, arguments)])
        if program == "scripts/prepare.py":
            lists = out / "lists"
            lists.mkdir(parents=True, exist_ok=True)
            lines = "".join(f"../recordings/{i}.wav|Good morning.|2.0|anna\n" for i in range(100))
            (lists / "train.txt").write_text(lines)
            (lists / "val.txt").write_text("../recordings/a & b.wav|It <rains>.|2.0|anna\n")
            (lists / "settings.txt").write_text(
                "training_files=train.txt\nvalidation_files=val.txt\n"
            )
        elif program == "train.py" and "--resume" not in arguments:
            (out / "run").mkdir(exist_ok=True)
            (out / "run" / f"checkpoint_{len(run)}.pt").touch()
        elif program == "scripts/evaluate.py":
            words = [*map(str, arguments)]
            speech = Path(words[words.index("--output") + 1])
            speech.mkdir(exist_ok=True)
            (speech / "0001.wav").touch()
            checkpoint = Path(words[words.index("--checkpoint") + 1])
            is_best = checkpoint.name == "best.pt"
            rate = 0.25 if is_best else 0.5
            result = Intelligibility(rate, 0.1, 0.125, 50, checkpoint.name, 12, [])
            if words[words.index("--recognizer") + 1] == "none":
                identified = 0.75 if is_best else 0.5
                result = Intelligibility(
                    None, None, None, 50, checkpoint.name, 12, [], identification_rate=identified
                )
            write_json(Path(words[words.index("-o") + 1]), asdict(result))
        elif program == "scripts/export_voice.py":
            (out / "voice").mkdir()
            checkpoint = Path(arguments[1])
            write_json(out / "voice" / "voice.json", {"checkpoint": checkpoint.name})

    monkeypatch.setattr(my_voice, "run_stage", stage)
    monkeypatch.setattr(my_voice, "seconds_per_step", lambda *_: 1.2)
    monkeypatch.setattr(my_voice, "make_recognizer", lambda *_, **__: object())
    monkeypatch.setattr(my_voice, "read_weights", lambda _: None)
    return run


def make(tmp_path: Path, *options: str) -> None:
    my_voice.main(["rec", "--name", "anna", "--out", str(tmp_path / "out"), *options])


def test_stages_run_in_order_and_the_training_time_is_printed(commands, tmp_path, capsys):
    make(tmp_path, "--steps", "100")
    assert [words[0] for words in commands] == [
        "scripts/prepare.py",
        "train.py",
        "scripts/evaluate.py",
        "scripts/export_voice.py",
    ]
    prepared, trained, evaluated, exported = commands
    assert prepared[prepared.index("--speaker") + 1] == "anna"
    assert trained[trained.index("-c") + 1].endswith("voices/english")
    assert "--warm_start" in trained
    checkpoint = str(tmp_path / "out" / "run" / "checkpoint_2.pt")
    assert checkpoint in evaluated
    assert checkpoint in exported
    printed = capsys.readouterr().out
    assert "100 clips with 3.3 minutes" in printed
    assert "about 2 minutes" in printed
    assert "100 of 100 optimizer steps" in printed


@pytest.mark.parametrize(
    ("language", "steps", "model"), [("en-us", "1,000", "tiny.en"), ("nl", "3,000", "base")]
)
def test_number_of_steps_and_whisper_model_depend_on_the_language(
    commands, tmp_path, capsys, language, steps, model
):
    make(tmp_path, "--language", language, "--symbols", "letters")
    assert f"{steps} of {steps} optimizer steps" in capsys.readouterr().out
    [evaluated] = [words for words in commands if words[0] == "scripts/evaluate.py"]
    assert evaluated[evaluated.index("--whisper-model") + 1] == model


def test_second_call_resumes_training_and_skips_finished_stages(commands, tmp_path):
    make(tmp_path)
    commands.clear()
    make(tmp_path)
    assert [words[0] for words in commands[:2]] == ["scripts/prepare.py", "train.py"]
    assert "--resume" in commands[1]
    assert "--new-clips" in commands[1]  # the user may have fixed recordings after the first call
    assert "-c" not in commands[1]
    assert "scripts/export_voice.py" not in [words[0] for words in commands]


def test_my_voice_program_ends_when_a_stage_is_stopped(commands, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise UserError("stopped in scripts/prepare.py")

    monkeypatch.setattr(my_voice, "run_stage", stop)
    with pytest.raises(UserError):
        make(tmp_path)


@pytest.mark.parametrize(
    ("batches", "steps", "epochs", "every"), [(25, 1000, 40, 4), (1, 50, 50, 5), (1000, 1000, 1, 1)]
)
def test_number_of_epochs_depends_on_the_number_of_batches(batches, steps, epochs, every):
    settings = dict(x.split("=") for x in my_voice.training_settings(steps, batches).split(","))
    assert settings["epochs"] == str(epochs)
    assert settings["epochs_per_validation"] == str(every)
    decay = int(settings["learning_rate_decay_start"])
    halvings = (steps - decay) / int(settings["learning_rate_half_life"])
    assert 5e-4 * 2**-halvings == pytest.approx(2e-5, rel=0.25)


def test_html_page_contains_each_text_with_its_recording_and_its_synthesized_speech(
    commands, tmp_path
):
    make(tmp_path)
    page = (tmp_path / "out" / "index.html").read_text()
    assert "It &lt;rains&gt;." in page
    assert 'src="recordings/a%20%26%20b.wav"' in page
    assert 'src="newest/speech/0001.wav"' in page


def test_voice_is_exported_from_the_checkpoint_with_the_lower_word_error_rate(commands, tmp_path):
    make(tmp_path)
    assert "checkpoint_2.pt" in commands[-1][2]
    (tmp_path / "out" / "run" / "best.pt").touch()
    commands.clear()
    make(tmp_path)
    assert commands[-1][0] == "scripts/export_voice.py"
    assert commands[-1][2].endswith("best.pt")
    assert 'src="lowest-loss/speech/0001.wav"' in (tmp_path / "out" / "index.html").read_text()


def test_checkpoint_with_the_higher_identification_rate_is_exported_when_whisper_cannot_be_loaded(
    commands, tmp_path, monkeypatch, capsys
):
    def fail(*_: object, **__: object) -> None:
        raise UserError("--whisper-model tiny.en: cannot load this model")

    with monkeypatch.context() as patch:
        patch.setattr(my_voice, "make_recognizer", fail)
        with pytest.raises(UserError, match="cannot load"):
            make(tmp_path, "--whisper-model", "tiny.en")
        assert commands == []
        (tmp_path / "out" / "run").mkdir(parents=True)
        (tmp_path / "out" / "run" / "best.pt").touch()
        make(tmp_path)
    printed = capsys.readouterr().out
    assert "note: --whisper-model tiny.en: cannot load this model. " in printed
    assert "best.pt: identification rate 0.750" in printed
    evaluations = [x for x in commands if x[0] == "scripts/evaluate.py"]
    assert all("--words-only" not in x for x in evaluations)
    assert commands[-1][2].endswith("best.pt")
    commands.clear()
    make(tmp_path)  # Whisper can be loaded now
    assert "best.pt: word error rate 0.250" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (("--language", "nl"), "text_cleaners=[phones],language=nl"),
        (
            ("--language", "nl", "--symbols", "letters"),
            "symbols=corpus,text_cleaners=basic_cleaners,language=nl",
        ),
        (
            ("--symbols", "phones"),
            "text_cleaners=[english_cleaners_corrected,phones],language=en-us",
        ),
    ],
)
def test_texts_become_phones_when_the_language_is_not_english(
    commands, tmp_path, options, settings
):
    make(tmp_path, *options)
    prepared = commands[0]
    assert prepared[prepared.index("--hparams") + 1] == settings
    assert create_hparams(settings).text_cleaners


def test_language_is_rejected_before_the_first_stage_when_espeak_does_not_support_it(
    commands, tmp_path
):
    with pytest.raises(UserError, match="--symbols letters"):
        make(tmp_path, "--language", "zz")
    assert commands == []


@pytest.mark.parametrize(("code", "expected"), [(1, "failed"), (130, "To continue, run: python ")])
def test_message_differs_between_failed_and_stopped_stages(tmp_path, code, expected):
    """If a stage was stopped, the message suggests the same command again. If a stage failed, the
    message suggests no command, because the same command would fail again."""
    program = tmp_path / "stage.py"
    program.write_text(f"raise SystemExit({code})")
    with pytest.raises(UserError) as raised:
        run_stage(program)
    assert str(program) in str(raised.value)
    assert expected in str(raised.value)


@pytest.mark.thorough
def test_stages_print_no_command_to_resume_when_another_program_runs_them(tmp_path, capfd):
    """The command of a stage would resume only this stage, but not the later stages. Therefore
    my_voice.py prints a command that resumes all stages."""
    program = tmp_path / "stage.py"
    program.write_text(
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'scripts')!r}]\n"
        "from training.run import Run\n"
        "from training.signals import stopped_without_saving\n"
        "from scripts.prepare import stopped\n"
        "command = Run.resume_command.fget(None)\n"
        "print(stopped_without_saving('.', command))\n"
        "print(stopped())\n"
        "sys.exit(130)\n"
    )
    with pytest.raises(UserError) as raised:
        run_stage(program)
    printed = capfd.readouterr().out
    assert printed.endswith("stopped without saving\nstopped; no filelist was written\n")
    assert str(raised.value).count("python ") == 1


def test_error_of_a_stage_explains_how_to_pass_options_to_the_stage(tmp_path):
    program = tmp_path / "stage.py"
    program.write_text("raise SystemExit(1)")
    with pytest.raises(UserError, match=r"message above\. Use --prepare"):
        run_stage(program, advice=". Use --prepare")


@pytest.mark.parametrize(("finished", "remaining"), [(0, "300 of 300"), (250, "50 of 300")])
def test_remaining_time_is_printed_when_training_resumes(
    finished, remaining, commands, tmp_path, capsys
):
    if finished:
        (tmp_path / "out" / "run").mkdir(parents=True)
        (tmp_path / "out" / "run" / f"checkpoint_{finished}.pt").touch()
    make(tmp_path, "--steps", "300")
    printed = capsys.readouterr().out
    assert f"{remaining} optimizer steps" in printed
    assert f"about {(300 - finished) * 1.2 / 60:.0f} minutes" in printed


def test_start_option_is_rejected_before_the_first_stage_when_its_checkpoint_does_not_exist(
    commands, tmp_path
):
    for name in ("checkpoint_500.pt", "checkpoint_1000.pt"):
        (tmp_path / name).touch()
    with pytest.raises(UserError) as raised:
        make(tmp_path, "--start", str(tmp_path / "best.pt"))
    message = str(raised.value)
    assert str(tmp_path / "best.pt") in message
    assert "checkpoint_500.pt" in message
    assert "checkpoint_1000.pt" in message
    assert commands == []


def test_start_option_is_rejected_before_the_first_stage_when_its_folder_contains_no_voice(
    commands, tmp_path, monkeypatch
):
    monkeypatch.setattr(my_voice, "read_weights", read_weights)
    with pytest.raises(UserError) as raised:
        make(tmp_path, "--start", str(tmp_path / "rec"))
    assert str(tmp_path / "rec") in str(raised.value)
    assert "voice.json" in str(raised.value)
    assert commands == []


def test_language_is_rejected_before_the_first_stage_when_the_recognizer_does_not_support_it(
    commands, tmp_path, monkeypatch
):
    monkeypatch.setattr(my_voice, "make_recognizer", make_recognizer)
    with pytest.raises(UserError) as raised:
        make(tmp_path, "--language", "nl", "--recognizer", "pocketsphinx")
    assert "--language nl" in str(raised.value)
    assert "--recognizer whisper" in str(raised.value)
    assert commands == []


def test_output_folder_is_rejected_when_it_was_made_with_another_number_of_optimizer_steps(
    commands, tmp_path
):
    make(tmp_path, "--steps", "100")
    with pytest.raises(UserError, match="--steps 100"):
        make(tmp_path, "--steps", "200")


def test_my_voice_continues_when_an_earlier_version_stored_another_code_of_the_language(
    commands, tmp_path
):
    """Earlier commits stored `no`, which is now converted to `nb`."""
    make(tmp_path, "--language", "nb", "--symbols", "letters")
    path = tmp_path / "out" / "my_voice.json"
    write_json(path, read_json(path) | {"language": "no"})
    commands.clear()
    make(tmp_path, "--language", "no", "--symbols", "letters")
    assert "--resume" in next(command for command in commands if command[0] == "train.py")


def test_output_folder_is_rejected_when_it_was_made_with_another_language(commands, tmp_path):
    make(tmp_path, "--language", "nl")
    commands.clear()
    with pytest.raises(UserError) as raised:
        make(tmp_path)
    assert "--language nl" in str(raised.value)
    assert commands == []


@pytest.mark.parametrize(
    "option",
    [
        "--steps=0",
        "--steps=-5",
        "--val-fraction=0",
        "--val-fraction=1",
        "--language=",
        "--name= ",
        "--prepare='a",
        "--prepare=--out x",
        "--prepare=--speaker=x",
        "--prepare=--speaker-column 2",
    ],
)
def test_option_is_rejected_before_the_first_stage_when_its_value_is_invalid(
    option, commands, tmp_path, capsys
):
    name, _, value = option.partition("=")
    with pytest.raises(SystemExit):
        my_voice.main([str(tmp_path), "--name", "anna", "--out", str(tmp_path / "out"), option])
    message = capsys.readouterr().err
    assert name in message
    assert repr(value) in message
    assert commands == []


def test_options_for_prepare_may_begin_with_hyphens(commands, tmp_path):
    make(tmp_path, "--prepare", "--skip-bad")
    assert "--skip-bad" in commands[0]


def test_name_of_the_person_is_rejected_before_the_first_stage_when_it_contains_a_pipe(
    commands, tmp_path
):
    with pytest.raises(UserError, match=r"a\|b"):
        my_voice.main(["rec", "--name", "a|b", "--out", str(tmp_path / "out")])
    assert commands == []
    assert not (tmp_path / "out").exists()


def test_name_with_a_slash_is_rejected_when_no_output_folder_is_given(commands, tmp_path):
    with pytest.raises(UserError, match="--out"):
        my_voice.main(["rec", "--name", "a/b"])
    my_voice.main(["rec", "--name", "a/b", "--out", str(tmp_path / "out")])


def test_nothing_is_written_when_the_folder_of_the_recordings_does_not_exist(commands, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UserError, match="nowhere"):
        my_voice.main([str(tmp_path / "nowhere"), "--name", "anna", "--out", str(out)])
    assert not out.exists()
    assert commands == []
