"""Test that ARPAbet and pinyin are not read as words (text/notations.py)."""

from dataclasses import replace

import pytest
from corpora import refusal
from helpers import SMALL_MODEL, save_small_model
from test_retries import GOOD, Scripted

from corpus.filelist import symbols_of
from export.checkpoint_synthesizer import load_checkpoint_synthesizer
from export.voice_export import export_voice
from hparams import create_hparams, with_table
from tacotron2_voice.text.notations import check_notations
from tacotron2_voice.text.symbols import ENGLISH, table_of
from tacotron2_voice.utterance import prepare_utterance
from tacotron2_voice.voice import Voice

LETTERS = table_of("abcdefghijklmnopqrstuvwxyz {}.0123456789")
CORRECTED = ["english_cleaners_corrected"]


@pytest.mark.parametrize(
    ("text", "cleaners", "table", "found"),
    [
        ("a {HH AH0 L OW1} b", ["basic_cleaners"], LETTERS, "{HH AH0 L OW1}"),
        ("a {HH AH0} b", ["phones"], LETTERS, "{HH AH0}"),
        ("ta5 shi3 de5", CORRECTED, ENGLISH, "ta5 shi3 de5"),
        ("He said ni3hao3.", CORRECTED, ENGLISH, "ni3hao3"),
        ("Zhong1 guo2, lü4", ["english_cleaners"], ENGLISH, "Zhong1 guo2"),
        ("ni³ hao³", CORRECTED, ENGLISH, "ni³ hao³"),
        ("/hɛlˈoʊ/ Anna", CORRECTED, ENGLISH, "/hɛlˈoʊ/"),
        ("{{HH AH0}}", CORRECTED, ENGLISH, "{{HH AH0"),
        ("{HH {AH0} L}", CORRECTED, ENGLISH, "{HH {AH0"),
        ("{HH AH0 XX}", CORRECTED, ENGLISH, "{HH AH0 XX}"),
        ("the DH AH0 cat", CORRECTED, ENGLISH, "DH AH0"),
        ("Say hh ah0 l ow1", ["english_cleaners"], ENGLISH, "hh ah0 l ow1"),
        ("the DH AH0", ["phones"], LETTERS, "DH AH0"),
        ("{W IH1 N} DH AH0", CORRECTED, ENGLISH, "DH AH0"),
        ("he2 ping2 song4", CORRECTED, ENGLISH, "he2 ping2 song4"),
        ("Say xie4xie5.", CORRECTED, ENGLISH, "xie4xie5"),
        ("say HH-AH0-L-OW1", CORRECTED, ENGLISH, "HH-AH0-L-OW1"),
        ("HH,AH0,L,OW1 there", CORRECTED, ENGLISH, "HH,AH0,L,OW1"),
        ("HH_AH0_L_OW1 there", CORRECTED, ENGLISH, "HH_AH0_L_OW1"),
        ("HH_B AH0_I L_I OW1_E", CORRECTED, ENGLISH, "HH_B AH0_I L_I OW1_E"),
        ("say HHAH0LOW1", CORRECTED, ENGLISH, "HHAH0LOW1"),
        ("'K AE1 T'", CORRECTED, ENGLISH, "K AE1 T"),
        ("{HH\nAH0}", CORRECTED, ENGLISH, "HH\nAH0"),
        ("{HH AH3}", CORRECTED, ENGLISH, "{HH AH3}"),
        ("NI3 HAO3", CORRECTED, ENGLISH, "NI3 HAO3"),
        ("Wo3 men2 hao3", CORRECTED, ENGLISH, "Wo3 men2 hao3"),
        ("a /kæt/ here", CORRECTED, ENGLISH, "/kæt/"),
        ("hɛlˈoʊ Anna", CORRECTED, ENGLISH, "hɛlˈoʊ"),
        ("Ciao ʃəˈwɑ", ["phones"], LETTERS, "ʃəˈwɑ"),
        ("ein bɪn", ["phones"], LETTERS, "bɪn"),
    ],
)
def test_arpabet_or_pinyin_is_rejected_when_the_model_does_not_support_it(
    text, cleaners, table, found
):
    assert repr(found) in refusal(check_notations, text, cleaners, table)


