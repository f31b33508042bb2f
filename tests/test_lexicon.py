"""Test pronunciations in prepare, checkpoints, voices and synthesis (text/lexicon.py)."""

import json
from dataclasses import replace

import numpy as np
import pytest
from corpora import refusal
from helpers import SMALL_MODEL, save_small_model
from test_retries import GOOD, TEXT, Scripted
from test_warnings import write_corpus

import synthesize
from corpus.filelist import symbols_of, table_key
from corpus.prepare import Preparation, prepare
from export.checkpoint_synthesizer import load_checkpoint_synthesizer
from hparams import create_hparams
from tacotron2_voice.text import rules_version, sequence_to_text
from tacotron2_voice.text.lexicon import respell, with_lexicon
from tacotron2_voice.text.rules import version_of
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utterance import prepare_utterance, text_to_ids
from training.start import check_lexicon

H = create_hparams()
PHONES = create_hparams("text_cleaners=[phones],language=en-us")


def lexicon(folder, content):
    path = folder / "words.txt"
    path.write_text(content, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("content", "text", "expected"),
    [
        ("Nguyen\twin", "NGUYEN, nguyen's; Nguyens, McNguyen", "Win, win's; Nguyens, McNguyen"),
        ("Nguyen   win stone", "Mrs. Nguyen-Smith", "Mrs. Win stone-Smith"),
        ("co-op\tco op\nco\tcompany", "The co-op of Co.", "The co op of Company."),
        ("can\tkan", "can't can", "can't kan"),
        ("can't\tcarnt", "can’t can", "carnt can"),
        ("Straße\tweg", "STRASSE straße straßen", "Weg weg straßen"),
        ("cafe\u0301\tkaffee", "caf\u00e9 cafe", "kaffee cafe"),
        ("क\tx", "क की", "x की"),  # the vowel sign is a part of the word
        ("tom\ttim\ntim\ttom", "Tom Tim", "Tim Tom"),
        ("# a comment\n\n  tom \t  tim  bo \n", "tom", "tim bo"),
        ("hh\tx", "{HH AH0} hh", "{HH AH0} x"),
        ("Maße\tmahse\nMasse\tmasser", "Maße, Masse, MAẞE", "Mahse, Masser, Mahse"),
        ("10\tten ten", "10, 10,000 10.5 10:30 $10", "ten ten, 10,000 10.5 10:30 $10"),
        ("I\teye", "I am, i.e. A.I. I.", "Eye am, i.e. A.I. Eye."),
        ("nguyen\t{W IH1 N}", "Nguyen", "{W IH1 N}"),
        ("TV\tT V\nPDF\tP D F", "A TV, a PDF", "A T V, a P D F"),
    ],
)
def test_lexicon_respells_only_whole_words(content, text, expected, tmp_path):
    settings = with_lexicon(H, lexicon(tmp_path, content))
    assert respell(text, settings.pronunciations) == expected


NAMES = "John jon\nNguyen win\nHenry hen ree\nLouis lewey\nXi shee\nDr doctor\nCo company\n"


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("St. John came.", "saint jon came."),
        ("John v. Nguyen", "jon versus win"),
        ("Pope John VI came.", "pope jon the sixth came."),
        ("John II", "jon the second"),
        ("POPE JOHN VI CAME.", "pope jon the sixth came."),
        ("Henry VIII and Louis XIV.", "hen ree the eighth and lewey the fourteenth."),
        ("Nguyen II", "win two"),
        ("John I came and Nguyen I know.", "jon i came and win i know."),
        ("Chapter XI is about President Xi.", "chapter eleven is about president shee."),
        ("PRESIDENT XI CAME TODAY", "president shee came today"),
        ("Dr. Smith is a Dr.", "doctor smith is a doctor."),
        ("Dr. Who met Dr. My.", "doctor who met doctor my."),
        (
            "Smith Co. is closed. I left Smith Co. It is closed.",
            "smith company is closed. i left smith company. it is closed.",
        ),
    ],
)
def test_titles_and_numerals_next_to_a_name_are_normalized_when_the_name_is_respelled(
    text, spoken, tmp_path
):
    settings = with_lexicon(H, lexicon(tmp_path, NAMES))
    assert sequence_to_text(text_to_ids(text, settings)) == spoken
    assert sequence_to_text(symbols_of(text, settings)) == spoken


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Dr. Nguyen came.", "doctor {W IH1 N} came."),
        ("Prof. {W IH1 N}. Yes.", "professor {W IH1 N}. yes."),
        ("DR. NGUYEN CAME.", "doctor {W IH1 N} came."),
        ("Nguyen II", "{W IH1 N} two"),
        ("{W IH1 N} II", "{W IH1 N} two"),
        ("St. Nguyen, Nguyen II.", "saint {W IH1 N}, {W IH1 N} two."),
        ("Nguyen v. Nguyen-5", "{W IH1 N} versus {W IH1 N}-five"),
        ("{a b} Dr. {c}", " doctor "),
    ],
)
def test_titles_and_numerals_next_to_a_name_are_normalized_when_the_name_is_in_arpabet(
    text, spoken, tmp_path
):
    settings = with_lexicon(H, lexicon(tmp_path, "Nguyen\t{W IH1 N}"))
    assert sequence_to_text(text_to_ids(text, settings)) == spoken
    assert sequence_to_text(symbols_of(text, settings)) == spoken


