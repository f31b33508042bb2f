"""Test how text and Markdown files are divided into paragraphs (prose.py and markdown.py)."""

import builtins
import sys
import time
from argparse import Namespace

import pytest
import soundfile
from corpora import refusal
from helpers import synthesize_quickly

import synthesize
from hparams import create_hparams
from tacotron2_voice.markdown import read_markdown
from tacotron2_voice.prose import paragraphs_of
from tacotron2_voice.text.spoken_numbers import ENGLISH
from tacotron2_voice.texts import read_texts

H = create_hparams()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One\ntwo.\n\n\nThree.\n", [(1, "One two."), (5, "Three.")]),
        ("\n  One\r\n\ttwo \r\n \r\nThree", [(2, "One two"), (5, "Three")]),
        ("thir-\nteen well-\nknown", [(1, "thirteen wellknown")]),
        ("Anglo-\nSaxon 1-\n2 a --\nb soft\xad\nly", [(1, "Anglo-Saxon 1- 2 a -- b softly")]),
        ("你好，\n世界\nok", [(1, "你好，世界 ok")]),
        ("한국\n말", [(1, "한국 말")]),
        # texts with page numbers
        ("One\n\n12\n\nTwo.", [(1, "One"), (5, "Two.")]),
        ("One\n\n~ 12 ~\n\nTwo\n\n* 13 *\n\nThree.", [(1, "One"), (5, "Two"), (9, "Three.")]),
        ("it was\n\n- 12 -\n\n\fthe end.", [(1, "it was the end.")]),
        ("It ended.\n\n12\n\n\fThe next.", [(1, "It ended."), (5, "The next.")]),
        ("it was\n12\n\fthe end", [(1, "it was the end")]),
        ("it was\n\f13\nthe end", [(1, "it was the end")]),
        ("thir-\n\n12\n\fteen", [(1, "thirteen")]),
        ("it was\n\fthe end", [(1, "it was the end")]),
        ("It was\n12\nor 13.", [(1, "It was 12 or 13.")]),
        ("One\n\nPage 12 of 30\n\nTwo.", [(1, "One"), (5, "Two.")]),
        ("It\nPage 1\nwas\nPage 2\nlate.", [(1, "It was late.")]),
        ("It was\n12 of 30\npages.", [(1, "It was 12 of 30 pages.")]),
        ("12\n\n13\n", [(1, "12"), (3, "13")]),  # a list of numbers
        ("", []),
        (" \n\f\n", []),
    ],
)
def test_lines_of_a_text_file_are_joined_into_paragraphs(text, expected):
    assert paragraphs_of("a.txt", text).paragraphs == expected


def test_long_paragraph_is_read_in_linear_time():
    began = time.perf_counter()
    [(_, text)] = paragraphs_of("a.txt", "a b-\nc\n" * 100_000).paragraphs
    assert len(text) == 100_000 * len("a bc ") - 1
    assert time.perf_counter() - began < 5


def test_notes_report_how_many_words_were_joined_and_how_many_page_numbers_were_removed():
    notes = paragraphs_of("a.txt", "(thir-\nteen, well-\nknown\n\n12\n\n13\n\nb").notes
    assert notes[0].startswith("a.txt: joined 2 words")
    assert notes[0].endswith("'thirteen', 'wellknown'")
    assert notes[1] == "a.txt: dropped 2 page numbers, lines 5, 7"
    assert paragraphs_of("a.txt", "One\ntwo.").notes == []


def test_numbers_inside_paragraphs_are_page_numbers_only_when_they_count_pages():
    pages = paragraphs_of("a.txt", "It was\n12\nlate. It\n13\nrained.")
    assert [text for _, text in pages.paragraphs] == ["It was late. It rained."]
    [(_, text)], notes = paragraphs_of("a.txt", "He had\n12\napples.")
    assert text == "He had 12 apples."
    assert notes == ["a.txt:2: the line contains only the number 12, which is spoken"]
    [(_, text)], notes = paragraphs_of("a.txt", "Count:\n1\n2\n3\nfour.")
    assert text == "Count: 1 2 3 four."
    assert notes == [
        "a.txt:2: the line contains only the number 1, which is spoken (2 more such lines)"
    ]
    assert paragraphs_of("a.txt", "1\n2\n3").notes == []
    assert paragraphs_of("a.txt", "- 1\n- 2\n- 3").notes == []


