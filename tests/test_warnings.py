"""Test warnings about clips and texts, and prepare.py --trim-silence."""

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from corpora import RATE, contents, prepare_with, refusal
from helpers import ROOT

from audio import log_mel_spectrogram, read_audio
from corpus.checks import WINDOW_SECONDS, count_clipped, silence_at_ends
from corpus.clips import Clip, Measurements
from corpus.derived import KEPT_SECONDS
from corpus.filelist import checked_clips, read_filelist, symbols_of
from corpus.prepare import Preparation, prepare
from corpus.symbols import with_symbols_of
from corpus.warnings import (
    TWICE_ENCODED,
    UNUSUAL_TEXTS,
    WORST_SHOWN,
    other_language,
    other_script,
    texts_of_other_clips,
    unusual_speaking_rate,
    usual_rates,
)
from hparams import create_hparams
from scripts.prepare import main

pytestmark = pytest.mark.usefixtures("no_plots")

HPARAMS = create_hparams()
WINDOW = round(WINDOW_SECONDS * RATE)
KEPT = round(KEPT_SECONDS * RATE)
TEXT = "Words by the dozen."
END = 0.05  # seconds of silence at both ends of a valid clip


def sound(before: float = 0.0, seconds: float = 1.0, after: float = 0.0, seed: int = 0):
    """Return 16-bit noise that lasts `seconds` seconds. Softer noise (by 57 dB) fills `before`
    seconds at the start and `after` seconds at the end."""
    rng = np.random.default_rng(seed)
    noise = rng.uniform(-1, 1, sum(round(part * RATE) for part in (before, seconds, after)))
    start = round(before * RATE)
    envelope = np.full(len(noise), 20.0)
    envelope[start : start + round(seconds * RATE)] = 15000
    return (envelope * noise).astype(np.int16)


def quiet_at_ends(seed: int = 0):
    return sound(END, 1, END, seed)


def noisy():
    """Return a clip whose background noise is 12 dB softer than the speech."""
    speech = quiet_at_ends().astype(float)
    noise = np.random.default_rng(1).uniform(-1, 1, len(speech))
    return (speech + 15000 * 10 ** (-12 / 20) * noise).clip(-32767, 32767).astype(np.int16)


def write_corpus(
    folder: Path, changes: dict | None = None, clips: int = 12, text: str = TEXT
) -> Path:
    """Write one-second clips c00, c01, ...

    `changes` replaces the audio, the text or both for some clips.
    """
    (folder / "wavs").mkdir(parents=True)
    lines = []
    for i in range(clips):
        name = f"c{i:02}"
        samples, own_text = (changes or {}).get(name, (None, None))
        samples = quiet_at_ends(seed=i) if samples is None else samples
        soundfile.write(folder / "wavs" / f"{name}.wav", samples, RATE)
        spoken = own_text or text
        lines.append(f"{name}|{spoken}|{spoken}\n")
    (folder / "metadata.csv").write_text("".join(lines), encoding="utf-8")
    return folder


def warnings(printed: str) -> list[str]:
    """Return all warnings, except the warning that all clips have the same text."""
    lines = [line for line in printed.splitlines() if line.startswith("warning")]
    return [line for line in lines if "--split-by-text" not in line]


@pytest.mark.parametrize("as_stored", [lambda x: x, lambda x: (x / 32768 + 0.1).astype(np.float32)])
@pytest.mark.parametrize(("before", "after"), [(0, 0), (0.3, 0), (0, 1.1), (0.123, 0.456)])
def test_silence_at_the_ends_is_measured_to_within_one_window(before, after, as_stored):
    samples = as_stored(sound(before, 0.5, after))
    found = silence_at_ends(samples, RATE)
    for silence, expected in zip(found, (before, after), strict=True):
        assert expected * RATE - WINDOW < silence <= expected * RATE + 1
    assert found[0] % WINDOW == 0


