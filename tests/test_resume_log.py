"""Test which lines of a text file are spoken, and how synthesis resumes after a stop."""

import argparse
import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import soundfile
import torch
from corpora import refusal
from helpers import ROOT, SMALL_MODEL, synthesize_quickly
from onnx import helper, numpy_helper

import synthesize
from hparams import HParams, create_hparams, with_table
from tacotron2_voice import outputs, resume_log
from tacotron2_voice.outputs import AudioFileOutput
from tacotron2_voice.resume_log import ResumeLog
from tacotron2_voice.synthesizer import Synthesizer
from tacotron2_voice.texts import read_texts
from tacotron2_voice.utils.audio_files import encode
from tacotron2_voice.utils.errors import UserError

BOOK = "One dog.\n* * *\nTwo cats.\n\nIt rains.\nWe sat down.\n---\nShe reads.\n"
# names of the output files for the lines that can be spoken
NAMES = ["0001", "0003", "0005", "0006", "0008"]


class Stopper:
    """Raise KeyboardInterrupt before or after call number `at` of the functions that synthesize or
    write files. Also count the synthesized texts."""

    def __init__(self, monkeypatch):
        self.calls, self.at, self.after, self.texts = 0, 0, False, 0
        for owner, name in (
            (ResumeLog, "add"),
            (AudioFileOutput, "add_samples"),
            (os, "replace"),
            (os, "truncate"),
            (Synthesizer, "stream_mels"),
        ):
            monkeypatch.setattr(owner, name, self.watched(getattr(owner, name)))

    def watched(self, function):
        def watched(*args, **kwargs):
            self.calls += 1
            self.texts += function.__name__ == "stream_mels"
            stops = self.calls == self.at
            if stops and not self.after:
                raise KeyboardInterrupt
            result = function(*args, **kwargs)
            if stops:
                raise KeyboardInterrupt
            return result

        return watched


@pytest.fixture
def stopper(monkeypatch):
    return Stopper(monkeypatch)


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(BOOK, encoding="utf-8")
    return path


@pytest.fixture
def synthesized(checkpoint_path, book, one_thread, monkeypatch, capsys):
    """Return a function that synthesizes the test book and returns the last printed line."""
    synthesize_quickly(monkeypatch.setattr)

    def run(out, *more) -> str:
        arguments = ["--checkpoint", str(checkpoint_path), "--text-file", str(book), "-o", str(out)]
        arguments.append("--lines")
        synthesize.main([*arguments, "--hparams", "gate_threshold=2", *more])
        return capsys.readouterr().out.splitlines()[-1]

    return run


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def damage(rng: random.Random, folder: Path) -> None:
    """Damage the output folder at random, as a killed process or a user could."""
    log = folder / "spoken.jsonl"
    made = [path for path in folder.iterdir() if path.suffix in (".wav", ".png")]
    if log.exists() and rng.random() < 0.5:
        os.truncate(log, rng.randrange(log.stat().st_size + 1))
    if made and rng.random() < 0.5:
        path = rng.choice(made)
        path.write_bytes(path.read_bytes()[:-1])
    if made and rng.random() < 0.5:
        rng.choice(made).unlink()
    (folder / ".0003.wav.17.tmp").write_bytes(b"half")


@pytest.mark.parametrize("seed", range(2))
def test_output_folder_is_complete_when_synthesis_was_stopped_and_repeated(
    seed, synthesized, stopper, tmp_path
):
    rng, damaged = random.Random(seed), seed % 2
    synthesized(tmp_path / "whole")
    whole, stops = contents(tmp_path / "whole"), 0
    assert sorted({name[:4] for name in whole} - {"spok"}) == NAMES
    while True:
        stopper.at, stopper.after = stopper.calls + rng.randint(1, 25), rng.random() < 0.5
        try:
            synthesized(tmp_path / "stopped")
            break
        except KeyboardInterrupt:
            stops += 1
            if damaged and stops % 3 == 0:
                damage(rng, tmp_path / "stopped")
    found = contents(tmp_path / "stopped")
    log, expected = found.pop("spoken.jsonl"), whole.pop("spoken.jsonl")
    assert found == whole
    assert {*expected.splitlines()} <= {*log.splitlines()}
    assert stops > 0
    # After each stop, the program synthesizes at most one text again.
    assert damaged or stopper.texts <= 5 + 5 + stops
    assert damaged or log == expected


