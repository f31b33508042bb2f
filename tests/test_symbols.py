"""Test symbols for any language: tables, texts, phones, splitting, and a complete run."""

import json
import shutil
import types
import unicodedata
from dataclasses import replace
from itertools import chain

import pytest
import torch
from corpora import make_corpus, refusal, skip_plots, write_tone
from helpers import flags, load, newest, tiny
from hypothesis import given
from hypothesis import strategies as st
from training_runs import refused

import synthesize
import train
from corpus import prepare as preparation
from corpus.filelist import cached_table, read_filelist
from corpus.prepare import Preparation, prepare
from export.checkpoint_synthesizer import load_checkpoint_synthesizer
from hparams import create_hparams, hparams_from_dict, read_symbols
from model import Tacotron2
from tacotron2_voice.settings import check_text_settings
from tacotron2_voice.text import ENGLISH, clean, sequence_to_text, text_to_sequence
from tacotron2_voice.text.splitting import Ending, split_sequence
from tacotron2_voice.text.symbols import MAX_SYMBOLS, SymbolTable, can_be_symbol, table_of
from tacotron2_voice.text.unknown_symbols import nearest, unknown_symbols
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utterance import text_to_ids
from training.checkpoint import Checkpoint, load_checkpoint
from training.warm_start import map_symbols

BASIC = ["basic_cleaners"]
PHONES = "text_cleaners=[phones]"


def test_error_does_not_suggest_deleting_a_file_when_it_is_not_a_symbol_table(tmp_path):
    """If the path in the setting `symbols` is wrong, it may point to an important file of the
    user."""
    (tmp_path / "notes.txt").write_text("my notes\n")
    with pytest.raises(UserError, match="expected a list of strings") as caught:
        read_symbols(create_hparams(f"symbols={tmp_path / 'notes.txt'}"))
    assert "delete" not in str(caught.value)


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        ("_a", "not a list"),
        (["_"], "1 symbols"),
        (["_", *map(chr, range(0x4E00, 0x4E00 + MAX_SYMBOLS))], f"{MAX_SYMBOLS + 1:,} symbols"),
        (["a", "_"], "number 1, 'a': the padding '_' must be the first symbol"),
        (["_", "a", "b", "a"], "number 4, 'a': this symbol occurs twice"),
        (["_", "a", 3], "number 3, '3': neither one character"),
        (["_", ""], "'': neither one character"),
        (["_", "@QQ"], "'@QQ': neither one character nor an ARPAbet phone"),
        (["_", "\x07"], "not a printable"),
        (["_", "\u212b"], "not in Unicode's form NFC (expected 'Å')"),
    ],
)
def test_symbol_table_is_rejected_when_it_is_damaged(symbols, message, tmp_path):
    assert message in refusal(SymbolTable, symbols)
    (tmp_path / "mine.json").write_text(json.dumps(symbols))
    found = refusal(read_symbols, create_hparams(f"symbols={tmp_path / 'mine.json'}"))
    assert message in found
    assert str(tmp_path / "mine.json") in found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Zażółć GĘŚLĄ jaźń!", "zażółć gęślą jaźń!"),
        (unicodedata.normalize("NFD", "Été à Orléans"), "été à orléans"),
        # Direction marks are removed, but vowel signs are kept.
        ("\u200fشكرًا، صديقي؟\u200e", "شكرًا، صديقي؟"),
        ("हिन्दी में।", "हिन्दी में।"),
        ("می\u200cروم", "می\u200cروم"),  # Persian needs this zero-width non-joiner
        ("你好，世界。", "你好，世界。"),
        ("İstanbul", "istanbul"),
        ("soft\u00adhyphen\ufeff \x07bell", "softhyphen bell"),
    ],
)
def test_basic_cleaners_keep_letters_of_every_alphabet(text, expected):
    assert "".join(clean(text, BASIC)) == expected
    table = table_of(expected)
    assert sequence_to_text(text_to_sequence(text, BASIC, table), table) == expected


def test_turkish_capital_i_is_lowercased_correctly():
    assert "".join(clean("ISPARTA İZMİR", BASIC, language="tr")) == "ısparta izmir"
    assert "".join(clean("ISPARTA", BASIC, language="pl")) == "isparta"


