"""Test segments of recordings: subtitles, labels, TextGrids, Kaldi, lhotse, and their padding."""

import gzip
import json
import re

import pytest
from corpora import refusal, write_tone

from corpus.clips import Clip, Segment
from corpus.layouts import read_layout
from corpus.manifests import is_kaldi, read_kaldi, read_lhotse
from corpus.segment_padding import padded
from corpus.segments import are_labels, is_whisper_table, read_segments
from tacotron2_voice.utils.errors import UserError

SRT = "1\n00:00:01,000 --> 00:00:02,500\nGood <i>morning</i>,\nLinda.\n\n2\n00:01:03,000 --> 00:01:04,250\nYes.\n"
VTT = "WEBVTT\n\n00:01.000 --> 00:02.500\n<v Anna>Good morning,\nLinda.\n\n01:03.000 --> 01:04.250\nYes.\n"
LABELS = "1.0\t2.5\tGood morning, Linda.\n\\\t100\t200\n63.0\t64.25\tYes.\n"
TEXTGRID = """File type = "ooTextFile"
Object class = "TextGrid"

0
70
<exists>
{tiers}
"""
TIER = '"IntervalTier"\n"{name}"\n0\n70\n4\n0\n1\n""\n1\n2.5\n"Good morning, Linda."\n2.5\n63\n""\n63\n64.25\n"Yes."'
EXPECTED = [("Good morning, Linda.", Segment(1.0, 1.5)), ("Yes.", Segment(63.0, 1.25))]


def textgrid(*names: str) -> str:
    tiers = "\n".join(TIER.format(name=name) for name in names)
    return TEXTGRID.format(tiers=f"{len(names)}\n{tiers}")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.srt", SRT),
        ("a.vtt", VTT),
        ("a.txt", LABELS),
        ("a.TextGrid", textgrid("sentences")),
    ],
)
def test_segments_are_read_from_every_file_format_with_timestamps(name, content, tmp_path):
    path = tmp_path / name
    path.write_text(content)
    entries = read_segments(path, "a")
    assert [(x.text, x.segment) for x in entries] == EXPECTED
    assert {x.name for x in entries} == {"a"}
    assert entries[1].where == f"{path}: segment 2 at 63.00 s"


def test_textgrid_is_rejected_when_it_has_several_tiers_and_no_tier_is_chosen(tmp_path):
    path = tmp_path / "a.TextGrid"
    path.write_text(textgrid("words", "sentences"))
    with pytest.raises(UserError, match="words, sentences"):
        read_segments(path, "a")
    assert len(read_segments(path, "a", tier="words")) == 2


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a.srt", "not subtitles", "a.srt"),
        ("a.vtt", "", "a.vtt"),
        ("a.txt", "1.0\t2.0\tyes\nno times\n", "a.txt:2"),
        ("a.TextGrid", "nonsense", "a.TextGrid"),
    ],
)
def test_error_reports_the_file_and_line_when_a_file_with_segments_is_malformed(
    name, content, place, tmp_path
):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UserError) as raised:
        read_segments(path, "a")
    assert str(raised.value).startswith(f"{tmp_path / place}")


LONG_TEXTGRID = """File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0
xmax = 4
tiers? <exists>
size = 1
item []:
    item [1]:
        class = "IntervalTier"
        name = "sentences"
        xmin = 0
        xmax = 4
        intervals: size = 2
        intervals [1]:
            xmin = 0
            xmax = 2
            text = "Good morning."
"""
LAST_INTERVAL = """        intervals [2]:
            xmin = 2
            xmax = 4
            text = "Yes."
"""


SHORT = textgrid("sentences")
LAST_SHORT_INTERVAL = '63\n64.25\n"Yes."\n'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize(
    ("start", "end"),
    [
        (LONG_TEXTGRID, LAST_INTERVAL),
        (SHORT.removesuffix(LAST_SHORT_INTERVAL), LAST_SHORT_INTERVAL),
    ],
)
@pytest.mark.parametrize("name", ["a.TextGrid", "a.txt"])
def test_textgrid_is_rejected_when_its_end_is_missing(name, start, end, encoding, tmp_path):
    path = tmp_path / name
    path.write_text(start + end, encoding)
    assert len(read_segments(path, "a")) == 2
    path.write_text(start, encoding)
    with pytest.raises(UserError) as raised:
        read_segments(path, "a")
    assert str(path) in str(raised.value)


def write_kaldi(folder, **files):
    for name, content in files.items():
        (folder / name.replace("wav_scp", "wav.scp")).write_text(content)


