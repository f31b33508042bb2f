"""Test the output files and warnings of synthesize.py."""

import contextlib
import resource

import numpy as np
import pytest
import soundfile
import torch
from helpers import synthesize_quickly
from matplotlib.figure import Figure

import synthesize
from tacotron2_voice import version
from tacotron2_voice.griffin_lim import SILENCE
from tacotron2_voice.utils import plots as pictures
from tacotron2_voice.utils.errors import UserError

# With at most 16 symbols per chunk, this text has three chunks: a sentence and two clauses.
LONG_TEXT = "A dog came. It sat down, and it ate."


def speak_text(checkpoint_path, out, *more, text=LONG_TEXT):
    arguments = ["--checkpoint", str(checkpoint_path), "--text", text, "-o", str(out)]
    synthesize.main([*arguments, "--save-mel", "--hparams", "gate_threshold=2", *more])
    return np.load(out / "0001.npy")


@pytest.fixture
def empty_pictures(monkeypatch):
    monkeypatch.setattr(pictures, "draw_alignment", lambda *_, **__: Figure((1, 1)))


@pytest.fixture
def mels_alone(empty_pictures, monkeypatch):
    synthesize_quickly(monkeypatch.setattr)


def test_chunks_sound_like_separate_texts_with_pauses_between_them(
    checkpoint_path, tmp_path, empty_pictures
):
    mel = speak_text(checkpoint_path, tmp_path, "--max-symbols", "16", "--pause", "0.3")
    wav = (tmp_path / "0001.wav").read_bytes()
    # A frame lasts 11.6 ms, so the pauses of 26 and 10 frames last 0.30 s and 0.12 s.
    spans = [(0, 12), (12 + 26, 12 + 26 + 12), (50 + 10, 50 + 10 + 12)]
    assert mel.shape == (80, spans[-1][1])
    assert np.all(mel[:, 12:38] == np.float32(SILENCE))
    assert np.all(mel[:, 50:60] == np.float32(SILENCE))
    for text, (start, end) in zip(
        ("a dog came.", "it sat down,", "and it ate."), spans, strict=True
    ):
        assert np.array_equal(speak_text(checkpoint_path, tmp_path, text=text), mel[:, start:end])
    speak_text(checkpoint_path, tmp_path, "--max-symbols", "16")  # the default pause is 0.3 s
    assert (tmp_path / "0001.wav").read_bytes() == wav


def test_chunk_limit_is_the_length_of_the_longest_training_text(
    checkpoint_path, tmp_path, mels_alone, capsys
):
    # This checkpoint lacks the length of the longest training text.
    whole = speak_text(checkpoint_path, tmp_path)
    assert whole.shape == (80, 12)
    saved = torch.load(checkpoint_path, weights_only=True)
    for longest, parts in ((len(LONG_TEXT), 1), (len(LONG_TEXT) - 1, 2)):
        torch.save(saved | {"longest_text": longest}, checkpoint_path)
        mel = speak_text(checkpoint_path, tmp_path, "--pause", "0")
        assert mel.shape == (80, 12 * parts)
        assert np.array_equal(mel, whole) == (parts == 1)
    assert f"split into 2 chunks of at most {len(LONG_TEXT) - 1} symbols" in capsys.readouterr().err
    assert np.array_equal(speak_text(checkpoint_path, tmp_path, "--max-symbols", "99"), whole)
    assert " chunks of " not in capsys.readouterr().err
    speak_text(checkpoint_path, tmp_path, "--max-symbols", "16")
    printed = capsys.readouterr().err
    assert f"{LONG_TEXT!r}: split into 3 chunks of at most 16 symbols\n" in printed
    warning = f"warning: {LONG_TEXT!r}: chunk 2 of 3 ('it sat down,'): no stop within 0.1 s"
    assert warning in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-symbols=0"], "--max-symbols: '0' (expected "),
        (["--seed=18446744073709551616"], "--seed: "),
        (["--pause=nan"], "--pause: 'nan' (expected seconds from 0 to 60"),
        (["--version"], version.__version__),
    ],
)
def test_synthesis_arguments_are_rejected_when_they_are_out_of_range(arguments, message, capsys):
    with pytest.raises(SystemExit):
        synthesize.main(["--checkpoint", "none.pt", "--text", "a", *arguments])
    assert message in "".join(capsys.readouterr())


