"""Test tables with any delimiter, header and column order (corpus/tables.py, table_rows.py, table_columns.py and table_times.py)."""

import json
import lzma
import random
import re
from pathlib import Path

import pytest
from corpora import refusal

from corpus.clips import Segment
from corpus.normalized_texts import share_of_kept_words
from corpus.table_rows import Table, normal_title
from corpus.tables import Entry, read_table
from tacotron2_voice.utils.errors import UserError

LJSPEECH = Path(__file__).parent / "data" / "ljspeech" / "metadata.csv.xz"
TEXTS = ["One, or two of them.", "Nobody knew; it rained.", "He paid for the map."]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "table.csv"


def read(path, text=None, speaker="", **options):
    """Read a table, and return its clips as (name, text) pairs and its problems."""
    if text is not None:
        path.write_text(text, encoding="utf-8")
    entries, problems = read_table(Table(path, **options), speaker)
    return [(entry.name, entry.text) for entry in entries], problems


def rows(line, texts=TEXTS):
    """Return a table with one line per text, in quotation marks if commas or semicolons require
    them."""
    return "".join(line.format(i=i, text=text) + "\n" for i, text in enumerate(texts))


def expected(texts=TEXTS):
    return [(f"c{i}", text) for i, text in enumerate(texts)], []


# ---------------------------------------------------------------------------- table formats


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize(
    "line",
    [
        "c{i}|{text}",
        "c{i}\t{text}",
        'path;text\nc{i};"{text}"',
        'path,text,\nc{i},"{text}",',
    ],
)
def test_table_is_read_with_every_delimiter(path, line, end, mark):
    header, _, line = line.rpartition("\n")
    text = mark + (f"{header}\n" if header else "") + rows(line)
    path.write_bytes(text.replace("\n", end).encode())
    assert read(path) == expected()


@pytest.mark.parametrize(
    "text",
    [
        rows("c{i}|raw|{text}"),
        "id|text\n" + rows("c{i}|{text}"),
        "text\tduration\tpath\n" + rows("{text}\t1.5\tc{i}"),
        "wav_filename,wav_filesize,transcript\n" + rows('c{i},99,"{text}"'),
        "File Name;Normalized Text\n" + rows('c{i};"{text}"'),
        "client_id\tpath\tsentence\tup_votes\n" + rows("x\tc{i}\t{text}\t2"),
    ],
)
def test_columns_are_found_when_they_have_common_titles(path, text):
    assert read(path, text) == expected()


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("who|says|from\n" + rows("x|{text}|c{i}"), {"path_column": "from", "text_column": "Says"}),
        (rows("x|{text}|c{i}|2"), {"path_column": "3", "text_column": "2"}),
        (rows("c{i}:{text}"), {"delimiter": ":"}),
        (rows('c{i};"{text}"'), {"delimiter": ";"}),
        ("file,words\n" + rows('c{i},"{text}"'), {"text_column": "words"}),
        (rows("c{i}|{text}|translated words of it"), {"text_column": "2"}),
    ],
)
def test_columns_are_read_when_the_user_selects_them(path, text, options):
    assert read(path, text, **options) == expected()


def test_table_is_read_when_its_format_is_json_lines(path):
    objects = [
        {"text": text, "duration": 1.5, "audio_filepath": f"c{i}"} for i, text in enumerate(TEXTS)
    ]
    objects[1] = dict(reversed(objects[1].items()))
    assert read(path, "\n\n".join(map(json.dumps, objects))) == expected()


def test_list_of_texts_is_read_when_it_has_the_format_of_festvox(path):
    texts = [*TEXTS, 'She said "yes".']
    lines = [
        f'( c{i} "{text.replace(chr(34), chr(92) + chr(34))}" )' for i, text in enumerate(texts)
    ]
    assert read(path, "\n".join(["; list", *lines, "; end"]) + "\n") == expected(texts)


def test_text_is_not_read_as_json_when_it_begins_with_a_bracket(path):
    assert read(path, "c0|[Laughing] Yes.\n") == ([("c0", "[Laughing] Yes.")], [])
    assert read(path, "[Laughing] Yes.|c0\n", path_column="2", text_column="1")[1] == []


def test_line_breaks_in_quoted_texts_become_spaces(path):
    """Spreadsheet programs can write line breaks inside quoted texts."""
    lines = [f'c{i},"Text number\n{i}."' for i in range(4)]
    entries, problems = read(path, "\n".join(["path,text", *lines]))
    assert entries == [(f"c{i}", f"Text number {i}.") for i in range(4)]
    assert problems == []