@pytest.mark.parametrize("seed", range(2))
def test_wav_is_complete_when_synthesis_was_stopped_and_repeated(
    seed, voices, book, stopper, tmp_path, monkeypatch
):
    synthesize_quickly(monkeypatch.setattr)
    rng = random.Random(seed)
    arguments = ["--voice", str(voices.fp32[0]), "--text-file", str(book), "--lines", "-o"]
    synthesize.main([*arguments, str(tmp_path / "whole.wav")])
    whole, wav = (tmp_path / "whole.wav").read_bytes(), tmp_path / "a.wav"
    samples = soundfile.read(tmp_path / "whole.wav", dtype="int16")[0]
    part, log, damaged = tmp_path / "a.part.wav", tmp_path / "a.part.jsonl", seed % 2
    stops, begun = 0, 1
    while True:
        stopper.at, stopper.after = stopper.calls + rng.randint(1, 25), rng.random() < 0.5
        try:
            synthesize.main([*arguments, str(wav)])
            break
        except KeyboardInterrupt:
            stops += 1
        # If the WAV file exists, all texts have been synthesized, and the next call starts from the
        # beginning.
        if wav.exists():
            wav.unlink()
            begun += 1
        if part.exists() and part.stat().st_size > 44:
            if not damaged:
                kept = soundfile.read(part, dtype="int16")[0]
                np.testing.assert_array_equal(kept, samples[: len(kept)])
            elif stops % 3 == 0:
                os.truncate(log, rng.randrange(log.stat().st_size + 1))
            elif stops % 3 == 1:
                os.truncate(part, part.stat().st_size - 1)
    assert wav.read_bytes() == whole == bytes(encode(samples, 22050))
    assert sorted(tmp_path.glob("a.*")) == [wav]
    assert stops > 0
    assert damaged or stopper.texts <= 5 + 5 * begun + stops


CHANGES = {
    "seed": ["--seed", "1"],
    "setting": ["--hparams", "gate_threshold=2,max_decoder_steps=11"],
    "a mel, too": ["--save-mel"],
    "checkpoint": [],
    "vocoder": [],
    "version": [],
    "nothing": [],
}


@pytest.mark.parametrize("change", CHANGES)
def test_texts_are_synthesized_again_when_settings_change(
    change, synthesized, checkpoint_path, book, monkeypatch
):
    book.write_text("One dog.\n* * *\nTwo cats.\n", encoding="utf-8")
    out, vocoder, more = book.parent / "out", book.parent / "hold.onnx", []
    if change == "vocoder":
        write_vocoder(vocoder)
        more = ["--vocoder", str(vocoder)]
    wrote = f"wrote the files of {{}} texts to {out}; "
    assert synthesized(out, *more) == f"{wrote.format(2)}1 line skipped, 5 warnings"
    if change == "checkpoint":
        saved = torch.load(checkpoint_path, weights_only=True)
        torch.save(saved | {"iteration": 8}, checkpoint_path)
    elif change == "vocoder":
        write_vocoder(vocoder, louder=2)
    elif change == "version":
        monkeypatch.setattr(resume_log, "__version__", "0")
    again = synthesized(out, *more, *CHANGES[change])
    if change == "nothing":
        assert again == f"{wrote.format(0)}2 already complete, 1 line skipped, 5 warnings"
    else:
        assert again.startswith(f"{wrote.format(2)}1 line skipped")


def write_vocoder(path: Path, louder: float = 1) -> None:
    """Write a vocoder that repeats the loudest value of each frame 256 times."""
    weights = {"factor": np.float32(louder / 40), "hop": np.array([1, 1, 1, 256]), "last": [3]}
    nodes = [
        helper.make_node("ReduceMax", ["mel"], ["loudest"], axes=[1]),
        helper.make_node("Mul", ["loudest", "factor"], ["scaled"]),
        helper.make_node("Unsqueeze", ["scaled", "last"], ["columns"]),
        helper.make_node("Expand", ["columns", "hop"], ["held"]),
        helper.make_node("Reshape", ["held", "all"], ["sound"]),
    ]
    weights["all"] = np.array([1, 1, -1])
    ends = [helper.make_tensor_value_info(x, 1, [1, None, None]) for x in ("mel", "sound")]
    tensors = [numpy_helper.from_array(np.asarray(x), name) for name, x in weights.items()]
    graph = helper.make_graph(nodes, "hold", ends[:1], ends[1:], tensors)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


