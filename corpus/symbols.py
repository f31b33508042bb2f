"""Collect the symbols of a corpus's texts (symbols=corpus), and warn about rare symbols."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from corpus.clips import Clip
from corpus.filelist import MAX_CHARACTERS
from hparams import HParams, with_table
from tacotron2_voice.text import clean
from tacotron2_voice.text.lexicon import respell
from tacotron2_voice.text.symbols import PADDING, can_be_symbol, table_of
from tacotron2_voice.utils.console import progress_bar
from tacotron2_voice.utils.errors import UserError, count_of

RARE = 10  # minimum number of clips per symbol; a model hardly learns rarer symbols
MAX_SYMBOLS_SHOWN = 20  # maximum number of rare symbols to list in a warning
CLIPS_SHOWN = 5  # maximum number of clips to list per rare symbol


def with_symbols_of(clips: Sequence[Clip], hparams: HParams) -> HParams:
    """Return the settings with a new symbol table that contains all symbols of the cleaned
    texts."""
    characters: set[str] = set()
    texts = [clip.text for clip in clips if len(clip.text) <= MAX_CHARACTERS]
    for text in progress_bar("Counting symbols", len(texts), " texts", iterable=texts):
        # Ignore texts that crash eSpeak, because `check_clips` later reports these texts.
        with contextlib.suppress(UserError):
            text = respell(text, hparams.pronunciations)
            characters.update(clean(text, hparams.text_cleaners, hparams.table, hparams.language))
    # Leave out characters that cannot be symbols. Later, `check_clips` either rejects clips with
    # these characters or drops the characters.
    usable = [*filter(can_be_symbol, characters - {PADDING})]
    return with_table(hparams, table_of(usable).symbols) if usable else hparams


def drop_unused_symbols(clips: Sequence[Clip], hparams: HParams) -> tuple[list[Clip], HParams]:
    """Remove unused symbols from the symbol table, because their embeddings would never be trained.

    Return a tuple of the clips with new symbol ids and the settings with the new table.
    """
    old = hparams.table
    new = table_of(old.symbols[i] for i in set().union(*(clip.symbols for clip in clips)))
    ids = [new.ids.get(symbol, 0) for symbol in old.symbols]
    renumbered = [replace(clip, symbols=tuple(ids[i] for i in clip.symbols)) for clip in clips]
    return renumbered, with_table(hparams, new.symbols)


def rare_symbols(clips: Sequence[Clip], hparams: HParams) -> str:
    """Return a warning that lists the symbols in fewer than RARE clips, rarest first.

    Return "" for the English symbol table, because this table is the same for every corpus.
    """
    places: dict[int, list[str]] = {}
    for clip in clips:
        for i in set(clip.symbols):
            places.setdefault(i, []).append(clip.id)
    rare = sorted((i for i in places if len(places[i]) < RARE), key=lambda i: (len(places[i]), i))
    if not rare or hparams.table.is_english:
        return ""
    notes = [
        f"{hparams.table.symbols[i]!r} in {count_of(len(places[i]), 'clip')} "
        f"({', '.join(places[i][:CLIPS_SHOWN])})"
        for i in rare[:MAX_SYMBOLS_SHOWN]
    ]
    more = f" and {len(rare) - MAX_SYMBOLS_SHOWN:,} more" * (len(rare) > MAX_SYMBOLS_SHOWN)
    return (
        f"warning: {len(rare):,} of {len(places):,} symbols occur in fewer than {RARE} clips: "
        f"{'; '.join(notes)}{more}. Respell the words with these symbols, or add clips "
        "(docs/guides/languages.md)"
    )