def test_line_breaks_in_quoted_texts_become_spaces_when_the_texts_contain_commas(path):
    lines = [f'c{i},en,1,"Well, text\nnumber, {i}."' for i in range(4)]
    entries, problems = read(path, "\n".join(["path,language,part,text", *lines]))
    assert entries == [(f"c{i}", f"Well, text number, {i}.") for i in range(4)]
    assert problems == []


def test_row_of_a_table_is_reported_when_its_quotation_mark_is_not_closed(path):
    _, [problem] = read(path, 'path,text\nc0,"Good morning.\nc1,He said "\nc2,Yes.\n')
    assert problem.startswith(f"{path}:2: ")


@pytest.mark.parametrize("delimiter", "|\t")
def test_quotation_marks_around_a_field_are_removed_when_the_marks_inside_are_doubled(
    path, delimiter
):
    lines = [f'a{delimiter}"""Well,"" he said."', f'b{delimiter}"Well," he said.']
    assert read(path, "\n".join(lines))[0] == [
        ("a", '"Well," he said.'),
        ("b", '"Well," he said.'),
    ]


def test_line_that_contains_only_spaces_is_skipped(path):
    assert read(path, "c0|Yes.\n   \nc1|No.\n") == expected(["Yes.", "No."])


def test_clips_have_the_line_numbers_of_the_file_when_it_has_empty_lines(path):
    path.write_text("\nid|text\n\nc0|One.\nc1|Two.\n")
    entries, _ = read_table(Table(path))
    assert entries == [Entry("c0", "One.", f"{path}:4"), Entry("c1", "Two.", f"{path}:5")]


def test_table_with_id_raw_and_normalized_text_is_read_without_a_note(path, capsys):
    read(path, rows("c{i}|{text}|{text}"))
    assert capsys.readouterr().out == ""


def test_note_lists_the_columns_that_were_assumed(path, capsys):
    read(path, "path;text\n" + rows('c{i};"{text}"'))
    [note] = capsys.readouterr().out.splitlines()
    assert note.startswith(f"note: {path}: ")
    assert all(word in note for word in ("semicolons", "header", "'path'", "'text'"))


@pytest.mark.parametrize(
    ("header", "line", "unused"),
    [
        ("path;text;bt;et\n", "c{i};{text};0.0;1.5", "unused columns: 'bt', 'et'"),
        ("path;duration;text;speaker\n", "c{i};1.5;{text};anna", ""),
        ("path;start;end;text\n", "c{i};0.0;1.5;{text}", ""),
        ("", "c{i}|0.0|1.5|{text}", "unused columns: 2, 3"),
    ],
)
def test_note_lists_the_unused_columns(header, line, unused, path, capsys):
    plain = ("A dog came", "The cat left", "We all sat", "It was late")
    read(path, header + rows(line, plain), text_column="" if header else "4")
    output = capsys.readouterr().out
    assert unused in output
    assert ("unused columns" in output) == bool(unused)


@pytest.mark.parametrize(
    "lines",
    [
        rows('c{i},"{text}"'),
        "no delimiter here\n",
        "The one, and two.\nThe one, or no.\n",
        "c1 One.\nc2 Two.\n",
    ],
)
def test_table_is_rejected_when_no_delimiter_fits(path, lines):
    message = refusal(read, path, lines)
    assert str(path) in message
    assert ("If ',' separates the fields, set it with --delimiter" in message) == ("," in lines)


# ---------------------------------------------------------------------------- ambiguous columns


@pytest.mark.parametrize(
    ("text", "option"),
    [
        # The last column of KSS is an English translation.
        (rows("c{i}|그는 강을 건넜다|그는 강을 건넜다|그는|1.5|{text}"), "--text-column"),
        (rows("c{i}|그는 어제 강을 건넜다.|{text}"), "--text-column"),
        (rows("path|{text}|c{i}|2"), "--text-column"),
        ("path|words\n" + rows("c{i}|{text}"), None),
        ("text|utterance\n" + rows("{text}|c{i}"), None),
        (json.dumps({"who": "a", "said": "b"}), "--path-column"),
        (json.dumps({"path": "a", "said": "b"}), "--text-column"),
    ],
)
def test_table_is_rejected_when_its_columns_are_ambiguous(path, text, option):
    """If `option` is None, the header is not recognized. The table is then not rejected, and the
    header is read as a clip."""
    if option is None:
        entries, _ = read(path, text)
        assert entries[0][0] in ("path", "text")
    else:
        message = refusal(read, path, text)
        assert str(path) in message
        assert option in message