def test_only_changed_texts_are_synthesized_again(synthesized, book, tmp_path):
    out = tmp_path / "out"
    synthesized(out)
    whole = contents(out)
    for name in ("0001.wav", "0003.png"):
        (out / name).write_bytes(whole[name] + b"x")
    (out / "0005.wav").unlink()
    assert "of 3 texts to" in synthesized(out)
    found = contents(out)
    assert {name: found[name] for name in whole if name != "spoken.jsonl"} == {
        name: content for name, content in whole.items() if name != "spoken.jsonl"
    }
    book.write_text(BOOK.replace("sat", "SAT").replace("---", "One more."), encoding="utf-8")
    assert f"of 2 texts to {out}; 4 already complete, 1 line skipped, " in synthesized(out)
    assert "of 6 texts to" in synthesized(out, "--speed", "1.1")
    assert "of 6 texts to" in synthesized(out)  # the previous call replaced the files


def test_output_file_names_sort_by_line_when_there_are_many_lines(tmp_path):
    book = tmp_path / "book.txt"
    book.write_text("One.\n" + 12_344 * "\n" + "Two.\n* * *\n", encoding="utf-8")
    texts, skipped = texts_of(book)
    assert ([x.name for x in texts], skipped) == (["00001", "12346"], 1)


def texts_of(path, hparams=None, drop_unknown=False, numbers=None):
    options = {"text": None, "text_file": str(path), "lines": True, "drop_unknown": drop_unknown}
    return read_texts(argparse.Namespace(**options, numbers=numbers), hparams or HParams())


@pytest.fixture
def german():
    basic = f"{SMALL_MODEL},symbols=corpus,text_cleaners=[basic_cleaners],language=de"
    return with_table(create_hparams(basic), ("_", *" .aghnort", "ö", "ß"))


def test_lines_of_a_text_file_are_skipped_when_they_contain_no_words(german, tmp_path, capsys):
    book = tmp_path / "book.txt"
    book.write_text("groß.\n* * *\n—\n...\nrot\n", encoding="utf-8")
    texts, skipped = texts_of(book, german)
    assert ([x.text for x in texts], skipped) == (["groß.", "rot"], 3)
    warning = capsys.readouterr().err
    assert warning.startswith(f"warning: {book}: 3 of 5 lines skipped:\n  {book}:2: '* * *'")
    assert f"{book}:4: '...': contains no words" in warning
    book.write_text("rot\n" + "...\n" * 300, encoding="utf-8")
    assert texts_of(book, german)[1] == 300
    assert capsys.readouterr().err.splitlines()[1:] == [
        f"  {book}:2: '...': contains no words",
        f"    the same in 299 more: {', '.join(map(str, range(3, 23)))}, ...",
    ]
    book.write_text("7\n\n8\n", encoding="utf-8")
    assert [x.text for x in texts_of(book, numbers="en-us")[0]] == ["Seven.", "Eight."]


def test_error_lists_unknown_symbols_of_all_lines(german, tmp_path):
    book = tmp_path / "book.txt"
    book.write_text("rot\n* * *\nRock\nПривет\n", encoding="utf-8")
    with pytest.raises(UserError) as stop:
        texts_of(book, german)
    first, *lines = str(stop.value).splitlines()
    assert first == f"{book}: 2 of 4 lines rejected:"
    assert lines[0].startswith(f"  {book}:3: 'Rock': the voice has no symbol for 'c'")
    assert lines[1].startswith(f"  {book}:4: 'Привет': the voice has no symbol for 'п'")
    book.write_text("rot\n" + "Rock\nFuchs\n" * 500, encoding="utf-8")
    with pytest.raises(UserError) as stop:
        texts_of(book, german)
    assert str(stop.value).count("--drop-unknown") == 1
    assert "\n    the same in 999 more: 3, 4, 5, " in str(stop.value)
    assert [x.text for x in texts_of(book, german, True)[0]][:2] == ["rot", "Rock"]
    book.write_text("rot\nПривет\n", encoding="utf-8")
    assert texts_of(book, german, True)[1] == 1


