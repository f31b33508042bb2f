"""Test the search for texts that are not completely spoken (corpus/spoken_texts.py)."""

import re
from pathlib import Path

import pytest
from corpora import add_line, refusal, write_tone

from corpus.clips import Clip
from corpus.layouts import read_layout
from corpus.prepare import Preparation, prepare
from corpus.spoken_texts import check_are_spoken, check_repeated_words, words_of
from corpus.text_search import TextSource
from tacotron2_voice.text.spoken_numbers import draw_numbers, sentence_of

SENTENCES = [
    "The cat sat on the mat.",
    "The dog lay by the door.",
    "I went home at last.",
    "The rain fell all day.",
    "We saw a ship at sea.",
    "The sun was high and hot.",
    "I know that song well.",
    "The road was long and dark.",
    "Some birds flew over us.",
    "The end came too soon.",
    "All our friends had gone.",
    "The wind blew from the north.",
]


def clips_of(texts, name="clip{}", speaker=""):
    return [
        Clip(f"wavs/{name.format(i)}.wav", text, where=f"m.csv:{i}", speaker=speaker)
        for i, text in enumerate(texts, 1)
    ]


def each(form):
    return [form.format(i=i, text=text) for i, text in enumerate(SENTENCES)]


@pytest.mark.parametrize(
    "form",
    [
        "0:{i:02d} {text}",
        "{i}.25 {text}",
        "{text} 3.25",
        "M1,{text},0.5,2.3",
        "M1,{text},0.5,2.3,1.8",
        "{i}. {text}",
        "({i}) {text}",
        "#{i} {text}",
        "[{i}] {text}",
        "{i}- {text}",
        "S{i} {text}",
        "0{i}_ {text}",
        "{text} (0.{i})",
        "NOAH. {text}",
        "{i}/12 {text}",
        "{text} {i}",
        "{text} ({i})",
        "{i}.0s {text}",
        "{text} 2.3s",
        "{text} [u{i:03d}]",
        "{text} [00:{i:02d}]",
        "{text} (0:01 - 0:{i})",
        "{text} (take {i})",
        "{text} (p. {i})",
        "{text} - {i}",
        "{text} #{i}",
        "[SPEAKER_0{i}]: {text}",
        "4188{i}",
        "10{i:02d} {text}",
    ],
)
def test_texts_are_rejected_when_most_of_them_contain_timestamps_numbering_or_columns(form):
    message = refusal(check_are_spoken, clips_of(each(form)))
    assert message.startswith("m.csv:1: ")
    assert "12 of 12" in message


@pytest.mark.parametrize(
    "form",
    [
        "<p>{text}</p>",
        "<html><body>{text}</body></html>",
        '<div class="text">{text}</div>',
        '{{"text": "{text}"}}',
        '[{{"text": "{text}"}}]',
    ],
)
def test_texts_are_rejected_when_most_of_them_are_html_or_json(form):
    assert "12 of 12 texts are HTML, XML or JSON" in refusal(check_are_spoken, clips_of(each(form)))


@pytest.mark.parametrize("form", ["[laughs] {text}", "{text} <noise>", "[{text}]", "{{{text}}}"])
def test_texts_are_not_called_html_or_json_when_they_only_contain_brackets(form):
    check_are_spoken(clips_of(each(form)))


@pytest.mark.parametrize(
    "form",
    ["ANNA. {text}", "ANNA - {text}", "sil {text} sil", "happy {text}", "{text} sil", "<s> {text}"],
)
def test_texts_are_rejected_when_nearly_all_of_them_begin_or_end_with_the_same_word(form):
    message = refusal(check_repeated_words, clips_of(each(form)))
    assert message.startswith("m.csv:1: 12 of 12 ")
    assert "--repeated-words" in message


def test_texts_are_rejected_when_all_of_them_are_the_same_word():
    message = refusal(check_repeated_words, clips_of(["S"] * 5))
    assert message.startswith("m.csv:1: 5 of 5 texts are the same word, such as 'S'")
    check_repeated_words(clips_of(["S"] * 4))
    check_repeated_words(clips_of(["NULL"] * 5))  # `check_clips` reports that the texts are missing
    check_repeated_words(clips_of(["Words by the dozen."] * 5))


def test_texts_are_rejected_when_all_texts_of_one_speaker_begin_with_the_same_word():
    other = clips_of(SENTENCES, "other{}", speaker="bert")
    labeled = clips_of(each("ANNA. {text}"), speaker="anna")
    assert "'anna'" in refusal(check_repeated_words, other + labeled)


@pytest.mark.parametrize("form", ["Number {i}.", "Say the word w{i}.", "Say w{i} again.", "{i}"])
def test_texts_are_accepted_when_they_share_a_spoken_carrier_phrase(form):
    clips = clips_of(each(form), name="recording")
    check_are_spoken(clips)
    check_repeated_words(clips)


@pytest.mark.parametrize("count", [12, 200])
def test_texts_are_accepted_when_they_are_ordinary_sentences_or_numbers(count):
    numbers = [sentence_of(str(number)) for number in draw_numbers(count, 0)]
    for texts in (SENTENCES, numbers, ["20 eggs.", "3 men.", "7 cows.", "1914 ended.", "2 ran."]):
        check_are_spoken(clips_of(texts))
        check_repeated_words(clips_of(texts))


@pytest.mark.parametrize("form", ["Subtract 3 - {i}", "It was seven- {i}"])
def test_texts_are_accepted_when_they_end_with_a_difference_or_a_divided_word(form):
    check_are_spoken(clips_of(each(form)))