@pytest.mark.parametrize("line", ["c{i}|{text}|{who}", "c{i}|{who}|{text}"])
def test_table_with_three_columns_is_rejected_when_one_column_looks_like_speaker_names(path, line):
    """Speaker names must not be read as texts, and clips of several speakers must not be assigned to
    one speaker."""
    lines = [line.format(i=i, text=f"Text number {i}.", who=f"p{i % 2}") for i in range(20)]
    message = refusal(read, path, "\n".join(lines))
    assert "--text-column" in message
    assert "--speaker-column" in message
    text, speaker = ("2", "3") if line.endswith("{who}") else ("3", "2")
    entries, problems = read_table(Table(path, text_column=text), speaker)
    assert [entry.text for entry in entries] == [f"Text number {i}." for i in range(20)]
    assert [entry.speaker for entry in entries] == ["p0", "p1"] * 10
    assert problems == []


def test_table_with_three_columns_is_rejected_when_the_second_column_contains_speaker_numbers(path):
    """In an earlier version, a short list with many speakers was assigned to one speaker."""
    lines = [f"c{i}|{80 + i % 9}|Text of line {'abcdefghijkl'[i]}." for i in range(12)]
    message = refusal(read, path, "\n".join(lines))
    assert "add --text-column 3 --speaker-column 2. Otherwise, add only --text-column 3" in message
    entries, _ = read_table(Table(path, text_column="3"), "2")
    assert [entry.speaker for entry in entries] == [str(80 + i % 9) for i in range(12)]


def test_texts_are_read_from_the_second_column_when_the_third_column_is_empty(path, capsys):
    assert read(path, rows("c{i}|{text}|")) == expected()
    assert "texts from column 2; unused columns: 3" in capsys.readouterr().out


@pytest.mark.parametrize("third", ["", "NULL"])
def test_table_is_rejected_when_the_third_column_contains_few_texts(path, third):
    lines = [f"c{i}|Text of line {x}.|{third}" for i, x in enumerate("abcdefghijkl")]
    lines[0] = lines[0].removesuffix(third) + "Text of line a."
    assert (
        "11 of 12 lines have no text in column 3. To read the texts from column 2, add "
        in refusal(read, path, "\n".join(lines))
    )


@pytest.mark.parametrize("second", ["0", "a.npy"])
def test_second_column_is_listed_as_unused_when_it_contains_no_words(path, second, capsys):
    read(path, rows(f"c{{i}}|{second}|{{text}}"))
    assert "texts from column 3; unused columns: 2" in capsys.readouterr().out


@pytest.mark.parametrize("second", ["", "raw", "{text}"])
def test_table_with_three_columns_is_read_when_the_second_column_contains_no_speakers(path, second):
    texts = [f"Text number {i}." for i in range(20)]
    assert read(path, rows(f"c{{i}}|{second}|{{text}}", texts)) == expected(texts)


def test_table_is_accepted_when_written_numbers_differ_from_spoken_numbers(path):
    lines = "".join(f"c{i}|{i},234|{'one thousand two hundred' * (i + 1)}\n" for i in range(9))
    assert len(read(path, lines)[0]) == 9


@pytest.mark.parametrize(
    "options",
    [{"path_column": "sound"}, {"path_column": "4"}, {"text_column": "0"}, {"speaker": "who"}],
)
def test_chosen_column_is_rejected_when_the_table_does_not_contain_it(path, options):
    message = refusal(read, path, "path,text,n\n" + rows('c{i},"{text}",2'), **options)
    [(option, value)] = options.items()
    assert f"--{option.partition('_')[0]}-column {value}: " in message
    assert "path, text, n" in message


# ---------------------------------------------------------------------------- bad lines


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("path,text\n", "c.wav,Yes, sir, yes.\n"),
        ("path,text,\n", "c.wav,Yes, sir.\n"),
        ("text;path;pace\n", "Yes; sir.;c.wav;2\n"),
        ("path\ttext\n", "c.wav\tYes\tsir.\n"),
        ("path|text\n", "c.wav|Yes|sir.\n"),
        ("a|Go on.|Go on.\nb|No.|No.\n", "c|Yes.\n"),
        ("a|Go on.\nb|No.\n", "c|Yes.|Yes, sir.\n"),
    ],
)
def test_line_is_reported_when_its_number_of_fields_differs(path, header, row):
    _, [problem] = read(path, header + row)
    assert problem.startswith(f"{path}:{header.count(chr(10)) + 1}: ")
    assert "fields, expected" in problem


def test_error_lists_the_column_titles_when_path_and_text_columns_are_unknown(path):
    path.write_text("Clip,Spoken words\na,Yes.\nb,No.\n")
    message = refusal(read_table, Table(path))
    for part in ("'Clip'", "'Spoken words'", "--path-column", "--text-column"):
        assert part in message
    entries, _ = read_table(Table(path, path_column="Clip", text_column="Spoken words"))
    assert [(entry.name, entry.text) for entry in entries] == [("a", "Yes."), ("b", "No.")]
    path.write_text('{"clip": "a", "words": "Yes."}\n')
    message = refusal(read_table, Table(path))
    for part in ("clip, words", "--path-column and --text-column"):
        assert part in message