def test_full_stop_of_a_respelled_street_is_kept_only_at_the_end_of_a_sentence(tmp_path):
    settings = with_lexicon(H, lexicon(tmp_path, "Dr drive"))
    text = "She left Elm Dr. The end. Elm Dr. was long."
    spoken = "she left elm drive. the end. elm drive was long."
    assert sequence_to_text(symbols_of(text, settings)) == spoken


def test_phones_without_slashes_are_rejected_when_the_model_uses_phones(tmp_path):
    path = lexicon(tmp_path, "reading  ɹ ɛ d ɪ ŋ\n")
    assert f"{path}:1: " in refusal(with_lexicon, PHONES, path)


def test_respelling_is_rejected_when_an_english_model_cannot_speak_its_letters(tmp_path):
    path = lexicon(tmp_path, "Anna café\nNguyen 東京\n")
    message = refusal(with_lexicon, H, path)
    assert f"{path}:2: " in message
    assert "'東'" in message


def test_lexicon_is_rejected_when_it_contains_only_comments(tmp_path):
    path = lexicon(tmp_path, "# Nguyen win\n")
    assert str(path) in refusal(with_lexicon, H, path)


def test_pronunciation_in_phones_is_accepted_when_the_model_uses_phones(tmp_path):
    settings = with_lexicon(PHONES, lexicon(tmp_path, "reading /ɹˈɛdɪŋ/"))
    assert respell("Reading's", settings.pronunciations) == "/ɹˈɛdɪŋ/'s"
    settings = replace(settings, symbol_table=tuple("_ dɛˈɹɪŋ.s'"), n_symbols=11)
    symbols = [settings.table.symbols[i] for i in text_to_ids("Reading.", settings)]
    assert "".join(symbols) == "ɹˈɛdɪŋ."


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("Nguyen", "'Nguyen'"),
        ("C++ see plus plus", "'C++'"),
        ("tom tim", "'tom'"),  # line 1 contains a different respelling
        ("reading /ɹˈɛdɪŋ/", "'/ɹˈɛdɪŋ/'"),
        ("reading /ɹˈɛdɪŋ", "'/ɹˈɛdɪŋ'"),
        ("word ...", "'...'"),
        ("word ta5 shi3", "'ta5 shi3'"),
        # In an earlier version, "New" was respelled as "York noo york".
        ("New York\tnoo york", "'New York'"),
        ("nguyen\t0.9\twin", "'nguyen"),
        ("nguyen 0.9 win", "'0.9 win'"),
        ("nguyen N UW1 AH0 N", "'N UW1 AH0 N'"),
        ("reading ɹ ɛ d ɪ ŋ", "'ɹ ɛ d ɪ ŋ'"),
        ("nguyen win # a comment", "'win # a comment'"),
        ("nguyen = win", "'= win'"),
        ("nguyen -> win", "'-> win'"),
        ("nguyen {XX}", "'{XX}'"),
        ("Word\tRespelling", "'Word\\tRespelling'"),
        ("nguyen {w ih1 n}", "'{w ih1 n}'"),
        ("nguyen {W IH1 N", "'{W IH1 N'"),
        ("nguyen [laughs]", "'[laughs]'"),
        ("nguyen <b>win</b>", "'<b>win</b>'"),
        ("nguyen w\u202ein", "'w"),
    ],
)
def test_lexicon_error_reports_file_line_and_value_when_a_line_is_invalid(line, value, tmp_path):
    path = lexicon(tmp_path, f"Tom\ttomm\n\n{line}\n")
    message = refusal(with_lexicon, H, path)
    assert f"{path}:3: {value}" in message
    assert "1 of 2 lines" in message