def test_kaldi_directory_is_read_with_its_segments_and_speakers(tmp_path):
    write_kaldi(
        tmp_path,
        wav_scp="rec1 /data/one.wav\n",
        text="u1 good morning\nu2 yes\n",
        segments="u2 rec1 63 64.25\nu1 rec1 1.0 2.5\n",
        utt2spk="u1 anna\nu2 bert\n",
    )
    assert is_kaldi(tmp_path)
    assert [(x.name, x.text, x.speaker, x.segment) for x in read_kaldi(tmp_path)] == [
        ("/data/one.wav", "good morning", "anna", Segment(1.0, 1.5)),
        ("/data/one.wav", "yes", "bert", Segment(63.0, 1.25)),
    ]


@pytest.mark.parametrize(
    "segments", ["u1 r 0.5 -1\nu2 r 1.5 -1\n", "u1 r 0.5 -1\nu2 r 1.5 2\n", "u1 r 0 2\nu2 r 1 -1\n"]
)
def test_kaldi_directory_is_rejected_when_a_segment_without_an_end_overlaps_another_segment(
    segments, tmp_path
):
    """In an earlier version, a segment without an end contained the words of all later segments."""
    write_kaldi(
        tmp_path, wav_scp="r r.wav\n", text="u1 one\nu2 two\n", segments=segments, utt2spk=""
    )
    message = refusal(read_kaldi, tmp_path)
    assert message.startswith(f"{tmp_path / 'text'}:1: ")
    assert f"{tmp_path / 'text'}:2" in message


def test_kaldi_segment_ends_with_the_recording_when_it_is_the_last_segment(tmp_path):
    write_kaldi(
        tmp_path, wav_scp="r r.wav\n", text="u1 one\nu2 two\n", segments="u2 r 1.5 -1\nu1 r 0 1\n"
    )
    assert [entry.segment for entry in read_kaldi(tmp_path)] == [Segment(0, 1), Segment(1.5, None)]


def test_note_reports_the_number_of_kaldi_segments_without_a_text(tmp_path, capsys):
    write_kaldi(
        tmp_path, wav_scp="r one.wav\n", text="u1 yes\n", segments="u1 r 0 1\nu2 r 1 2\nu3 r 2 3\n"
    )
    assert len(read_kaldi(tmp_path)) == 1
    note = capsys.readouterr().out
    assert "2 of 3" in note
    assert "u2" in note


def test_kaldi_directory_is_read_when_it_has_no_segments(tmp_path):
    write_kaldi(tmp_path, wav_scp="u1 one.wav\n", text="u1 good morning\n")
    [entry] = read_kaldi(tmp_path)
    assert (entry.name, entry.text, entry.segment) == ("one.wav", "good morning", None)


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ({"wav_scp": "rec1 sox a.flac -t wav - |\n", "text": "rec1 yes\n"}, "wav.scp:1"),
        ({"wav_scp": "rec1 a.wav\n", "text": "rec1 yes\nrec2 no\n"}, "text:2"),
        ({"wav_scp": "r a.wav\n", "text": "\nu yes\n", "segments": "u r 1 x\n"}, "segments:1"),
        ({"wav_scp": "r a.wav\n", "text": "u yes\n", "segments": "v r 1 2\n"}, "text:1"),
        ({"wav_scp": "u a.wav\n", "text": "u yes\nu no\n"}, "text:2"),
        ({"wav_scp": "r a.wav\n", "text": "u yes\n", "segments": "u r 1 2 1\n"}, "segments:1"),
    ],
)
def test_kaldi_directory_is_rejected_when_its_files_are_inconsistent(files, place, tmp_path):
    write_kaldi(tmp_path, **files)
    with pytest.raises(UserError) as raised:
        read_kaldi(tmp_path)
    assert str(raised.value).startswith(f"{tmp_path / place}: ")


def test_lhotse_supervisions_are_read_with_their_recordings(tmp_path):
    recording = {"id": "r1", "sources": [{"type": "file", "channels": [0], "source": "one.wav"}]}
    supervision = {
        "id": "s1",
        "recording_id": "r1",
        "start": 1.0,
        "duration": 1.5,
        "text": "good morning",
        "speaker": "anna",
    }
    for name, value in (("recordings", recording), ("supervisions", supervision)):
        content = gzip.compress(json.dumps(value).encode())
        (tmp_path / f"x_{name}_train.jsonl.gz").write_bytes(content)
    [entry] = read_lhotse(tmp_path / "x_supervisions_train.jsonl.gz")
    assert (entry.name, entry.text, entry.speaker) == ("one.wav", "good morning", "anna")
    assert entry.segment == Segment(1.0, 1.5)