def test_commas_inside_quotation_marks_belong_to_the_text(path):
    text = 'path,text\nc0,"Yes, sir, yes."\nc1,"""Go,"" he said.",,\n'
    assert read(path, text) == ([("c0", "Yes, sir, yes."), ("c1", '"Go," he said.')], [])


def test_unclosed_quotation_mark_is_reported_when_the_field_extends_into_the_next_line(path):
    entries, [problem] = read(path, 'path,text\nc0,"Go on.\nc1,"No."\nc2,Yes.\n')
    assert entries == [("c2", "Yes.")]
    assert problem.startswith(f"{path}:2: ")


def test_quotation_mark_belongs_to_the_text_when_the_delimiter_is_a_pipe(path):
    """523 lines of LJSpeech contain exactly one double quotation mark."""
    texts = ['"He said', 'so, they say "and', "then."]
    assert read(path, rows("c{i}|{text}", texts)) == expected(texts)


@pytest.mark.parametrize(
    "line",
    ['{"path": "b"', "[1]", "b,Two."],
    ids=["truncated", "JSON list", "CSV line"],
)
def test_json_line_is_reported_when_it_is_invalid(path, line):
    message = refusal(read, path, '{"path": "a", "text": "One."}\n' + line)
    assert f"{path}:2: " in message


@pytest.mark.parametrize("content", ["\n", "id|text\n", ""])
def test_table_is_rejected_when_it_contains_no_clips(path, content):
    assert str(path) in refusal(read, path, content)


# ---------------------------------------------------------------------------- segments


