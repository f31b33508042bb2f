"""The demo corpus: speech in LJSpeech's layout, the same for the same seed, whole or absent."""

import csv
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import inflect
import numpy as np
import pytest
import soundfile
from corpora import contents

from errors import UserError
from scripts import make_demo_corpus

ROOT = Path(__file__).resolve().parent.parent
LJSPEECH_LENGTHS = ROOT.parent / "shared" / "ljspeech" / "lengths.csv"
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
def test_layout_is_that_of_ljspeech(corpus):
    rows = read_metadata(corpus)
    assert [len(row) for row in rows] == [3] * 16
    assert [row[0] for row in rows] == [f"DEMO-{number:04d}" for number in range(1, 17)]
    assert sorted(path.stem for path in (corpus / "wavs").iterdir()) == [row[0] for row in rows]
    assert sorted(path.name for path in corpus.iterdir()) == [
        "demo_corpus.json",
        "metadata.csv",
        "wavs",
    ]


@needs_espeak
def test_clips_are_audible_16_bit_mono_at_22050_hz_of_1_1_to_10_1_seconds(corpus):
    for path in (corpus / "wavs").iterdir():
        info = soundfile.info(path)
        assert (info.samplerate, info.channels, info.subtype) == (22050, 1, "PCM_16")
        assert 1.1 <= info.duration <= 10.1
        samples, _ = soundfile.read(path)
        assert np.sqrt(np.mean(samples**2)) > 0.02
        assert np.abs(samples).max() < 1  # nothing clips
        for end in (samples[:2205], samples[-2205:]):  # no tenth of a second of silence
            assert np.abs(end).max() > 0.005