def segments_of(*bounds: tuple[float, float]) -> list[Clip]:
    return [
        Clip(
            "book.wav", "yes", where=f"book.srt: {start:.2f} s", segment=Segment(start, end - start)
        )
        for start, end in bounds
    ]


def test_padding_of_segments_ends_in_the_middle_of_the_gap_between_them():
    clips, problems = padded(segments_of((1.0, 2.0), (2.1, 3.0), (5.0, 6.0)), 0.2)
    bounds = [(x.segment.start, x.segment.start + x.segment.seconds) for x in clips]
    assert bounds == [
        pytest.approx((0.8, 2.05)),
        pytest.approx((2.05, 3.2)),
        pytest.approx((4.8, 6.2)),
    ]
    assert not problems


def test_padding_of_a_segment_never_starts_before_the_recording():
    [clip], _ = padded(segments_of((0.05, 1.0)), 0.2)
    assert clip.segment.start == 0


def test_error_lists_segments_that_overlap():
    clips, problems = padded(segments_of((1.0, 3.0), (2.0, 4.0), (3.98, 5.0)), 0.1)
    assert [x.where for x in clips] == ["book.srt: 3.98 s"]
    first, second = problems
    assert first.startswith("book.srt: 1.00 s: ")
    assert second.startswith("book.srt: 2.00 s: ")
    assert "book.srt: 1.00 s" in second


VTT_OF_TEAMS = """WEBVTT

NOTE by Ann

Scene 1
00:00:01.000 --> 00:00:02.500
<v Anna>Good morning,
Linda.

NOTE
of the editor

5f0c2e/12-0
00:01:03.000 --> 00:01:04.250 align:start
Yes.

NOTE end
"""
ROLLING = """WEBVTT

00:00:01.000 --> 00:00:02.500
Good <00:00:01.500><c>morning</c>

00:00:02.500 --> 00:00:02.510
Good morning

00:00:02.510 --> 00:00:04.000
Good morning
it rains <00:00:03.000><c>now</c>

00:00:04.000 --> 00:00:04.010
it rains now
"""


def texts_of(path, content: str, **options) -> list[str]:
    path.write_text(content, "utf-8")
    return [entry.text for entry in read_segments(path, "a", **options)]


def test_webvtt_identifiers_and_notes_are_not_read_as_text(tmp_path):
    assert texts_of(tmp_path / "a.vtt", VTT_OF_TEAMS) == ["Good morning, Linda.", "Yes."]


def test_lines_that_automatic_captions_repeat_are_removed(tmp_path, capsys):
    assert texts_of(tmp_path / "a.vtt", ROLLING) == ["Good morning", "it rains now"]
    assert "first line of 3 subtitles" in capsys.readouterr().out


@pytest.mark.parametrize("time", ["00:00:03 --> xx", "00:00:03 -->", "3 --> 4"])
def test_error_reports_the_line_number_when_the_times_of_a_subtitle_are_invalid(time, tmp_path):
    content = f"1\n00:00:01,000 --> 00:00:02,000\nOne.\n\n2\n{time}\nTwo.\n"
    with pytest.raises(UserError) as raised:
        texts_of(tmp_path / "a.srt", content)
    assert str(raised.value).startswith(f"{tmp_path / 'a.srt'}:6: ")


@pytest.mark.parametrize(
    "labels",
    [
        "1,0\t2,5\tGood morning.\n3,0\t4,0\tYes.\n",
        "0.5\t0.5\n1.0\t2.5\tGood morning.\n3.0\t4.0\tYes.\n",
        "1.000000 2.500000 Good morning.\n3.000000 4.000000 Yes.\n",
        "1e0\t2.5\tGood morning.\n3.0\t4.0\tYes.\n",
    ],
)
def test_label_files_are_recognized_with_different_number_formats_and_delimiters(labels, tmp_path):
    assert are_labels(labels)
    assert texts_of(tmp_path / "a.txt", labels) == ["Good morning.", "Yes."]


@pytest.mark.parametrize("text", ["One, two.", "1 2 buckle my shoe", "3 o'clock\tand more", ""])
def test_ordinary_text_is_not_recognized_as_a_label_file(text):
    assert not are_labels(text)