def test_texts_are_read_when_the_file_is_a_pipe(tmp_path):
    pipe, standard = tmp_path / "pipe", os.dup(0)
    os.mkfifo(pipe)

    def spoken_of(name: str, content: bytes) -> list[str]:
        reader, writer = os.pipe()
        os.write(writer, content)
        os.close(writer)
        os.dup2(reader, 0)
        os.close(reader)
        try:
            return [x.text for x in texts_of(name)[0]]
        finally:
            os.dup2(standard, 0)

    for name in ("-", "/dev/stdin", "/dev/fd/0"):
        assert spoken_of(name, b"One.\n\nTwo.") == ["One.", "Two."]
    threading.Timer(0.1, pipe.write_bytes, [b"Three."]).start()
    assert [x.text for x in texts_of(pipe)[0]] == ["Three."]
    with pytest.raises(UserError, match="standard input:2: not UTF-8"):
        spoken_of("-", b"One.\nGr\xf6\xdfe.\n")
    with pytest.raises(UserError, match="standard input: not UTF-8 but UTF-16"):
        spoken_of("-", "Late.".encode("utf-16-le"))
    with pytest.raises(UserError, match="standard input: contains no text"):
        spoken_of("-", b"")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    with pytest.raises(UserError, match="67,108,864"):
        texts_of(tmp_path / "zeros")
    os.close(standard)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", "a", "-o", ""], "'' (expected a folder, or NAME.wav"),
        (["--text", "a", "-o", "a.M4A"], "'a.M4A' (expected a folder, or NAME.wav"),
        (["--text", "a", "-o", "none/a.mp3"], "expected a file that can be written, in an"),
        (["--text", "a", "-o", "none/a.wav"], "expected a file that can be written, in an"),
        (["--text", "a", "-o", "out", "--stream", "raw"], "not allowed with argument -o"),
        (["--text", "a", "--voice", "b"], "--voice: not allowed with argument --checkpoint"),
    ],
)
def test_synthesis_arguments_are_rejected_when_they_are_probably_mistakes(
    arguments, message, capsys
):
    with pytest.raises(SystemExit):
        synthesize.main(["--checkpoint", "a.pt", *arguments])
    assert message in capsys.readouterr().err


def test_error_names_the_output_folder_when_it_cannot_be_created(voices, tmp_path):
    out = tmp_path / ("x" * 300)
    with pytest.raises(UserError, match=r"^-o \S*a: .*\(File name too long\)"):
        synthesize.main(["--voice", str(voices.fp32[0]), "--text", "a", "-o", str(out / "a")])


def test_printed_output_escapes_control_characters_of_texts(voices, tmp_path, capsys):
    arguments = ["--voice", str(voices.fp32[0]), "--text", "a \x1b]0;b\x07 c", "-o", str(tmp_path)]
    synthesize.main(arguments)
    printed = "".join(capsys.readouterr())
    assert "a ]0;b c" in printed
    assert "\x1b" not in printed


@pytest.mark.thorough
def test_note_suggests_the_text_file_option_when_the_text_is_a_file_name(voices, tmp_path, capsys):
    path = tmp_path / "my story.txt"
    path.write_text("A dog.")
    options = ["--voice", str(voices.fp32[0]), "-o", str(tmp_path / "a.wav"), "--text"]
    for text, count in ((str(path), 1), ("A dog.", 0), ("A dog. " * 100, 0)):
        synthesize.main([*options, text])
        assert capsys.readouterr().err.count(f"--text-file '{path}'?") == count


def test_option_save_mel_is_rejected_when_the_output_is_a_wav():
    for target in (["-o", "a.wav"], ["--stream", "raw"]):
        with pytest.raises(UserError, match="--save-mel: "):
            synthesize.main(["--voice", "voice", "--text", "a", "--save-mel", *target])


def wav_output(path: Path, *names: str) -> AudioFileOutput:
    synthesizer: Any = SimpleNamespace(settings=SimpleNamespace(sampling_rate=8000))
    return AudioFileOutput(path, synthesizer, {}, {name: f"key of {name}" for name in names})


def test_complete_texts_stay_in_the_wav_when_its_size_limit_is_reached(tmp_path, monkeypatch):
    monkeypatch.setattr(outputs, "MAX_WAV_BYTES", 44 + 8)
    path = tmp_path / "a.wav"

    def fill():
        with wav_output(path, "0007", "0012") as wav:
            wav.add_samples(b"12345678")
            wav.end_text([])
            wav.add_samples(b"90")

    with pytest.raises(UserError, match=r"a\.wav: .*line 12 .*4 GiB"):
        fill()
    part = tmp_path / "a.part.wav"
    assert part.read_bytes()[44:] == b"12345678"
    assert sorted(os.listdir(tmp_path)) == ["a.part.jsonl", "a.part.wav"]


def test_part_file_is_not_changed_when_a_different_program_wrote_it(tmp_path):
    (tmp_path / "a.part.wav").write_bytes(b"precious")
    with pytest.raises(UserError, match=r"a\.part\.wav: exists without a\.part\.jsonl"):
        wav_output(tmp_path / "a.wav", "0001")
    assert os.listdir(tmp_path) == ["a.part.wav"]