def test_samples_count_as_silence_when_they_are_40_db_below_the_loudest_sample():
    for decibels, expected in ((38, 0), (42, 0.2 * RATE)):
        quiet = sound(seconds=0.2) * 10 ** (-decibels / 20)
        before, after = silence_at_ends(np.concatenate([sound(), quiet]).astype(np.int16), RATE)
        assert (before, after) == (0, pytest.approx(expected, abs=WINDOW))
    # Silence in the middle is a pause, and does not count as silence at an end.
    assert silence_at_ends(np.concatenate([sound(after=1), sound()]), RATE) == (0, 0)
    assert silence_at_ends(sound()[:100], RATE) == (0, 0)  # 100 samples are shorter than a window


@pytest.mark.parametrize(("decibels", "is_silence"), [(-36, True), (-20, False)])
@pytest.mark.parametrize("clip", ["LJ001-0002", "LJ001-0008"])
def test_noise_around_the_speech_of_a_recording_counts_as_silence(clip, decibels, is_silence):
    speech, rate = soundfile.read(ROOT / f"tests/data/ljspeech/wavs/{clip}.wav")
    level = np.abs(speech).max() * 10 ** (decibels / 20) / 3
    samples = np.pad(speech, (rate, 2 * rate))
    samples += np.random.default_rng(0).normal(0, level, len(samples))
    samples[: rate // 5] = 0  # some programs write digital silence at the start
    before, after = silence_at_ends(samples.astype(np.float32), rate)
    assert (before > 0.95 * rate, after > 1.95 * rate) == (is_silence, is_silence)
    # The speech is not cut off: its own silence is at most 0.2 s long.
    assert before < 1.2 * rate
    assert after < 2.2 * rate


@pytest.mark.parametrize(("dtype", "full"), [(np.int16, 32767), (np.float32, 1.0)])
def test_three_samples_at_full_scale_count_as_clipping(dtype, full):
    def count(*samples):
        return count_clipped((full * np.array(samples)).astype(dtype))

    assert count(0.9, 1, 1, 0.5, -1, -1, 0.9, 1) == 0
    assert count(1, 1, 1, 0.5, -1, -1, -1, -1) == 7
    assert count(0.9, 0.9, 0.9, 0.9) == 0
    assert count_clipped(np.array([-32768] * 3 + [5], np.int16)) == 3


@pytest.mark.parametrize("dtype", [np.int16, np.float32])
def test_flat_tops_below_full_scale_count_as_clipping(dtype):
    """The recording was clipped, and then made softer with dither. Recordings that were not clipped
    have no flat tops."""
    scale = 32768 if dtype == np.float32 else 1
    files = sorted((ROOT / "tests/data/ljspeech").rglob("*.wav"))
    assert files
    for path in files:
        real = soundfile.read(path, dtype="int16")[0].astype(float)
        limit = 0.7 * np.abs(real).max()
        dither = np.random.default_rng(0).uniform(-0.5, 0.5, (2, len(real))).sum(axis=0)
        for gain in (0.2, 0.9):
            clipped = np.rint(gain * np.clip(real, -limit, limit) + dither)
            assert count_clipped((clipped / scale).astype(dtype)) > 9
            assert count_clipped((np.rint(gain * real + dither) / scale).astype(dtype)) == 0


def test_range_of_typical_speaking_rates_depends_on_the_spread_of_the_rates():
    spread = 15 * np.exp(0.1 * np.random.default_rng(0).standard_normal(5000))
    low, median, high = usual_rates(np.append(spread, [1, 2, 99]))
    assert median == pytest.approx(15, rel=0.01)
    assert (low, high) == pytest.approx((15 * np.exp(-0.45), 15 * np.exp(0.45)), rel=0.05)
    assert usual_rates(np.full(9, 12.0)) == pytest.approx((12 / 1.4, 12, 12 * 1.4))


LOUD = np.clip(4.0 * quiet_at_ends(), -32768, 32767).astype(np.int16)
# For each problem: the changed clips, the text of the warning, and the affected clips.
# The affected clips are listed with their values, worst first.
FAULTS = {
    "silence": (
        {f"c{i:02}": (sound(END, 1, 0.4 + 0.1 * i), TEXT) for i in range(7)},
        "silence of more than 0.3 s",
        {f"c{i:02}": f"0.04 s before, {0.39 + 0.1 * i:.2f} s after" for i in reversed(range(7))},
    ),
    "rate": (
        {"c03": (None, f"{TEXT} " * 2), "c07": (None, "Word.")},
        "symbols per second",
        {"c07": "metadata.csv:8, 4.9", "c03": "metadata.csv:4, 38.2"},
    ),
    "clipping": ({"c05": (LOUD, TEXT)}, "clipping", {"c05": "samples"}),
    "dropped": (
        {"c04": (None, "Words ☃ *home, doz"), "c09": (None, "Words by * dozen.")},
        "text cleaners drop",
        {
            "c04": "metadata.csv:5, columns of the text: '☃' at column 7, '*' at column 9",
            "c09": "metadata.csv:10, columns of the text: '*' at column 10",
        },
    ),
    "uncertain": (
        {"c03": (None, "By 10/11.")},
        "may be read wrongly",
        {"c03": "metadata.csv:4, '10/11' as 'ten elevenths'"},
    ),
    "encoded twice": (
        {"c02": (None, "Words by the â€™dozen."), "c05": (None, "Wörds by the dozen.")},
        "Windows-1252",
        {"c02": "metadata.csv:3, 'â€'"},
    ),
    "speaker names": (
        {"c02": (None, "ANNA: Words by it.")},
        "names of speakers",
        {"c02": "metadata.csv:3, 'ANNA:'"},
    ),
    "sounds": (
        {"c02": (None, "Words (laughs) by.")},
        "sounds in parentheses",
        {"c02": "metadata.csv:3, '(laughs)'"},
    ),
    "controls": (
        {"c02": (None, "Words by the \x93dozen.")},
        "control characters",
        {"c02": "metadata.csv:3, '\\x93'"},
    ),
    "duplicates": (
        {
            "c04": (quiet_at_ends(seed=1), TEXT),
            "c08": (quiet_at_ends(seed=2), "Another dozen text"),
        },
        "the same audio as an earlier clip",
        {"c08": "same audio as c02, different text", "c04": "same audio and text as c01"},
    ),
    "noise": ({"c03": (noisy(), TEXT)}, "noise", {"c03": "dB above the noise"}),
    "cut": ({"c03": (sound(0, 1, END), TEXT)}, "very start or end of the file", {"c03": "start"}),
    "level": (
        {"c03": (quiet_at_ends() // 8, TEXT)},
        "from the speaker's median",
        {"c03": "-18 dB"},
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_kind_of_problem_has_a_separate_warning(tmp_path, capsys, fault):
    changes, problem, expected = FAULTS[fault]
    prepare(Preparation(write_corpus(tmp_path / "corpus", changes), tmp_path / "lists"))
    found = warnings(capsys.readouterr().out)
    [warning] = [x for x in found if problem in x]
    # These texts also cause a warning about foreign letters.
    assert len(found) == 1 or fault == "encoded twice"
    assert f"{len(expected)} of 12 clips" in warning
    page = (tmp_path / "lists" / "report.html").read_text()
    for i, (name, value) in enumerate(expected.items()):
        is_shown = i < WORST_SHOWN
        assert (name in warning and value in warning) == is_shown, name
        assert f"<td>{name}</td>" in page
        assert f"/wavs/{name}.wav" in page
    shown = [name for name in expected if name in warning]
    assert shown == sorted(shown, key=warning.index)
    lists = [tmp_path / "lists" / name for name in ("train.txt", "val.txt")]
    assert sum(len(path.read_text().splitlines()) for path in lists) == 12


def quiet_corpus(folder: Path, clips: int = 12) -> Path:
    """Write clips. Every third clip has long silence at both ends, and all other clips have only
    short silence."""
    changes = {f"c{i:02}": (sound(0.5, 1, 0.7 + 0.01 * i, i), TEXT) for i in range(0, clips, 3)}
    return write_corpus(folder, changes, clips)


def test_trimmed_clips_keep_a_short_silence(tmp_path, capsys):
    corpus, lists, trimmed = quiet_corpus(tmp_path / "corpus"), tmp_path / "l", tmp_path / "t"
    before = contents(corpus)
    main([str(corpus), "--out", str(lists), "--trim-silence", str(trimmed)])
    assert contents(corpus) == before
    printed = capsys.readouterr().out
    assert warnings(printed) == []
    assert {path.name for path in trimmed.iterdir()} == {
        "trim_settings.json",
        ".lock",
        *(f"c{i:02}.wav" for i in range(12)),
    }
    cut = 0
    for i in range(12):
        whole, _ = soundfile.read(corpus / "wavs" / f"c{i:02}.wav", dtype="int16")
        short, _ = soundfile.read(trimmed / f"c{i:02}.wav", dtype="int16")
        cut += len(whole) - len(short)
        if i % 3:
            assert np.array_equal(whole, short)
            continue
        silence = silence_at_ends(short, RATE)
        assert all(KEPT - WINDOW < samples <= KEPT + WINDOW for samples in silence)
        assert len(short) == pytest.approx(RATE + 2 * KEPT, abs=2 * WINDOW)
        start = round(0.5 * RATE) - KEPT
        starts = range(start - WINDOW, start + WINDOW + 1)
        assert any(np.array_equal(whole[at : at + len(short)], short) for at in starts)
    assert f"cut {cut / RATE:.1f} s of silence from 4 of 12 clips in {trimmed}." in printed
    total = sum(soundfile.info(path).frames for path in trimmed.glob("*.wav"))
    assert re.search(rf"all .* seconds .* {total / RATE:.2f} \|\n", printed)
    for name in ("train", "val"):
        # read_filelist also checks that the listed seconds match the file.
        for clip in read_filelist(lists / f"{name}.txt", HPARAMS):
            assert os.path.samefile(Path(clip.path).parent, trimmed)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "subtype"),
    [("a.wav", "PCM_U8"), ("a.wav", "PCM_24"), ("a.wav", "FLOAT"), ("a.flac", "PCM_24")],
)
def test_trimming_does_not_change_the_remaining_samples(tmp_path, name, subtype):
    corpus = write_corpus(tmp_path / "corpus", clips=4)
    source, copy = corpus / "wavs" / name, tmp_path / "t" / name
    start = 10 * WINDOW
    fine = sound(seconds=1) / 32768 + np.random.default_rng(1).uniform(-1, 1, RATE) * 1e-5
    soundfile.write(source, np.concatenate([np.zeros(start), fine]), RATE, subtype=subtype)
    with open(corpus / "metadata.csv", "a") as file:
        file.write(f"a|{TEXT}|{TEXT}\n")
    prepare(Preparation(corpus, tmp_path / "lists", trim=tmp_path / "t"))
    assert soundfile.info(copy).subtype == subtype
    assert soundfile.info(copy).format == soundfile.info(source).format
    whole, short = (soundfile.read(path, dtype="float64")[0] for path in (source, copy))
    assert len(short) == len(fine) + KEPT
    assert np.array_equal(whole[start - KEPT :], short)


def test_prepare_warns_when_texts_contain_html_entities_or_tags(tmp_path, capsys):
    """For example, "It&#39;s" would be spoken as "it and number thirty-nine; s"."""
    texts = {"c01": "It&#39;s &amp; <b>go</b> on.", "c02": "R&D; at AT&T", "c03": "A <sil> b."}
    corpus = write_corpus(tmp_path / "a corpus", {name: (None, x) for name, x in texts.items()})
    prepare(Preparation(corpus, tmp_path / "lists"))
    [warning] = [x for x in warnings(capsys.readouterr().out) if "HTML" in x]
    assert "2 of 12 clips" in warning
    assert "c01 (metadata.csv:2, '&#39;' '&amp;' '<b>' '</b>')" in warning


def clips_with(shift: int, count: int = 40, texts_of_one_length: bool = False) -> list[Clip]:
    """Return clips of 1 to 8 s. Each clip has the text of the clip `shift` lines earlier."""
    rng = np.random.default_rng(0)
    seconds = rng.uniform(1, 8, count)
    symbols = np.roll(15 * seconds + rng.normal(0, 3, count), shift).astype(int)
    return [
        Clip(
            f"c{i}.wav",
            "A text.",
            (1,) * (9 if texts_of_one_length else n),
            measured=Measurements(int(s)),
        )
        for i, (n, s) in enumerate(zip(symbols, seconds * RATE, strict=True))
    ]


@pytest.mark.parametrize("shift", [1, -2])
def test_prepare_warns_when_texts_belong_to_neighboring_clips(shift):
    """If metadata.csv has lost a line, all later texts belong to neighboring clips."""
    warning = texts_of_other_clips(clips_with(shift))
    assert warning.startswith("warning: ")
    assert "c0: 'A text.'" in warning


def test_prepare_warns_when_all_texts_have_the_same_length():
    warning = texts_of_other_clips(clips_with(0, texts_of_one_length=True))
    assert "correlation 0.00" in warning


def test_prepare_does_not_warn_when_text_and_clip_lengths_match():
    """If there are too few clips or too few different lengths, prepare cannot check whether texts
    match clips."""
    assert texts_of_other_clips(clips_with(0)) is None
    assert texts_of_other_clips(clips_with(1, count=19)) is None
    alike = [replace(x, measured=Measurements(RATE)) for x in clips_with(1)]
    assert texts_of_other_clips(alike) is None


def test_clip_is_copied_when_it_is_too_short_to_trim(tmp_path):
    corpus = write_corpus(tmp_path / "corpus", {"c03": (sound(0.5, 0.02), TEXT)})
    prepare(Preparation(corpus, tmp_path / "lists", "filter_length=4096", trim=tmp_path / "t"))
    assert soundfile.info(tmp_path / "t" / "c03.wav").frames == round(0.52 * RATE)


def test_files_of_trimmed_clips_are_rejected_when_the_trim_option_or_the_corpus_has_changed(
    tmp_path,
):
    corpus, lists, trimmed = quiet_corpus(tmp_path / "corpus", 6), tmp_path / "l", tmp_path / "t"
    prepare(Preparation(corpus, lists, mels=tmp_path / "m", trim=trimmed))
    mel = log_mel_spectrogram(read_audio(trimmed / "c00.wav", HPARAMS), HPARAMS)
    assert np.array_equal(np.load(tmp_path / "m" / "c00.npy"), mel.numpy())
    hparams = create_hparams(f"@{lists / 'settings.txt'}")
    assert read_filelist(hparams.training_files, hparams)
    message = refusal(prepare_with, corpus, lists, mels=tmp_path / "m")
    assert "silence_trimmed=True, but this run uses False" in message
    before = contents(tmp_path)
    message = refusal(prepare_with, quiet_corpus(tmp_path / "other", 6), lists, trim=trimmed)
    assert f"--trim-silence {trimmed}: " in message
    assert "corpus=../corpus, but this run uses ../other" in message
    message = refusal(prepare_with, corpus, lists, trim=corpus / "wavs")
    assert "--trim-silence" in message
    assert before.items() <= contents(tmp_path).items()


def test_second_call_of_prepare_trims_only_changed_clips(tmp_path, capsys):
    corpus, trimmed = quiet_corpus(tmp_path / "corpus"), tmp_path / "t"
    prepare(Preparation(corpus, tmp_path / "l", trim=trimmed))
    before = contents(trimmed)
    (trimmed / "c01.wav").unlink()
    (trimmed / "c02.wav").write_bytes(before["c02.wav"][:5000])
    os.utime(corpus / "wavs" / "c03.wav")
    capsys.readouterr()
    prepare(Preparation(corpus, tmp_path / "l", trim=trimmed))
    assert f"9 of 12 files already exist in {trimmed}" in capsys.readouterr().out
    assert contents(trimmed) == before


@pytest.mark.thorough
def test_trimmed_copies_stay_valid_when_they_are_moved_with_the_corpus(tmp_path, capsys):
    old, new = tmp_path / "old", tmp_path / "new"
    prepare(Preparation(quiet_corpus(old / "corpus"), old / "lists", trim=old / "t"))
    old.rename(new)
    capsys.readouterr()
    h = create_hparams(f"@{new / 'lists' / 'settings.txt'}")
    checked_clips(h.training_files, h, new_run=True)
    assert capsys.readouterr().out == ""  # no audio file is read again
    prepare(Preparation(new / "corpus", new / "lists", trim=new / "t"))
    assert f"12 of 12 files already exist in {new / 't'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("texts", "warning"),
    [
        (["Heute gehen wir alle in den Wald, um Pilze zu suchen."] * 30, "warning: only 0 of 330"),
        (["Go with the flow, and you are there."] * 60, None),
        (["Seven hundred twelve.", "The word."] * 200, None),
        (["He sat down."] * 20, None),  # there are too few texts for a warning
        (["The flow."] * 99 + ["The café."], None),
        (["Über die Straße."] * 9 + ["The flow."], "warning: 9 of 10 texts"),
    ],
)
def test_language_mismatch_is_detected_by_letters_or_words(texts, warning):
    clips = [Clip("a.wav", text, symbols_of(text, HPARAMS)) for text in texts]
    message = other_language(clips, HPARAMS)
    assert message is None if warning is None else message.startswith(warning)


@pytest.mark.parametrize("text", ["Ã la carte", "Ângela é", "plain", "naïve Â", "Дом и сад"])
def test_common_letters_are_not_reported_as_wrongly_decoded_text(text):
    assert not TWICE_ENCODED.search(text)


@pytest.mark.parametrize("text", ["don’t – “no”", "Größe für alle", "Дом и сад"])
def test_text_that_was_encoded_twice_is_recognized(text):
    assert TWICE_ENCODED.search(text.encode().decode("cp1252", "replace"))


def test_words_in_square_brackets_are_listed_by_line(tmp_path, capsys):
    corpus = write_corpus(tmp_path / "corpus", {"c03": (None, "He [laughs] and [1] [T]he end.")})
    prepare(Preparation(corpus, tmp_path / "lists"))
    [found] = [line for line in warnings(capsys.readouterr().out) if "[laughs]" in line]
    assert "metadata.csv:4, '[laughs]'" in found


@pytest.mark.parametrize(("num_english", "is_reported"), [(3, False), (12, True)])
def test_texts_in_another_script_are_reported_when_many_clips_have_such_texts(
    num_english, is_reported
):
    """In an earlier version, English translations were used as the texts of Korean audio."""
    texts = ["Good morning."] * num_english + ["안녕하세요, Anna."] * (20 - num_english)
    clips = [Clip(f"c{i}.wav", text, where=f"m.csv:{i}") for i, text in enumerate(texts)]
    hparams = create_hparams("text_cleaners=[basic_cleaners],symbols=corpus,language=ko")
    warning = other_script(clips, with_symbols_of(clips, hparams))
    assert (warning is not None) == is_reported
    if is_reported:
        assert "m.csv:0" in warning
        assert "'Good morning.'" in warning
        assert "12 of 20" in warning


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("でこれ英語でまず<うー>考えられた", "angle brackets"),
        ("B 圈 又 崩 了 一 次", "spaces between all characters"),
        ("If 1 < 2, then 3 > 2.", None),
        ("ทดสอบ ระบบ 圈 又", None),
    ],
)
def test_warning_lists_texts_with_angle_brackets_or_with_spaces_between_all_characters(
    text, problem
):
    found = [name for name, _, pattern in UNUSUAL_TEXTS if pattern.search(text)]
    assert len(found) == bool(problem)
    assert all(problem in name for name in found)


@pytest.mark.parametrize(
    ("text", "milliseconds", "is_unusual"),
    [
        ("Words by the dozen.", 20, True),
        ("Words by the dozen.", 60, False),
        ("Words by the dozen.", 200, True),
        ("你好世界", 200, False),
        ("10", 20, False),
    ],
)
def test_warning_reports_an_unusual_speaking_rate_of_a_corpus(text, milliseconds, is_unusual):
    samples = round(milliseconds / 1000 * HPARAMS.sampling_rate * 20)
    clip = Clip("a.wav", text, symbols=(1,) * 20, measured=Measurements(num_samples=samples))
    warning = unusual_speaking_rate([clip] * 5, HPARAMS)
    assert (warning is not None) == is_unusual
    assert warning is None or f"{milliseconds} ms per symbol" in warning
    assert unusual_speaking_rate([clip] * 4, HPARAMS) is None
