"""Test every corpus in docs/guides/corpora.md with the options in its row."""

import gzip
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import soundfile
from corpora import refusal
from helpers import ROOT

from corpus.layouts import read_layout
from corpus.text_search import TextSource
from scripts.prepare import main

PAGE = (ROOT / "docs" / "guides" / "corpora.md").read_text("utf-8")
RATE = 16000
TEXTS = ("Good morning.", "It rains now.", "We sat down.", "Nobody knew where it was.")
SRT = "\n".join(
    f"{i}\n00:00:{2 * i:02d},000 --> 00:00:{2 * i + 1:02d},000\n{text}\n"
    for i, text in enumerate(TEXTS)
)


def audio(path: Path, seconds: float = 1.0) -> None:
    """Write noise: one second loud, one second quiet, and so on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    times = np.arange(round(seconds * RATE)) / RATE
    is_loud = times % 2 < 1
    noise = np.random.default_rng(len(path.name)).standard_normal(len(times))
    soundfile.write(path, 0.1 * noise * is_loud, RATE)


def text(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, "utf-8")


def table(path: Path, *lines: str) -> None:
    text(path, "".join(f"{line}\n" for line in lines))


def ljspeech(root: Path) -> None:
    for i in range(4):
        audio(root / f"wavs/LJ001-000{i}.wav")
    table(root / "metadata.csv", *(f"LJ001-000{i}|x|{TEXTS[i]}" for i in range(4)))


def vctk(root: Path) -> None:
    for i in range(4):
        name = f"p22{5 + i // 2}"
        for microphone in (1, 2):
            audio(root / f"wav48_silence_trimmed/{name}/{name}_00{i}_mic{microphone}.flac")
        text(root / f"txt/{name}/{name}_00{i}.txt", TEXTS[i])


def libritts(root: Path) -> None:
    for i in range(4):
        folder = root / f"train-clean-100/{84 + i // 2}/12{i}"
        audio(folder / f"84_12{i}_000.wav")
        text(folder / f"84_12{i}_000.normalized.txt", TEXTS[i])
        text(folder / f"84_12{i}_000.original.txt", "another")


def librispeech(root: Path) -> None:
    for i in range(4):
        folder = root / f"train-clean-100/{84 + i // 2}/12{i}"
        audio(folder / f"{84 + i // 2}-12{i}-0000.flac")
        text(folder / f"{84 + i // 2}-12{i}.trans.txt", f"{84 + i // 2}-12{i}-0000 {TEXTS[i]}")


def mailabs(root: Path) -> None:
    for i in range(4):
        book = root / f"mary_ann/book{i // 2}"
        audio(book / f"wavs/book{i // 2}_0{i}.wav")
    for j in (0, 1):
        lines = (f"book{j}_0{i}|{TEXTS[i]}|{TEXTS[i]}" for i in (2 * j, 2 * j + 1))
        table(root / f"mary_ann/book{j}/metadata.csv", *lines)


def arctic(root: Path) -> None:
    for i in range(4):
        audio(root / f"wav/arctic_a000{i}.wav")
    table(root / "etc/txt.done.data", *(f'( arctic_a000{i} "{TEXTS[i]}" )' for i in range(4)))


def fleurs(root: Path) -> None:
    for i in range(4):
        audio(root / f"audio/train/1{i}.wav")
    lines = (f"{i}\t1{i}.wav\t{TEXTS[i]}\tx {i}\tx | y\t9600\tMALE" for i in range(4))
    table(root / "train.tsv", *lines)


def common_voice(root: Path) -> None:
    for i in range(4):
        audio(root / f"clips/common_voice_{i}.mp3")
    lines = (f"s{i // 2}\tcommon_voice_{i}.mp3\t{TEXTS[i]}\t2" for i in range(4))
    table(root / "validated.tsv", "client_id\tpath\tsentence\tup_votes", *lines)


def audiofolder(root: Path) -> None:
    for i in range(4):
        audio(root / f"train/{i}.mp3")
    lines = (f'train/{i}.mp3,"{TEXTS[i]}"' for i in range(4))
    table(root / "metadata.csv", "file_name,transcription", *lines)


def kss(root: Path) -> None:
    for i in range(4):
        audio(root / f"1/1_000{i}.wav")
    lines = (f"1/1_000{i}.wav|x{i}|{TEXTS[i]}|y{i}|1.0|English {i}" for i in range(4))
    table(root / "transcript.v.1.4.txt", *lines)


def css10(root: Path) -> None:
    for i in range(4):
        audio(root / f"book/book_000{i}.wav")
    lines = (f"book/book_000{i}.wav|x{i}|{TEXTS[i]}|1.0" for i in range(4))
    table(root / "transcript.txt", *lines)


def jsut(root: Path) -> None:
    for i in range(4):
        audio(root / f"basic5000/wav/BASIC5000_000{i}.wav")
    lines = (f"BASIC5000_000{i}:{TEXTS[i]}" for i in range(4))
    table(root / "basic5000/transcript_utf8.txt", *lines)


def baker(root: Path) -> None:
    for i in range(4):
        audio(root / f"Wave/00000{i}.wav")
    lines = (line for i in range(4) for line in (f"00000{i}\t#1 x{i}", f"\t{TEXTS[i]}"))
    table(root / "ProsodyLabeling/000001-010000.txt", *lines)


def nemo(root: Path) -> None:
    audio(root / "chapter.wav", 9)
    lines = (
        {"audio_filepath": "chapter.wav", "offset": 2.0 * i, "duration": 1.0, "text": TEXTS[i]}
        for i in range(4)
    )
    table(root / "train_manifest.json", *map(json.dumps, lines))


def lhotse(root: Path) -> None:
    audio(root / "chapter.wav", 9)
    recording = {"id": "r", "sources": [{"type": "file", "source": "chapter.wav"}]}
    lines = (
        {"id": i, "recording_id": "r", "start": 2.0 * i, "duration": 1.0, "text": TEXTS[i]}
        for i in range(4)
    )
    supervisions = "\n".join(json.dumps(x) for x in lines)
    files = {"recordings.jsonl.gz": json.dumps(recording), "supervisions.jsonl.gz": supervisions}
    for name, content in files.items():
        (root / name).write_bytes(gzip.compress(content.encode()))


def kaldi(root: Path) -> None:
    audio(root / "chapter.wav", 9)
    table(root / "wav.scp", f"r {root / 'chapter.wav'}")
    table(root / "segments", *(f"u{i} r {2 * i}.0 {2 * i + 1}.0" for i in range(4)))
    table(root / "text", *(f"u{i} {TEXTS[i]}" for i in range(4)))
    table(root / "utt2spk", *(f"u{i} s{i // 2}" for i in range(4)))


def subtitles(root: Path) -> None:
    audio(root / "chapter.mp3", 9)
    text(root / "chapter.srt", SRT)


# For each corpus in docs/guides/corpora.md: the function that writes the files of the corpus, and
# the speakers of its four clips.
CORPORA = {
    "LJSpeech": (ljspeech, []),
    "VCTK 0.92": (vctk, ["p225", "p225", "p226", "p226"]),
    "LibriTTS": (libritts, ["84", "84", "85", "85"]),
    "LibriSpeech": (librispeech, ["84", "84", "85", "85"]),
    "M-AILABS, LibriVox": (mailabs, ["mary_ann"] * 4),
    "CMU ARCTIC and other corpora of Festvox": (arctic, []),
    "Common Voice": (common_voice, ["s0", "s0", "s1", "s1"]),
    "Hugging Face audiofolder": (audiofolder, []),
    "FLEURS": (fleurs, []),
    "KSS": (kss, []),
    "CSS10": (css10, []),
    "JSUT": (jsut, []),
    "BAKER": (baker, []),
    "NeMo manifest": (nemo, []),
    "lhotse manifests": (lhotse, []),
    "Kaldi data directory": (kaldi, ["s0", "s0", "s1", "s1"]),
    "audio with subtitles": (subtitles, []),
}


def command_of(name: str) -> list[str]:
    """Return the options for a corpus from the table in docs/guides/corpora.md."""
    [row] = [line for line in PAGE.splitlines() if line.startswith(f"| {name} |")]
    return shlex.split(row.split("`")[1])


def test_corpora_page_lists_exactly_the_tested_corpora():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "`" in line]
    assert [row.split("|")[1].strip() for row in rows] == [*CORPORA]


@pytest.mark.parametrize("name", CORPORA)
def test_corpus_is_prepared_with_the_options_in_its_row(name, tmp_path, monkeypatch, capsys):
    tree, speakers = CORPORA[name]
    tree(tmp_path / "corpus")
    monkeypatch.chdir(tmp_path)
    options = ["--out", "lists", "--convert", "copies", "--val-fraction", "0"]
    main([*command_of(name), *options, "--hparams", "text_cleaners=basic_cleaners"])
    lines = [line.split("|") for line in Path("copies/metadata.csv").read_text().splitlines()]
    assert [line[-1] for line in lines] == [*TEXTS]
    assert [line[1] for line in lines if len(line) == 3] == speakers
    assert len(Path("lists/train.txt").read_text().splitlines()) == 4
    assert all(soundfile.info(x).duration > 0.4 for x in Path("copies/wavs").glob("*.wav"))


def test_librispeech_is_rejected_when_the_options_are_for_texts_next_to_the_audio(tmp_path):
    librispeech(tmp_path)
    message = refusal(read_layout, tmp_path, texts=TextSource(suffix="srt"))
    assert "--transcripts" in message
    assert ".trans.txt" in message