def test_wav_is_complete_when_synthesis_is_stopped_while_it_renames_the_wav(tmp_path, monkeypatch):
    def speak_rest():
        with wav_output(tmp_path / "a.wav", "0001") as wav:
            if not wav.complete:
                wav.add_samples(b"12")
                wav.end_text(["odd"])
        return len(wav.complete), wav.num_warnings, wav.seconds

    replace = os.replace

    def stop(source, target):
        if target == tmp_path / "a.wav":
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            speak_rest()
    again = wav_output(tmp_path / "a.wav", "0001")
    assert len(again.complete) == 1
    again.__exit__(KeyboardInterrupt)
    assert speak_rest() == (1, 1, 1 / 8000)
    assert os.listdir(tmp_path) == ["a.wav"]


@pytest.mark.parametrize("name", ["a.mp3", "a.flac", "a.OGG"])
def test_audio_file_has_the_format_of_its_extension(name, tmp_path):
    path = tmp_path / name
    rng = np.random.default_rng(0)
    samples = (8000 * rng.standard_normal(4000)).clip(-32768, 32767).astype("<i2")
    with wav_output(path, "0001", "0002") as wav:
        for _ in range(2):
            wav.add_samples(samples.tobytes())
            wav.end_text([])
    found, rate = soundfile.read(path, dtype="int16")
    assert rate == 8000
    assert soundfile.info(path).format == path.suffix[1:].upper()
    assert os.listdir(tmp_path) == [name]
    whole = np.concatenate([samples, samples])
    assert len(found) == len(whole)
    if name == "a.flac":
        np.testing.assert_array_equal(found, whole)


def test_finished_texts_are_kept_when_the_conversion_to_mp3_fails(tmp_path, monkeypatch):
    class FullDisk(soundfile.SoundFile):
        def write(self, data):
            if len(data):
                raise soundfile.LibsndfileError(2)

    path = tmp_path / "a.mp3"
    path.write_bytes(b"old")

    def speak():
        with wav_output(path, "0001") as wav:
            if not wav.complete:
                wav.add_samples(b"1234")
                wav.end_text([])

    with monkeypatch.context() as patch:
        patch.setattr(soundfile, "SoundFile", FullDisk)
        with pytest.raises(UserError, match=r"a\.mp3: .*a\.part\.wav"):
            speak()
    assert path.read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["a.mp3", "a.part.jsonl", "a.part.wav"]
    speak()
    assert os.listdir(tmp_path) == ["a.mp3"]
    assert soundfile.info(path).format == "MP3"


def test_mp3_output_is_rejected_before_synthesis_when_mp3_does_not_support_the_sampling_rate(
    tmp_path,
):
    synthesizer: Any = SimpleNamespace(settings=SimpleNamespace(sampling_rate=96_000))
    with pytest.raises(UserError, match=r"a\.mp3: .*96,000 Hz"):
        AudioFileOutput(tmp_path / "a.mp3", synthesizer, {}, {"0001": "key"})
    assert os.listdir(tmp_path) == []


def test_output_folder_stays_empty_when_synthesis_stops_before_the_first_text(tmp_path):
    def stop():
        with wav_output(tmp_path / "a.wav", "0001") as wav:
            wav.add_samples(b"12")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert os.listdir(tmp_path) == []


def test_synthesis_log_is_rejected_when_a_different_process_is_writing_it(tmp_path):
    script = "import sys, pathlib; from tacotron2_voice.resume_log import ResumeLog; ResumeLog(pathlib.Path(sys.argv[1]))"
    with ResumeLog(tmp_path / "spoken.jsonl"):
        command = [sys.executable, "-c", script, str(tmp_path / "spoken.jsonl")]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "spoken.jsonl: another process" in run.stderr


def test_synthesis_log_is_read_without_an_incomplete_last_line(tmp_path):
    path = tmp_path / "spoken.jsonl"
    with ResumeLog(path) as log:
        log.add("a", {"x": 1}, ["odd"])
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:-3])
    with ResumeLog(path) as log:
        assert log.entries == [resume_log.Entry("a", {"x": 1}, ["odd"])]
        log.add("b", {}, [])
    with ResumeLog(path) as log:
        assert [entry.key for entry in log.entries] == ["a", "b"]


def test_hash_of_synthesis_options_depends_on_every_option_except_the_text(tmp_path):
    args = argparse.Namespace(text="a", seed=0)
    before = resume_log.options_hash(args, HParams(), [])
    args.text = "b"
    assert resume_log.options_hash(args, HParams(), []) == before
    args.speed = 1.2
    assert resume_log.options_hash(args, HParams(), []) != before


@pytest.mark.parametrize("line", ['{"a": 1}', "[1]"])
def test_file_is_rejected_when_it_is_not_a_resume_log(line, tmp_path):
    path = tmp_path / "spoken.jsonl"
    path.write_text(f"{line}\n")
    assert str(path) in refusal(ResumeLog, path)
    assert path.read_text() == f"{line}\n"