@pytest.mark.parametrize("line", ["- 12 -", "Page 12", "12 of 30", "p. 12"])
def test_note_is_printed_when_a_page_number_inside_a_paragraph_is_spoken(line):
    [(_, text)], notes = paragraphs_of("a.txt", f"It was\n{line}\nlate.")
    assert text == f"It was {line} late."
    assert notes == [f"a.txt:2: the line contains only {line!r}, which is spoken"]


MARKDOWN = """---
title: not read
---
# The *first* title

See [the **docs**](https://x.org "t") and ![an image](x.png) `code`
of thir-
teen ~~old~~ &amp; <b>bold</b>.

Under
=====

- one
- [x] two

  more
1. three

> quoted

```python
x = 1
```

| a | b |
|---|---|
| 1 | 2 |

<!-- hidden -->

    indented

[pause 1] last\\
line <https://y.org>
"""


def test_markdown_is_read_as_prose():
    prose = read_markdown("a.md", MARKDOWN)
    assert prose.paragraphs == [
        (4, "The first title"),
        (6, "See the docs and  code of thirteen old & bold."),
        (10, "Under"),
        (13, "one"),
        (14, "two"),
        (16, "more"),
        (17, "three"),
        (19, "quoted"),
        (33, "[pause 1] last line https://y.org"),
    ]
    assert prose.notes == [
        "a.md: joined 1 word at the ends of lines: 'thirteen'",
        "a.md: skipped 1 front matter, 1 image, 2 HTML tags, 2 code blocks, 1 table, 1 HTML block",
    ]


def texts_of(path, **options):
    arguments = {"text": None, "lines": False, "numbers": None, "drop_unknown": False}
    texts, _ = read_texts(Namespace(**arguments | {"text_file": str(path)} | options), H)
    return [(text.name, text.text) for text in texts]


def test_text_file_is_split_into_paragraphs_or_lines(tmp_path, capsys):
    path = tmp_path / "a.txt"
    path.write_text("It was\nthir-\nteen.\n\nThe end.\n")
    assert texts_of(path) == [("0001", "It was thirteen."), ("0005", "The end.")]
    assert f"note: {path}: joined 1 word" in capsys.readouterr().err
    lines = ["It was", "thir-", "teen.", "The end."]
    assert [text for _, text in texts_of(path, lines=True)] == lines
    path.write_text("1\n2\n")
    assert [name for name, _ in texts_of(path, numbers=ENGLISH)] == ["0001", "0002"]


def test_note_suggests_lines_option_when_each_line_of_a_file_is_a_sentence(tmp_path, capsys):
    path = tmp_path / "a.txt"
    path.write_text("One.\nTwo!\nThree?\n")
    assert texts_of(path) == [("0001", "One. Two! Three?")]
    assert "--lines" in capsys.readouterr().err
    path.write_text("One\ntwo.\n")
    texts_of(path)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("options", [{}, {"lines": True}])
def test_note_is_printed_when_each_line_of_a_file_begins_with_a_time(options, tmp_path, capsys):
    path = tmp_path / "a.txt"
    path.write_text("00:01 Hello\n[00:04] there\n1:02:03.5 Anna.\n")
    texts_of(path, **options)
    note = f"note: {path}: 3 lines begin with a time, such as '00:01', which is spoken"
    assert note in capsys.readouterr().err
    path.write_text("00:01 Hello\nthere at 9:00\n10:00 Anna.\n")
    texts_of(path, **options)
    assert "begin with a time" not in capsys.readouterr().err