def test_offset_and_duration_select_a_part_of_the_recording(path):
    """NeMo manifests contain the fields offset and duration. A missing offset means 0."""
    lines = [
        {"audio_filepath": "a", "offset": 1.5, "duration": 2, "text": "One."},
        {"audio_filepath": "a", "offset": 4, "duration": 1, "text": "Two."},
        {"audio_filepath": "b", "duration": 9.5, "text": "Three."},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    entries, problems = read_table(Table(path))
    assert [x.segment for x in entries] == [Segment(1.5, 2.0), Segment(4.0, 1.0), Segment(0.0, 9.5)]
    assert problems == []


def test_line_is_reported_when_it_lacks_an_offset_and_the_recording_has_other_segments(path):
    lines = [
        {"audio_filepath": "a", "offset": 1.5, "duration": 2, "text": "One."},
        {"audio_filepath": "a", "offset": None, "duration": 1, "text": "Two."},
    ]
    entries, [problem] = read(path, "\n".join(map(json.dumps, lines)))
    assert [text for _, text in entries] == ["One."]
    assert problem.startswith(f"{path}:2: ")


def test_times_may_have_decimal_commas_as_in_european_spreadsheets(path):
    path.write_text("file;start;end;text\na;1,5;3,25;Yes.\n")
    [entry], _ = read_table(Table(path))
    assert entry.segment == Segment(1.5, 1.75)


@pytest.mark.parametrize("lost", [5, 6])
def test_table_with_two_lines_per_clip_is_rejected_when_a_line_is_missing(path, lost):
    lines = [line for i in range(8) for line in (f"c{i}\t#1 x{i}", f"\tText number {i}.")]
    del lines[lost]
    with pytest.raises(UserError) as raised:
        read(path, "\n".join(lines), text_column="3")
    assert str(raised.value).startswith(f"{path}:{lost + 1}: ")


@pytest.mark.parametrize("offset", [-1, "x", "nan", "1e"])
def test_offset_is_reported_when_it_is_not_a_number_of_seconds(path, offset):
    line = {"path": "a", "offset": offset, "duration": 2, "text": "One."}
    _, [problem] = read(path, json.dumps(line))
    assert problem.startswith(f"{path}:1: ")


@pytest.mark.parametrize(
    "lines",
    [
        ["0|我喜欢吃苹果|I like eating apples.", "1|今天下雨|It rains today."],
        ["0|Guten Morgen, Linda.|Good day to you.", "1|Es regnet jetzt.|The rain begins."],
        ["0|Good morning.|1.90", "1|It rains now.|1.78"],
        ["0|Good morning.|anna", "1|It rains now.|bert"],
        [f"{i}|Sentence number {i}.|speaker{i}" for i in range(20)],
        ["0|Good morning to you.|2020-01-05", "1|It rains now and here.|2020-01-06"],
    ],
)
def test_table_is_rejected_when_its_last_column_is_not_the_normalized_text(lines, tmp_path):
    """In an earlier version, English translations and durations were read as texts."""
    path = tmp_path / "metadata.csv"
    path.write_text("\n".join(lines), "utf-8")
    with pytest.raises(UserError) as raised:
        read_table(Table(path))
    assert "--text-column" in str(raised.value)


TRANSLATIONS = {
    "nl|de": """\
Het water is warm.|Das Wasser ist warm.
Mijn broer woont in Berlijn.|Mein Bruder wohnt in Berlin.
De man drinkt een glas bier.|Der Mann trinkt ein Glas Bier.
Wij gaan morgen naar de stad.|Wir gehen morgen in die Stadt.
In de winter is het hier koud.|Im Winter ist es hier kalt.
Anna heeft een hond en een kat.|Anna hat einen Hund und eine Katze.
Het boek ligt op de tafel.|Das Buch liegt auf dem Tisch.
Hij was gisteren niet in Hamburg.|Er war gestern nicht in Hamburg.
Dat is een goede vraag.|Das ist eine gute Frage.
Waar is de sleutel van het huis?|Wo ist der Schlüssel des Hauses?""",
    "fr|en": """\
Marie est au restaurant avec Paul.|Marie is at the restaurant with Paul.
Le train pour Paris est en retard.|The train for Paris is late.
La situation est simple.|The situation is simple.
Jean mange une orange.|Jean eats an orange.
Le concert commence dans une minute.|The concert begins in one minute.
La table est dans la cuisine.|The table is in the kitchen.
Il fait froid en Alaska.|It is cold in Alaska.
La police arrive sur la place.|The police arrive on the place.
Nous visitons le village en silence.|We visit the village in silence.
Ce film est excellent.|This film is excellent.""",
    "es|fr": """\
La casa es muy grande.|La maison est très grande.
Pedro come una naranja.|Pedro mange une orange.
El tren de Madrid llega tarde.|Le train de Madrid arrive en retard.
La música es un idioma universal.|La musique est une langue universelle.
Mi hermana vive en la capital.|Ma soeur vit dans la capitale.
Tenemos una mesa para dos.|Nous avons une table pour deux.
La ciudad de Lima es capital de Perú.|La ville de Lima est la capitale du Pérou.
El animal come en el jardín.|L'animal mange dans le jardin.
Es un error de principio.|C'est une erreur de principe.
Ana canta en el coro.|Ana chante dans le choeur.""",
    "pt|es": """\
A casa é muito grande.|La casa es muy grande.
O menino come uma laranja.|El niño come una naranja.
Ela canta uma canção de amor.|Ella canta una canción de amor.
Pedro trabalha de dia e estuda de noite.|Pedro trabaja de día y estudia de noche.
O vinho de Porto é famoso.|El vino de Oporto es famoso.
Quero um copo de água fria.|Quiero un vaso de agua fría.
A vida é um sonho.|La vida es un sueño.
Minha amiga mora em Lisboa.|Mi amiga vive en Lisboa.
O livro está sobre a mesa.|El libro está sobre la mesa.
Eles falam de política e de arte.|Ellos hablan de política y de arte.""",
    "da|no": """\
Jeg bor i en lille by.|Jeg bor i en liten by.
Han læser en bog om historie.|Han leser en bok om historie.
Det er koldt i dag.|Det er kaldt i dag.
Vi skal mødes i morgen.|Vi skal møtes i morgen.
Hun har to børn og en hund.|Hun har to barn og en hund.
Hvad hedder du?|Hva heter du?
Toget kører klokken otte.|Toget går klokken åtte.
De har købt et nyt hus.|De har kjøpt et nytt hus.
Min bror arbejder i Oslo.|Broren min arbeider i Oslo.
Kan du hjælpe mig med at finde vejen?|Kan du hjelpe meg med å finne veien?""",
}


@pytest.mark.parametrize("languages", TRANSLATIONS)
def test_table_is_rejected_when_its_last_column_is_a_translation_into_a_related_language(
    path, languages
):
    lines = TRANSLATIONS[languages].splitlines()
    path.write_text("".join(f"{i}|{line}\n" for i, line in enumerate(lines)), "utf-8")
    with pytest.raises(UserError) as raised:
        read_table(Table(path))
    assert "--text-column" in str(raised.value)
    entries, _ = read_table(Table(path, text_column="2"))
    assert entries[0].text == lines[0].partition("|")[0]


def test_normalized_texts_of_ljspeech_are_accepted_in_random_samples():
    content = lzma.decompress(LJSPEECH.read_bytes()).decode()
    pairs = [tuple(line.split("|")[1:]) for line in content.splitlines()]
    assert len(pairs) == 13_100
    generator = random.Random(0)
    samples = [generator.sample(pairs, 10 + i % 20) for i in range(1000)]
    assert min(map(share_of_kept_words, samples)) > 0.95


@pytest.mark.parametrize(
    "lines",
    [
        ["Am 3. Mai kam z. B. Dr. Braun.|am dritten mai kam zum beispiel doktor braun"],
        ["我有3个苹果。|我有三个苹果。", "今天很好。|今天很好"],
        ["ฉันมี 3 แอปเปิ้ล|ฉันมีสามแอปเปิ้ล"],
        ["ذهب الولد إلى المدرسة.|ذَهَبَ الوَلَدُ إِلَى المَدْرَسَةِ"],
        ["IT COST $5 ON MAY 2.|it cost five dollars on may second"],
    ],
)
def test_table_is_read_when_its_last_column_is_the_normalized_text(path, lines):
    path.write_text("".join(f"{i}|{line}\n" for i, line in enumerate(lines)), "utf-8")
    entries, _ = read_table(Table(path))
    assert entries[0].text == lines[0].partition("|")[2]


@pytest.mark.parametrize(
    ("titles", "times"),
    [
        ("start end", "1.5 3.5"),
        ("start_time end_time", "1.5 3.5"),
        ("startTime endTime", "1.5 3.5"),
        ("begin end duration", "1.5 3.5 99"),
        ("start duration", "1.5 2"),
        ("offset duration", "1.5 2"),
    ],
)
def test_table_defines_segments_when_its_columns_contain_start_and_end_times(
    tmp_path, titles, times
):
    path = tmp_path / "segments.tsv"
    path.write_text(
        "\n".join("\t".join(x.split()) for x in (f"file {titles} text", f"a {times} Yes."))
    )
    [entry], _ = read_table(Table(path))
    assert entry.segment == Segment(1.5, 2.0)


@pytest.mark.parametrize(
    "titles",
    [
        "onset offset",
        "offset",
        "start",
        "end",
        "start_ms end_ms",
        "offset end",
        "start stop",
        "from to",
        "tmin tmax",
        "segment_start segment_end",
        "t0 t1",
        "t_start t_end",
        "vad_start vad_end",
        "trim_start trim_end",
        "word_start word_end",
        "s_time e_time",
        "cut_from cut_to",
        "s e",
        "beg fin",
        "debut fin",
        "début fin",
        "inicio fin",
        "Anfang Ende",
        "von bis",
        "tstart tend",
        "cutFrom cutTo",
        "seg_start_sec seg_end_sec",
        "clip_start clip_dur",
        "t_s t_e",
    ],
)
def test_table_is_rejected_when_the_meaning_of_its_times_is_unclear(tmp_path, titles):
    """In an earlier version, each text was paired with the whole recording."""
    path = tmp_path / "segments.tsv"
    rows = (f"file {titles} text", f"a {' '.join('12'[: len(titles.split())])} Yes.")
    path.write_text("\n".join("\t".join(x.split()) for x in rows))
    with pytest.raises(UserError) as raised:
        read_table(Table(path))
    assert repr(normal_title(titles.split()[0])) in str(raised.value)


def test_line_is_reported_when_one_of_its_two_times_is_missing(tmp_path):
    path = tmp_path / "segments.tsv"
    path.write_text("file\tstart\tend\ttext\na\t1\t\tYes.\nb\t1\t2\tNo.\n")
    _, [problem] = read_table(Table(path))
    assert problem.startswith(f"{path}:2: ")


def test_error_does_not_suggest_quotation_marks_when_the_table_cannot_contain_them(tmp_path):
    path = tmp_path / "transcript.txt"
    path.write_text("a:At 12:30.\nb:Yes.\nc:No.\n")
    _, [problem] = read_table(Table(path, delimiter=":"))
    assert problem.startswith(f"{path}:1: ")
    assert "quote" not in problem


def test_line_is_reported_when_its_offset_has_no_duration(path):
    lines = [
        {"audio_filepath": "a", "offset": 4, "text": "Yes."},
        {"audio_filepath": "a", "offset": 1, "duration": 2, "text": "No."},
    ]
    _, [problem] = read(path, "\n".join(map(json.dumps, lines)))
    assert problem.startswith(f"{path}:1: ")


def test_line_is_reported_when_its_text_is_not_valid_unicode(path):
    _, [problem] = read(path, '{"path": "a", "text": "x \\ud800 y"}')
    assert problem.startswith(f"{path}:1: ")


def test_column_is_not_read_as_times_when_it_contains_no_numbers(tmp_path):
    path = tmp_path / "table.tsv"
    path.write_text("file\tfrom\tending\ttext\na\tBerlin\tgood\tYes.\nb\tRome\tbad\tNo.\n")
    entries, problems = read_table(Table(path))
    assert [x.segment for x in entries] == [None, None]
    assert problems == []


def test_tabs_are_the_delimiter_when_one_column_contains_pipes(tmp_path):
    """FLEURS has a column whose characters are separated by pipes."""
    path = tmp_path / "train.tsv"
    path.write_text("1\ta.wav\tYes.\ty e s | .\n2\tb.wav\tNo no.\tn o | n o | .\n")
    entries, _ = read_table(Table(path, path_column="2", text_column="3"))
    assert [(x.name, x.text) for x in entries] == [("a.wav", "Yes."), ("b.wav", "No no.")]


@pytest.mark.parametrize("start", ["1e400", "9" * 400])
def test_line_is_reported_when_a_time_is_too_large(path, start):
    _, [problem] = read(path, f'{{"path": "a", "start": "{start}", "end": "5", "text": "Yes."}}')
    assert problem.startswith(f"{path}:1: ")


def test_json_table_is_rejected_when_a_line_is_nested_too_deeply(path):
    path.write_text('{"path": ' + "[" * 200_000)
    with pytest.raises(UserError) as raised:
        read_table(Table(path))
    assert str(raised.value).startswith(f"{path}:1: ")


@pytest.mark.parametrize(
    "titles",
    [
        "start_date birth_from",
        "begin_year pitch_from",
        "start end",
        "year_from year_to",
        "char_start char_end",
        "snr_mean snr_end",
    ],
)
def test_columns_are_not_read_as_times_when_column_titles_or_values_have_another_meaning(
    tmp_path, titles
):
    values = "yes no" if titles == "start end" else "1990 2020"
    rows = (f"file {titles} text", f"a {values} Yes.")
    path = tmp_path / "table.tsv"
    path.write_text("\n".join("\t".join(x.split()) for x in rows))
    [entry], problems = read_table(Table(path))
    assert entry.segment is None
    assert problems == []


# ---------------------------------------------------------------------------- unusual forms


@pytest.mark.parametrize("delimiter", ["|", "\t", ","])
@pytest.mark.parametrize("header", ["", "path{0}text\n", '"path"{0}"text"\n'])
def test_quotation_marks_are_removed_when_all_fields_are_quoted(path, delimiter, header, capsys):
    if delimiter == "," and not header:
        return  # a table with commas needs a header
    quoted = [text.replace('"', '""') for text in [*TEXTS, 'He said "no" twice.']]
    table = header.format(delimiter) + rows(f'"c{{i}}"{delimiter}"{{text}}"', quoted)
    assert read(path, table) == expected([*TEXTS, 'He said "no" twice.'])
    assert ("removed the quotation marks" in capsys.readouterr().out) == (delimiter != ",")


def test_quotation_marks_are_kept_when_only_the_texts_are_quoted(path):
    assert read(path, rows('c{i}|"{text}"')) == expected([f'"{text}"' for text in TEXTS])


@pytest.mark.parametrize("indent", [None, 1])
def test_json_array_of_objects_is_read(path, indent):
    array = [{"audio_filepath": f"c{i}", "text": text} for i, text in enumerate(TEXTS)]
    assert read(path, json.dumps(array, indent=indent)) == expected()
    entries, _ = read_table(Table(path))
    assert [entry.where for entry in entries] == [f"{path}: object {i}" for i in (1, 2, 3)]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"data": [{"path": "c0", "text": "Yes."}]}, "one JSON object with the keys 'data'"),
        ([["c0", "Yes."]], 'element 1 of the array, ["c0", "Yes."], is not'),
        ([{"path": "c0", "text": "Yes."}, "c1"], 'element 2 of the array, "c1", is not'),
    ],
)
def test_json_that_lists_no_recordings_is_rejected(path, value, message):
    found = refusal(read, path, json.dumps(value, indent=1))
    assert message in found
    assert "--delimiter" not in found