@pytest.mark.parametrize(
    "changes", [{"start": None}, {"duration": "abc"}, {"start": float("nan")}, {"duration": -1}]
)
def test_error_reports_the_line_number_when_the_times_of_a_lhotse_supervision_are_invalid(
    changes, tmp_path
):
    recording = {"id": "r1", "sources": [{"type": "file", "source": "one.wav"}]}
    supervision = {"id": "s", "recording_id": "r1", "start": 1.0, "duration": 1.5, "text": "yes"}
    for name, value in (("recordings", recording), ("supervisions", supervision | changes)):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(value))
    with pytest.raises(UserError) as raised:
        read_lhotse(tmp_path / "supervisions.jsonl")
    assert str(raised.value).startswith(f"{tmp_path / 'supervisions.jsonl'}:1: ")


TWO_CHANNELS = [{"type": "file", "channels": [0, 1], "source": "one.wav"}]
SECOND_CHANNEL = [{"type": "file", "channels": [1], "source": "one.wav"}]


@pytest.mark.parametrize(
    "sources",
    [None, ["one.wav"], [{"type": "file"}], [{"type": "url"}], TWO_CHANNELS, SECOND_CHANNEL],
)
def test_error_reports_the_line_number_when_a_lhotse_recording_is_not_a_single_mono_file(
    sources, tmp_path
):
    (tmp_path / "recordings.jsonl").write_text(json.dumps({"id": "r1", "sources": sources}))
    (tmp_path / "supervisions.jsonl").write_text("")
    with pytest.raises(UserError) as raised:
        read_lhotse(tmp_path / "supervisions.jsonl")
    assert str(raised.value).startswith(f"{tmp_path / 'recordings.jsonl'}:1: ")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("text", ["good", "morning"]),
        ("text", {"en": "good"}),
        ("speaker", ["anna"]),
        ("channel", 1),
        ("channel", [0, 1]),
    ],
)
def test_error_reports_the_line_and_value_when_a_lhotse_supervision_is_unsupported(
    field, value, tmp_path
):
    recording = {"id": "r1", "sources": [{"type": "file", "source": "one.wav"}]}
    (tmp_path / "recordings.jsonl").write_text(json.dumps(recording))
    good = {"recording_id": "r1", "start": 0, "duration": 1, "text": "Yes.", "channel": 0}
    lines = [json.dumps(x) for x in (good, good | {field: value})]
    (tmp_path / "supervisions.jsonl").write_text("\n".join(lines))
    message = refusal(read_lhotse, tmp_path / "supervisions.jsonl")
    assert message.startswith(f"{tmp_path / 'supervisions.jsonl'}:2: ")
    assert repr(value) in message


def test_all_segments_are_reported_when_one_segment_contains_all_other_segments():
    clips, problems = padded(segments_of((0.0, 12.0), (2.0, 3.0), (5.0, 8.0)), 0.1)
    assert clips == []  # the times of the long segment may be wrong
    assert len(problems) == 3


def write_srt(path, *cues):
    blocks = []
    for number, (start, end, text) in enumerate(cues, 1):
        times = f"00:00:{start:06.3f} --> 00:00:{end:06.3f}".replace(".", ",")
        blocks.append(f"{number}\n{times}\n{text}\n")
    path.write_text("\n".join(blocks))


def test_subtitles_end_at_the_next_subtitle_when_most_of_them_overlap(tmp_path, capsys):
    write_srt(tmp_path / "a.srt", (0, 4, "one"), (2, 6, "two"), (4, 8, "three"), (7, 8, "four"))
    entries = read_segments(tmp_path / "a.srt", "a")
    assert [x.segment for x in entries] == [
        Segment(0, 2),
        Segment(2, 2),
        Segment(4, 3),
        Segment(7, 1),
    ]
    assert "note:" in capsys.readouterr().out


def test_subtitles_keep_their_times_when_few_of_them_overlap(tmp_path):
    write_srt(tmp_path / "a.srt", (0, 2.5, "one"), (2, 4, "two"), (4, 7, "three"), (7, 8, "four"))
    assert read_segments(tmp_path / "a.srt", "a")[0].segment == Segment(0, 2.5)


def test_warning_is_printed_and_subtitles_are_kept_when_few_lines_are_repeated(tmp_path, capsys):
    cues = [(i, i + 1, f"line {i}") for i in range(9)]
    write_srt(tmp_path / "a.srt", *cues, (9, 10, "line 8\nline 9"))
    assert read_segments(tmp_path / "a.srt", "a")[-1].text == "line 8 line 9"
    assert "warning:" in capsys.readouterr().out