@pytest.mark.parametrize(
    ("text", "cleaners", "table"),
    [
        ("a {HH AH0 L OW1} b", CORRECTED, ENGLISH),
        ("a {see below} b {hh ah0}", ["basic_cleaners"], LETTERS),
        ("ta5 shi3", ["basic_cleaners"], LETTERS),
        ("Use a4 or an mp3 in room b2. Web2 h2o go2 a1 e2", CORRECTED, ENGLISH),
        ("pin1, pin2 and fan3. Fan1 fan2, LAN1 WAN2, Mi4 Mi5", CORRECTED, ENGLISH),
        ("ping1 pong2", CORRECTED, ENGLISH),
        ("Ben1 Dan2 met Sue2 Lou3. Chan4 he3", CORRECTED, ENGLISH),
        ("DAY1 PLAY2, AA1, AA2, R2-D2, B2B, PAY1-day, the UW2-code, AA1-size", CORRECTED, ENGLISH),
        ("Æsop, cañon, and/or/été, encyclopædia/ægis", CORRECTED, ENGLISH),
        ("DH AH0", ["basic_cleaners"], LETTERS),
        ("B T K, AH, OW, a UH1 and {DH AH0} {K AE1 T}", CORRECTED, ENGLISH),
        ("and/or, 1/2 or /tmp/ 10 m² x³", CORRECTED, ENGLISH),
        ("Ciao /ʃəˈwɑ/, it's ’s", ["phones"], LETTERS),
        ("Bəli, giŋga, ɛ ɔ ɗ ɓ", ["phones"], LETTERS),
    ],
)
def test_text_is_accepted_when_it_only_resembles_arpabet_or_pinyin(text, cleaners, table):
    check_notations(text, cleaners, table)


def test_pinyin_is_rejected_when_the_phones_are_not_chinese():
    assert "'ni3 hao3 ma5'" in refusal(check_notations, "ni3 hao3 ma5", ["phones"], LETTERS, "de")
    check_notations("ni3 hao3 ma5", ["phones"], LETTERS, "cmn")


def test_prepare_and_synthesis_reject_pinyin_when_the_model_reads_english():
    english = create_hparams()
    assert "'ta5 shi3'" in refusal(symbols_of, "ta5 shi3", english)
    assert "'ta5 shi3'" in refusal(prepare_utterance, "ta5 shi3", english)
    corpus = create_hparams("symbols=corpus,text_cleaners=[basic_cleaners]")
    corpus = with_table(corpus, LETTERS.symbols)
    assert symbols_of("ta5 shi3", corpus)
    assert "{HH AH0}" in refusal(symbols_of, "a {HH AH0}", corpus)


@pytest.mark.parametrize(
    ("trained", "phones"),
    [(None, ""), ([], "AH0 HH"), (["@HH"], "AH0"), (["@HH", "@AH0", "@T"], "")],
)
def test_warning_lists_the_phones_in_a_text_that_did_not_occur_in_training(trained, phones):
    synthesizer = Scripted(GOOD)
    synthesizer.training = replace(synthesizer.training, trained_phones=trained)
    warnings = synthesizer.stream("One {HH AH0}.").warnings
    assert [warning.rpartition(": ")[2] for warning in warnings] == ([phones] if phones else [])


def test_checkpoint_and_voice_contain_the_phones_used_in_training(tmp_path):
    path = save_small_model(tmp_path / "a.pt", create_hparams(SMALL_MODEL), trained_phones=["@HH"])
    synthesizer = load_checkpoint_synthesizer(path)
    assert synthesizer.training.trained_phones == ["@HH"]
    export_voice(synthesizer, tmp_path / "voice", None)
    assert Voice(tmp_path / "voice").training.trained_phones == ["@HH"]


def test_long_text_without_spaces_is_checked_for_notations_quickly():
    """If a regular expression could match this text in many ways, the search would take hours."""
    check_notations("NG" * 5000 + " AH0AH0" + "NG" * 5000 + "x", CORRECTED, ENGLISH)
