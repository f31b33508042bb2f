"""corpus/layouts.py: recordings in the layouts that people have."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from corpora import refusal, write_tone

from corpus.clip_table import Clip
from corpus.layouts import Table, read_layout, unique_ids

TEXTS = ["One, or two.", '"Go!" he said: "Now."', "Äpfel; Öl."]


@pytest.fixture
def sounds(tmp_path):
    """corpus/clips/a.wav, b.FLAC and corpus/more/C.wav."""
    corpus = tmp_path / "corpus"
    for name in ("clips/a.wav", "clips/b.FLAC", "more/C.wav"):
        (corpus / name).parent.mkdir(parents=True, exist_ok=True)
        write_tone(corpus / name, 4000)
    return corpus


def read(corpus, *arguments, **options):
    """[(path in the corpus, text)] and problems."""
    table = Table(*arguments, **options) if arguments else None
    clips, problems = read_layout(corpus, table)
    return [(str(Path(x.path).relative_to(corpus)), x.text) for x in clips], problems


def expected(*texts):
    return [*zip(("clips/a.wav", "clips/b.FLAC", "more/C.wav"), texts or TEXTS, strict=True)]


@pytest.mark.parametrize(
    ("lines", "options"),
    [
        ("path,sentence\na.wav,{0}\nb.wav,{1}\nc,{2}\n", {}),
        ("FILE_NAME;x;Text\nclips/a.wav;1;{0}\nclips\\b.FLAC;2;{1}\nmore/C.wav;3;{2}\n", {}),
        ("a|spoken|{0}\nb|spoken|{1}\nc|spoken|{2}\n", {}),
        ("who\tsays\tfrom\nx\t{0}\ta\ny\t{1}\tb\nz\t{2}\tc\n", {"by": ("from", "Says")}),
        ("x\t{0}\ta\ny\t{1}\tb\nz\t{2}\tc\n", {"by": ("3", "2")}),
        ("a:{0}\nb:{1}\nc:{2}\n", {"delimiter": ":", "colons": True}),
    ],
)
def test_tables_are_read_with_any_columns(sounds, lines, options):
    """With a header or without one; paths as they are written, or names in any case."""
    delimiter = next(x for x in "\t|;,:" if x in lines)
    texts = [text.replace(":", "") if options.get("colons") else text for text in TEXTS]
    quoted = texts
    if delimiter in ",;":  # other tables quote nothing
        quoted = ['"' + text.replace('"', '""') + '"' for text in texts]
    table = sounds.parent / "table.csv"
    table.write_text("\ufeff" + lines.format(*quoted).replace("\n", "\r\n"), encoding="utf-8")
    by = options.get("by", ("", ""))
    assert read(sounds, table, *by, options.get("delimiter")) == (expected(*texts), [])


@pytest.mark.parametrize(
    ("keys", "by"),
    [(("audio_filepath", "text"), ()), (("from", "says"), ("from", "Says")), (("who", "said"), ())],
)
def test_tables_may_be_json_lines(sounds, keys, by):
    """As of NeMo, with other keys, and in any order; without usual keys the first and the last."""
    names = ["a.wav", "clips/b.FLAC", "C"]
    lines = [{keys[0]: names[i], "duration": 1.5, keys[1]: TEXTS[i]} for i in range(3)]
    if keys == ("audio_filepath", "text"):
        lines = [{"offset": 0, **line, "lang": "en"} for line in lines]
    if by:
        lines[1] = dict(reversed(lines[1].items()))
    table = sounds / "manifest.jsonl"
    table.write_text("\n\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    assert read(sounds, table, *by) == (expected(), [])


@pytest.mark.parametrize(
    "line",
    ['{"path": "b"', "[1]", "b,Two.", "[" * 100_000],
    ids=["cut short", "a list", "of a CSV", "too deep"],
)
def test_bad_json_lines_are_named(sounds, line):
    table = sounds / "manifest.jsonl"
    table.write_text('{"path": "a", "text": "One."}\n' + line)
    message = refusal(read, sounds, table)
    assert f"{table}:2: {line[:60]!r}: expected a JSON object on each line" in message
    table.write_text('{"path": "a", "text": "One."}\n{"path": {"b": 1}, "text": "Two."}')
    clips, [problem] = read(sounds, table)
    assert clips == [("clips/a.wav", "One.")]
    assert problem.startswith(f"{table}:2: '': no such file")


def test_json_arrays_become_lines_by_the_command(sounds):
    table = sounds / "manifest.json"
    objects = [{"path": name, "text": text} for name, text in zip("abC", TEXTS, strict=True)]
    table.write_text(json.dumps(objects, indent=1, ensure_ascii=False), encoding="utf-8")
    message = refusal(read, sounds, table)
    assert message.startswith(f"{table}: a JSON array, expected lines; write a JSON object on each")
    command = message.partition("on each line: ")[2].replace("python ", f"{sys.executable} ")
    subprocess.run(command, shell=True, check=True)
    assert read(sounds, table) == (expected(), [])
    table.write_text("[Laughing] Yes.|a\n")
    assert read(sounds, table, "2", "1") == ([("clips/a.wav", "[Laughing] Yes.")], [])


def test_texts_may_lie_beside_the_sounds(sounds):
    (sounds / "clips/a.txt").write_text(f" {TEXTS[0]}\n\n")
    (sounds / "clips/b.normalized.txt").write_text(TEXTS[1])
    (sounds / "clips/b.txt").write_text("b")
    (sounds / "more/C.lab").write_text(TEXTS[2], encoding="utf-8")
    assert read(sounds) == (expected(), [])
    (sounds / "more/C.mp3").write_bytes(b"the same, compressed")
    assert read(sounds) == (expected(), [])
    (sounds / "more/C.mp3").unlink()
    (sounds / "more/C.lab").unlink()
    clips, problems = read(sounds)
    assert clips == expected()[:2]
    assert problems == [
        f"{sounds / 'more/C.wav'}: no text beside it, expected C.txt with what it says"
    ]


def test_metadata_names_sounds_anywhere(sounds):
    (sounds / "metadata.csv").write_text("A|One.\nb|Two.\nc|Three.\nd|Four.\n")
    (sounds / "uploads").mkdir()
    (sounds / "uploads" / "a.webm").touch()  # which cannot be read
    clips, [problem] = read(sounds)
    assert clips == expected("One.", "Two.", "Three.")
    assert problem.startswith(f"{sounds / 'metadata.csv'}:4: 'd': no such file, and no sound of")


def test_what_a_table_lacks_is_named(sounds):
    table = sounds / "table.csv"
    table.write_text("path,text\nclips/a.wav,One.\nb\nx,Three.\n")
    clips, problems = read(sounds, table)
    assert clips == [("clips/a.wav", "One.")]
    assert [problem.partition(": ")[0] for problem in problems] == [f"{table}:3", f"{table}:4"]
    assert f"{table} begins with path, text" in refusal(read, sounds, table, "sound")
    assert f"{table} has 2 columns: path, text" in refusal(read, sounds, table, "3")
    (sounds / "more/a.wav").write_bytes(b"")
    table.write_text("path,text\na,One.\n")
    assert "a.wav have that name; write the path" in read(sounds, table)[1][0]
    table.write_text("path,text\nmore\\a.wav,One.\n")  # of Windows
    assert read(sounds, table) == ([("more/a.wav", "One.")], [])
    table.write_text("path,text\nclips/b.FLAC,One.\nB,Two.\n")
    assert f"{table}:3: 'B': " in (problem := read(sounds, table)[1][0])
    assert f"is also in {table}:2; delete one" in problem
    table.write_text("\n")
    assert "empty" in refusal(read, sounds, table)
    table.write_text('path,text\na,"One\n')
    assert read(sounds, table)[1]  # the field goes on to the end


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("path,text\n", "c.wav,Yes, sir, yes.\n"),
        ("path,text,\n", "c.wav,Yes, sir.\n"),
        ("text;path;pace\n", "Yes; sir.;c.wav;2\n"),
        ("a.wav,Go.\nb.wav,No.\n", "c.wav,Yes, sir.\n"),
        ("path\ttext\n", "c.wav\tYes\tsir.\n"),
        ("path|text\n", "c.wav|Yes|sir.\n"),
    ],
)
def test_texts_cut_at_a_delimiter_are_refused(sounds, header, row):
    table = sounds / "table.csv"
    table.write_text(header + row)
    _, [problem] = read(sounds, table)
    number = header.count("\n") + 1
    fields = len(re.split("[,;|\t]", row))
    assert problem.startswith(f"{table}:{number}: {fields} fields, expected ")
    advice = "; quote the text, as in" if "," in header or ";" in header else " out of the text"
    assert advice in problem
    if header.startswith("path,text\n"):  # the advice is right
        table.write_text('path,text\nc.wav,"Yes, sir, yes."\na,"""Go,"" he said.",,\n')
        texts = [("more/C.wav", "Yes, sir, yes."), ("clips/a.wav", '"Go," he said.')]
        assert read(sounds, table) == (texts, [])