@pytest.mark.parametrize(("start", "end"), [(1.5, 1.5), (1.5, 1.45), (3.0, 1.0)])
def test_segment_is_reported_when_it_does_not_end_after_its_start(start, end):
    clips, [problem] = padded(segments_of((0.0, 1.0), (start, end), (5.0, 8.0)), 0.1)
    assert [x.segment.start for x in clips] == [0.0, 4.9]
    assert problem.startswith(f"book.srt: {start:.2f} s: ")


def test_segments_have_different_locations_when_start_times_are_nearly_equal(tmp_path):
    (tmp_path / "a.txt").write_text("1.000\t1.003\tHm.\n1.004\t3.0\tThe first.\n")
    first, second = read_segments(tmp_path / "a.txt", "a")
    assert first.where != second.where


def test_labels_of_silence_do_not_become_segments_and_a_note_is_printed(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("0\t1\tsil\n1\t2\tYes.\n2\t3\tSPN\n3\t4\t[noise]\n")
    assert [x.text for x in read_segments(tmp_path / "a.txt", "a")] == ["Yes."]
    assert "3 silence labels" in capsys.readouterr().out


def test_text_between_angle_brackets_is_kept_when_it_is_not_a_tag(tmp_path):
    write_srt(tmp_path / "a.srt", (0, 1, '<i>If</i> a < b and <font color="red">c</font> > d.'))
    [entry] = read_segments(tmp_path / "a.srt", "a")
    assert entry.text == "If a < b and c > d."


def test_note_lists_the_voices_of_webvtt_subtitles_when_there_are_several(tmp_path, capsys):
    cue = "00:0{0}.000 --> 00:0{0}.900\n<v {1}>Yes, number {0}.</v>\n\n"
    for names, num_notes in ((("Anna Lee", "Anna Lee"), 0), (("Anna Lee", "Ben"), 1)):
        cues = "".join(cue.format(i, name) for i, name in enumerate(names, 1))
        assert len(texts_of(tmp_path / "a.vtt", f"WEBVTT\n\n{cues}")) == 2
        printed = capsys.readouterr().out
        assert printed.count("note: ") == num_notes
        note = "the subtitles contain 2 voices, such as 'Anna Lee' and 'Ben'"
        assert printed.count(note) == num_notes


def test_warning_counts_the_subtitles_that_contain_a_dialogue(tmp_path, capsys):
    cue = "{0}\n00:00:0{0},000 --> 00:00:0{0},900\n{1}\n\n"
    for text, num_warnings in (("- Who is there?\n- Only me.", 1), ("- Who is there?", 0)):
        cues = cue.format(1, text) + cue.format(2, "It is late.")
        assert len(texts_of(tmp_path / "a.srt", cues)) == 2
        printed = capsys.readouterr().out
        assert printed.count("a.srt: 1 subtitle with several lines that") == num_warnings


def test_note_lists_a_line_that_ends_with_a_hyphen_in_subtitles(tmp_path, capsys):
    text = "1\n00:00:01,000 --> 00:00:02,000\nI was going to-\nno, an Anglo-\nSaxon.\n"
    assert texts_of(tmp_path / "a.srt", text) == ["I was going to- no, an Anglo- Saxon."]
    note = f"note: {tmp_path / 'a.srt'}: 1 line ends with a hyphen, such as in 'to- no,'"
    assert note in capsys.readouterr().out


def test_webvtt_text_is_read_without_tags_and_with_decoded_entities(tmp_path):
    text = "<v Anna>R&amp;B, 5 < 6 and 7 > 3 <00:00:01.500><c.red>now</c></v>"
    (tmp_path / "a.vtt").write_text(f"WEBVTT\n\n00:01.000 --> 00:02.000\n{text}\n")
    [entry] = read_segments(tmp_path / "a.vtt", "a")
    assert entry.text == "R&B, 5 < 6 and 7 > 3 now"


@pytest.mark.parametrize("time", ["00:00:10,9", "00:00:10,90", "00:00:10", "00:10,000"])
def test_error_reports_the_line_number_when_the_time_of_a_subtitle_is_incomplete(time, tmp_path):
    """In an earlier version, `,9` was read as 9 ms. The time `00:10,000` was read as
    hours and minutes."""
    (tmp_path / "a.srt").write_text(f"1\n00:00:01,000 --> {time}\nYes.\n")
    with pytest.raises(UserError) as raised:
        read_segments(tmp_path / "a.srt", "a")
    assert str(raised.value).startswith(f"{tmp_path / 'a.srt'}:2: ")


def test_repeated_subtitle_line_is_kept_when_there_is_a_gap_between_the_subtitles(tmp_path):
    write_srt(tmp_path / "a.srt", (1, 3, "No."), (4, 6, "No."), (7, 10, "No.\nNever again."))
    texts = [x.text for x in read_segments(tmp_path / "a.srt", "a")]
    assert texts == ["No.", "No.", "No. Never again."]


@pytest.mark.parametrize("gap", [0.0, 0.05, 0.3, 2.0])
@pytest.mark.parametrize("rows", [2, 3])
def test_repeated_lines_of_rolling_captions_are_removed_when_subtitles_have_gaps(
    gap, rows, tmp_path
):
    lines = [f"line {i}" for i in range(8)]
    shown = ["\n".join(lines[max(0, i + 1 - rows) : i + 1]) for i in range(8)]
    write_srt(tmp_path / "a.srt", *((3 * i, 3 * i + 3 - gap, x) for i, x in enumerate(shown)))
    assert [x.text for x in read_segments(tmp_path / "a.srt", "a")] == lines


@pytest.mark.parametrize("gap", [0.01, 0.5])
def test_repeated_lines_of_rolling_captions_are_removed_when_each_line_is_briefly_shown_alone(
    gap, tmp_path
):
    cues = []
    for i in range(8):
        before = f"line {i - 1}\n" if i % 3 else ""
        cues.append((3 * i + gap, 3 * i + 2.99, f"{before}line {i}"))
        cues.append((3 * i + 2.99, 3 * i + 3, f"line {i}"))
    write_srt(tmp_path / "a.srt", *cues)
    found = read_segments(tmp_path / "a.srt", "a")
    assert [x.text for x in found] == [f"line {i}" for i in range(8)]


@pytest.mark.parametrize("gap", [0.0, 0.5])
@pytest.mark.parametrize(
    "song",
    [
        ["La la la", "La la la", "La la la", "Hey", "La la la", "La la la"],
        ["La la\nLa la", "La la\nLa la", "La la\nLa la", "La la\nLa la"],
        ["Row, row\nGently", "Merrily\nLife", "Row, row\nGently", "Merrily\nLife"],
        ["No.", "No.", "No.\nNever.", "Yes.", "Yes.", "Go.", "Go on."],
    ],
)
def test_refrains_in_subtitles_are_kept_when_they_are_sung_several_times(gap, song, tmp_path):
    write_srt(tmp_path / "a.srt", *((3 * i, 3 * i + 3 - gap, x) for i, x in enumerate(song)))
    found = read_segments(tmp_path / "a.srt", "a")
    assert [x.text for x in found] == [" ".join(x.split("\n")) for x in song]


def test_html_entities_in_srt_files_are_decoded(tmp_path):
    write_srt(tmp_path / "a.srt", (0, 1, "Tom &amp; Jerry&nbsp;&lt;3 &#39;so&#39;"))
    assert [x.text for x in read_segments(tmp_path / "a.srt", "a")] == ["Tom & Jerry <3 'so'"]


def test_text_is_not_recognized_as_a_label_file_when_it_begins_with_two_decimal_numbers():
    assert not are_labels("1.5 2.5 and 3.5 are numbers.")
    assert are_labels("1.5 2.5 one\n3.5 4.5 two")


def test_error_reports_the_line_number_when_a_label_has_an_infinite_time(tmp_path):
    (tmp_path / "a.txt").write_text("1e400\t2e400\tx\n")
    with pytest.raises(UserError) as raised:
        read_segments(tmp_path / "a.txt", "a")
    assert str(raised.value).startswith(f"{tmp_path / 'a.txt'}:1: ")


def write_cues(path, texts):
    cues = [
        f"{i + 1}\n00:00:{i:02},000 --> 00:00:{i:02},900\n{text}\n" for i, text in enumerate(texts)
    ]
    path.write_text("\n".join(cues))


@pytest.mark.parametrize("is_highlighted", [False, True])
def test_captions_are_rejected_when_most_segments_repeat_the_previous_segment(
    is_highlighted, tmp_path
):
    """Some captions show a sentence word by word, or highlight one word per segment (as Whisper's
    option --highlight_words does)."""
    texts = []
    for sentence in ("the cat sat on the mat.", "we went home at last."):
        words = sentence.split()
        for i, word in enumerate(words):
            highlighted = [*words[:i], f"<u>{word}</u>", *words[i + 1 :]]
            texts.append(" ".join(highlighted if is_highlighted else words[: i + 1]))
    write_cues(tmp_path / "r.srt", texts)
    message = refusal(read_segments, tmp_path / "r.srt", "r")
    assert message.startswith(f"{tmp_path / 'r.srt'}: segment 2 at 1.00 s: 9 of 11 ")


def test_captions_are_read_when_few_segments_repeat_the_previous_segment(tmp_path):
    texts = "Yes. No. No. Oh. Oh. Yes. Yes. The The end. Go. Went. It is. Done.".split()
    write_cues(tmp_path / "r.srt", texts)
    assert [entry.text for entry in read_segments(tmp_path / "r.srt", "r")] == texts


def test_label_file_is_rejected_when_its_labels_are_consecutive_numbers(tmp_path):
    (tmp_path / "r.txt").write_text("0\t1\t1\n1\t2\t2\n2\t3\t3\n")
    assert "1 to 3" in refusal(read_segments, tmp_path / "r.txt", "r")
    (tmp_path / "r.txt").write_text("0\t1\t1\n1\t2\t2\n2\t3\t4\n")
    assert [x.text for x in read_segments(tmp_path / "r.txt", "r")] == ["1", "2", "4"]


# ---------------------------------------------------------------------------- incomplete files

SENTENCES = ["Morning.", "It rained.", "Nobody came.", "We left.", "She slept.", "I sat down."]


def subtitles(form: str) -> str:
    """Return the content of a file in the format `form`, with SENTENCES and their times."""
    templates = {
        ".srt": "{number}\n00:00:0{i},000 --> 00:00:0{i},900\n{text}\n\n",
        ".vtt": "00:0{i}.000 --> 00:0{i}.900\n{text}\n\n",
        ".tsv": "{i}000\t{i}900\t{text}\n",
        ".txt": "{i}.0\t{i}.9\t{text}\n",
    }
    header = {".vtt": "WEBVTT\n\n", ".tsv": "start\tend\ttext\n"}.get(form, "")
    parts = [
        templates[form].format(i=i, number=i + 1, text=text) for i, text in enumerate(SENTENCES)
    ]
    return header + "".join(parts)


@pytest.mark.parametrize("form", [".srt", ".vtt", ".tsv", ".txt"])
def test_file_is_rejected_when_it_is_cut_before_the_last_text(tmp_path, form):
    path = tmp_path / f"a{form}"
    content = subtitles(form)
    times = content.rindex(re.findall(r"[1-9][\d:.,]+[\s>-]+[\d:.,]+", content)[-1])
    for end in range(times + 1, content.index(SENTENCES[-1]) - 3):
        path.write_text(content[:end])
        message = refusal(read_segments, path, "a")
        assert str(path) in message, content[:end][-20:]
        if form in (".srt", ".vtt"):
            assert "the file ends inside the times of a subtitle" in message, content[:end][-20:]


@pytest.mark.parametrize("form", [".srt", ".vtt", ".tsv", ".txt"])
def test_incomplete_file_causes_a_warning_when_it_ends_before_or_inside_a_text(
    tmp_path, capsys, form
):
    path = tmp_path / f"a{form}"
    content = subtitles(form)
    start = content.index(SENTENCES[-1])
    for end in range(start, len(content) + 1):
        path.write_text(content[:end])
        read_segments(path, "a")
        is_cut = end < start + len(SENTENCES[-1])
        assert (f"warning: {path}:" in capsys.readouterr().out) == is_cut, end - start


def test_no_warning_is_printed_when_segments_other_than_the_last_also_have_no_text(
    tmp_path, capsys
):
    for form, unit in ((".txt", ".0"), (".tsv", "000")):
        texts = ["Morning.", "", "It rained.", ""]
        lines = [f"{i}{unit}\t{i + 1}{unit}\t{text}\n" for i, text in enumerate(texts)]
        header = "start\tend\ttext\n" if form == ".tsv" else ""
        found = texts_of(tmp_path / f"a{form}", header + "".join(lines))
        assert found == ["Morning.", "It rained."]
        assert capsys.readouterr().out == ""


@pytest.mark.parametrize("form", [".srt", ".vtt", ".TextGrid", ".tsv"])
@pytest.mark.parametrize("content", ["", "\ufeff\n\n"])
def test_message_says_that_the_file_is_empty(tmp_path, capsys, form, content):
    path = tmp_path / f"a{form}"
    path.write_text(content, encoding="utf-8")
    assert f"{path}: this file is empty" in refusal(read_segments, path, "a")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
def test_whisper_table_is_read_in_any_unicode_encoding(tmp_path, capsys, encoding):
    path = tmp_path / "a.tsv"
    path.write_text(subtitles(".tsv"), encoding=encoding)
    assert is_whisper_table(path)
    assert [entry.text for entry in read_segments(path, "a")] == SENTENCES
    assert capsys.readouterr().out.count("note: ") == ("16" in encoding)


def test_whisper_table_is_rejected_when_its_header_is_missing(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text(subtitles(".tsv").partition("\n")[2])
    assert is_whisper_table(path)
    assert f"{path}:1: " in refusal(read_segments, path, "a")


@pytest.mark.parametrize("time", ["nan", "inf"])
def test_message_contains_the_line_number_of_a_label_when_its_time_is_not_finite(tmp_path, time):
    lines = [f"{i}.5\t{i}.9\tYes." for i in range(3)]
    for number in range(3):
        changed = [*lines[:number], f"{time}\t{number}.9\tYes.", *lines[number + 1 :]]
        (tmp_path / "a.txt").write_text("\n".join(changed))
        write_tone(tmp_path / "a.wav", 100)
        assert f"a.txt:{number + 1}: invalid times {time} to" in refusal(read_layout, tmp_path)


def test_labels_are_read_when_their_times_have_a_plus_sign(tmp_path):
    text = "+0.5\t+0.9\tYes.\n+1.5\t+1.9\tNo.\n"
    write_tone(tmp_path / "a.wav", 100)
    assert texts_of(tmp_path / "a.txt", text) == ["Yes.", "No."]
    assert [clip.text for clip in read_layout(tmp_path)[0]] == ["Yes.", "No."]


def test_binary_textgrid_is_rejected_with_advice(tmp_path):
    (tmp_path / "a.TextGrid").write_bytes(b"ooBinaryFile\x08TextGrid" + bytes(40))
    assert "save the TextGrid as a text file" in refusal(
        read_segments, tmp_path / "a.TextGrid", "a"
    )


@pytest.mark.parametrize("words", [["M", "IH1", "S", "T"], ["well", "the", "river", "rose"]])
@pytest.mark.parametrize("form", ["a.txt", "a.TextGrid"])
def test_segments_are_rejected_when_they_are_the_words_or_phones_of_an_alignment(
    words, form, tmp_path
):
    """In an earlier version, each phone became a clip."""
    lines = [(0.2 * i, 0.2 * i + 0.2, words[i % 4]) for i in range(12)]
    if form == "a.txt":
        content = "".join(f"{start:.1f}\t{end:.1f}\t{word}\n" for start, end, word in lines)
    else:
        intervals = "\n".join(f'{start:.1f}\n{end:.1f}\n"{word}"' for start, end, word in lines)
        tier = f'"IntervalTier"\n"phones"\n0\n2.4\n12\n{intervals}'
        content = (
            f'File type = "ooTextFile"\nObject class = "TextGrid"\n\n0\n2.4\n<exists>\n1\n{tier}\n'
        )
    (tmp_path / form).write_text(content)
    tier = "phones" if form == "a.TextGrid" else ""
    message = refusal(read_segments, tmp_path / form, "a", tier)
    assert message.startswith(
        f"{tmp_path / form}: segment 1 at 0.00 s: 12 of 12 segments are single"
    )
    assert ("--tier" in message) == bool(tier)


@pytest.mark.parametrize(("seconds", "step"), [(0.5, 1.5), (2.0, 2.0)])
def test_segments_of_one_word_are_read_when_they_are_long_or_separated_by_pauses(
    seconds, step, tmp_path
):
    words = ["yes", "no", "stop", "go"] * 3
    lines = [f"{step * i}\t{step * i + seconds}\t{word}\n" for i, word in enumerate(words)]
    (tmp_path / "a.txt").write_text("".join(lines))
    assert [entry.text for entry in read_segments(tmp_path / "a.txt", "a")] == words


@pytest.mark.parametrize(
    ("texts", "are_words"), [(["天气", "很好"], True), (["天气很好", "我们走吧"], False)]
)
def test_short_segments_of_chinese_are_rejected_only_when_they_are_single_words(
    texts, are_words, tmp_path
):
    lines = [f"{0.5 * i}\t{0.5 * i + 0.5}\t{texts[i % 2]}\n" for i in range(12)]
    (tmp_path / "a.txt").write_text("".join(lines))
    if are_words:
        message = refusal(read_segments, tmp_path / "a.txt", "a")
        assert "12 of 12 segments are single words" in message
    else:
        assert [entry.text for entry in read_segments(tmp_path / "a.txt", "a")] == texts * 6