def test_markdown_parser_is_needed_only_for_markdown_files(tmp_path, monkeypatch):
    path = tmp_path / "a.MD"
    path.write_text("# One\n\nTwo\n")
    assert texts_of(path) == [("0001", "One"), ("0003", "Two")]
    monkeypatch.delitem(sys.modules, "tacotron2_voice.markdown")
    import_module = builtins.__import__

    def without_parser(name, *arguments, **options):
        if name.startswith("markdown_it"):
            raise ModuleNotFoundError("none", name=name)
        return import_module(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_parser)
    message = refusal(texts_of, path)
    assert str(path) in message
    assert '"./tacotron2_voice[markdown]"' in message
    (tmp_path / "a.txt").write_text("One")
    assert texts_of(tmp_path / "a.txt")


@pytest.mark.parametrize(("option", "factor"), [([], 2.5), (["--lines"], 1)])
def test_pause_between_paragraphs_is_longer_than_between_lines(
    option, factor, voices, tmp_path, monkeypatch
):
    synthesize_quickly(monkeypatch.setattr)
    path = tmp_path / "a.txt"
    lengths = []
    for text in ("One.\n", "One.\n\nOne.\n"):
        path.write_text(text)
        wav = tmp_path / "a.wav"
        command = ["--voice", str(voices.fp32[0]), "--text-file", str(path), *option]
        synthesize.main([*command, "--pause", "0.4", "-o", str(wav)])
        lengths.append(soundfile.info(wav).frames)
    rate = soundfile.info(wav).samplerate
    assert lengths[1] - 2 * lengths[0] == round(0.4 * factor * rate)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2*3*4 is *24*, `2*3`", "2*3*4 is 24, 2*3"),
        (r"Write \[pause 1\] or \[speaker anna] here.", "Write pause 1 or speaker anna here."),
        (r"Now [pause 1] wait\[1\] 2\*3.", "Now [pause 1] wait[1] 2*3."),
    ],
)
def test_asterisks_and_tags_after_backslashes_stay_text_in_markdown(text, expected):
    assert read_markdown("a.md", text).paragraphs == [(1, expected)]


def test_markdown_line_breaks_become_spaces_and_a_note_counts_the_images():
    prose = read_markdown("a.md", "Stay here.<br>Next ![a dog](dog.png) one.<BR/>End.\n")
    assert [text for _, text in prose.paragraphs] == ["Stay here. Next  one. End."]
    assert any("1 image" in note for note in prose.notes)


@pytest.mark.parametrize("text", ["---\nText\n---\nMore\n", "---\n\nText\n\n---\n\nMore\n"])
def test_text_after_a_horizontal_rule_is_not_front_matter(text):
    texts = " ".join(text for _, text in read_markdown("a.md", text).paragraphs)
    assert texts == "Text More"


@pytest.mark.parametrize("text", ["---\ntitle: A\n---\nMore\n", "+++\ntitle = 1\n+++\nMore\n"])
def test_front_matter_is_skipped_with_a_note(text):
    prose = read_markdown("a.md", text)
    assert prose.paragraphs == [(4, "More")]
    assert "front matter" in prose.notes[0]


def test_markdown_footnotes_are_skipped_with_a_note():
    text = "One[^1] two.\n\n[^1]: A note.\n    More of it.\n\nThree[^a b].\n"
    prose = read_markdown("a.md", text)
    assert prose.paragraphs == [(1, "One two."), (6, "Three[^a b].")]
    assert "1 footnote" in prose.notes[0]


@pytest.mark.parametrize("ruler", ["=========", "-----", "*****", "~~~~~", "* * *"])
def test_underline_of_a_heading_is_dropped_and_separates_paragraphs(ruler):
    text = f"{ruler}\nMy Summer\n{ruler}\nWe went to sea.\n\n{ruler}\n\nThe end."
    expected = [(2, "My Summer"), (4, "We went to sea."), (6, ruler), (8, "The end.")]
    assert paragraphs_of("a.txt", text) == (expected, [])


def test_markdown_tags_inside_a_line_are_skipped_with_a_note():
    prose = read_markdown("a.md", "Use <T> or List<String><br>here.")
    assert prose.paragraphs == [(1, "Use  or List here.")]
    assert prose.notes == ["a.md: skipped 2 HTML tags"]