def test_last_line_is_reported_when_it_is_cut_before_the_delimiter(path):
    clips, [problem] = read(path, rows("c{i}|{text}") + "c3")
    assert clips == expected()[0]
    assert f"{path}:4: 1 fields" in problem


@pytest.mark.parametrize("line", ["sep=;", '"sep=;"', "SEP=;"])
def test_delimiter_is_read_from_the_first_line_when_excel_wrote_the_table(path, line, capsys):
    text = f"{line}\r\npath;text\r\n{rows('c{i};' + chr(34) + '{text}' + chr(34))}"
    assert read(path, text) == expected()
    assert f"note: {path}: the first line sets the delimiter ';'\n" in capsys.readouterr().out
    entries, _ = read_table(Table(path))
    assert entries[0].where == f"{path}:3"


def test_field_is_read_when_it_is_longer_than_the_default_limit_of_python(path):
    texts = [*TEXTS, "Yes. " * 30_000 + "No."]
    for form in ("c{i}|{text}", "c{i}\t{text}"):
        assert read(path, rows(form, texts)) == expected(texts)


def test_tabs_separate_the_fields_when_pipes_occur_inside_a_field(path):
    """The tables of FLEURS contain the characters of each text, with pipes between the words."""
    line = "{i}\tc{i}\t{text}\tn o | o n e\t30400\tFEMALE"
    columns = {"path_column": "2", "text_column": "3"}
    assert read(path, rows(line), **columns) == expected()
    assert read(path, rows("c{i}\t|{text}")) == expected()
    assert read(path, rows("c{i} | {text}\t")) == expected()