def test_braces_add_no_symbols_to_a_symbol_table_when_they_contain_no_phones():
    assert [x for x in clean("{0 AA1}", BASIC) if can_be_symbol(x)] == ["@AA1"]


LETTERS = st.characters(exclude_categories=["Cs", "Cn", "Zl", "Zp"], exclude_characters="{}")


@given(st.lists(st.text(LETTERS, min_size=1)))
def test_symbol_table_built_from_texts_contains_every_character(texts):
    cleaned = [[x for x in clean(text, BASIC) if x != "_"] for text in texts]
    if any(cleaned):
        table = table_of(chain(*cleaned))
        for found in cleaned:
            assert unknown_symbols(found, table) == []
            again = text_to_sequence("".join(found), [], table)
            assert sequence_to_text(again, table) == "".join(found)


@pytest.mark.parametrize(
    ("symbol", "known", "expected"),
    [
        ("a", "ąbc", "ą"),
        ("É", "eéê", "é"),
        ("ê", "éeè", "e"),
        ("Ж", "жз", "ж"),
        ("ß", "pqs", "ss"),
        ("，", "., ", ","),
        ("字", "abc", ""),
        ("x", "abhəˈ", "h"),
        ("ɵ", "oʌəˈ", "ʌ"),
        ("x", "abh", ""),
    ],
)
def test_message_suggests_the_nearest_symbol_when_a_symbol_is_unknown(symbol, known, expected):
    assert nearest(symbol, table_of(known)) == expected


def test_underscore_is_the_padding_symbol_only_in_the_english_symbol_table():
    assert text_to_sequence("_", BASIC) == [0]
    assert unknown_symbols(clean("a_b", BASIC, table_of("ab")), table_of("ab")) == ["_"]


# ---------------------------------------------------------------------------- splitting


@pytest.mark.parametrize(
    ("text", "parts", "ending"),
    [
        (
            "我们今天去了。他说：「好！」然后走了。",
            ["我们今天去了。", "他说：「好！」", "然后走了。"],
            "SENTENCE",
        ),
        ("मैं घर गया। वह आया।", ["मैं घर गया।", "वह आया।"], "SENTENCE"),
        ("ذهبت إلى البيت؟ نعم ذهبت.", ["ذهبت إلى البيت؟", "نعم ذهبت."], "SENTENCE"),
        ("これは長い文です、そして続きます", ["これは長い文です、", "そして続きます"], "CLAUSE"),
    ],
)
def test_chunks_end_at_punctuation_of_non_latin_scripts(text, parts, ending):
    table = table_of(text)
    sequence = text_to_sequence(text, BASIC, table)
    found = split_sequence(sequence, max(map(len, parts)), table)
    assert [sequence_to_text(sequence[x.start : x.end], table) for x in found] == parts
    assert {part.ending for part in found[:-1]} == {Ending[ending]}


# ---------------------------------------------------------------------------- phones


@pytest.fixture
def espeak(monkeypatch):
    """Replace eSpeak with a function that records the texts and returns a phone for each letter."""
    fake, asked = types.SimpleNamespace(version="1.52"), []

    def to_phones(texts, language):
        asked.extend((text, language) for text in texts)
        return ["".join(chr(0x250 + ord(x) % 64) if x.isalpha() else x for x in t) for t in texts]

    monkeypatch.setattr("tacotron2_voice.text.phones.to_phones", to_phones)
    monkeypatch.setattr("tacotron2_voice.text.phones.espeak_version", lambda: fake.version)
    monkeypatch.setattr("tacotron2_voice.text.phones.check_language", lambda language: None)
    fake.to_phones, fake.asked = to_phones, asked
    return fake


def test_phones_written_in_a_text_stay_unchanged(espeak):
    found = "".join(clean("He said /ɡʊd ˈnaɪt/, and/or\nwent 1/2.", ["phones"], language="x1"))
    assert "/" in found
    assert "ɡʊd ˈnaɪt, " in found
    assert espeak.asked == [("He said", "x1"), (", and/or went 1/2.", "x1")]
    assert "/ab/" in "".join(clean("/ab/", BASIC))


