"""Test that corpus/layouts.py finds recordings in common folder layouts."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from corpora import add_line, refusal, write_tone

from corpus.audio_search import note_of_unused_audio, problem_of_missing
from corpus.checks import check_clips, placeholders, problem_of_text
from corpus.clips import Clip, Segment
from corpus.convert import unique_ids
from corpus.layouts import read_layout
from corpus.speaker_names import NO_SPEAKERS, SpeakerSource
from corpus.table_rows import Table
from corpus.text_search import TextSource
from hparams import create_hparams
from scripts import prepare as prepare_program
from tacotron2_voice.utils.errors import UserError

TEXTS = ["One, or two.", '"Go!" he said: "Now."', "Äpfel; Öl."]


@pytest.fixture
def recordings(tmp_path):
    """Create corpus/clips/a.wav, corpus/clips/b.FLAC and corpus/more/C.wav."""
    corpus = tmp_path / "corpus"
    for name in ("clips/a.wav", "clips/b.FLAC", "more/C.wav"):
        (corpus / name).parent.mkdir(parents=True, exist_ok=True)
        write_tone(corpus / name, 4000)
    return corpus


def read(corpus, *arguments, **options):
    """Read a corpus, and return its clips as (path in the corpus, text) pairs and its problems."""
    table = Table(*arguments, **options) if arguments else None
    clips, problems = read_layout(corpus, table)
    problems += filter(None, map(problem_of_missing, clips))
    clips = [clip for clip in clips if not problem_of_missing(clip)]
    return [(str(Path(x.path).relative_to(corpus)), x.text) for x in clips], problems


def expected(*texts):
    return [*zip(("clips/a.wav", "clips/b.FLAC", "more/C.wav"), texts or TEXTS, strict=True)]


def test_texts_are_read_when_they_are_next_to_the_audio(recordings):
    (recordings / "clips/a.txt").write_text(f" {TEXTS[0]}\n\n")
    (recordings / "clips/b.normalized.txt").write_text(TEXTS[1])
    (recordings / "clips/b.txt").write_text("b")
    (recordings / "more/C.lab").write_text(TEXTS[2], encoding="utf-8")
    assert read(recordings) == (expected(), [])
    (recordings / "more/C.mp3").write_bytes(b"the same, compressed")
    assert read(recordings) == (expected(), [])
    (recordings / "more/C.mp3").unlink()
    (recordings / "more/C.lab").unlink()
    clips, problems = read(recordings)
    assert clips == expected()[:2]
    [problem] = problems
    assert problem.startswith(f"{recordings / 'more/C.wav'}: ")
    assert "C.txt" in problem


def test_audio_listed_in_metadata_is_found_in_any_folder(recordings):
    (recordings / "metadata.csv").write_text("A|One.\nb|Two.\nc|Three.\nd|Four.\n")
    (recordings / "uploads").mkdir()
    (recordings / "uploads" / "a.webm").touch()  # WebM audio is not supported
    clips, [problem] = read(recordings)
    assert clips == expected("One.", "Two.", "Three.")
    assert problem.startswith(f"{recordings / 'metadata.csv'}:4: 'd': ")


NAMES = {
    "upper-case extension": ("wavs/a.WAV", "a"),
    "upper-case name": ("wavs/A.wav", "a"),
    "folder with another name": ("wav/a.wav", "a"),
    "nested folder": ("audio/part 1/a.wav", "a"),
    "next to metadata.csv": ("a.wav", "a"),
    "id with an extension": ("wavs/a.wav", "a.wav"),
    "id with a folder": ("wavs/a.wav", "wavs/a"),
    "id with a folder and an extension": ("wavs/a.flac", "wavs/a.flac"),
    "Windows path": ("wavs/a.wav", "C:\\my files\\wavs\\a.WAV"),
    "path with another extension": ("wavs/a.wav", "clips/a.mp3"),
    "decomposed accent, as on macOS": ("wavs/cafe\u0301.wav", "caf\u00e9"),
    "number": ("wavs/001.wav", "001"),
}


@pytest.mark.parametrize("case", NAMES)
def test_audio_file_is_found_when_exactly_one_file_has_a_similar_name(tmp_path, capsys, case):
    path, name = NAMES[case]
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    write_tone(tmp_path / path, 4000)
    (tmp_path / "metadata.csv").write_text(f"{name}|One.\n", encoding="utf-8")
    assert read(tmp_path) == ([(path, "One.")], [])
    assert len(capsys.readouterr().out.splitlines()) <= 1


def test_note_is_printed_once_when_audio_files_are_found_by_similar_names(tmp_path, capsys):
    (tmp_path / "wav").mkdir()
    for name in "abc":
        write_tone(tmp_path / "wav" / f"{name}.WAV", 4000, format="WAV")
    (tmp_path / "metadata.csv").write_text("a|One.\nb|Two.\nc|Three.\n")
    assert len(read(tmp_path)[0]) == 3
    [note] = capsys.readouterr().out.splitlines()
    assert note.startswith("note: 3 of 3 ")
    assert "'a'" in note
    assert "wav/a.WAV" in note


@pytest.mark.parametrize("name", ["x" * 300, "語" * 80, "../" * 3000 + "a"])
def test_error_reports_the_line_number_when_the_audio_of_a_line_is_missing(tmp_path, name):
    """The names in this table are too long for file names, as if --path-column selected the texts
    by mistake."""
    (tmp_path / "metadata.csv").write_text(f"{name}|One.\n", encoding="utf-8")
    _, [problem] = read(tmp_path)
    assert problem.startswith(f"{tmp_path}/metadata.csv:1: ")


def test_clips_with_equal_names_in_two_folders_keep_their_texts(tmp_path):
    """Clip 001 of a speaker must not get the text of clip 001 of another speaker."""
    for folder in ("a", "b"):
        (tmp_path / "wavs" / folder).mkdir(parents=True)
        write_tone(tmp_path / "wavs" / folder / "1.wav", 4000)
    metadata = tmp_path / "metadata.csv"
    metadata.write_text("wavs/a/1.wav|One.\nb/1|Two.\n")
    assert read(tmp_path) == ([("wavs/a/1.wav", "One."), ("wavs/b/1.wav", "Two.")], [])
    shutil.rmtree(tmp_path / "wavs" / "b")
    clips, [problem] = read(tmp_path)
    assert clips == [("wavs/a/1.wav", "One.")]
    assert problem.startswith(f"{metadata}:2: ")
    assert "b/1.wav" in problem


def test_error_reports_the_listed_name_when_several_audio_files_match_it(recordings):
    write_tone(recordings / "more/a.wav", 4000)
    table = recordings / "table.csv"
    table.write_text("path,text\na,One.\n")
    _, [problem] = read(recordings, table)
    assert problem.startswith(f"{table}:2: 'a': ")
    assert all(f"{recordings}/{x}/a.wav" in problem for x in ("clips", "more"))
    table.write_text("path,text\nmore\\a.wav,One.\n")
    assert read(recordings, table) == ([("more/a.wav", "One.")], [])


@pytest.mark.parametrize("second", ["b", "clips/b.FLAC", "../corpus/clips/b.flac", "link/b.FLAC"])
def test_error_names_the_audio_file_when_two_lines_list_the_same_file(
    recordings, monkeypatch, second
):
    (recordings / "link").symlink_to("clips")
    (recordings / "table.csv").write_text(f"path,text\nclips/b.FLAC,One.\n{second},One.\n")
    monkeypatch.chdir(recordings.parent)
    clips, [problem] = read_layout(Path("corpus"), Table(Path("corpus/table.csv")))
    assert len(clips) == 1
    assert problem.startswith(f"corpus/table.csv:3: '{second}': ")
    assert "corpus/table.csv:2" in problem


def test_each_segment_of_a_recording_becomes_a_clip(recordings):
    lines = [{"path": "a", "offset": i, "duration": 1, "text": TEXTS[i]} for i in (0, 1, 1)]
    table = recordings / "manifest.json"
    table.write_text("\n".join(map(json.dumps, lines)))
    clips, [problem] = read_layout(recordings, Table(table))
    assert [clip.segment for clip in clips] == [Segment(0, 1), Segment(1, 1)]
    assert problem.startswith(f"{table}:3: 'a': ")
    assert unique_ids(clips, recordings) == ["a-0000000", "a-0001000"]


def test_each_folder_becomes_a_speaker_when_each_folder_has_a_table(tmp_path):
    for name in ("anna", "bert"):
        (tmp_path / name / "wavs").mkdir(parents=True)
        write_tone(tmp_path / name / "wavs" / f"{name}_1.wav", 4000)
        (tmp_path / name / "metadata.csv").write_text(f"{name}_1|Raw.|One.\n")
    assert "--speaker-folders" in refusal(read_layout, tmp_path)
    clips, problems = read_layout(tmp_path, None, SpeakerSource(folders=True))
    assert ([clip.speaker for clip in clips], problems) == (["anna", "bert"], [])


def test_note_lists_unused_audio_files(recordings):
    """The note lists no files that are reported as problems. If a recording is used, the note does
    not list copies of this recording in other formats."""
    (recordings / "clips/a.mp3").touch()
    clips = [Clip(f"{recordings}/more/../clips/a.wav", "One.")]
    note = note_of_unused_audio(clips, [], recordings)
    assert "2 audio files" in note
    assert all(os.path.join(*name) in note for name in (("clips", "b.FLAC"), ("more", "C.wav")))
    problems = [f"{recordings}/more/C.wav: no text next to it"]
    assert "1 audio file " in note_of_unused_audio(clips, problems, recordings)
    clips += [Clip(f"{recordings}/{x}", "") for x in ("clips/b.FLAC", "more/C.wav")]
    assert note_of_unused_audio(clips, [], recordings) is None


@pytest.mark.parametrize("speakers", [SpeakerSource(), SpeakerSource("2")])
def test_error_lists_the_tables_of_the_folder_when_metadata_is_missing(recordings, speakers):
    message = refusal(read_layout, recordings, None, speakers)
    assert "metadata.csv" in message
    assert "--csv FILE" in message
    for name in ("test.tsv", "train.CSV"):
        (recordings / name).write_text("a|One.\n")
    message = refusal(read_layout, recordings, None, speakers)
    assert f"--csv {recordings}/test.tsv or --csv {recordings}/train.CSV" in message


def test_table_is_rejected_when_its_texts_are_names_of_audio_files(recordings):
    lines = "path|text\na|clips/a.wav\nb|clips/b.wav\nC|more/C.wav\n"
    (recordings / "metadata.csv").write_text(lines)
    message = refusal(read, recordings)
    assert message.startswith(f"{recordings / 'metadata.csv'}:")
    assert "3 of 3 texts" in message
    assert "--text-column" in message


@pytest.mark.parametrize(
    "lines",
    [
        "clips/{}.wav|Yes.\n",
        "{} No.\n",
        '{{"audio": "/x/{}.wav", "words": "Yes."}}\n',
        '"{}","No."\n',
    ],
)
@pytest.mark.parametrize("name", ["list.txt", "lists/train.list"])
def test_error_suggests_the_file_that_lists_the_audio_files(name, lines, recordings):
    for path in (*recordings.rglob("*.txt"), *recordings.rglob("*.lab")):
        path.unlink()
    (recordings / name).parent.mkdir(exist_ok=True)
    (recordings / name).write_text("".join(lines.format(x) for x in "abC"))
    # "A" is the name of an audio file, but only one of the five lines contains it.
    (recordings / "notes.txt").write_text("A few\nlines\nof\nshort\nnotes.\n")
    (recordings / "more" / "other.csv").write_text("path,text\nd,No.\n")
    assert f"Add --csv {recordings / name}" in (message := refusal(read, recordings))
    assert "--csv" not in message.partition(f"Add --csv {recordings / name}")[2]


def test_error_lists_all_transcripts_that_whisper_wrote(tmp_path):
    write_prompts(tmp_path, "a.wav", "a.txt", "a.srt", "a.vtt")
    (tmp_path / "a.tsv").write_text("start\tend\ttext\n0\t1500\tOne.\n")
    _, [problem] = read_layout(tmp_path)
    assert all(f"{tmp_path}/a.{x}" in problem for x in ("txt", "srt", "vtt", "tsv"))


def test_table_of_segments_is_rejected_when_its_segments_are_single_words(recordings):
    lines = [f"clips/a.wav,{0.2 * i:.1f},{0.2 * i + 0.2:.1f},word" for i in range(12)]
    (recordings / "metadata.csv").write_text("\n".join(["path,start,end,text", *lines]))
    assert "12 of 12 segments are single words or phones" in refusal(read, recordings)
    lines = [f"clips/a.wav,{0.9 * i:.1f},{0.9 * i + 0.9:.1f},word" for i in range(12)]
    (recordings / "metadata.csv").write_text("\n".join(["path,start,end,text", *lines]))
    read(recordings)  # commands that were recorded one after another are longer


def test_column_path_is_used_when_some_of_its_files_are_missing(tmp_path):
    """In this table, another column lists audio files that all exist."""
    for i in range(10):
        write_tone(tmp_path / f"noisy{i}.wav", 100 + i)
        if i < 6:
            write_tone(tmp_path / f"clean{i}.wav", 200 + i)
    lines = [f"clean{i}.wav,noisy{i}.wav,This is text number {i}.\n" for i in range(10)]
    (tmp_path / "metadata.csv").write_text("path,reference,text\n" + "".join(lines))
    clips, _ = read_layout(tmp_path)
    assert {Path(clip.path).name for clip in clips} == {f"clean{i}.wav" for i in range(10)}


WORDS = ["There was a river.", "It rose in May, again.", "Nobody, in fact, knew why."]


@pytest.mark.parametrize(
    ("line", "header"),
    [
        ("{text}|{path}", ""),
        ("{text}|{name}", ""),
        ("{name} {text}", ""),  # as in Kaldi and LibriSpeech
        ("{path}^{text}", ""),
        ('{path},"{text}"', ""),
        ("{path}|anna|en|{text}", ""),  # as in MeloTTS
        ('anna,{path},"{text}"', "speaker,wav_file,transcript"),
        ('{name},"{text}"', "id,वाक्य"),
        ('{i}1,{path},"{text}",en', "id,file_path,phrase,language"),
        ('{{"id": "x{i}", "file_path": "{path}", "phrase": "{text}"}}', ""),
    ],
)
def test_columns_are_detected_when_one_lists_audio_files_and_one_contains_sentences(
    line, header, recordings, capsys
):
    paths = ["clips/a.wav", "clips/b.FLAC", "more/C.wav"]
    lines = [
        line.format(i=i, path=path, name=Path(path).stem, text=text)
        for i, (path, text) in enumerate(zip(paths, WORDS, strict=True))
    ]
    table = recordings / "list.txt"
    table.write_text("".join(f"{x}\n" for x in ([header] if header else []) + lines))
    clips, problems = read(recordings, table)
    assert clips == list(zip(paths, WORDS, strict=True))
    assert problems == []
    assert "paths are read from column" in capsys.readouterr().out


def test_table_of_text_files_is_read_when_the_files_exist(recordings, capsys):
    """In an earlier version, the program used the names of the text files as texts."""
    for name, text in zip("abC", WORDS, strict=True):
        (recordings / f"{name}.t.txt").write_text(f"{text}\n")
    table = recordings / "metadata.csv"
    table.write_text("clips/a.wav,a.t.txt\nclips/b.FLAC,b.t.txt\nmore/C.wav,C.t.txt\n")
    assert [text for _, text in read(recordings)[0]] == WORDS
    assert "note: the texts are read from 3 text files" in capsys.readouterr().out
    (recordings / "C.t.txt").unlink()
    message = refusal(read, recordings)
    assert message.startswith(
        f"{table}:3: the column with the texts contains the file name 'C.t.txt', but this file does not"
    )


@pytest.mark.parametrize(
    ("header", "advice"),
    [
        ("id,raw,spoken", "Sentences are in columns 'raw', 'spoken'"),
        (
            "name,raw,18_out",
            "Sentences are in columns 'raw', '18_out'. If the line is not a header",
        ),
    ],
)
def test_error_lists_the_columns_when_several_columns_contain_sentences(header, advice, recordings):
    lines = [f'{x},"{text}","{text}"' for x, text in zip("abC", WORDS, strict=True)]
    (recordings / "list.csv").write_text("\n".join([header, *lines]))
    message = refusal(read, recordings, recordings / "list.csv")
    assert advice in message
    assert "--text-column" in message


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        ("አዲስ ቀን ነው።\nሌላ ቀን ነው።\n", "No line contains the name of an audio file"),
        (",,,\n", "unknown format"),
        (",a\nb,c\n,d\n,e\nf,g\n", "unknown format"),
        ("x.wav,Yes.\ny.wav,No, no.\n", "If ',' separates the fields, set it with --delimiter"),
        (
            "Speaker,Start,End,Word\nanna,0.0,0.5,well\nanna,0.5,0.7,yes\n",
            "the columns 'start' and 'end' list segments, but no column lists audio files",
        ),
    ],
)
def test_message_contains_advice_for_the_table_when_no_column_lists_audio_files(
    content, advice, recordings
):
    (recordings / "list.txt").write_text(content)
    message = refusal(read, recordings, recordings / "list.txt")
    assert advice in message
    assert "'።'" not in message


def test_text_is_accepted_when_it_equals_the_name_of_its_audio_file(recordings):
    (recordings / "metadata.csv").write_text("a|A\nb|B\nC|c\n")
    assert read(recordings) == (expected("A", "B", "c"), [])


def test_corpus_folder_is_rejected_when_it_has_no_texts(recordings, tmp_path):
    assert str(tmp_path / "none") in refusal(read, tmp_path / "none")


def test_clip_ids_are_unique_even_when_case_is_ignored(recordings):
    for name in ("clips/x/1.wav", "clips/y/1.WAV", "clips/y/Odd |name.wav", "clips/y/.b.wav"):
        path = recordings / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes((recordings / "clips/a.wav").read_bytes())
        path.with_suffix(".txt").write_text("One.")
    clips, _ = read_layout(recordings, None)
    assert unique_ids(clips, recordings) == ["clips-x-1", "clips-y-1", "Odd_name"]
    assert unique_ids([clips[0], clips[0]], recordings) == ["clips-x-1", "clips-x-1_"]


def test_clip_ids_begin_with_the_speaker_when_speakers_have_equal_file_names():
    """The folder name is added to a clip id only if one speaker has two files with the same name.
    File names stay below 256 bytes."""
    paths = {"c/x/1.wav": "anna", "c/y/1.wav": "anna", "c/z/1.wav": "B t", "c/z/2.wav": "B t"}
    clips = [Clip(path, "", speaker=name) for path, name in paths.items()]
    assert unique_ids(clips, Path("c")) == ["anna-x-1", "anna-y-1", "B_t-1", "2"]
    clips = [Clip(f"c/{name}/1.wav", "", speaker=name * 100) for name in "語言"]
    assert all(len(f"{name}.wav".encode()) <= 255 for name in unique_ids(clips, Path("c")))


def test_note_reports_the_number_of_texts_without_audio(tmp_path, capsys):
    """If an audio file was deleted or is a dangling link, its text must not be ignored without a
    message."""
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.txt").write_text("Yes.")
    soundfile.write(tmp_path / "a.wav", np.zeros(100), 22050)
    (tmp_path / "b.wav").symlink_to("deleted.wav")
    clips, _ = read_layout(tmp_path)
    assert [clip.id for clip in clips] == ["a"]
    [note] = [x for x in capsys.readouterr().out.splitlines() if x.startswith("note: ")]
    assert "2 text files" in note
    assert "b.txt" in note


def test_note_lists_a_line_that_ends_with_a_hyphen_when_a_text_has_several_lines(tmp_path, capsys):
    texts = {"a": "It is compara-\n tively modern.\n", "b": "I went to-\r\nno, stop.\n"}
    for name, text in texts.items():
        write_tone(tmp_path / f"{name}.wav", 100)
        (tmp_path / f"{name}.txt").write_text(text)
    clips, _ = read_layout(tmp_path)
    assert [clip.text for clip in clips] == [
        "It is compara- tively modern.",
        "I went to- no, stop.",
    ]
    note = f"note: {tmp_path}: 2 lines end with a hyphen, such as in 'compara- tively'"
    assert note in capsys.readouterr().out


def test_audio_with_several_transcripts_is_reported_until_a_transcript_is_chosen(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros(100), 22050)
    (tmp_path / "a.txt").write_text("One. Two.")
    (tmp_path / "a.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nOne.\n")
    clips, problems = read_layout(tmp_path)
    assert clips == []
    assert all(name in problems[0] for name in ("a.txt", "a.srt", "--transcripts"))
    [clip], _ = read_layout(tmp_path, texts=TextSource(suffix="srt"))
    assert (clip.text, clip.segment) == ("One.", Segment(0.0, 1.0))
    [clip], _ = read_layout(tmp_path, texts=TextSource(suffix="txt"))
    assert (clip.text, clip.segment) == ("One. Two.", None)


def test_texts_of_a_speaker_are_read_only_from_the_folder_of_this_speaker(tmp_path):
    """In an earlier version, a clip could get the text of another speaker's clip with the same
    name."""
    for speaker in ("p1", "p2"):
        path = tmp_path / "audio" / speaker / "1.wav"
        path.parent.mkdir(parents=True)
        soundfile.write(path, np.zeros(100), 22050)
        text = tmp_path / "texts" / speaker / "1.txt"
        text.parent.mkdir(parents=True)
        text.write_text(f"I am {speaker}.")
    texts = TextSource(tmp_path / "texts")
    clips, _ = read_layout(tmp_path / "audio", None, SpeakerSource(folders=True), texts)
    assert [(clip.speaker, clip.text) for clip in clips] == [("p1", "I am p1."), ("p2", "I am p2.")]
    (tmp_path / "texts" / "p1" / "1.txt").unlink()
    clips, problems = read_layout(tmp_path / "audio", None, SpeakerSource(folders=True), texts)
    assert [clip.speaker for clip in clips] == ["p2"]
    assert str(tmp_path / "audio" / "p1" / "1.wav") in problems[0]


def test_texts_next_to_audio_are_read_in_the_given_encoding(tmp_path):
    """The error about an ambiguous encoding suggests --encoding. In an earlier version, --encoding
    worked only for tables."""
    for name, content in (("a.txt", "Là-bas, déjà."), ("b.SRT", "")):
        soundfile.write(tmp_path / f"{name[0]}.wav", np.zeros(100), 22050)
        srt = "1\n00:00:00,000 --> 00:00:01,000\nÇa va?\n"
        (tmp_path / name).write_bytes((content or srt).encode("cp1252"))
    clips, _ = read_layout(tmp_path, texts=TextSource(encoding="cp1252"))
    assert [clip.text for clip in clips] == ["Là-bas, déjà.", "Ça va?"]


def write_subtitles(path, text):
    path.write_text(f"1\n00:00:00,000 --> 00:00:01,000\n{text}\n")


def test_subtitles_are_found_when_their_file_name_contains_a_language(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros(100), 22050)
    write_subtitles(tmp_path / "a.pt-BR.srt", "Bom dia.")
    [clip] = read_layout(tmp_path)[0]
    assert clip.text == "Bom dia."


def test_subtitles_in_several_languages_are_rejected_until_a_language_is_chosen(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros(100), 22050)
    write_subtitles(tmp_path / "a.en.srt", "Good morning.")
    write_subtitles(tmp_path / "a.nl.srt", "Goedemorgen.")
    clips, [problem] = read_layout(tmp_path)
    assert not clips
    assert "a.en.srt" in problem
    assert "--transcripts en.srt or --transcripts nl.srt" in problem
    [clip] = read_layout(tmp_path, texts=TextSource(suffix="nl.srt"))[0]
    assert clip.text == "Goedemorgen."
    write_subtitles(tmp_path / "a.srt", "Bonjour.")
    [clip] = read_layout(tmp_path, texts=TextSource(suffix="srt"))[0]
    assert clip.text == "Bonjour."


def test_label_file_with_timestamps_is_rejected_and_not_read_as_text(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros(100), 22050)
    (tmp_path / "a.lab").write_text("0 3500000 sil\n3500000 4200000 hh\n")
    with pytest.raises(UserError) as raised:
        read_layout(tmp_path)
    assert str(raised.value).startswith(f"{tmp_path / 'a.lab'}: ")


@pytest.mark.parametrize(
    "text",
    [
        "0:00\nin being\n0:01\ncomparatively modern",
        "0.0,1.2,in being\n1.2,2.4,comparatively",
        "[00:00.00]in being",
        "#\n0.30 121 pau\n0.42 121 dh",
        "SPEAKER_00: in being",
        "1\n00:00:00,000 --> 00:00:01,000\nin being",
    ],
)
def test_text_is_rejected_when_it_contains_timestamps_or_speaker_labels(text, tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros(100), 22050)
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(UserError) as raised:
        read_layout(tmp_path)
    assert str(raised.value).startswith(f"{tmp_path / 'a.txt'}: ")


def test_name_of_the_recording_is_removed_when_all_texts_begin_with_it(tmp_path, capsys):
    for name in ("LJ1-01", "LJ1-02"):
        soundfile.write(tmp_path / f"{name}.wav", np.zeros(100), 22050)
        (tmp_path / f"{name}.txt").write_text(f"{name} In being.")
    clips, _ = read_layout(tmp_path)
    assert [clip.text for clip in clips] == ["In being.", "In being."]
    assert "note:" in capsys.readouterr().out


def test_text_file_is_found_when_its_name_and_the_audio_name_differ_in_unicode_form(tmp_path):
    soundfile.write(tmp_path / "cafe\u0301.wav", np.zeros(100), 22050)
    (tmp_path / "caf\u00e9.txt").write_text("Yes.")
    [clip], _ = read_layout(tmp_path)
    assert clip.text == "Yes."


def test_first_word_of_all_texts_is_kept_when_it_is_the_name_of_a_single_clip(tmp_path):
    for name in ("a", "b"):
        soundfile.write(tmp_path / f"{name}.wav", np.zeros(100), 22050)
        (tmp_path / f"{name}.txt").write_text("a dog.")
    assert [clip.text for clip in read_layout(tmp_path)[0]] == ["a dog.", "a dog."]


@pytest.mark.parametrize(
    "text",
    [
        "0 46797 She had your dark suit.",  # TIMIT
        '( a0001 "Author of the danger trail." )',  # CMU ARCTIC
        "0.0 2.0 hi there",
        "00:00:01 hi there",
        "(0:01) hi there",
        "Speaker 1: Hi there",
        "A spk 0.0 2.0 hi there",
    ],
)
def test_texts_are_rejected_when_most_of_them_begin_with_timestamps_or_speaker_labels(
    text, tmp_path
):
    for name in ("SA1", "SA2"):
        soundfile.write(tmp_path / f"{name}.wav", np.zeros(100), 22050)
        (tmp_path / f"{name}.txt").write_text(text)
    with pytest.raises(UserError) as raised:
        read_layout(tmp_path)
    assert str(raised.value).startswith(f"{tmp_path / 'SA1.txt'}: ")


@pytest.mark.parametrize("name", ["u{}", "00{}"])
def test_name_of_the_recording_is_removed_together_with_the_following_colon(name, tmp_path):
    for number in (1, 2):
        base = name.format(number)
        soundfile.write(tmp_path / f"{base}.wav", np.zeros(100), 22050)
        (tmp_path / f"{base}.txt").write_text(f"{base}: Hi there.")
    assert [clip.text for clip in read_layout(tmp_path)[0]] == ["Hi there.", "Hi there."]


@pytest.mark.parametrize(
    "beginning",
    [
        "u{}.wav ",
        "u{},",
        "s1/u{} ",
        "u{}|",
        "s1/u{}.wav|",
        "[u{}] ",
        '"u{}" ',
        "u{} - ",
        "wavs/U{}.WAV ",
    ],
)
def test_recording_name_is_removed_together_with_its_extension_its_folder_and_the_delimiter(
    beginning, tmp_path, capsys
):
    for number in (1, 2):
        write_prompts(tmp_path, f"s1/u{number}.wav")
        text = f"{beginning.format(number)}Hi there."
        (tmp_path / "s1" / f"u{number}.txt").write_text(text)
    clips, problems = read_layout(tmp_path)
    assert problems == []
    assert [clip.text for clip in clips] == ["Hi there.", "Hi there."]
    assert "note:" in capsys.readouterr().out


@pytest.mark.parametrize("beginning", ["{}.wav ", "{}|", "s1/{} "])
def test_word_at_the_start_is_removed_when_an_extension_pipe_or_folder_marks_it_as_a_file_name(
    beginning, tmp_path
):
    for name in ("hello", "yes"):
        write_prompts(tmp_path, f"s1/{name}.wav")
        (tmp_path / "s1" / f"{name}.txt").write_text(f"{beginning.format(name)}Hi there.")
    assert [clip.text for clip in read_layout(tmp_path)[0]] == ["Hi there.", "Hi there."]


def test_number_at_the_start_of_a_text_is_removed_when_the_file_name_ends_with_this_number(
    tmp_path,
):
    for number in ("0012", "0013"):
        write_prompts(tmp_path, f"anna_{number}.wav")
        (tmp_path / f"anna_{number}.txt").write_text(f"{number} Hi there.")
    assert [clip.text for clip in read_layout(tmp_path)[0]] == ["Hi there.", "Hi there."]


def test_texts_are_kept_when_they_consist_of_the_names_of_their_recordings(tmp_path):
    for name in ("0012", "0013"):
        write_prompts(tmp_path, f"{name}.wav")
        (tmp_path / f"{name}.txt").write_text(name)
    assert [clip.text for clip in read_layout(tmp_path)[0]] == ["0012", "0013"]


@pytest.mark.parametrize(
    "text",
    ["JOHN: Hi.", "text: Hi.", "Mary Ann: Hi.", "- MR. SMITH: Hi.", "ジョン：はい", "0:12: Hi."],
)
@pytest.mark.parametrize("is_table", [False, True])
def test_texts_are_rejected_when_most_of_them_begin_with_a_label(text, is_table, tmp_path):
    for name, spoken in (("a", text), ("b", text), ("c", "He said: go.")):
        write_prompts(tmp_path, f"{name}.wav")
        if is_table:
            add_line(tmp_path, f"{name}|{spoken}")
        else:
            (tmp_path / f"{name}.txt").write_text(spoken)
    message = refusal(read_layout, tmp_path)
    assert message.startswith(str(tmp_path / ("metadata.csv:1" if is_table else "a.txt")))
    assert "2 of 3" in message


def test_texts_are_kept_when_few_of_them_begin_with_a_word_and_a_colon(tmp_path):
    texts = ["Note: this is long.", "Yes.", "Remember: no.", "He said: go."]
    for name, text in zip("abcd", texts, strict=True):
        write_prompts(tmp_path, f"{name}.wav")
        (tmp_path / f"{name}.txt").write_text(text)
    assert [clip.text for clip in read_layout(tmp_path)[0]] == texts


def test_texts_are_found_when_the_text_folder_has_the_same_subfolders_as_the_speaker_folders(
    tmp_path, capsys
):
    write_prompts(
        tmp_path, "wav/s1/c1/a.wav", "wav/s2/c1/a.wav", "txt/s1/c1/a.txt", "txt/s2/c1/a.txt"
    )
    texts = TextSource(folder=tmp_path / "txt")
    message = refusal(read_layout, tmp_path)
    assert (
        f"pass {tmp_path}/wav instead of {tmp_path}, and add --text-folder {tmp_path}/txt "
        in message
    )
    clips, problems = read_layout(tmp_path / "wav", None, SpeakerSource(folders=True), texts)
    assert problems == []
    assert [(x.speaker, x.text) for x in clips] == [
        ("s1", "Text of txt/s1/c1/a.txt."),
        ("s2", "Text of txt/s2/c1/a.txt."),
    ]
    assert "no audio file belongs" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["1 2 3 4", "0.5 is half.", "10:30 is late.", "1914 1918 was war.", "20 000 leagues"]
)
def test_numbers_at_the_start_of_texts_are_kept(text, tmp_path):
    for name in ("SA1", "SA2"):
        soundfile.write(tmp_path / f"{name}.wav", np.zeros(100), 22050)
        (tmp_path / f"{name}.txt").write_text(text)
    assert [clip.text for clip in read_layout(tmp_path)[0]] == [text, text]


def test_several_label_files_are_read_as_segments(tmp_path):
    for name in ("rec1", "rec2"):
        soundfile.write(tmp_path / f"{name}.wav", np.zeros(100), 22050)
        (tmp_path / f"{name}.txt").write_text("0.5\t1.0\tYes.\n1.5\t2.0\tNo.\n")
    clips, problems = read_layout(tmp_path)
    assert problems == []
    assert [clip.segment for clip in clips] == [Segment(0.5, 0.5), Segment(1.5, 0.5)] * 2


def test_first_word_of_a_text_is_kept_when_recordings_are_named_after_words(tmp_path):
    for name in ("hello", "good"):
        soundfile.write(tmp_path / f"{name}.wav", np.zeros(100), 22050)
        (tmp_path / f"{name}.txt").write_text(f"{name} there")
    assert [clip.text for clip in read_layout(tmp_path)[0]] == ["good there", "hello there"]


def test_text_is_reported_when_it_is_the_only_text_that_begins_with_its_recording_name(tmp_path):
    for name, text in (("u1", "u1 hello"), ("u2", "there")):
        soundfile.write(tmp_path / f"{name}.wav", np.zeros(100), 22050)
        (tmp_path / f"{name}.txt").write_text(text)
    [clip], [problem] = read_layout(tmp_path)
    assert clip.text == "there"
    assert str(tmp_path / "u1.txt") in problem


def test_line_without_times_is_reported_when_other_lines_define_segments_of_the_same_file(tmp_path):
    write_prompts(tmp_path, "r.wav", "s.wav")
    lines = [
        {"audio_filepath": "r.wav", "offset": 0.1, "duration": 1, "text": "alpha"},
        {"audio_filepath": "r.wav", "text": "bravo"},
        {"audio_filepath": "s.wav", "text": "charlie"},
    ]
    path = tmp_path / "manifest.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    clips, [problem] = read_layout(tmp_path, Table(path))
    assert [clip.text for clip in clips] == ["alpha", "charlie"]
    assert problem.startswith(f"{path}:2: ")


@pytest.mark.parametrize(
    ("duration", "is_good"),
    [(4, True), (4.3, True), (3.7, True), (4000, True), ("", True), (1.5, False), (16, False)],
)
def test_line_is_reported_when_its_duration_differs_from_the_length_of_the_file(
    duration, is_good, tmp_path
):
    soundfile.write(tmp_path / "r.wav", np.zeros(4 * 16000), 16000)
    line = {"audio_filepath": "r.wav", "text": "Yes.", "duration": duration}
    (tmp_path / "m.jsonl").write_text(json.dumps(line))
    clips, problems = read_layout(tmp_path, Table(tmp_path / "m.jsonl"))
    assert len(clips) == is_good
    assert len(problems) == (not is_good)
    for problem in problems:
        assert problem.startswith(f"{tmp_path / 'm.jsonl'}:1: ")
        assert f"{duration:g} s" in problem
        assert "4.00 s" in problem


def test_audio_file_in_the_folder_of_another_speaker_is_not_used(tmp_path):
    """In an earlier version, a text without a recording was paired with another speaker's audio."""
    write_prompts(tmp_path, "x/001.wav", "x/002.wav")
    (tmp_path / "metadata.csv").write_text("z/001.wav|zz said by z\nx/002.wav|x says\n")
    clips, _ = read_layout(tmp_path)
    missing, found = clips
    assert problem_of_missing(missing)
    assert not problem_of_missing(found)


