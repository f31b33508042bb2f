"""Test phones by eSpeak NG 1.52 (tacotron2_voice/text/phones.py)."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from corpora import refusal
from helpers import ROOT
from test_retries import GOOD, Scripted
from test_warnings import write_corpus

from corpus.prepare import Preparation, prepare
from hparams import create_hparams
from tacotron2_voice.text import SymbolTable, clean, phones
from tacotron2_voice.text.cleaners import clean_pieces
from tacotron2_voice.text.lexicon import with_lexicon
from tacotron2_voice.text.notations import check_notations
from tacotron2_voice.text.phones import COMMAND, check_language, espeak_version, to_phones
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utterance import prepare_utterance


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("en-us", "Hello  [world]", "həlˈoʊ [wˈɜːld]"),
        ("de", "„Guten Tag“ – Welt!", "„ɡˈuːtən tˈɑːk“ – vˈɛlt!"),
        ("ru", "сорок два", "sʌrˈok dvˈɑ"),
        ("cmn", "四十，二。", "sˈi̪5 s.ˈi.ɜ，ˈər5。"),
        ("hi", "बयालीस।", "bˌəjaːlˈiːs।"),
    ],
)
def test_phones_keep_stress_and_punctuation(language, text, expected):
    [found] = to_phones([text], language)
    assert found == unicodedata.normalize("NFC", expected)


def test_phones_stay_the_same_when_some_texts_are_empty():
    texts = ["eins, zwei!", "", " ... ", "drei?"]
    assert to_phones(texts, "de") == ["ˈaɪns, tsvˈaɪ!", "", " ... ", "dɾˈaɪ?"]
    assert to_phones(texts, "de") == [to_phones([text], "de")[0] for text in texts]
    assert to_phones([], "de") == []


def test_words_and_numbers_with_punctuation_have_the_phones_of_their_spoken_form():
    numbers = to_phones(["4,072", "four thousand seventy two"], "en-us")
    assert numbers[0] == numbers[1]
    [dont, percent, words] = to_phones(["don't", "50%", "fifty percent"], "en-us")
    assert "'" not in dont
    assert percent == words


def test_phones_contain_no_language_flags_when_words_are_foreign():
    [found] = to_phones(["Ein Computer, le week-end (smiley)."], "fr")
    assert "(en)" not in found
    assert "(fr)" not in found
    assert found.endswith("(smˈaɪli).")


def test_error_lists_languages_when_the_language_is_unknown():
    known = {"de": "de", "fr": "fr-fr", "en": "en-us", "pt_BR": "pt-br"}
    assert [check_language(name) for name in known] == [*known.values()]
    for wrong, right in (("frr", "fr"), ("de-at", "de"), ("German", "de"), ("jp", "ja")):
        message = refusal(check_language, wrong)
        assert message.startswith(f"language={wrong}: ")
        assert f"did you mean {right}" in message
        assert ", de, " in message
        assert "\n" not in message


def test_error_suggests_the_requirements_file_when_a_package_for_phones_is_missing(monkeypatch):
    phones._about.cache_clear()
    monkeypatch.setattr(phones, "COMMAND", [sys.executable, "-S", *phones.COMMAND[1:]])
    monkeypatch.setattr(phones, "_espeak", phones.Espeak())
    message = refusal(to_phones, ["eins"], "de")
    assert message.startswith("phones: No module named 'espeakng_loader'")
    assert "requirements/phones.txt" in message


def test_espeak_version_is_the_version_of_the_library():
    found = espeak_version().split(".")
    assert len(found) == 3
    assert [int(number) for number in found] >= [1, 52, 0]


# This program stands in for eSpeak. If it receives "sechs", it aborts as if eSpeak had crashed.
FRAGILE = """
import os, runpy, sys
espeak = runpy.run_path(sys.argv[1])
backend = espeak["_backend"]
class Fragile:
    def __init__(self, language):
        self.phones = backend(language).phonemize
    def phonemize(self, texts, strip):
        if "sechs" in texts[0]:
            os.abort()
        return self.phones(texts, strip=strip)