@contextlib.contextmanager
def file_size_limited(size):
    """Limit the size of files to this number of bytes, which imitates a full disk.

    The limit also applies to pytest's output, so this is a context manager, not a fixture.
    """
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("size", "written"),
    [(20, []), (3000, []), (6300, ["0001.wav"])],
    ids=["disk full at WAV header", "disk full in WAV", "disk full at plot"],
)
def test_complete_files_are_kept_when_the_disk_is_full(
    size, written, checkpoint_path, tmp_path, capsys
):
    out = tmp_path / "out"
    arguments = ["--checkpoint", str(checkpoint_path), "--text", "a", "-o", str(out), "--save-mel"]
    arguments += ["--hparams", "gate_threshold=2"]
    with file_size_limited(size), pytest.raises(UserError) as stop:
        synthesize.main(arguments)
    assert str(stop.value).startswith(f"{out / '0001'}.*: ")
    assert "File too large" in str(stop.value)
    assert "\n" not in str(stop.value)
    assert sorted(path.name for path in out.iterdir()) == written
    assert capsys.readouterr().err == ""


def test_audio_plot_and_mel_files_are_written_for_each_text(checkpoint_path, tmp_path, capsys):
    texts = tmp_path / "texts.txt"
    texts.write_text("Hello there.\n\nGeneral remarks.\n", encoding="utf-8")
    out = tmp_path / "spoken words"
    arguments = ["--checkpoint", str(checkpoint_path), "--text-file", str(texts), "-o", str(out)]
    # No stop probability exceeds the threshold 2, so each text ends at the limit of decoder steps.
    synthesize.main([*arguments, "--save-mel", "--hparams", "gate_threshold=2"])
    assert sorted(path.name for path in out.iterdir()) == [
        *(f"{n}.{kind}" for n in ("0001", "0003") for kind in ("npy", "png", "wav")),
        "spoken.jsonl",
    ]
    mel = np.load(out / "0003.npy")
    assert mel.dtype == np.float32
    assert mel.shape == (80, 12)
    info = soundfile.info(str(out / "0003.wav"))
    assert (info.samplerate, info.channels, info.subtype) == (22050, 1, "PCM_16")
    # the maximum number N of samples in 12 frames, because 1 + N // 256 = 12
    assert info.frames == 12 * 256 - 1
    printed = capsys.readouterr()
    assert printed.err.count("no stop within 0.1 s") == 2
    assert "warning: line 3, 'General remarks.': no stop within 0.1 s" in printed.err
    assert (
        f"0003.wav   0.14 s  General remarks.\nwrote the files of 2 texts to {out};" in printed.out
    )
    alone = speak_text(checkpoint_path, tmp_path / "alone", text="General remarks.")
    assert np.array_equal(alone, mel)  # the other texts in the file have no effect


def test_speech_can_consist_of_one_frame(checkpoint_path, tmp_path):
    saved = torch.load(checkpoint_path, weights_only=True)
    saved["state_dict"]["decoder.gate_layer.linear_layer.bias"] += 100
    torch.save(saved, checkpoint_path)
    out = tmp_path / "out"
    synthesize.main(
        ["--checkpoint", str(checkpoint_path), "--text", "a", "-o", str(out), "--save-mel"]
    )
    assert np.load(out / "0001.npy").shape == (80, 1)
    assert soundfile.info(str(out / "0001.wav")).samplerate == 22050


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["--text", "..."], ["'...': contains no words"]),
        (["--text-file", "nowhere.txt"], ["nowhere.txt"]),
        (
            ["--lines", "--text-file", "signs.txt"],
            ["signs.txt:2: '[]': contains no words", "signs.txt:4"],
        ),
        (
            ["--lines", "--text-file", "empty.txt"],
            ["50 of 50 lines rejected", "the same in 49 more: 2, 3,"],
        ),
        (
            ["--text", "long " * 200_000],
            ["'long long", "999,999 characters (expected at most 20"],
        ),
        (["--text", "a", "--hparams", "max_decoder_steps=1e9"], ["max_decoder_steps=1000000000: "]),
        (["--text", "a", "--hparams", "gate_treshold=0.1"], ["gate_threshold"]),
        (["--text", "a", "--hparams", "prenet_dim=9"], ["does not fit"]),
        (["--text", "a", "--checkpoint", "damaged.pt"], ["damaged.pt"]),
        (["--text", "a", "--checkpoint", "missing.pt"], ["missing.pt"]),
    ],
)
def test_synthesis_error_lists_all_problems_of_the_input(
    checkpoint_path, arguments, messages, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged.pt").write_bytes(b"PK\x03\x04 not a checkpoint")
    (tmp_path / "signs.txt").write_text("\n[]\n\n**\n", encoding="utf-8")
    (tmp_path / "empty.txt").write_text("*\n" * 50, encoding="utf-8")
    with pytest.raises((UserError, OSError)) as stop:
        synthesize.main(["--checkpoint", str(checkpoint_path), "-o", "out", *arguments])
    assert len(str(stop.value)) < 2000
    assert [words for words in messages if words not in str(stop.value)] == []
    assert not (tmp_path / "out").exists()