def test_words_contain_the_vowel_signs_of_indic_scripts():
    assert words_of("«ಒಂದು ಸಾವಿರ», [EN]Don't!") == ["ಒಂದು", "ಸಾವಿರ", "en", "don", "t"]


def test_texts_of_the_included_corpora_are_accepted():
    """The included corpora contain sentences of LJSpeech. The recordings contain all words of these
    sentences."""
    for path in (Path(__file__).parent / "data").rglob("*.csv"):
        rows = [line.split("|") for line in path.read_text(encoding="utf-8").splitlines()]
        texts = [row[-1] for row in rows if len(row) > 1]
        check_are_spoken(clips_of(texts))
        check_repeated_words(clips_of(texts))


@pytest.mark.parametrize("form", ["{letter}) {text}", "{number}. {text}", "{number} {text}"])
def test_texts_are_rejected_when_they_begin_with_list_letters_or_numbers_in_any_order(form):
    """If the lines of a table are shuffled, the numbers are not in order."""
    texts = [
        form.format(letter="abcdefghijkl"[i], number=7 * i % 12 + 1, text=text)
        for i, text in enumerate(SENTENCES)
    ]
    assert "12 of 12" in refusal(check_are_spoken, clips_of(texts))


def test_texts_are_rejected_when_each_text_is_written_twice():
    message = refusal(check_repeated_words, clips_of(each("{text} {text}")))
    assert message.startswith("m.csv:1: ")
    assert "--repeated-words" in message


@pytest.mark.parametrize("form", ["{name}", "/data/{name}.wav"])
def test_texts_are_rejected_when_they_are_the_names_of_their_audio_files(form):
    clips = [
        Clip(f"wavs/clip_{i:02d}.wav", form.format(name=f"clip_{i:02d}"), where=f"m.csv:{i}")
        for i in range(1, 13)
    ]
    message = refusal(check_are_spoken, clips)
    assert message.startswith("m.csv:1: ")
    assert "12 of 12" in message


@pytest.mark.parametrize("form", ["{name} {text}", "{text} {name}", "{name}: {text}"])
def test_names_of_audio_files_are_rejected_when_a_table_repeats_them_in_the_texts(form):
    names = [f"1089-134686-{i:04d}" for i in range(12)]
    clips = [
        Clip(f"wavs/{name}.wav", form.format(name=name, text=text), where=f"m.csv:{i}")
        for i, (name, text) in enumerate(zip(names, SENTENCES, strict=True), 1)
    ]
    message = refusal(check_are_spoken, clips)
    assert message.startswith("m.csv:1: ")
    assert names[0] in message


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("1089-134686-{:04d}", "{name} {text}"),
        ("2024-01-{:02d}", "{name} {text}"),
        ("{}", "{name}. {text}"),
        ("{}", "{name} {text}"),
        ("u{}", "# {name}\n{text}"),
        ("u{}", "{text}\n{name}"),
        ("u{}", "{text}|{name}"),
        ("u{}", "{name}.txt {text}"),
        ("u{}", "C:\\data\\{name}.wav|{text}"),
    ],
)
def test_recording_names_with_digits_are_removed_when_all_texts_contain_them(
    name, form, tmp_path, capsys
):
    for i, text in enumerate(SENTENCES, 1):
        base = name.format(i)
        write_tone(tmp_path / f"{base}.wav", 100)
        (tmp_path / f"{base}.txt").write_text(form.format(name=base, text=text))
    clips, problems = read_layout(tmp_path)
    assert problems == []
    assert sorted(clip.text for clip in clips) == sorted(SENTENCES)
    assert "note:" in capsys.readouterr().out


@pytest.mark.parametrize(
    "form",
    [
        "0:01 {0}\n0:04 {1}\n",
        "Anna Lee  0:01\n{0}\n\nAnna Lee  0:04\n{1}\n",
        "[Anna] 00:00:01\n{0}\n[Anna] 00:00:04\n{1}\n",
        "0.50 {0}\n4.25 {1}\n",
        "r 1 anna 0.5 2.3 <o> {0}\nr 1 anna 2.5 4.1 <o> {1}\n",
        "SPEAKER r 1 0.5 1.8 <NA> <NA> spk <NA>\nSPEAKER r 1 2.5 1.8 <NA> <NA> spk <NA>\n",
        "M0,{0},0.5,2.3,1.8\nM1,{1},2.5,4.1,1.6\n",
    ],
)
def test_text_of_a_long_recording_is_rejected_when_its_lines_contain_timestamps(form, tmp_path):
    for name in "ab":
        write_tone(tmp_path / f"{name}.wav", 100)
        (tmp_path / f"{name}.txt").write_text(form.format(*SENTENCES))
    assert refusal(read_layout, tmp_path).startswith(f"{tmp_path / 'a.txt'}: ")


def test_prepare_accepts_repeated_words_when_the_user_allows_them(tmp_path):
    corpus = tmp_path / "corpus"
    (corpus / "wavs").mkdir(parents=True)
    for i, text in enumerate(SENTENCES):
        write_tone(corpus / "wavs" / f"c{i}.wav", 4000 + 137 * i)
        add_line(corpus, f"c{i}|Alexa, {text.lower()}")
    for folder in (None, tmp_path / "copies"):
        asked = Preparation(corpus, tmp_path / "out", convert=folder)
        message = refusal(prepare, asked)
        assert re.match(rf"{re.escape(str(corpus))}/metadata.csv:1: 12 of 12 .*'alexa'", message)
    asked = Preparation(corpus, tmp_path / "out", texts=TextSource(repeated_words=True))
    assert prepare(asked)