espeak["main"].__globals__["_backend"] = Fragile
espeak["main"]()
"""


@pytest.fixture
def fragile(monkeypatch):
    """Start a program that stands in for eSpeak and aborts if it receives the text "sechs"."""
    monkeypatch.setattr(phones, "COMMAND", [*phones.COMMAND[:2], "-c", FRAGILE, COMMAND[-1]])
    espeak = phones.Espeak()
    monkeypatch.setattr(phones, "_espeak", espeak)
    yield espeak
    espeak.close()


def test_error_quotes_the_text_when_espeak_crashes(fragile):
    message = refusal(to_phones, ["eins", "fünf, sechs!", "acht"], "de")
    assert message == "'fünf, sechs!': eSpeak NG crashes on 'sechs'"
    assert to_phones(["eins"], "de") == ["ˈaɪns"]


@pytest.mark.thorough
def test_threads_get_the_phones_of_their_own_texts(fragile):
    texts = ["eins", "zwei, drei", "sechs", "acht"] * 10

    def phones_or_message(text):
        try:
            return to_phones([text], "de")[0]
        except UserError as error:
            return str(error)

    with ThreadPoolExecutor(8) as threads:
        together = [*threads.map(phones_or_message, texts)]
    assert together[:4] == ["ˈaɪns", "tsvˈaɪ, dɾˈaɪ", together[2], "ˈaxt"]
    assert together[2].startswith("'sechs': eSpeak NG crashes")
    assert together == together[:4] * 10


def test_forked_processes_start_their_own_espeak(fragile):
    to_phones(["eins"], "de")
    parent = fragile.process.pid
    with multiprocessing.get_context("fork").Pool(2) as pool:
        made = pool.map(phones_and_process, ["eins", "zwei", "drei", "vier"] * 4)
    assert [x for x, _ in made] == to_phones(["eins", "zwei", "drei", "vier"] * 4, "de")
    assert parent not in {process for _, process in made}
    assert fragile.process.pid == parent


def phones_and_process(text):
    return to_phones([text], "de")[0], phones._espeak.process.pid


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_espeak_leaves_no_process_and_no_files_when_the_program_is_killed(number, tmp_path):
    """The temporary folder must not contain a copy of the eSpeak library afterwards."""
    script = "import os; from tacotron2_voice.text import phones\n"
    script += "phones.to_phones(['x'], 'de'); print(phones._espeak.process.pid, flush=True)\n"
    script += "while True: phones.to_phones(['eins zwei drei'] , 'de')"
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", script]
    program = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env=environment)
    process = int(program.stdout.readline())
    program.send_signal(number)
    assert program.wait(10) != 0
    program.stdout.close()
    for _ in range(100):
        if not Path(f"/proc/{process}").exists():
            break
        time.sleep(0.05)
    assert not Path(f"/proc/{process}").exists()
    assert not list(tmp_path.glob("*/libespeak*"))


def test_digits_of_all_scripts_are_converted_to_phones():
    written = to_phones(["34", "৩৪ ٣٤", "Ⅷ.", "VIII.", "③kg", "3 kg"], "de")
    assert written[1] == f"{written[0]} {written[0]}"
    assert written[2] == written[3]
    assert written[4] == written[5]
    nepali = to_phones(["३४", "34"], "ne")  # the Nepali voice of eSpeak speaks 34 in English
    assert nepali[0] != nepali[1]


@pytest.mark.parametrize(
    ("language", "word"),
    [
        ("hy", "գնա՛նք"),
        ("hy", "Ինչո՞ւ"),
        ("ca", "col·legi"),
        ("he", "צה״ל"),
        ("he", 'צה"ל'),
        ("he", "סנדוויץ׳"),
        ("fi", "EU:n"),
        ("fi", "20:een"),
        ("sv", "s:t"),
        ("de", "Nord‑Süd"),
        ("de", "z.B"),
        ("de", "Schüler:innen"),
        ("en-us", "example.com"),
    ],
)
def test_words_with_inner_punctuation_have_the_same_phones_as_in_espeak(language, word):
    [whole] = phones._espeak.ask(language=language, texts=[word])["phones"]
    whole = unicodedata.normalize("NFC", whole)
    assert to_phones([word, f"«{word}», {word}."], language) == [whole, f"«{whole}», {whole}."]


@pytest.mark.parametrize(
    ("language", "text", "marks"),
    [
        ("en-us", "yes,no;end.Then wait...what", ",;...."),
        ("de", "Haus–Baum (Ende.Anfang)", "–(.)"),
        ("hi", "है.मैं", "."),
        ("hy", "Հա՞, այո։", "՞,։"),
        ("fr-fr", "bon՝jour", "՝"),
        ("el", "καλό.παιδί κ.λπ.", "..."),
        ("uk", "місто:село", ":"),
        ("en-us", "note:this", ":"),
        ("hr", "grad:selo", ":"),
        ("ka", "კარგი.კაცი", "."),
    ],
)
def test_punctuation_between_words_is_kept_when_there_is_no_space(language, text, marks):
    [found] = to_phones([text], language)
    assert "".join(x for x in found if unicodedata.category(x)[0] == "P") == marks


@pytest.mark.parametrize(
    ("language", "text", "spelled"),
    [
        ("ja", "私は学生です。", "私学生"),
        ("ja", "彼はここにいます。", "彼"),
        ("ja", "水をのむ。", "水"),
        ("de", "Guten Tag, 你好!", "你好"),
        ("en-us", "in 東京.", "東京"),
        ("en-us", "カタカナ", "カタナ"),
        ("cmn", "你好あ", "あ"),
        ("ko", "漢字", "漢字"),
        ("de", "Привет", "Привет"),
        ("en-us", "привет", "привет"),
        ("en-us", "سلام", "سلام"),
        ("en-us", "ⴰⵎⴰⵣⵉⵖ", "ⴰⵎⵣⵉⵖ"),
        ("de", "𐌰𐌱𐌲", "𐌰𐌱𐌲"),
        ("cmn", "𠮷野", "𠮷"),
        ("ja", "𠮷", "𠮷"),
        ("en-us", "ℵ one", "ℵ"),
        ("de", "schön ǆ", "ǆ"),
        ("en-us", "go 𣨏 on", "𣨏"),
        ("it", "Nguyễn", "ễ"),
        ("ru", "Nguyễn", "ễ"),
        ("hi", "Nguyễn", "ễ"),
        ("tr", "ở", "ở"),
        ("fr-fr", "Nguyễn", "ễ"),
        ("ja", "ーー", "ー"),
        ("ja", "⼈", "人"),
        ("en-us", "go م on", "م"),
        ("en-us", "go ﻢ on", "م"),
        ("de", "go ሁ on", "ሁ"),
        ("en-us", "ok ーー", "ー"),
        ("ja", "あ ァ", "ァ"),
        ("en-us", "a ㈱ b", "株"),
        ("ja", "½", "½"),
        ("ru", "¾", "¾"),
        ("fr-fr", "⅓", "⅓"),
        ("en-us", "⅛", "⅛"),
        ("ja", "\u2212x", "\u2212"),
        ("ja", "これは Hello です", "Helo"),
        ("cmn", "nǐ hǎo", "ǐǎ"),
        ("ja", "5+3", "+"),
        ("ko", "50%", "%"),
        ("cmn", "50%", "%"),
        ("th", "3/4", "/"),
        ("en-us", "to Αθήνα", "Αθήνα"),
        ("hr", "λόγος", "λόγος"),
    ],
)
def test_letters_are_rejected_when_espeak_speaks_their_names(language, text, spelled):
    message = refusal(to_phones, [text], language)
    assert f"language={language}: " in message
    assert spelled in message


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("ja", "わたしは カタカナ です。"),
        ("cmn", "你好，世界。東京"),
        ("yue", "你好，世界，三個人。"),
        ("ru", "СССР, привет, эээ ккк α"),
        ("en-us", "naïve café, Ω, नमस्ते 한국"),
        ("de", "π und α"),
        ("ar", "همزة، سلام"),
        ("he", "שלום"),
        ("el", "Καλημέρα ίσως, ε ω Έ"),
        ("hi", "कमल नमक"),
        ("ko", "한국어 상"),
        ("ka", "გამარჯობა"),
        ("am", "ሰላም"),
        ("ta", "வணக்கம்"),
        ("vi", "để thể Ẩ"),
        ("cmn", "吉野 ⓗ ②"),
        ("en-us", "½ ⅓ ¾"),
        ("de", "½ ¾ ™"),
        ("de", "\u22125 ☂"),
        ("cmn", "\u22125"),
        ("ja", "5 ★ です"),
        ("de", "5+3=8, 50%, 3/4 & #"),
        ("ja", "USA です"),
        ("de", "λόγος"),
    ],
)
def test_letters_are_accepted_when_espeak_pronounces_them(language, text):
    assert to_phones([text], language)[0]


@pytest.mark.parametrize("word", ["这儿", "一点儿", "玩儿", "女儿"])
def test_mandarin_words_that_end_in_er_are_converted_to_phones_character_by_character(word):
    [found] = to_phones([word], "cmn")
    assert found.replace(" ", "").endswith(to_phones(["儿"], "cmn")[0])
    assert "f" not in found  # the English words "four" and "five" contain this phone


@pytest.mark.parametrize("pictures", ["🙏🏽", "♥", "❤\ufe0f", "🙂🙂", "\\"])
def test_emoji_and_backslashes_have_no_phones(pictures):
    assert to_phones([f"Thanks {pictures} all."], "en-us") == to_phones(["Thanks all."], "en-us")
    assert phones.is_silent(pictures[0], "en-us")


@pytest.mark.parametrize("sign", "‰％")
def test_symbol_counts_as_silent_when_espeak_skips_it(sign):
    assert phones.is_silent(sign, "ar")


def test_prepare_lists_the_lines_with_letters_whose_names_espeak_speaks(tmp_path, no_plots, capsys):
    texts = {"c03": (None, "私は学生です。"), "c07": (None, "東京")}
    corpus = write_corpus(tmp_path / "corpus", texts, text="わたしです。")
    hparams = "text_cleaners=[phones],language=ja"
    message = refusal(prepare, Preparation(corpus, tmp_path / "lists", hparams))
    message += capsys.readouterr().out
    for number, letters in ((4, "私学生"), (8, "東京")):
        assert f"metadata.csv:{number}: " in message
        assert letters in message
    prepare(Preparation(corpus, tmp_path / "lists", hparams, skip_bad=True))
    assert (tmp_path / "lists/symbols.json").is_file()


@pytest.mark.parametrize(
    ("language", "text", "plain"),
    [
        ("ja", "OKです Tシャツ", "OK です T シャツ"),
        ("he", "שָׁלוֹם", "שלום"),
        ("en-us", "donʼt don′t", "don't don't"),
        ("fr-fr", "lʼété", "l'été"),
        ("nl", "ʼs morgens", "'s morgens"),
        ("uk", "мʼята", "м'ята"),
        ("en-us", "5 ㎝ at 20 ℃", "5 cm at 20 °C"),
        ("de", "50％ ﬁnden ＡＢＣ ２", "50% finden ABC 2"),
        ("cmn", "㈱", "(株)"),
        ("ja", "㌔ ｶﾞｷ", "キロ ガキ"),
        ("ja", "すごーーい ラーメンーー", "すごーい ラーメンン"),
        ("ar", "ﺳﻼﻡ", "سلام"),
        ("he", "תל־אביב", "תל-אביב"),
        ("he", "שָׁל־ל", "של-ל"),
        ("el", "ό,τι", "ότι"),
        ("el", "ο\u0301,τι Ο,ΤΙ \u1f79,τιδήποτε", "ότι ότι οτιδήποτε"),
        ("uk", "п`ять п´ять", "п'ять п'ять"),
        ("it", "l`acqua", "l'acqua"),
        ("fr-fr", "étudiant·e·s", "étudiant-e-s"),
        ("nl", "2 à 3 dagen", "2 a 3 dagen"),
        ("pt", "vou à praia", "vou a praia"),
        ("sv", "5 à 6", "5 a 6"),
        ("cmn", "lü4 se4 Nü3ren2 lu:4", "lv4 se4 Nv3ren2 lv4"),
        ("cmn", "lüe4 qü4 yüan2 jv2", "lve4 qu4 yuan2 ju2"),
    ],
)
def test_text_with_unusual_characters_has_the_phones_of_its_plain_spelling(language, text, plain):
    """eSpeak skips unusual forms of letters and symbols, or speaks their names, so `to_phones`
    replaces these characters with their common forms."""
    assert to_phones([text], language) == to_phones([plain], language)


@pytest.mark.parametrize(("language", "letter", "plain"), [("hu", "ó", "o"), ("pl", "ó", "o")])
def test_word_of_one_letter_keeps_its_accent_when_espeak_pronounces_it(language, letter, plain):
    assert to_phones([letter], language) != to_phones([plain], language)


def test_english_text_normalization_rules_can_run_before_espeak():
    cleaners = ["english_cleaners_corrected", "phones"]
    [written] = clean_pieces(["Dr. Smith paid $5."], cleaners, "en-us")
    [words] = clean_pieces(["doctor smith paid five dollars."], ["phones"], "en-us")
    assert written == words


def test_phones_between_slashes_are_accepted_when_text_normalization_rules_run_before_espeak():
    cleaners = ("english_cleaners_corrected", "phones")
    table = SymbolTable(("_", *" ,.abcdefghijklmnopqrstuvwxyzɪʊəˈː"))
    check_notations("He is /wˈɪn/.", cleaners, table, "en-us")
    assert clean("He is /wˈɪn/.", cleaners, table, "en-us")[-5:] == [*"wˈɪn."]


def test_similar_phone_is_spoken_with_a_warning_when_the_training_texts_lack_a_phone():
    symbols = ("_", *" .ˈˌːabdefhijklmnorstuvxzɛɪəɣʌʊ")
    settings = replace(
        Scripted(GOOD).settings,
        text_cleaners=("phones",),
        language="nl",
        symbols="corpus",
        symbol_table=symbols,
        n_symbols=len(symbols),
    )
    utterance = prepare_utterance("foute verhalen over jezelf gesignaleerd.", settings)
    assert utterance.replaced == {"ɲ": "n"}
    warnings = Scripted(GOOD, settings=settings).synthesize(utterance).warnings
    assert any("'ɲ' as 'n'" in warning for warning in warnings)
    assert not any("left out" in warning for warning in warnings)


@pytest.mark.parametrize("text", ["I love 東京.", "Say שלום now.", "Say हिन्दी now."])
def test_letters_of_other_scripts_are_rejected_when_reading_rules_precede_espeak(text):
    with pytest.raises(UserError, match="eSpeak NG would skip"):
        clean_pieces([text], ["english_cleaners_corrected", "phones"], "en-us")


def test_lexicon_is_accepted_when_reading_rules_precede_espeak(tmp_path):
    lexicon = tmp_path / "names.txt"
    lexicon.write_text("Nguyen win\nreading /ɹˈɛdɪŋ/\n", encoding="utf-8")
    cleaners = "text_cleaners=[english_cleaners_corrected,phones],language=en-us"
    settings = with_lexicon(create_hparams(f"{cleaners},lexicon={lexicon}"))
    assert settings.pronunciations == ("nguyen\twin", "reading\t/ɹˈɛdɪŋ/")


@pytest.mark.parametrize(
    ("language", "word"),
    [
        *[("de", "minus"), ("nl", "min"), ("fi", "miinus"), ("pt", "menos"), ("fr", "moins")],
        *[("es-419", "menos"), ("ru", "минус"), ("pl", "minus"), ("cmn", "负"), ("ja", "マイナス")],
    ],
)
@pytest.mark.parametrize("minus", ["-", "−"])
def test_minus_before_a_number_is_read_as_a_word_of_the_language(language, word, minus):
    texts = [f"{minus}5", f"({minus}5)", f"5, {minus}5"]
    assert to_phones(texts, language) == to_phones(
        [f"{word} 5", f"({word} 5)", f"5, {word} 5"], language
    )


def test_minus_sign_between_numbers_is_spoken_but_a_hyphen_is_not():
    assert to_phones(["7 − 5", "7−5"], "fi") == to_phones(["7 miinus 5"] * 2, "fi")
    assert to_phones(["7-5"], "pt") == ["-".join(to_phones(["7", "5"], "pt"))]


def test_minus_is_rejected_when_espeak_would_speak_it_in_english():
    with pytest.raises(UserError, match="speak their names: −"):
        to_phones(["-5"], "mi")


def test_portuguese_ordinals_are_read_only_if_espeak_does_not_say_the_name_of_the_sign():
    assert to_phones(["1.ª", "3.º", "n.º 5"], "pt") == to_phones(["1ª", "3º", "nº 5"], "pt")
    with pytest.raises(UserError, match="speak their names: ª"):
        to_phones(["Mª"], "pt")