def test_note_is_printed_when_a_line_of_a_lexicon_begins_with_two_names(tmp_path, capsys):
    with_lexicon(H, lexicon(tmp_path, "New York noo york\nSiobhan\tShi Vawn\n"))
    printed = capsys.readouterr().out
    assert "words.txt:1: 'New' is replaced with 'York noo york'" in printed
    assert printed.count("note: ") == 1


def test_lexicon_error_lists_all_invalid_lines(tmp_path):
    message = refusal(with_lexicon, H, lexicon(tmp_path, "a\nb\nc see\n"))
    assert "words.txt:1: 'a'" in message
    assert "words.txt:2: 'b'" in message


def test_text_normalization_version_and_cache_key_both_change_when_pronunciations_change():
    changed = replace(H, pronunciations=("tom\ttim",))
    assert rules_version() == version_of("sequences.py", "cleaners.py", "english/*.py")
    assert rules_version(changed.pronunciations) != rules_version()
    assert table_key(b"", changed) != table_key(b"", H)
    assert sequence_to_text(symbols_of("Tom.", changed)) == "tim."


def test_prepare_writes_the_pronunciations_for_training(tmp_path, no_plots):
    corpus = write_corpus(tmp_path / "corpus", {"c03": (None, "Tom sat.")})
    path = lexicon(tmp_path, "Tom\ttim")
    prepare(Preparation(corpus, tmp_path / "lists", lexicon=path))
    assert (tmp_path / "lists/lexicon.txt").read_text() == "tom\ttim\n"
    hparams = with_lexicon(create_hparams(f"@{tmp_path}/lists/settings.txt"))
    assert hparams.pronunciations == ("tom\ttim",)


def test_resume_rejects_a_lexicon_when_its_pronunciations_changed(tmp_path):
    path = lexicon(tmp_path, "Tom\ttim")
    base = with_lexicon(create_hparams(f"lexicon={path}"))
    check_lexicon(base, base)
    path.write_text("# moved\ntom tim\n")
    check_lexicon(base, base)
    path.write_text("Tom\ttem\n")
    assert f"lexicon={path}" in refusal(check_lexicon, base, base)
    assert "lexicon=" in refusal(check_lexicon, replace(base, lexicon=""), base)
    path.unlink()
    check_lexicon(base, base)  # identical pronunciations are accepted


def test_note_is_printed_when_a_lexicon_differs_from_the_pronunciations_of_the_checkpoint(
    tmp_path, capsys
):
    hparams = replace(create_hparams(SMALL_MODEL), pronunciations=("tom\ttim",))
    version = rules_version(hparams.pronunciations)
    path = save_small_model(tmp_path / "a.pt", hparams, text_rules=version)
    synthesizer = load_checkpoint_synthesizer(path)
    assert synthesizer.rules_note() == ""
    ids = prepare_utterance("Tom.", synthesizer.settings).segments[0].ids
    assert sequence_to_text(ids) == "tim."
    same = lexicon(tmp_path, "tom tim")
    assert synthesizer.use_lexicon(same) == ""
    words = tmp_path / "other.txt"
    words.write_text("tom\ttem\nbob\tbab\n")
    command = ["--checkpoint", str(path), "--text", "Tom.", "-o", str(tmp_path / "a.wav")]
    command += ["--lexicon", str(words), "--hparams", "max_decoder_steps=3"]
    synthesize.main(command)
    [note] = [x for x in capsys.readouterr().err.splitlines() if x.startswith("note: ")]
    assert f"{words}: " in note
    assert "2 pronunciations" in note
    with pytest.raises(UserError, match="lexicon"):
        load_checkpoint_synthesizer(path, f"lexicon={words}")


def test_lexicon_changes_the_speech_but_not_the_text_normalization_rules_of_the_model(tmp_path):
    synthesizer = Scripted(GOOD)
    synthesizer.training = replace(synthesizer.training, text_rules=rules_version())
    before = synthesizer.synthesize("bob.", retries=0)
    note = synthesizer.use_lexicon(lexicon(tmp_path, "bob one two three"))
    after = synthesizer.synthesize("bob.", retries=0)
    assert note
    assert synthesizer.rules_note() == ""
    assert after.chunks[0].ids == TEXT
    assert before.chunks[0].ids != TEXT
    assert np.isfinite(after.audio).all()


def test_exported_voice_contains_the_pronunciations(voices):
    description = json.loads((voices.fp32[0] / "voice.json").read_text())
    assert description["hparams"]["pronunciations"] == []