@pytest.mark.parametrize("is_complete", [True, False])
def test_audio_files_are_found_when_they_were_moved_from_several_folders_to_one_folder(
    is_complete, tmp_path, capsys
):
    names = [f"{i % 3}/c{i}.wav" for i in range(12)]
    write_prompts(tmp_path, *(f"wavs/{name[2:]}" for name in names[: 12 if is_complete else 6]))
    lines = [f"/old/{name}|Text {i}.\n" for i, name in enumerate(names)]
    (tmp_path / "metadata.csv").write_text("".join(lines))
    clips, _ = read_layout(tmp_path)
    missing = [clip for clip in clips if problem_of_missing(clip)]
    assert len(missing) == (0 if is_complete else 12)
    note = "note: 6 missing files have the same names as files in other folders"
    assert (note in capsys.readouterr().out) == (not is_complete)


def test_audio_file_is_found_by_its_last_folder_when_the_corpus_was_moved(tmp_path):
    write_prompts(tmp_path, "x/001.wav", "z/001.wav")
    (tmp_path / "metadata.csv").write_text("/old/z/001.wav|said by z\n/old/x/001.wav|said by x\n")
    assert [Path(clip.path).parent.name for clip in read_layout(tmp_path)[0]] == ["z", "x"]


def write_prompts(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(".wav"):
            soundfile.write(root / path, np.zeros(100), 22050)
        else:
            (root / path).write_text(f"Text of {path}.")


def test_recordings_with_the_same_text_file_become_different_clips(tmp_path):
    write_prompts(tmp_path, "wav/s1/a.wav", "wav/s2/a.wav", "txt/a.txt")
    clips, problems = read_layout(tmp_path / "wav", texts=TextSource(folder=tmp_path / "txt"))
    assert problems == []
    assert len({clip.where for clip in clips}) == 2


def test_text_is_found_when_the_text_folder_has_the_same_subfolders_as_the_corpus(tmp_path):
    write_prompts(tmp_path, "wav/s1/c1/a.wav", "txt/s1/c1/a.txt", "txt/s2/c1/a.txt")
    [clip], _ = read_layout(tmp_path / "wav", texts=TextSource(folder=tmp_path / "txt"))
    assert clip.text == "Text of txt/s1/c1/a.txt."


def test_notes_report_texts_without_audio_and_audio_files_with_the_same_name(tmp_path, capsys):
    write_prompts(tmp_path, "wav/a.wav", "wav/a.flac", "txt/a.txt", "txt/b.txt")
    [clip], _ = read_layout(tmp_path / "wav", texts=TextSource(folder=tmp_path / "txt"))
    printed = capsys.readouterr().out
    assert "no audio file belongs to 1 text file, such as b.txt" in printed
    other = {"a.wav", "a.flac"} - {Path(clip.path).name}
    assert (
        f"ignored 1 audio file, because another audio file has the same name, such as {other.pop()}"
        in printed
    )


@pytest.mark.parametrize(("listed", "has_note"), [("a", True), ("a.mp3", True), ("a.wav", False)])
def test_note_lists_audio_files_with_the_same_name_when_a_table_lists_no_extension(
    listed, has_note, tmp_path, capsys
):
    write_prompts(tmp_path, "wavs/a.wav", "wavs/a.flac", "wavs/b.wav", "wavs/c.flac")
    (tmp_path / "metadata.csv").write_text(f"{listed}|One.\nb|Two.\nc|Three.\n")
    clips, _ = read_layout(tmp_path)
    assert [Path(clip.path).name for clip in clips] == ["a.wav", "b.wav", "c.flac"]
    note = "note: ignored 1 audio file, because another audio file has the same name, such as"
    assert (note in capsys.readouterr().out) == has_note


@pytest.mark.parametrize("column", ["speaker", "speaker_id", "client_id"])
def test_note_names_the_speaker_column_when_it_contains_several_names(column, tmp_path, capsys):
    write_prompts(tmp_path, *(f"wavs/{i}.wav" for i in range(6)))
    table = tmp_path / "metadata.csv"

    def notes(names, speakers=NO_SPEAKERS):
        rows = "".join(f"{i}|Text {i}.|{name}\n" for i, name in enumerate(names))
        table.write_text(f"path|text|{column}\n{rows}")
        clips, problems = read_layout(tmp_path, None, speakers)
        assert len(clips) == 6
        assert problems == []
        lines = capsys.readouterr().out.splitlines()
        return [line for line in lines if "the column" in line]

    [note] = notes("ababab")
    assert note.startswith(f"note: {table}: ")
    assert "2 names" in note
    assert note.endswith(f"add --speaker-column {column}")
    [note] = notes("abcdef")
    assert "--speaker-column" not in note  # the option would be rejected
    assert notes("aaaaaa") == []
    assert notes("ababab", SpeakerSource(column=column)) == []
    assert notes("ababab", SpeakerSource(name="anna")) == []


def test_metadata_jsonl_is_read_when_there_is_no_metadata_csv(recordings):
    lines = [{"file_name": f"{name}", "text": text} for name, text in expected()]
    (recordings / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert read(recordings) == (expected(), [])
    (recordings / "metadata.csv").write_text("a|One.\n")
    assert read(recordings) == ([("clips/a.wav", "One.")], [])


def test_metadata_jsonl_in_speaker_folders_is_read(tmp_path):
    for name in ("anna", "bert"):
        write_prompts(tmp_path, f"{name}/{name}.wav")
        line = json.dumps({"file_name": f"{name}.wav", "text": "One."})
        (tmp_path / name / "metadata.jsonl").write_text(line)
    assert "--speaker-folders" in refusal(read_layout, tmp_path)
    clips, _ = read_layout(tmp_path, None, SpeakerSource(folders=True))
    assert [clip.speaker for clip in clips] == ["anna", "bert"]


@pytest.mark.parametrize("suffix", [".au", ".caf"])
def test_error_names_the_file_and_the_formats_when_a_listed_file_has_an_unsupported_format(
    tmp_path, suffix
):
    path = tmp_path / "wavs" / f"a{suffix}"
    path.parent.mkdir()
    soundfile.write(path, np.zeros(9000), 22050, format=suffix[1:].upper())
    (tmp_path / "metadata.csv").write_text("a|One.\n")
    [clip], _ = read_layout(tmp_path)
    _, [problem] = check_clips([clip], create_hparams())
    assert problem.startswith(f"{path}: ")
    assert "expected WAV" in problem


def test_error_names_both_files_when_the_preferred_file_is_damaged(tmp_path):
    write_prompts(tmp_path, "wavs/a.flac")
    (tmp_path / "wavs" / "a.wav").write_bytes(b"no audio")
    (tmp_path / "metadata.csv").write_text("a|One.\n")
    [clip], _ = read_layout(tmp_path)
    _, [problem] = check_clips([clip], create_hparams())
    assert f"{tmp_path / 'wavs/a.flac'} is not used while a.wav exists" in problem
    assert problem.endswith("Repair or remove a.wav")


def test_whisper_table_is_read_as_segments_when_it_is_next_to_the_audio(tmp_path):
    write_prompts(tmp_path, "a.wav")
    (tmp_path / "a.tsv").write_text("start\tend\ttext\n0\t1500\tOne.\n1500\t3250\tTwo.\n")
    clips, problems = read_layout(tmp_path)
    assert [(clip.text, clip.segment) for clip in clips] == [
        ("One.", Segment(0.0, 1.5)),
        ("Two.", Segment(1.5, 1.75)),
    ]
    assert problems == []
    table = Table(tmp_path / "a.tsv")
    assert "leave out --csv" in refusal(read_layout, tmp_path, table)
    (tmp_path / "a.tsv").write_text("start\tend\ttext\n0.5\t1500\tOne.\n")
    assert refusal(read_layout, tmp_path).startswith(f"{tmp_path / 'a.tsv'}:2: ")


def test_error_names_the_json_file_of_whisper_and_the_expected_format(tmp_path):
    write_prompts(tmp_path, "a.wav")
    (tmp_path / "a.json").write_text('{"text": "One.", "segments": []}')
    message = refusal(read_layout, tmp_path)
    assert f"{tmp_path / 'a.json'} " in message
    assert "--output_format srt" in message
    assert "--csv" not in message


def test_audio_file_is_rejected_when_its_name_contains_a_pipe(tmp_path):
    clip = Clip(str(tmp_path / "a|b.wav"), "A dog.", where="metadata.csv:1")
    assert "Rename the file" in problem_of_text(clip)
    assert problem_of_text(replace(clip, path=str(tmp_path / "a.wav"))) == ""


@pytest.mark.parametrize("suffix", ["txt", "normalized.txt"])
def test_transcripts_option_selects_the_text_when_there_are_also_subtitles(tmp_path, suffix):
    write_prompts(tmp_path, "a.wav", "a.txt", "a.normalized.txt")
    write_subtitles(tmp_path / "a.srt", "Subtitle.")
    [clip], _ = read_layout(tmp_path, texts=TextSource(suffix=suffix))
    assert clip.text == "Text of a.normalized.txt."


def test_transcripts_option_is_rejected_when_no_text_has_this_extension(tmp_path):
    write_prompts(tmp_path, "a.wav", "a.txt")
    with pytest.raises(UserError) as raised:
        read_layout(tmp_path, texts=TextSource(suffix="vtt"))
    assert "--transcripts vtt" in str(raised.value)


@pytest.mark.parametrize(
    "texts", [TextSource(folder=Path("texts")), TextSource(suffix="srt"), TextSource(tier="words")]
)
def test_options_for_text_files_are_rejected_when_there_is_a_table(tmp_path, texts, monkeypatch):
    """In an earlier version, prepare ignored the options for text files."""
    monkeypatch.chdir(tmp_path)
    Path("texts").mkdir()
    write_prompts(tmp_path, "a.wav")
    (tmp_path / "metadata.csv").write_text("a|Yes.\n")
    with pytest.raises(UserError) as raised:
        read_layout(tmp_path, texts=texts)
    assert str(raised.value).startswith(texts.options)


def test_prepare_accepts_an_encoding_when_there_is_no_table(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_program, "prepare", lambda asked: asked)
    parser = prepare_program.make_parser("")
    prepare_program.add_options(parser)
    args = parser.parse_args([str(tmp_path), "--encoding", "cp1252"])
    assert prepare_program.table_of(args) is None
    (tmp_path / "metadata.csv").touch()
    assert prepare_program.table_of(args) == Table(tmp_path / "metadata.csv", encoding="cp1252")


def test_all_lines_are_reported_when_a_file_is_listed_with_different_texts(tmp_path):
    """In an earlier version, the whole recording was paired with the text of the first line."""
    write_prompts(tmp_path, "r.wav", "s.wav")
    rows = ["r.wav,0,1,alpha", "r.wav,1,2,bravo", "r.wav,2,3,charlie", "s.wav,0,9,delta"]
    path = tmp_path / "m.csv"
    path.write_text("\n".join(["path,left,right,text", *rows]))
    clips, problems = read_layout(tmp_path, Table(path))
    assert [clip.text for clip in clips] == ["delta"]
    assert {problem.partition(": ")[0] for problem in problems} == {
        f"{path}:{i}" for i in (2, 3, 4)
    }
    assert all("'offset' and 'duration'" in problem for problem in problems)


def test_only_the_second_line_is_reported_when_a_file_is_listed_twice_with_the_same_text(tmp_path):
    write_prompts(tmp_path, "r.wav")
    (tmp_path / "metadata.csv").write_text("r|alpha\nr|alpha\n")
    clips, [problem] = read_layout(tmp_path)
    assert [clip.text for clip in clips] == ["alpha"]
    assert problem.startswith(f"{tmp_path / 'metadata.csv'}:2: ")


@pytest.mark.parametrize("name", ["a.wav.srt", "a.wav.txt", "a.WAV.SRT"])
def test_text_file_is_found_when_its_name_contains_the_extension_of_the_audio_file(name, tmp_path):
    audio = tmp_path / ("a.WAV" if "WAV" in name else "a.wav")
    soundfile.write(audio, np.zeros(100), 22050, format="WAV")
    if name.endswith("txt"):
        (tmp_path / name).write_text("Hi.")
    else:
        write_subtitles(tmp_path / name, "Hi.")
    [clip], problems = read_layout(tmp_path)
    assert (clip.text, clip.path, problems) == ("Hi.", str(audio), [])


def test_table_in_a_subfolder_is_read_when_it_is_the_only_table(tmp_path, capsys):
    (tmp_path / "train").mkdir()
    write_prompts(tmp_path, "train/a.wav")
    (tmp_path / "train" / "metadata.csv").write_text("file_name,text\na.wav,Hi there.\n")
    clips, problems = read_layout(tmp_path)
    assert [(clip.text, clip.path) for clip in clips] == [
        ("Hi there.", str(tmp_path / "train" / "a.wav"))
    ]
    assert problems == []
    assert str(tmp_path / "train" / "metadata.csv") in capsys.readouterr().out


def test_note_lists_text_files_that_are_not_used(tmp_path, capsys):
    """Some corpora, such as LibriTTS, contain two text files for each recording."""
    write_prompts(tmp_path, "a.wav", "a.txt")
    (tmp_path / "a.normalized.txt").write_text("Five.")
    [clip], _ = read_layout(tmp_path)
    assert clip.text == "Five."
    note = capsys.readouterr().out
    assert str(tmp_path / "a.txt") in note
    assert "--transcripts" in note


def test_text_files_are_rejected_when_they_contain_columns(tmp_path):
    for i in range(6):
        write_prompts(tmp_path, f"a{i}.wav")
        (tmp_path / f"a{i}.txt").write_text(f"utt{i}\tHi there.\n")
    assert str(tmp_path / "a0.txt") in refusal(read_layout, tmp_path)


def test_recording_names_are_removed_when_a_tab_separates_them_from_the_texts(tmp_path):
    for i in range(6):
        write_prompts(tmp_path, f"a{i}.wav")
        (tmp_path / f"a{i}.txt").write_text(f"a{i}\tHi there.\n")
    assert {clip.text for clip in read_layout(tmp_path)[0]} == {"Hi there."}


def test_hidden_files_of_macos_are_ignored(tmp_path, capsys):
    write_prompts(tmp_path, "a.wav", "a.txt")
    (tmp_path / "__MACOSX").mkdir()
    for name in ("._a.wav", "._a.txt", "__MACOSX/._a.wav", "__MACOSX/._a.txt"):
        (tmp_path / name).write_bytes(b"\0\5\x16\7")
    clips, problems = read_layout(tmp_path)
    assert [clip.path for clip in clips] == [str(tmp_path / "a.wav")]
    assert problems == []
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["a.English.srt", "a_en.srt", "a (1).txt"])
def test_error_suggests_a_similar_file_name_when_the_text_of_a_recording_is_missing(name, tmp_path):
    write_prompts(tmp_path, "a.wav")
    write_subtitles(tmp_path / name, "Hi.")
    assert str(tmp_path / name) in refusal(read_layout, tmp_path)
    write_prompts(tmp_path, "b.wav", "b.txt", "ab.wav")
    _, problems = read_layout(tmp_path)
    assert {x.partition(":")[0]: name in x for x in problems} == {
        str(tmp_path / "a.wav"): True,
        str(tmp_path / "ab.wav"): False,
    }


@pytest.mark.parametrize("delimiter", ["|", "\t"])
def test_first_line_is_read_as_a_header_when_it_lists_no_audio_file(recordings, delimiter, capsys):
    lines = [f"{name}{delimiter}{text}\n" for name, text in zip("abC", TEXTS, strict=True)]
    table = recordings / "metadata.csv"
    table.write_text(f"clip name{delimiter}text\n" + "".join(lines))
    assert read(recordings) == (expected(), [])
    assert (
        "paths are read from column 'clip_name', texts from column 'text'"
        in capsys.readouterr().out
    )
    table.write_text(f"clip{delimiter}words\n" + "".join(lines))
    message = refusal(read, recordings)
    assert f"{table}:1: this line contains no name of an audio file" in message
    assert "'clip, words'" in message
    for columns in (("1", "2"), ("clip", "words")):
        assert read(recordings, table, *columns) == (expected(), [])


def test_first_line_is_not_a_header_when_it_lists_a_numbered_recording(recordings):
    (recordings / "metadata.csv").write_text("clip_01|Yes\na|One, or two.\n")
    clips, [problem] = read(recordings)
    assert clips == [("clips/a.wav", "One, or two.")]
    assert "'clip_01': no such audio file" in problem


def test_first_line_is_not_a_header_when_two_of_its_fields_are_equal(recordings):
    """A header has different titles, but a text and its normalized form may be equal."""
    lines = "intro|Good morning|Good morning\na|One, or two.|One, or two.\n"
    (recordings / "metadata.csv").write_text(lines)
    clips, [problem] = read(recordings)
    assert clips == [("clips/a.wav", "One, or two.")]
    assert "'intro': no such audio file" in problem


@pytest.mark.parametrize("text", ["NULL", "nan", "None", "N/A", "TODO", "#NAME?"])
def test_text_is_rejected_when_it_is_a_word_such_as_null_for_a_missing_text(text, tmp_path):
    clip = Clip(str(tmp_path / "a.wav"), text, where="metadata.csv:7")
    assert "metadata.csv:7: " in problem_of_text(clip)
    assert "the text is missing" in problem_of_text(clip)
    assert problem_of_text(replace(clip, text=f"{text}.")) == ""


@pytest.mark.parametrize("text", ["null", "Nan", "none", "NONE", "todo"])
def test_null_and_none_in_ordinary_spelling_are_accepted_as_texts(text, tmp_path):
    assert problem_of_text(Clip(str(tmp_path / "a.wav"), text)) == ""


@pytest.mark.parametrize("suffix", [".ctm", ".rttm", ".phn", ".trans", ".text", ".json", ".docx"])
def test_unsupported_transcript_is_reported_when_it_has_the_same_name_as_an_audio_file(
    suffix, recordings
):
    (recordings / f"clips/a{suffix}").write_text("a 1 0.0 0.3 the")
    message = refusal(read_layout, recordings)
    assert f"{recordings}/clips/a{suffix} has the same name as an audio file" in message
    assert "--csv" not in message
    (recordings / "train.tsv").write_text("")
    assert f"--csv {recordings}/train.tsv" in refusal(read_layout, recordings)


@pytest.mark.parametrize(("found", "missing"), [("text", "wav.scp"), ("wav.scp", "text")])
def test_message_names_the_missing_file_of_a_kaldi_folder(found, missing, recordings):
    (recordings / found).write_text("a One.\n")
    message = f"{recordings}/{missing}: no such file. In Kaldi's format, this file is next to {recordings}/{found}"
    assert message in refusal(read_layout, recordings)


def test_message_says_that_the_corpus_contains_no_audio_files(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"PK")
    message = refusal(read_layout, tmp_path)
    assert f"{tmp_path}: contains no audio files" in message
    assert f"Unpack {tmp_path}/a.zip" in message


def test_second_microphone_of_vctk_is_used_only_if_no_recording_has_the_first(tmp_path):
    write_prompts(tmp_path, "wav/p1/a_mic2.flac", "wav/p1/b_mic2.flac")
    write_prompts(tmp_path, "txt/p1/a.txt", "txt/p1/b.txt")
    texts = TextSource(folder=tmp_path / "txt")
    clips, problems = read_layout(tmp_path / "wav", texts=texts)
    assert [Path(clip.path).name for clip in clips] == ["a_mic2.flac", "b_mic2.flac"]
    assert problems == []
    write_prompts(tmp_path, "wav/p1/b_mic1.flac")
    clips, _ = read_layout(tmp_path / "wav", texts=texts)
    assert [Path(clip.path).name for clip in clips] == ["b_mic1.flac"]
    assert f"Add --text-folder {tmp_path}/txt/p1" in refusal(read_layout, tmp_path)


def test_table_is_rejected_when_most_lines_list_the_same_audio_file(recordings):
    lines = [f"a,Text {i}.,{i}.0,{i}.9\n" for i in range(6)]
    (recordings / "metadata.csv").write_text("path,text,p,q\n" + "".join(lines))
    message = refusal(read_layout, recordings)
    assert "metadata.csv:2: 6 of 6 lines list the same audio file as another line" in message
    assert "'start' and 'end'" in message


def test_missing_file_is_named_with_the_folder_and_extension_of_most_other_files(recordings):
    (recordings / "clips/a.wav").rename(recordings / "clips/a.flac")
    (recordings / "clips/b.FLAC").rename(recordings / "clips/b.flac")
    (recordings / "metadata.csv").write_text("a|Yes.\nb|No.\nd|Why?\n")
    _, [problem] = read(recordings)
    assert f"expected {recordings}/clips/d.flac" in problem


def test_text_is_rejected_when_it_is_too_long_for_training(tmp_path):
    clip = Clip(str(tmp_path / "a.wav"), "Yes. " * 1001, where="metadata.csv:7")
    assert problem_of_text(clip).startswith("metadata.csv:7: text 'Yes. Yes.")
    assert "5,005 characters, expected at most 5,000" in problem_of_text(clip)


@pytest.mark.parametrize("word", ["null", "none", "NONE", "undefined", "no text", "N.A."])
def test_the_word_none_is_rejected_as_the_text_of_several_clips_if_other_texts_are_sentences(word):
    def clips_of(*texts):
        return [Clip(f"{i}.wav", text) for i, text in enumerate(texts)]

    sentences = [
        "It rained all day.",
        "No one came to me.",
        "He paid for all of it.",
        "We left at six.",
    ]
    assert placeholders(clips_of(*sentences, word, word)) == {word}
    assert "the text is missing" in problem_of_text(Clip("a.wav", word), {word})
    assert placeholders(clips_of(*sentences, *[word] * 9)) == {word}
    assert placeholders(clips_of(*sentences, word)) == set()
    assert placeholders(clips_of(*sentences, f"{word}!", f"{word}!")) == set()
    if " " not in word:
        assert placeholders(clips_of("yes", "no", word, word)) == set()
        assert placeholders(clips_of("turn left", "go up", word, word)) == set()


def test_clips_are_rejected_when_several_texts_of_a_corpus_are_none(recordings):
    (recordings / "metadata.csv").write_text("a|none\nb|none\nC|It rained all day.\n")
    clips, _ = read_layout(recordings)
    _, problems = check_clips(clips, create_hparams())
    assert sum("'none' usually means" in problem for problem in problems) == 2


def test_texts_are_read_when_each_audio_file_has_its_own_trans_txt_file(tmp_path):
    for name in ("a", "b"):
        write_tone(tmp_path / f"{name}.wav", 100)
        (tmp_path / f"{name}.trans.txt").write_text(f"It is {name}.")
    assert [clip.text for clip in read_layout(tmp_path)[0]] == ["It is a.", "It is b."]


@pytest.mark.parametrize("suffix", [".wave", ".mp2"])
def test_audio_with_a_rare_extension_is_found(tmp_path, suffix):
    write_tone(tmp_path / "a.wav", 100)
    (tmp_path / "a.wav").rename(tmp_path / f"a{suffix}")
    (tmp_path / "metadata.csv").write_text("a|Yes.\n")
    assert [Path(clip.path).name for clip in read_layout(tmp_path)[0]] == [f"a{suffix}"]


def test_message_about_a_missing_transcript_contains_the_extension_of_the_other_transcripts(
    tmp_path,
):
    for name in ("a", "b", "c"):
        write_tone(tmp_path / f"{name}.wav", 100)
        if name != "c":
            write_subtitles(tmp_path / f"{name}.srt", "Yes.")
    _, problems = read_layout(tmp_path)
    assert problems == [f"{tmp_path}/c.wav: no text file, expected c.srt next to it"]


def test_tier_is_rejected_when_no_audio_file_has_a_textgrid(tmp_path):
    write_tone(tmp_path / "a.wav", 100)
    (tmp_path / "a.txt").write_text("Yes.")
    assert "--tier x: no audio file has a TextGrid" in refusal(
        read_layout, tmp_path, texts=TextSource(tier="x")
    )


def test_error_lists_a_hidden_audio_file_when_there_are_no_other_audio_files(tmp_path):
    write_tone(tmp_path / "a.wav", 100)
    hidden = (tmp_path / "a.wav").rename(tmp_path / ".a.wav")
    assert f"{hidden} is not used" in refusal(read_layout, tmp_path)


def test_arrow_is_not_suggested_as_a_delimiter(tmp_path):
    (tmp_path / "metadata.csv").write_text("a.wav -> Yes.\nb.wav -> No.\n")
    assert "--delimiter" not in refusal(read_layout, tmp_path)