def test_phones_are_rejected_when_language_or_symbols_are_missing(espeak):
    message = refusal(create_hparams, "text_cleaners=[phones],symbols=english")
    assert "symbols=english: lacks most phones" in message
    assert "language=de" in message


def test_symbols_setting_defaults_to_corpus_when_texts_are_converted_to_phones(espeak):
    phones = create_hparams("text_cleaners=[phones],language=x1")
    assert phones.symbols == "corpus"
    own = create_hparams("text_cleaners=[phones]", replace(phones, symbols="own.json"))
    assert own.symbols == "own.json"


def test_prepare_reports_characters_that_espeak_ignores(
    espeak, tmp_path, no_plots, capsys, monkeypatch
):
    without = lambda texts, language: espeak.to_phones([x.replace("₿", "") for x in texts], "")  # noqa: E731
    monkeypatch.setattr("tacotron2_voice.text.phones.to_phones", without)
    corpus = make_corpus(tmp_path / "corpus", 5, text="Clip {} ₿.")
    prepare(Preparation(corpus, tmp_path / "lists", f"{PHONES},language=x3"))
    assert "text cleaners drop" in (printed := capsys.readouterr().out)
    assert "'₿' at column 8" in printed


def test_prepare_reports_lines_that_crash_espeak(espeak, tmp_path, no_plots, capsys, monkeypatch):
    def crashing(texts, language):
        if any("2" in text for text in texts):
            raise UserError("'Clip 2.': eSpeak NG crashes on 'Clip 2'")
        return espeak.to_phones(texts, language)

    monkeypatch.setattr("tacotron2_voice.text.phones.to_phones", crashing)
    corpus = make_corpus(tmp_path / "corpus", 5, text="Clip {}.")
    message = refusal(
        prepare, Preparation(corpus, tmp_path / "lists", f"{PHONES},language=x4")
    ) + "".join(capsys.readouterr())
    assert "1 of 5 clips are bad" in message
    assert "metadata.csv:3: c02: 'Clip 2.': eSpeak NG crashes" in message


def test_prepare_converts_each_text_to_phones_once(espeak, tmp_path, no_plots):
    corpus = make_corpus(tmp_path / "corpus", 5, text="Clip {}.")
    prepare(Preparation(corpus, tmp_path / "lists", f"{PHONES},language=x2"))
    assert sorted(espeak.asked) == [(f"Clip {i}.", "x2") for i in range(5)]
    hparams = create_hparams(f"@{tmp_path / 'lists' / 'settings.txt'}")
    hparams = read_symbols(check_text_settings(hparams))
    assert hparams.symbol_table == ("_", *sorted({*espeak.to_phones(["Clip"], "")[0], *" .01234"}))
    assert cached_table(hparams.training_files, hparams)
    assert not cached_table(hparams.training_files, replace(hparams, espeak_version="1.49"))


# ---------------------------------------------------------------------------- a complete run


OWN = tiny(sampling_rate=22050, symbols="corpus", text_cleaners="basic_cleaners", epochs=1)


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    """Prepare a corpus of Polish texts. One text contains letters that occur in no other text."""
    folder = tmp_path_factory.mktemp("polish")
    corpus = make_corpus(folder / "corpus", 12, text="Żółw {}.")
    write_tone(corpus / "wavs" / "odd.wav", 5000)
    with pytest.MonkeyPatch.context() as patch:
        skip_plots(patch)
        with open(corpus / "metadata.csv", "a", encoding="utf-8") as file:
            file.write("odd|x|Gęś, 3\n")
        prepare(Preparation(corpus, folder / "lists", OWN))
    return folder / "lists"


@pytest.fixture(scope="module")
def english(tmp_path_factory):
    """Write an English checkpoint like those of multi-GPU runs with NVIDIA's recipe."""
    path = tmp_path_factory.mktemp("english") / "english.pt"
    torch.manual_seed(5)
    weights = Tacotron2(create_hparams(tiny(sampling_rate=22050))).state_dict()
    torch.save({"state_dict": {f"module.{name}": x for name, x in weights.items()}}, path)
    return path


