"""Adapt the weights of another model to this model (--warm_start).

The symbols and speakers of the two models are matched by name.

    saved, notes = adapted_state(source, hparams)
    load_weights(model, saved, source.path, hparams, hparams.ignore_layers)
"""

import unicodedata
from typing import Any

import torch

from hparams import HParams, hparams_from_dict
from tacotron2_voice.settings import MEL_SETTINGS
from tacotron2_voice.text import SymbolTable
from tacotron2_voice.text.unknown_symbols import nearest
from tacotron2_voice.utils.errors import UserError
from training.checkpoint import Checkpoint

MAX_NAMED = 200  # maximum number of characters in a list of names in a message
# Scripts whose letters stand for single sounds. (Phones are written with Latin and Greek letters.)
ALPHABETS = (
    *("LATIN", "GREEK", "CYRILLIC", "ARMENIAN", "GEORGIAN", "HEBREW", "ARABIC"),
    *("DEVANAGARI", "BENGALI", "TAMIL", "TELUGU", "THAI"),
)
SPEAKERS = "speaker_embedding.weight"  # models with one speaker lack this weight
# Weights that multiply the encoder output. In models with several speakers, the speaker embedding
# is appended to the encoder output, so each of these weights has additional columns.
READERS = (
    "decoder.attention_rnn.weight_ih",
    "decoder.attention_layer.memory_layer.linear_layer.weight",
    "decoder.decoder_rnn.weight_ih",
    "decoder.linear_projection.linear_layer.weight",
    "decoder.gate_layer.linear_layer.weight",
)


def adapted_state(source: Checkpoint, hparams: HParams) -> tuple[dict[str, Any], list[str]]:
    """Return a checkpoint's state, adapted to this run's symbols and speakers, and a list of notes.

    Each note describes one change in a sentence. Tensors in the setting `ignore_layers` do not
    change.

    Raises:
        UserError: if the checkpoint does not list a symbol for each row of the symbol embedding, or
            a speaker for each row of the speaker embedding.
    """
    saved = source.state
    notes: list[str] = []
    if "embedding.weight" not in hparams.ignore_layers:
        saved, new = map_symbols(source, hparams.table, hparams.seed)
        notes.append(_symbols_note(len(hparams.table), new))
    if hparams.speaker_embedding_dim and SPEAKERS not in hparams.ignore_layers:
        saved, note = map_speakers(Checkpoint(source.path, saved), hparams)
        notes.append(note)
    return saved, notes


def _symbols_note(count: int, new: dict[str, str]) -> str:
    """Return a sentence about the symbols that keep their embeddings and about the new symbols."""
    note = f"{count - len(new)} of {count} symbols keep their embeddings, {len(new)} are new"
    similar = " ".join(f"{symbol}={other}" for symbol, other in new.items() if other)
    others = " ".join(symbol for symbol, other in new.items() if not other)
    if similar:
        note += f"; these start with the embedding of a similar symbol: {similar:.{MAX_NAMED}}"
    if others:
        note += (
            "; these start with random embeddings that have the mean and spread of the old "
            f"embeddings: {others:.{MAX_NAMED}}"
        )
    return note


def different_audio(source: Checkpoint, hparams: HParams) -> list[str]:
    """Return the audio settings that differ between a checkpoint and this run, with both values."""
    theirs = source.state.get("hparams", {})
    return [
        f"{name}={theirs[name]} (this run: {getattr(hparams, name)})"
        for name in MEL_SETTINGS
        if name in theirs and theirs[name] != getattr(hparams, name)
    ]