def test_table_with_commas_is_read_when_the_columns_are_selected_by_number(path):
    texts = ["One of them.", "It rained.", "He paid."]
    columns = {"path_column": "2", "text_column": "3"}
    path.write_text("a,b,c\n" + rows("{i},c{i},{text}", texts))
    table = Table(path, **columns)
    entries, problems = read_table(
        table, is_audio=lambda name: name.startswith("c") and name != "c"
    )
    assert ([(x.name, x.text) for x in entries], problems) == expected(texts)
    assert read(path, rows("{i},c{i},{text}", texts), **columns) == expected(texts)
    assert "unknown format" in refusal(read, path, rows("{i},c{i},{text}", texts))
    with_commas = rows("{i}\tc{i}\t{text}", ["No, one.", "Yes, two.", "Oh, three."])
    assert read(path, with_commas, **columns)[0][0] == ("c0", "No, one.")


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ({"id": 1, "data": {"audio": "c0.wav"}, "annotations": []}, "data"),
        ({"row_idx": 0, "row": {"audio": "c0.wav", "text": "Yes."}}, "row"),
        ({"data": [{"path": "c0.wav", "text": "Yes."}]}, "data"),
        ({"c0.wav": {"text": "Yes."}}, "c0.wav"),
    ],
)
def test_json_table_is_rejected_when_its_values_are_nested(path, value, key):
    message = refusal(read, path, json.dumps(value) + "\n")
    assert message.startswith(f"{path}:1: the value of {key!r} is an object or a list")
    assert "--path-column" not in message