@pytest.fixture(scope="module")
def trained(lists, english, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "polish"
    arguments = flags(out, f"@{lists / 'settings.txt'}", "-c", english, "--warm_start")
    train.main(arguments)
    return out


def test_prepare_writes_the_symbol_table_and_reports_rare_symbols(lists, capsys):
    table = json.loads((lists / "symbols.json").read_text("utf-8"))
    assert table == ["_", *sorted(set(" .,żółwgęś0123456789"))]
    hparams = read_symbols(create_hparams(f"@{lists / 'settings.txt'}"))
    assert (hparams.symbol_table, hparams.n_symbols) == (tuple(table), len(table))
    files = hparams.training_files, hparams.validation_files
    # `prepare` has already written the caches.
    clips = [clip for filelist in files for clip in cached_table(filelist, hparams)]
    assert all(clip.text.lower() == sequence_to_text(clip.symbols, hparams.table) for clip in clips)
    warning = preparation.rare_symbols(clips * 2, hparams)
    assert "'ę' in 2 clips (odd, odd)" in warning
    assert "'ż'" not in warning
    assert preparation.rare_symbols(clips * 10, hparams) == ""


def test_symbol_table_contains_no_symbols_that_occur_only_in_bad_clips(lists, tmp_path, no_plots):
    corpus = shutil.copytree(lists.parent / "corpus", tmp_path / "corpus")
    (corpus / "wavs" / "odd.wav").write_bytes(b"no sound")
    prepare(Preparation(corpus, tmp_path / "lists", OWN, skip_bad=True))
    table = json.loads((tmp_path / "lists" / "symbols.json").read_text("utf-8"))
    assert "ę" not in table
    assert "ż" in table
    hparams = read_symbols(create_hparams(f"@{tmp_path / 'lists' / 'settings.txt'}"))
    [first, *_] = read_filelist(hparams.training_files, hparams)
    assert sequence_to_text(first.symbols, hparams.table) == first.text.lower()


def test_training_is_rejected_when_filelists_contain_unknown_symbols(lists, tmp_path, capsys):
    table = json.loads((lists / "symbols.json").read_text("utf-8"))
    table.remove("ę")
    (tmp_path / "mine.json").write_text(json.dumps(table))
    settings = f"@{lists / 'settings.txt'},symbols={tmp_path / 'mine.json'}"
    found = refused(flags(tmp_path / "out", settings), capsys)
    assert ".txt:" in found
    assert "'ę' at column 2 (U+0119, nothing similar)" in found
    assert "drop_unknown" in found
    assert not (tmp_path / "out").exists()
    hparams = read_symbols(create_hparams(f"{settings},drop_unknown=True"))
    for name in (hparams.training_files, hparams.validation_files):
        assert len(read_filelist(name, hparams))


def test_warm_start_keeps_embedding_rows_of_shared_symbols(lists, english, trained, capsys):
    begun = load(trained / "checkpoint_0.pt")
    table, rows = begun["hparams"]["symbol_table"], begun["state_dict"]["embedding.weight"]
    theirs = load_checkpoint(english)["state_dict"]["embedding.weight"]
    shared = [symbol for symbol in table if symbol in ENGLISH.symbols]
    assert shared == list("_ ,.gw")
    assert len(rows) == len(table)
    for i, symbol in enumerate(table):
        if symbol in shared:
            assert torch.equal(rows[i], theirs[ENGLISH.symbols.index(symbol)])


def test_new_embedding_rows_have_the_mean_and_spread_of_old_rows():
    old = torch.randn(148, 3) * torch.tensor([1.0, 5.0, 0.1]) + torch.tensor([0.0, 50.0, -3.0])
    table = table_of(map(chr, range(0x4E00, 0x4E00 + 5000)))
    saved = Checkpoint("x.pt", {"state_dict": {"embedding.weight": old}})
    mapped, new = map_symbols(saved, table, seed=1)
    rows = mapped["state_dict"]["embedding.weight"]
    assert len(new) == 5000
    assert torch.equal(rows[0], old[0])
    assert torch.allclose(rows[1:].mean(0), old.mean(0), atol=0.3)
    assert torch.allclose(rows[1:].std(0) / old.std(0), torch.ones(3), atol=0.05)
    assert torch.equal(map_symbols(saved, table, 1)[0]["state_dict"]["embedding.weight"], rows)
    assert map_symbols(saved, ENGLISH, seed=1) == (saved.state, {})
    saved.state["state_dict"]["embedding.weight"] = old[:50]
    assert "50 rows" in refusal(map_symbols, saved, table, 1)


def test_new_letters_start_with_the_embedding_row_of_a_similar_letter():
    old = torch.randn(len(ENGLISH), 3)
    saved = Checkpoint("x.pt", {"state_dict": {"embedding.weight": old}})
    table = table_of("aéɔʃжխ中ˈː")
    mapped, new = map_symbols(saved, table, seed=1)
    rows = mapped["state_dict"]["embedding.weight"]
    similar = {"é": "e", "ɔ": "o", "ʃ": "s", "ж": "z", "խ": "k"}
    assert new == similar | {"中": "", "ˈ": "", "ː": ""}
    for symbol, letter in similar.items():
        assert torch.equal(rows[table.ids[symbol]], old[ENGLISH.ids[letter]])


def test_voice_uses_its_symbol_table(trained, tmp_path, capsys):
    path = newest(trained)
    assert len(text_to_ids("żółw", load_checkpoint_synthesizer(path).settings)) == 4
    command = ["--checkpoint", str(path), "-o", str(tmp_path / "out"), "--text", "Żółw, Ąę!"]
    message = refusal(synthesize.main, command)
    assert (
        "'ą' at column 7 (U+0105, nothing similar), '!' at column 9 (U+0021, nothing similar)"
        in message
    )
    synthesize.main([*command, "--drop-unknown", "--hparams", "max_decoder_steps=5"])
    assert (tmp_path / "out" / "0001.wav").exists()


@pytest.mark.thorough
def test_resume_keeps_the_symbol_table_of_the_run(trained, lists, tmp_path, capsys):
    """A different symbol table in the settings is rejected. A new symbol table next to new
    filelists is ignored."""
    out = shutil.copytree(trained, tmp_path / "run")
    again = shutil.copytree(lists.parent, tmp_path / "again") / "lists"
    table = json.loads((lists / "symbols.json").read_text("utf-8"))
    (again / "symbols.json").write_text(json.dumps(table[:-1]))
    (tmp_path / "other.json").write_text(json.dumps([*table, "q"]))
    other = flags(out, f"epochs=2,symbols={tmp_path / 'other.json'}", "--resume")
    assert "table of 21 symbols" in refused(other, capsys)
    train.main(flags(out, f"@{again / 'settings.txt'},epochs=2", "--resume"))
    assert load(newest(out))["hparams"]["symbol_table"] == tuple(table)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: (*table[:-1], "_"), "the padding '_' must be the first"),
        (lambda table: ("x",) * 10**5, "100,000 symbols"),
    ],
)
def test_checkpoint_is_rejected_when_its_symbol_table_is_invalid(
    change, message, trained, tmp_path
):
    state = load(newest(trained))
    table = change(state["hparams"]["symbol_table"])
    changed = state["hparams"] | {"symbol_table": table, "n_symbols": len(table) or 148}
    torch.save(state | {"hparams": changed}, tmp_path / "bad.pt")
    found = refusal(load_checkpoint, tmp_path / "bad.pt")
    assert message in found
    assert len(found) < 1000


def test_checkpoint_uses_english_symbols_when_it_has_no_symbol_table(checkpoint_path):
    state = load(checkpoint_path)
    for name in ("symbol_table", "text_cleaners"):
        del state["hparams"][name]
    torch.save(state, checkpoint_path)
    hparams = load_checkpoint_synthesizer(checkpoint_path).settings
    assert hparams.table is ENGLISH
    assert hparams_from_dict({}).table is ENGLISH
    # each model uses the text normalization rules that it was trained with
    for text in ("So.", "£10, at 10:05"):
        assert text_to_ids(text, hparams) == text_to_sequence(text, ["english_cleaners"])


def test_warning_is_printed_when_the_espeak_version_differs(espeak, capsys):
    phones = create_hparams(f"{PHONES},language=de")
    made = check_text_settings(phones)
    assert (made.espeak_version, capsys.readouterr().out) == ("1.52", "")
    espeak.version = "1.49"
    assert check_text_settings(made).espeak_version == "1.52"
    printed = capsys.readouterr().out
    assert printed.startswith("warning: ")
    assert "1.52" in printed
    assert "1.49" in printed