@needs_espeak
def test_clips_are_never_digitally_silent(corpus):
    # Mel spectrograms of silence lie on the floor of the logarithm; dither keeps them off it.
    for path in (corpus / "wavs").iterdir():
        samples, _ = soundfile.read(path, dtype="int16")
        frames = samples[: len(samples) // 256 * 256].reshape(-1, 256)
        assert frames.std(axis=1).min() > 2


@needs_espeak
def test_the_third_column_is_what_is_spoken(tmp_path, monkeypatch):
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
        same_length = [samples for samples in spoken[text] if len(samples) == len(wav)]
        assert min(np.abs(wav - samples.astype(int)).max() for samples in same_length) < 40


@needs_espeak
def test_a_longer_text_and_a_slower_rate_take_longer():
    voice = make_demo_corpus.Voice()
    short = len(voice.speak("The baker smiled.", 145))
    assert len(voice.speak("The baker from Dover smiled at the old watchmaker.", 145)) > 2 * short
    assert len(voice.speak("The baker smiled.", 120)) > 1.1 * short


@needs_espeak
def test_lengths_of_a_corpus_are_spread_like_those_drawn(corpus):
    lengths = [soundfile.info(path).duration for path in sorted((corpus / "wavs").iterdir())]
    np.testing.assert_allclose(lengths, make_demo_corpus.draw_target_lengths(16, 0), rtol=0.0151)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_drawn_lengths_have_the_spread_of_ljspeech(seed):
    lengths = make_demo_corpus.draw_target_lengths(300, seed)
    assert lengths.min() >= 1.1
    assert lengths.max() <= 10.1
    assert lengths.mean() == pytest.approx(6.57, abs=0.05)  # LJSpeech's README: 6.57 s
    skewness = np.mean(((lengths - lengths.mean()) / lengths.std()) ** 3)
    assert -0.45 < skewness < -0.25  # LJSpeech's is -0.348: the mass is towards the long end


@pytest.mark.skipif(not LJSPEECH_LENGTHS.is_file(), reason="LJSpeech's clip lengths are not here")
def test_drawn_lengths_meet_the_quantiles_of_ljspeech():
    with LJSPEECH_LENGTHS.open(encoding="utf-8") as file:
        ljspeech = np.array([int(row["samples"]) for row in csv.DictReader(file)]) / 22050
    levels = np.linspace(0.005, 0.995, 100)
    drawn = np.quantile(make_demo_corpus.draw_target_lengths(13100, 0), levels)
    assert np.abs(drawn - np.quantile(ljspeech, levels)).max() < 0.12


def test_numbers_are_spelt_as_they_are_read():
    rules = make_demo_corpus.read_grammar()
    words = inflect.engine().number_to_words
    assert rules["few"] == [f"{number}|{words(number)}" for number in range(3, 13)]
    assert rules["count"] == [f"{number}|{words(number)}" for number in range(12, 100)]
    assert {
        "1905|nineteen oh five", "1900|nineteen hundred", "1962|nineteen sixty-two",
        "10:00|ten o'clock", "7:45|seven forty-five", "7:05|seven oh five",
        "700|seven hundred", "12%|twelve per cent", "$30|thirty dollars", "12th|twelfth",
    } <= {option for options in rules.values() for option in options}  # fmt: skip


@pytest.mark.parametrize(
    ("marked", "written", "spoken"),
    [
        ("[Mr.|Mister] {name} left at [{time}].", "Mr. Gray left at 7:45.", None),
        ("[{time}] was early.", "7:45 was early.", "Seven forty-five was early."),
        ("on time.", "On time.", "On time."),
    ],
)
def test_marks_give_the_written_and_the_spoken_form(marked, written, spoken):
    rules = {"sentence": [marked], "name": ["Gray"], "time": ["7:45|seven forty-five"]}
    sentence = make_demo_corpus.compose_sentence(rules, random.Random(0))
    assert sentence == (written, spoken or "Mister Gray left at seven forty-five.")


def test_every_alternative_of_the_grammar_can_be_composed():
    rules = make_demo_corpus.read_grammar()
    used = {
        name for options in rules.values() for o in options for name in re.findall(r"{(\w+)}", o)
    }
    assert used | {"sentence"} == set(rules)
    for name, options in rules.items():
        assert "" not in options, name
        assert len(set(options)) == len(options), name


def test_sentences_are_whole_varied_and_free_of_digits_when_spoken():
    rules = make_demo_corpus.read_grammar()
    rng = random.Random(0)
    pairs = [make_demo_corpus.compose_sentence(rules, rng) for _ in range(3000)]
    assert len({spoken for _, spoken in pairs}) > 2900
    assert sum(written != spoken for written, spoken in pairs) > 1000  # numbers and abbreviations
    for written, spoken in pairs:
        assert re.fullmatch(r"[A-Z][A-Za-z' ,;-]+[.?]", spoken), (
            spoken
        )  # so no Mr. and no 12 either
        assert re.fullmatch(r"[A-Z0-9][A-Za-z0-9' ,;:.$%-]+[.?]", written), written
        assert not re.search(r"\b(\w+) \1\b", written), written  # "the the"
        assert not re.search(r"\ba [aeio]|\ban [^aeiou]", spoken), spoken


@needs_espeak
def test_no_sentence_is_spoken_twice(corpus):
    spoken = [row[2] for row in read_metadata(corpus)]
    assert len(set(spoken)) == len(spoken)


def test_running_out_of_sentences_is_refused(monkeypatch):
    grammar = {"sentence": ["The baker from Dover smiled."]}
    monkeypatch.setattr(make_demo_corpus, "read_grammar", lambda: grammar)
    monkeypatch.setattr(make_demo_corpus, "draw_target_lengths", lambda clips, _: [1.8] * clips)

    class SilentVoice:
        def speak(self, text, words_per_minute):
            return np.zeros(int(1.8 * 22050), np.int16)

    clips = make_demo_corpus.make_clips(SilentVoice(), 2, seed=0)
    assert next(clips)[1] == "The baker from Dover smiled."
    with pytest.raises(UserError, match=r"no more sentences of 1\.8 s after 1 clips"):
        next(clips)


@needs_espeak
def test_the_same_seed_gives_the_same_bytes_in_a_fresh_process_which_says_what_it_wrote(tmp_path):
    for name, seed in (("first", 5), ("second", 5), ("other", 6)):
        make_demo_corpus.make_corpus(tmp_path / name, clips=20, seed=seed)
    result = run_script(tmp_path / "fresh", "--clips", 20, "--seed", 5)
    assert (result.returncode, result.stderr) == (0, "")
    assert contents(tmp_path / "first") == contents(tmp_path / "second")
    assert contents(tmp_path / "first") == contents(tmp_path / "fresh")
    assert read_metadata(tmp_path / "first") != read_metadata(tmp_path / "other")
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"Wrote 20 clips of synthesised speech to {tmp_path / 'fresh'} in ")
    seconds = [soundfile.info(path).duration for path in (tmp_path / "fresh" / "wavs").iterdir()]
    assert lines[0].endswith(
        f": {sum(seconds) / 60:.1f} minutes; shortest {min(seconds):.2f} s, "
        f"mean {np.mean(seconds):.2f} s, longest {max(seconds):.2f} s."
    )
    assert lines[1].startswith("Next: python scripts/prepare_ljspeech.py ")
    assert len(lines) == 2