def test_error_suggests_columns_when_a_json_object_contains_plain_and_nested_values(path):
    value = {"source": "c0.wav", "target": "Yes.", "more": {"a": 1}}
    assert "the keys 'source', 'target' contain" in refusal(read, path, json.dumps(value))
    columns = {"path_column": "source", "text_column": "target"}
    assert read(path, json.dumps(value), **columns)[0] == [("c0.wav", "Yes.")]
    usual = {"path": "c0.wav", "text": "Yes.", "words": [1, 2]}
    assert read(path, json.dumps(usual))[0] == [("c0.wav", "Yes.")]


def test_numbers_next_to_their_words_are_not_speakers_when_a_number_has_two_forms(path):
    words = ["zero", "one", "two", "oh", "one.", "two"]
    lines = [f"c{i}|{i % 3}|{word}\n" for i, word in enumerate(words)]
    assert read(path, "".join(lines)) == ([(f"c{i}", word) for i, word in enumerate(words)], [])


def test_numbers_next_to_their_words_cause_no_note(path, capsys):
    numbers = {
        "7": "Seven.",
        "1,200": "One thousand two hundred.",
        "-3.5": "Minus three point five.",
    }
    read(path, "".join(f"c{i}|{x}|{y}\n" for i, (x, y) in enumerate(numbers.items())))
    assert capsys.readouterr().out == ""


def test_text_column_is_not_guessed_when_an_unused_column_may_contain_speakers(path):
    """Otherwise, the user may overlook that all clips are assigned to one speaker."""
    texts = [f"This is text number {i}." for i in range(12)]
    names = ["anna", "ben"] * 6
    lines = [
        f"c{i}|{name}|en|{text}" for i, (name, text) in enumerate(zip(names, texts, strict=True))
    ]
    path.write_text("\n".join(lines) + "\n")

    def is_audio(name):
        return re.fullmatch(r"c\d+", name) is not None

    message = refusal(read_table, Table(path), is_audio=is_audio)
    assert "Sentences are in column 4" in message
    entries, _ = read_table(Table(path), "2", is_audio)
    assert [(entry.speaker, entry.text) for entry in entries] == [*zip(names, texts, strict=True)]
