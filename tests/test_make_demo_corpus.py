"""The demo corpus: speech in LJSpeech's layout, the same for the same seed, whole or absent."""

import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import soundfile
from corpora import contents
from helpers import ROOT

from batching import padding_stats, plan_epoch
from corpus.spoken_numbers import draw_numbers, in_words
from errors import UserError
from scripts import make_demo_corpus

needs_espeak = pytest.mark.skipif(
    find_spec("espeakng_loader") is None,
    reason="espeakng-loader is not installed: pip install espeakng-loader",
)


def run_script(*arguments):
    command = [sys.executable, str(ROOT / "scripts" / "make_demo_corpus.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def read_metadata(corpus):
    text = (corpus / "metadata.csv").read_text(encoding="utf-8")
    return [line.split("|") for line in text.splitlines()]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo corpus") / "with spaces" / "corpus"
    make_demo_corpus.make_corpus(out, clips=16, seed=0)
    return out


@needs_espeak
def test_layout_is_ljspeechs(corpus):
    rows = read_metadata(corpus)
    assert [len(row) for row in rows] == [3] * 16
    assert all(in_words(int(row[1].replace(",", ""))) in row[2].lower() for row in rows)
    assert [row[0] for row in rows] == [f"DEMO-{number:04d}" for number in range(1, 17)]
    assert sorted(path.stem for path in (corpus / "wavs").iterdir()) == [row[0] for row in rows]
    assert sorted(path.name for path in corpus.iterdir()) == [
        "demo_corpus.json",
        "metadata.csv",
        "wavs",
    ]


@needs_espeak
def test_clips_are_audible_and_never_digitally_silent(corpus):
    """Mel spectrograms of digital silence lie on the floor of the logarithm; noise avoids that."""
    for path in (corpus / "wavs").iterdir():
        info = soundfile.info(path)
        assert (info.samplerate, info.channels, info.subtype) == (22050, 1, "PCM_16")
        assert 0.3 <= info.duration <= 4
        samples, _ = soundfile.read(path)
        assert np.sqrt(np.mean(samples**2)) > 0.02
        assert np.abs(samples).max() < 1  # nothing clips
        for end in (samples[:2205], samples[-2205:]):  # no tenth of a second of silence
            assert np.abs(end).max() > 0.005
        frames = samples[: len(samples) // 256 * 256].reshape(-1, 256)
        assert frames.std(axis=1).min() > 20 / 32768


@needs_espeak
def test_third_column_is_what_is_spoken(tmp_path, monkeypatch):
    spoken = {}
    speak = make_demo_corpus.Voice.speak

    def record(voice, text, words_per_minute):
        samples = speak(voice, text, words_per_minute)
        spoken.setdefault(text, []).append(samples)
        return samples

    monkeypatch.setattr(make_demo_corpus.Voice, "speak", record)
    make_demo_corpus.make_corpus(tmp_path / "corpus", clips=8, seed=2)
    for clip_id, _, text in read_metadata(tmp_path / "corpus"):
        wav, _ = soundfile.read(tmp_path / "corpus" / "wavs" / f"{clip_id}.wav", dtype="int16")
        [samples] = spoken[text]
        silence = np.zeros(len(wav) - len(samples), int)
        assert len(silence) == round(0.05 * 22050)
        assert np.abs(wav - np.concatenate([samples, silence])).max() < 200  # the noise


@needs_espeak
def test_random_batches_pad_as_ljspeechs():
    """31.99 % with LJSpeech; the demo shows what batching saves, and a study asks what it costs."""
    voice = make_demo_corpus.Voice()
    clips = [len(voice.speak(in_words(number), 175)) // 256 for number in draw_numbers(300, 3)]
    plans = [plan_epoch(clips, 16, "random", epoch=epoch) for epoch in range(5)]
    assert 0.25 < np.mean([padding_stats(clips, plan).zero_padding_rate for plan in plans]) < 0.35


@needs_espeak
def test_same_seed_gives_the_same_bytes(tmp_path):
    for name, seed in (("first", 5), ("second", 5), ("other", 6)):
        make_demo_corpus.make_corpus(tmp_path / name, clips=20, seed=seed)
    result = run_script(tmp_path / "fresh", "--clips", 20, "--seed", 5)
    assert (result.returncode, result.stderr) == (0, "")
    assert contents(tmp_path / "first") == contents(tmp_path / "second")
    assert contents(tmp_path / "first") == contents(tmp_path / "fresh")
    assert read_metadata(tmp_path / "first") != read_metadata(tmp_path / "other")
    # On a machine with much other work it takes so long that it says how far it is.
    lines = [line for line in result.stdout.splitlines() if not line.startswith("Speaking: ")]
    assert lines[0].startswith(f"Wrote 20 clips of synthesised speech to {tmp_path / 'fresh'} in ")
    seconds = [soundfile.info(path).duration for path in (tmp_path / "fresh" / "wavs").iterdir()]
    assert lines[0].endswith(
        f": {sum(seconds) / 60:.1f} minutes; shortest {min(seconds):.2f} s, "
        f"mean {np.mean(seconds):.2f} s, longest {max(seconds):.2f} s."
    )
    assert lines[1].startswith("Next: python scripts/prepare_ljspeech.py ")
    assert len(lines) == 2


@needs_espeak
def test_existing_corpus_is_kept(corpus, tmp_path, capsys):
    before = {path: path.stat().st_mtime_ns for path in corpus.rglob("*")}
    make_demo_corpus.main([str(corpus), "--clips", "16"])
    assert "nothing to do" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="holds something else; nothing was changed") as error:
        make_demo_corpus.main([str(corpus), "--clips", "16", "--seed", "9"])
    assert '"seed": 0' in str(error.value)
    assert '"seed": 9' in str(error.value)
    assert {path: path.stat().st_mtime_ns for path in corpus.rglob("*")} == before
    shutil.copytree(corpus, tmp_path / "damaged")
    (tmp_path / "damaged" / "wavs" / "DEMO-0003.wav").unlink()
    with pytest.raises(UserError, match=r"1 of its clips are missing.*DEMO-0003\.wav"):
        make_demo_corpus.make_corpus(tmp_path / "damaged", clips=16, seed=0)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_other_files_are_left_alone(tmp_path, kind):
    out = tmp_path / "mine"
    precious = out if kind == "file" else out / "thesis.txt"
    precious.parent.mkdir(exist_ok=True)
    precious.write_text("precious", encoding="utf-8")
    with pytest.raises(SystemExit, match="mine holds something else; nothing was changed"):
        make_demo_corpus.main([str(out)])
    assert precious.read_text(encoding="utf-8") == "precious"


@needs_espeak
@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_failed_run_leaves_nothing(tmp_path, monkeypatch, failure):
    speak = make_demo_corpus.Voice.speak
    seen = []

    def break_off(voice, text, words_per_minute):
        seen.append(list(tmp_path.rglob("*.wav")))
        if len(seen) == 20:
            raise failure
        return speak(voice, text, words_per_minute)

    monkeypatch.setattr(make_demo_corpus.Voice, "speak", break_off)
    with pytest.raises(SystemExit, match=r"nothing was written|No space left on device"):
        make_demo_corpus.main([str(tmp_path / "corpus"), "--clips", "30"])
    assert seen[-1], "the run broke off before it had written a clip"
    assert list(tmp_path.iterdir()) == []


@needs_espeak
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_run_leaves_nothing(tmp_path, number):
    command = [sys.executable, str(ROOT / "scripts" / "make_demo_corpus.py")]
    command += [str(tmp_path / "corpus"), "--clips", "5000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while not any(tmp_path.rglob("*.wav")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 1
    assert errors.strip() == "stopped; nothing was written"
    assert list(tmp_path.iterdir()) == []


def test_missing_package_names_the_install_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    with pytest.raises(SystemExit, match="-m pip install espeakng-loader"):
        make_demo_corpus.main([str(tmp_path / "corpus")])
    assert list(tmp_path.iterdir()) == []


@needs_espeak
@pytest.mark.parametrize("part", ["get_library_path", "get_data_path"])
def test_broken_package_gives_one_message(tmp_path, monkeypatch, part):
    import espeakng_loader

    (tmp_path / "broken").write_text("not a library", encoding="utf-8")
    monkeypatch.setattr(espeakng_loader, part, lambda: str(tmp_path / "broken"))
    with pytest.raises(UserError, match="does not start on this machine") as error:
        make_demo_corpus.Voice()
    assert "\n" not in str(error.value)


@needs_espeak
def test_espeak_starts_from_a_long_path(tmp_path, monkeypatch):
    import espeakng_loader

    data = tmp_path / ("x" * 200) / "espeak-ng-data"
    data.parent.mkdir()
    data.symlink_to(espeakng_loader.get_data_path(), target_is_directory=True)
    monkeypatch.setattr(espeakng_loader, "get_data_path", lambda: str(data))
    assert len(make_demo_corpus.Voice().speak("The baker smiled.", 145)) > 10_000


@needs_espeak
def test_espeak_starts_from_noexec_folder(monkeypatch):
    import espeakng_loader

    load = make_demo_corpus.ctypes.CDLL

    def refuse_copies(path):
        if Path(path) != Path(espeakng_loader.get_library_path()):
            raise OSError(f"{path}: failed to map segment from shared object")
        return load(path)

    monkeypatch.setattr(make_demo_corpus.ctypes, "CDLL", refuse_copies)
    assert len(make_demo_corpus.Voice().speak("The baker smiled.", 145)) > 10_000


@pytest.mark.parametrize("arguments", [["--clips", "0"], ["--seed", "-1"], ["--clips", "many"]])
def test_invalid_arguments_are_refused(tmp_path, capsys, arguments):
    with pytest.raises(SystemExit):
        make_demo_corpus.main([str(tmp_path / "corpus"), *arguments])
    assert arguments[0] in capsys.readouterr().err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


@needs_espeak
def test_skip_continues_the_shorter_corpus(corpus, tmp_path):
    make_demo_corpus.make_corpus(tmp_path / "unseen", clips=3, seed=0, skip=16)
    rows = read_metadata(tmp_path / "unseen")
    assert [row[0] for row in rows] == ["DEMO-0017", "DEMO-0018", "DEMO-0019"]
    expected = [f"{number:,}" for number in draw_numbers(19, 0)]
    assert [row[1] for row in read_metadata(corpus)] == expected[:16]
    assert [row[1] for row in rows] == expected[16:]
    with pytest.raises(UserError, match="holds something else"):
        make_demo_corpus.make_corpus(tmp_path / "unseen", clips=3, seed=0)