def map_symbols(
    source: Checkpoint, table: SymbolTable, seed: int
) -> tuple[dict[str, Any], dict[str, str]]:
    """Adapt a checkpoint's symbol embedding to the symbols in `table`.

    A symbol that is in the checkpoint keeps its row. A new letter or phone starts with the row of
    a similar symbol in the checkpoint. A similar symbol is a phone with a similar sound, the same
    letter with other accents or in a different case, or the first letter of the transliteration,
    such as z for ж. The row of any other new symbol is random. Random values are drawn, with `seed`,
    from a normal distribution with the mean and the standard deviation of the column in the
    checkpoint.

    Return the adapted state and {new symbol: similar symbol, or "" if the row is random}.

    Raises:
        UserError: if the checkpoint's symbol embedding does not have one row for each symbol of the
        checkpoint.
    """
    saved = source.state
    theirs = hparams_from_dict(saved.get("hparams", {}))
    weights = saved["state_dict"]
    old = weights.get("embedding.weight")
    if theirs.table.symbols == table.symbols or old is None or old.dim() != 2:
        return saved, {}  # later, `load_weights` rejects weights that do not fit
    if len(old) != theirs.n_symbols:
        raise UserError(
            f"{source.path}: embedding.weight has {len(old)} rows, but the checkpoint's symbol "
            f"table has {theirs.n_symbols} symbols. Ignore this layer with --hparams "
            "ignore_layers=[embedding.weight]"
        )
    old = old.float()
    ids = {symbol: i for i, symbol in enumerate(theirs.table.symbols)}
    noise = torch.randn(len(table), old.shape[1], generator=torch.Generator().manual_seed(seed))
    rows = old.mean(dim=0) + noise * old.std(dim=0)
    new = {x: _similar_letter(x, theirs.table) for x in table.symbols if x not in ids}
    for i, symbol in enumerate(table.symbols):
        source_symbol = new.get(symbol, symbol)
        if source_symbol:
            rows[i] = old[ids[source_symbol]]
    return saved | {"state_dict": weights | {"embedding.weight": rows}}, new


def _similar_letter(symbol: str, table: SymbolTable) -> str:
    """Return the first letter of the text in `table` that can replace a letter, or "".

    Characters of scripts that are not in ALPHABETS stand for syllables or words. Modifiers, such as
    the length mark of phones, do not stand for a separate sound.
    """
    is_letter = len(symbol) == 1 and unicodedata.category(symbol) in ("Ll", "Lu", "Lo")
    if not is_letter or not unicodedata.name(symbol).startswith(ALPHABETS):
        return ""
    return nearest(symbol.lower(), table)[:1]


def map_speakers(source: Checkpoint, hparams: HParams) -> tuple[dict[str, Any], str]:
    """Adapt a checkpoint's state to the speakers in `hparams`.

    A speaker that is in the checkpoint keeps its embedding. A new speaker gets the mean of the
    checkpoint's speaker embeddings. If the checkpoint has only one speaker, every speaker starts
    with this speaker's voice, because the weights that multiply the new embeddings start at 0.

    Return the adapted state and a sentence about the changes.

    Raises:
        UserError: if the checkpoint, for example a Mellotron checkpoint, does not contain a name
            for each speaker embedding.
    """
    saved = source.state
    names = hparams.speakers
    dim = hparams.speaker_embedding_dim
    weights = saved["state_dict"]
    old = weights.get(SPEAKERS)
    known = tuple(saved.get("hparams", {}).get("speakers", ()))
    if old is None:
        rows = torch.empty(len(names), dim)
        generator = torch.Generator().manual_seed(hparams.seed)
        torch.nn.init.xavier_uniform_(rows, generator=generator)
        wider = {
            name: torch.nn.functional.pad(weights[name], (0, dim))
            for name in READERS
            if name in weights and weights[name].dim() == 2
        }
        note = f"all {len(names)} speakers start with the voice of the checkpoint's single speaker"
        return saved | {"state_dict": weights | wider | {SPEAKERS: rows}}, note
    if old.dim() != 2 or len(old) != len(known):
        raise UserError(
            f"{source.path}: {SPEAKERS} has {len(old)} rows, but the checkpoint lists {len(known)} "
            f"speakers. Ignore this layer with --hparams ignore_layers=[{SPEAKERS}]"
        )
    index_of = {name: index for index, name in enumerate(known)}
    mean = old.float().mean(dim=0)
    rows = torch.stack([old[index_of[x]].float() if x in index_of else mean for x in names])
    new = [name for name in names if name not in index_of]
    note = (
        f"{len(names) - len(new)} of {len(names)} speakers keep their embeddings, {len(new)} are "
        "new"
    )
    if new:
        note += f" (start with the mean of the old embeddings): {', '.join(new):.{MAX_NAMED}}"
    return saved | {"state_dict": weights | {SPEAKERS: rows}}, note