def test_texts_that_swallow_lines_are_refused(sounds):
    """A quotation mark at the beginning of a field that no other one closes there."""
    table = sounds / "table.csv"
    table.write_text('path,text\na.wav,"Go on.\nb.wav,"No."\nc.wav,Yes.\n')
    clips, [problem] = read(sounds, table)
    assert clips == [("more/C.wav", "Yes.")]
    assert problem.startswith(f"{table}:2: a quotation mark opens a field that goes on to line 3: ")
    table.write_text('path,text\na.wav,"""Go on."\nb.wav,No.\nc.wav,Yes.\n')
    assert read(sounds, table) == (expected('"Go on.', "No.", "Yes."), [])


def test_a_folder_without_texts_is_refused(sounds, tmp_path):
    assert "3 sounds and no text; expected metadata.csv" in refusal(read, sounds)
    assert "no such folder" in refusal(read, tmp_path / "none")


def test_ids_are_unique_where_case_is_ignored(sounds):
    for name in ("clips/x/1.wav", "clips/y/1.WAV", "clips/y/Odd |name.wav", "clips/y/.b.wav"):
        path = sounds / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes((sounds / "clips/a.wav").read_bytes())
        path.with_suffix(".txt").write_text("One.")
    clips, _ = read_layout(sounds, None)
    assert unique_ids(clips, sounds) == ["clips-x-1", "clips-y-1", "Odd_name"]
    assert unique_ids([clips[0], clips[0]], sounds) == ["clips-x-1", "clips-x-1_"]


def test_ids_of_speakers_begin_with_their_names():
    """Where two have one; with folders only where a speaker has it twice. Names of files are short
    enough for every file system."""
    paths = {"c/x/1.wav": "anna", "c/y/1.wav": "anna", "c/z/1.wav": "B t", "c/z/2.wav": "B t"}
    clips = [Clip(path, "", speaker=name) for path, name in paths.items()]
    assert unique_ids(clips, Path("c")) == ["anna-x-1", "anna-y-1", "B_t-1", "2"]
    clips = [Clip(f"c/{name}/1.wav", "", speaker=name * 100) for name in "語言"]
    assert all(len(f"{name}.wav".encode()) <= 255 for name in unique_ids(clips, Path("c")))
