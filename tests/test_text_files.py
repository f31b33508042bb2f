"""Test how text files are decoded, and which files are rejected (corpus/text_files.py)."""

import gzip
from pathlib import Path

import pytest
from corpora import refusal

from corpus.text_files import check_encoding, check_last_line, decode, read_text
from tacotron2_voice.utils.errors import UserError

LINES = {
    "cp1252": "c{}|“It’s 5 € – no more…”, she said in the café, and we all went home.\n",
    "cp1250": "c{}|Zażółć gęślą jaźń, ależ to śmieszne, że źle się śpi.\n",
    "cp1251": "c{}|Дом и сад, который построил старик, стоит у реки.\n",
    "koi8_r": "c{}|Дом и сад, который построил старик, стоит у реки.\n",
    "gb18030": "c{}|今天天气很好，我们去公园玩吧。\n",
    "cp932": "c{}|私は学生です。これは本です。\n",
}


def table_of(encoding):
    return "".join(LINES[encoding].format(i) for i in range(40))


def test_utf8_file_is_read_without_a_note_when_it_has_a_byte_order_mark(tmp_path, capsys):
    path = tmp_path / "a.csv"
    for mark in ("", "\ufeff"):
        path.write_text(f"{mark}1|Größe ‒ 語言\n", encoding="utf-8")
        assert read_text(path) == "1|Größe ‒ 語言\n"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("encoding", LINES)
def test_text_is_decoded_with_one_note_when_its_encoding_is_unambiguous(tmp_path, capsys, encoding):
    path = tmp_path / "a list.csv"
    text = table_of(encoding)
    path.write_bytes(text.encode(encoding))
    assert read_text(path) == text
    [note] = capsys.readouterr().out.splitlines()
    assert note.startswith(f"note: {path}: ")
    assert encoding in note
    assert text.partition("|")[2][:10] in note  # the note shows some decoded letters


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_utf_16_and_utf_32_are_read_when_all_letters_are_english(tmp_path, encoding):
    path = tmp_path / "a.csv"
    text = "".join(f"c{i}|The old man sat by the river.\n" for i in range(40))
    path.write_bytes(text.encode(encoding))
    assert read_text(path) == text


def test_several_utf_16_files_are_decoded_with_one_note(tmp_path, capsys):
    texts = {tmp_path / f"{i}.txt": f"The old man sat {i} times.\r\n" for i in range(3)}
    assert decode({path: text.encode("utf-16") for path, text in texts.items()}) == texts
    assert capsys.readouterr().out.count("note: ") == 1


def test_utf_16_file_is_rejected_when_it_ends_in_the_middle_of_a_character(tmp_path):
    path = tmp_path / "a.txt"
    assert str(path) in refusal(decode, {path: "Hello.".encode("utf-16")[:-1]})


def test_text_is_rejected_when_its_encoding_is_ambiguous_and_not_set(tmp_path):
    """This Latin-1 text in French could also be in a Baltic encoding."""
    text = "".join(f"c{i}|Où est le château, l'été à la forêt déjà passé ?\n" for i in range(50))
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode("latin-1"))
    message = refusal(read_text, path)
    assert str(path) in message
    assert "--encoding cp1252: " in message
    assert "Où est le château, l'été à la forêt" in message
    assert read_text(path, "cp1252") == text


def test_error_reports_the_line_number_when_a_text_file_is_not_valid_utf8(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("1|Größe, für alle\n2|Über".encode() + b"\xff\n" + "3|Öl, schön\n".encode())
    message = refusal(read_text, path)
    assert f"{path}:2: " in message
    assert "\\xff" in message


def test_error_reports_the_line_number_when_the_chosen_encoding_does_not_fit(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"1|One.\n2|\x81\n")
    assert f"{path}:2: " in refusal(read_text, path, "cp1252")


@pytest.mark.parametrize("kind", ["zip", "gzip", "audio", "zeros"])
def test_file_is_rejected_when_it_is_not_text(tmp_path, kind):
    contents = {
        "zip": b"PK\x03\x04" + bytes(range(256)),
        "gzip": gzip.compress(b"1|One.\n" * 100),
        "audio": b"RIFF" + bytes(range(256)) * 10,
        "zeros": bytes(1000),
    }
    path = tmp_path / "a.csv"
    path.write_bytes(contents[kind])
    assert str(path) in refusal(read_text, path)


def test_encoding_is_detected_from_all_files_of_a_corpus_together(capsys):
    """The encoding of a single short text would be ambiguous."""
    lines = table_of("cp1251").splitlines()
    contents = {Path(f"{i}.txt"): line.encode("cp1251") for i, line in enumerate(lines)}
    contents[Path("utf8.txt")] = "Größe".encode()
    texts = decode(contents)
    assert [*texts.values()] == [*lines, "Größe"]
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_encoding_is_rejected_when_it_is_unknown():
    assert check_encoding("Windows-1252") == "cp1252"
    for name in (
        "klingon",
        "rot13",
        "hex",
        "base64",
        "zlib",
        "bz2",
        "undefined",
        "punycode",
        "idna",
    ):
        with pytest.raises(ValueError, match=name):
            check_encoding(name)
    for name in ("utf-16", "utf-32", "cp932", "hz", "utf-7", "mac_roman"):
        assert check_encoding(name)


def test_text_file_is_reported_when_it_is_missing(tmp_path):
    with pytest.raises(UserError) as caught:
        read_text(tmp_path / "none.csv")
    assert str(tmp_path / "none.csv") in str(caught.value)


def test_several_utf_16_files_are_decoded_when_they_have_no_byte_order_mark(tmp_path):
    texts = {tmp_path / f"{i}.txt": f"Zoë sat {i} times – “no”.\r\n" for i in range(3)}
    for encoding in ("utf-16-le", "utf-16-be"):
        assert decode({path: text.encode(encoding) for path, text in texts.items()}) == texts


def test_german_text_in_windows_1252_is_decoded(tmp_path):
    """With rare encodings such as mac_roman in the list, "ß" would be ambiguous."""
    text = "".join(f"c{i}|Die Straße Nr. {i} ist grün und schön.\n" for i in range(20))
    (tmp_path / "a.csv").write_bytes(text.encode("cp1252"))
    assert read_text(tmp_path / "a.csv") == text


def test_text_is_rejected_when_it_contains_a_zero_byte(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"c1|It rained all day long.\nc2|No one came to us\0.\n")
    assert refusal(read_text, path).startswith(f"{path}:2: contains a zero byte")


@pytest.mark.parametrize(
    ("texts", "is_incomplete"),
    [
        (["It rained."] * 4 + ["No one ca"], True),
        (["It rained."] * 3 + ["No one ca"], False),  # too few other texts
        (["It rained.", "yes"] * 4 + ["No one ca"], False),  # other texts have no punctuation
        (["It rained."] * 4 + ["No one came."], False),
    ],
)
def test_warning_is_printed_when_only_the_last_text_has_no_punctuation(
    texts, is_incomplete, tmp_path, capsys
):
    path = tmp_path / "a.csv"
    content = "\n".join(f"c{i} {text}" for i, text in enumerate(texts))
    check_last_line(path, content, texts)
    printed = capsys.readouterr().out
    assert printed.startswith(f"warning: {path}:{len(texts)}: ") == is_incomplete
    assert bool(printed) == is_incomplete