@needs_espeak
def test_a_second_run_says_so_and_changes_nothing(corpus, capsys):
    before = {path: path.stat().st_mtime_ns for path in corpus.rglob("*")}
    make_demo_corpus.main([str(corpus), "--clips", "16"])
    assert "nothing to do" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in corpus.rglob("*")} == before


@needs_espeak
def test_another_corpus_is_refused(corpus):
    with pytest.raises(SystemExit, match="holds another demo corpus; nothing was changed") as error:
        make_demo_corpus.main([str(corpus), "--clips", "16", "--seed", "9"])
    assert '"seed": 0' in str(error.value)
    assert '"seed": 9' in str(error.value)


@needs_espeak
def test_a_corpus_that_lost_a_clip_is_refused(corpus, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(corpus, damaged)
    (damaged / "wavs" / "DEMO-0003.wav").unlink()
    with pytest.raises(UserError, match=r"1 of its clips are missing.*DEMO-0003\.wav"):
        make_demo_corpus.make_corpus(damaged, clips=16, seed=0)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_anything_else_in_the_way_is_refused_and_left_alone(tmp_path, kind):
    out = tmp_path / "mine"
    precious = out if kind == "file" else out / "thesis.txt"
    precious.parent.mkdir(exist_ok=True)
    precious.write_text("precious", encoding="utf-8")
    with pytest.raises(SystemExit, match="mine exists and is no demo corpus; nothing was changed"):
        make_demo_corpus.main([str(out)])
    assert precious.read_text(encoding="utf-8") == "precious"


@needs_espeak
def test_an_empty_folder_is_filled(tmp_path):
    make_demo_corpus.make_corpus(tmp_path, clips=2)
    assert len(read_metadata(tmp_path)) == 2


@needs_espeak
@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_run_that_breaks_off_leaves_nothing(tmp_path, monkeypatch, failure):
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
def test_a_run_that_is_stopped_says_so_at_once_and_leaves_nothing(tmp_path, number):
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


def test_a_missing_package_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    with pytest.raises(SystemExit, match="-m pip install espeakng-loader"):
        make_demo_corpus.main([str(tmp_path / "corpus")])
    assert list(tmp_path.iterdir()) == []


@needs_espeak
@pytest.mark.parametrize("part", ["get_library_path", "get_data_path"])
def test_a_broken_package_gives_one_clear_message(tmp_path, monkeypatch, part):
    import espeakng_loader

    (tmp_path / "broken").write_text("not a library", encoding="utf-8")
    monkeypatch.setattr(espeakng_loader, part, lambda: str(tmp_path / "broken"))
    with pytest.raises(UserError, match="does not start on this machine") as error:
        make_demo_corpus.Voice()
    assert "\n" not in str(error.value)


@needs_espeak
def test_espeak_starts_from_a_path_longer_than_it_can_hold(tmp_path, monkeypatch):
    import espeakng_loader

    data = tmp_path / ("x" * 200) / "espeak-ng-data"
    data.parent.mkdir()
    data.symlink_to(espeakng_loader.get_data_path(), target_is_directory=True)
    monkeypatch.setattr(espeakng_loader, "get_data_path", lambda: str(data))
    assert len(make_demo_corpus.Voice().speak("The baker smiled.", 145)) > 10_000


@needs_espeak
def test_espeak_starts_where_nothing_may_be_executed_in_the_temporary_folder(monkeypatch):
    import espeakng_loader

    load = make_demo_corpus.ctypes.CDLL

    def refuse_copies(path):
        if Path(path) != Path(espeakng_loader.get_library_path()):
            raise OSError(f"{path}: failed to map segment from shared object")
        return load(path)

    monkeypatch.setattr(make_demo_corpus.ctypes, "CDLL", refuse_copies)
    assert len(make_demo_corpus.Voice().speak("The baker smiled.", 145)) > 10_000


@pytest.mark.parametrize("arguments", [["--clips", "0"], ["--seed", "-1"], ["--clips", "many"]])
def test_arguments_out_of_range_are_refused_by_name(tmp_path, capsys, arguments):
    with pytest.raises(SystemExit):
        make_demo_corpus.main([str(tmp_path / "corpus"), *arguments])
    assert arguments[0] in capsys.readouterr().err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_help_shows_how_to_run_it(capsys):
    with pytest.raises(SystemExit):
        make_demo_corpus.main(["--help"])
    printed = capsys.readouterr().out
    assert "python scripts/make_demo_corpus.py demo/corpus" in printed
    assert "--clips" in printed
