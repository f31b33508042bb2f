"""scripts/say.py and `make say`: numbers spoken with the demo's model."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import soundfile
from helpers import ROOT
from matplotlib.figure import Figure

import speaking
from scripts import say


def test_digits_and_words_make_the_same_files(checkpoint_path, tmp_path, monkeypatch, capsys):
    sound = lambda mel, _: mel.mean(0).numpy().repeat(256) / 20  # noqa: E731
    monkeypatch.setattr(speaking, "draw_alignment", lambda *_: Figure((1, 1)))
    monkeypatch.setattr(speaking, "griffin_lim", sound)
    arguments = ["--checkpoint", str(checkpoint_path), "-o", str(tmp_path / "said")]
    arguments += ["--hparams", "gate_threshold=2,max_decoder_steps=3"]
    base, sounds = tmp_path / "said" / "four-thousand-seventy-two", []
    for text in ("4,072", "four thousand AND seventy-two"):
        say.main([text, *arguments])
        sounds.append(base.with_suffix(".wav").read_bytes())
        printed = capsys.readouterr().out
        assert "warning: no stop within 3 steps" in printed
        assert f"Four thousand seventy two.  0.03 s\nsound      {base}.wav\n" in printed
    assert sounds[0] == sounds[1]
    assert soundfile.info(str(base.with_suffix(".wav"))).frames == 3 * 256
    assert base.with_suffix(".png").stat().st_size > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "this model speaks only numbers"),
        ("hello", "it does not know hello"),
        ("0", "expected a number from 1 to 999,999"),
        ("seven", "best.pt: no such checkpoint"),
    ],
)
def test_a_bad_text_is_refused_in_one_line(text, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=f"^say.py: .*{message}"):
        say.main([text])
    assert list(tmp_path.iterdir()) == []


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    # `make test` hands its own flags and depth on, with which another make says where it is.
    left_out = {"TEXT", "MAKEFLAGS", "MFLAGS", "MAKELEVEL"}
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


def test_make_passes_on_what_is_typed(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    for target in ("say", "page"):
        refused = make(tmp_path, target, "TEXT=7")
        assert refused.returncode != 0
        assert refused.stdout == f"{say.CHECKPOINT}: no such checkpoint; run make demo first\n"
    python = tmp_path / ".venv" / "bin" / "python"
    for path in (tmp_path / say.CHECKPOINT, python, tmp_path / ".venv" / "installed"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    python.write_text('#!/bin/sh\nfor word; do echo "[$word]"; done\n')
    python.chmod(0o755)
    typed = 'it\'s "4,072" $(echo 9) `id` $$HOME'
    assert make(tmp_path, "say", f"TEXT={typed}").stdout.splitlines() == [
        "[scripts/say.py]",
        "[--]",
        '[it\'s "4,072"  `id` $HOME]',  # make's own signs are make's
    ]
    assert make(tmp_path, "say").stdout.endswith("[--]\n[]\n")
    assert make(tmp_path, "page").stdout.splitlines()[1:5] == [
        "[scripts/page.py]", "[--checkpoint]", f"[{say.CHECKPOINT}]", "[--numbers]",
    ]  # fmt: skip
