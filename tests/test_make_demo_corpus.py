"""Test the demo corpus: its layout, the effect of the seed, and interruptions."""

import os
import runpy
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
from corpora import contents
from helpers import call_alone, fork_server

from corpus.demo_corpus import EspeakVoice, make_corpus
from corpus.layouts import read_layout
from length_batching import padding_stats, plan_epoch
from scripts import make_demo_corpus
from tacotron2_voice.text.spoken_numbers import draw_numbers, in_words
from tacotron2_voice.utils.errors import UserError


def read_lines(corpus):
    text = (corpus / "metadata.csv").read_text(encoding="utf-8")
    return [line.split("|") for line in text.splitlines()]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo corpus") / "with spaces" / "corpus"
    make_corpus(out, clips=16, seed=0)
    return out


def test_clips_of_the_demo_corpus_are_audible_and_never_digitally_silent(corpus):
    """The clips contain some noise, because every log-mel value of digital silence would be the
    minimum."""
    for path in (corpus / "wavs").iterdir():
        info = soundfile.info(path)
        assert (info.samplerate, info.channels, info.subtype) == (22050, 1, "PCM_16")
        assert 0.3 <= info.duration <= 4
        samples, _ = soundfile.read(path)
        assert np.sqrt(np.mean(samples**2)) > 0.02
        assert np.abs(samples).max() < 1  # the samples are not clipped
        for end in (samples[:2205], samples[-2205:]):  # the first and the last tenth of a second
            assert np.abs(end).max() > 0.005
        frames = samples[: len(samples) // 256 * 256].reshape(-1, 256)
        assert frames.std(axis=1).min() > 20 / 32768


def test_random_batches_of_the_demo_corpus_have_as_much_padding_as_ljspeech():
    """LJSpeech has 31.99% padding in random batches. The demo saves a realistic amount of time only
    if the demo corpus has about as much padding as LJSpeech."""
    voice = EspeakVoice()
    clips = [len(voice.speak(in_words(number), 175)) // 256 for number in draw_numbers(300, 3)]
    plans = [plan_epoch(clips, 16, "random", epoch=epoch) for epoch in range(5)]
    assert 0.25 < np.mean([padding_stats(clips, plan).zero_padding_rate for plan in plans]) < 0.35


def as_program(options):
    sys.argv[1:] = options
    runpy.run_path(make_demo_corpus.__file__, run_name="__main__")


def in_a_process(log, options):
    process = fork_server().Process(target=call_alone, args=(log, as_program, options))
    process.start()
    return process


@pytest.mark.thorough
def test_demo_corpus_has_the_same_bytes_when_the_seed_is_the_same(tmp_path):
    for name, seed in (("first", 5), ("second", 5), ("other", 6)):
        make_corpus(tmp_path / name, clips=8, seed=seed)
    options = [str(tmp_path / "fresh"), "--clips", "8", "--seed", "5"]
    process = in_a_process(tmp_path / "log", options)
    process.join(60)
    assert process.exitcode == 0
    assert contents(tmp_path / "first") == contents(tmp_path / "second")
    assert contents(tmp_path / "first") == contents(tmp_path / "fresh")
    assert read_lines(tmp_path / "first") != read_lines(tmp_path / "other")


def test_existing_demo_corpus_is_not_changed(corpus, capsys):
    before = {path: path.stat().st_mtime_ns for path in corpus.rglob("*")}
    make_demo_corpus.main([str(corpus), "--clips", "16"])
    assert "already" in capsys.readouterr().out
    with pytest.raises(UserError, match=r'"seed": 0.*"seed": 9'):
        make_demo_corpus.main([str(corpus), "--clips", "16", "--seed", "9"])
    assert {path: path.stat().st_mtime_ns for path in corpus.rglob("*")} == before


@pytest.mark.parametrize("precious", ["mine", "mine/thesis.txt"])
def test_output_folder_is_rejected_when_it_contains_other_files(tmp_path, precious):
    (tmp_path / precious).parent.mkdir(exist_ok=True)
    (tmp_path / precious).write_text("precious", encoding="utf-8")
    with pytest.raises(UserError, match="mine"):
        make_demo_corpus.main([str(tmp_path / "mine")])
    assert (tmp_path / precious).read_text(encoding="utf-8") == "precious"


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_generation_of_a_demo_corpus_leaves_no_files_when_it_is_stopped(tmp_path, number):
    log, folder = tmp_path / "log", tmp_path / "folder"
    folder.mkdir()
    process = in_a_process(log, [str(folder / "corpus"), "--clips", "5000"])
    deadline = time.monotonic() + 60
    while not any(folder.rglob("*.wav")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, number)
    process.join(20)
    process.kill()
    assert process.exitcode == 130  # after Ctrl-C, programs exit with 130
    assert log.read_text().splitlines()[-1].endswith("stopped; nothing was written")
    assert list(folder.iterdir()) == []


def test_demo_corpus_records_its_language_and_uses_a_voice_of_that_language(tmp_path):
    folders = [tmp_path / language for language in ("en-us", "de", "fr-fr")]
    for folder in folders:
        make_corpus(folder, clips=2, language=folder.name)
    assert read_lines(folders[1])[0][2].endswith("zig.")
    records = [(folder / "demo_corpus.json").read_text() for folder in folders]
    assert [record.partition('"language": ')[2] for record in records] == [
        "",
        '"de"}\n',
        '"fr-fr"}\n',
    ]
    text = "quarante-deux mille sept"
    sounds = [
        len(EspeakVoice(language).speak(text, 175)) for language in ("fr-fr", "fr", "de", "en-us")
    ]
    assert sounds[0] == sounds[1]
    assert len({*sounds}) == 3
    with pytest.raises(UserError, match="--language xx"):
        EspeakVoice("xx")


def test_demo_corpus_omits_the_first_numbers_when_the_option_skip_is_given(corpus, tmp_path):
    make_corpus(tmp_path / "unseen", clips=3, seed=0, skip=16)
    rows = read_lines(corpus) + read_lines(tmp_path / "unseen")
    assert [name for name, _, _ in rows] == [f"DEMO-{number:04d}" for number in range(1, 20)]
    assert [digits for _, digits, _ in rows] == [f"{number:,}" for number in draw_numbers(19, 0)]
    assert all(text.lower() == f"{in_words(int(n.replace(',', '')))}." for _, n, text in rows)
    entries, problems = read_layout(corpus)
    assert (len(entries), problems) == (16, [])
    assert all(Path(entry.path).is_file() for entry in entries)
