"""Adapt the weights of another model to this model (--warm_start).

Symbols and speakers are matched by name.

    saved, notes = fitted(source, hparams)
    load_weights(model, saved, source.path, hparams, hparams.ignore_layers)
"""

from typing import Any

import torch

from export import checkpoint_file
from hparams import HParams, hparams_from_dict
from tacotron2_voice.settings import MEL_SETTINGS
from tacotron2_voice.text import SymbolTable
from tacotron2_voice.utils.errors import UserError
from training.checkpoint import Checkpoint

MAX_NAMED = 200  # maximum number of characters in a list of names in a message
SPEAKERS = checkpoint_file.SPEAKER_EMBEDDING
# Weights that multiply the encoder's output. In models with several speakers, each weight has
# additional columns for the speaker embedding, which follows the encoder output.
READERS = (
    "decoder.attention_rnn.weight_ih",
    "decoder.attention_layer.memory_layer.linear_layer.weight",
    "decoder.decoder_rnn.weight_ih",
    "decoder.linear_projection.linear_layer.weight",
    "decoder.gate_layer.linear_layer.weight",
)


def fitted(source: Checkpoint, hparams: HParams) -> tuple[dict[str, Any], list[str]]:
    """Return a checkpoint's state, adapted to this run's symbols and speakers, and a list of notes.

    Each note describes one change in a sentence. Tensors in `ignore_layers` do not change.

    Raises:
        UserError: if the checkpoint does not say which symbol or speaker each embedding row belongs
            to.
    """
    saved = source.state
    notes: list[str] = []
    if "embedding.weight" not in hparams.ignore_layers:
        saved, new = map_symbols(source, hparams.table, hparams.seed)
        count = len(hparams.table)
        note = f"{count - len(new)} of {count} symbols keep their embeddings, {len(new)} are new"
        if new:
            names = " ".join(new)
            note += (
                " (random embeddings with the mean and spread of the old embeddings): "
                f"{names:.{MAX_NAMED}}"
            )
        notes.append(note)
    if hparams.speaker_embedding_dim and SPEAKERS not in hparams.ignore_layers:
        saved, note = map_speakers(Checkpoint(source.path, saved), hparams)
        notes.append(note)
    return saved, notes


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
) -> tuple[dict[str, Any], list[str]]:
    """Adapt a checkpoint's symbol embedding to the symbols in `table`.

    A symbol that is in the checkpoint keeps its row. Each value in the row of a new symbol is drawn
    with `seed` from a normal distribution. This distribution has the mean and the standard deviation
    of the same column in the checkpoint.

    Return the adapted state and the new symbols.

    Raises:
        UserError: if the number of rows differs from the number of symbols in the checkpoint.
    """
    saved = source.state
    theirs = hparams_from_dict(saved.get("hparams", {}))
    old = checkpoint_file.embedding_of(saved["state_dict"])
    if theirs.table.symbols == table.symbols or old is None:
        return saved, []  # `load_weights` rejects weights that do not fit
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
    for i, symbol in enumerate(table.symbols):
        if symbol in ids:
            rows[i] = old[ids[symbol]]
    weights = saved["state_dict"]
    new = [symbol for symbol in table.symbols if symbol not in ids]
    return saved | {"state_dict": weights | {"embedding.weight": rows}}, new


def map_speakers(source: Checkpoint, hparams: HParams) -> tuple[dict[str, Any], str]:
    """Adapt a checkpoint's state to the speakers in `hparams`.

    A speaker that is in the checkpoint keeps its embedding. A new speaker gets the mean of the
    checkpoint's speaker embeddings. If the checkpoint has only one speaker, the weights that are
    applied to the new embeddings are 0. With such weights, every speaker starts with the voice of
    the checkpoint's only speaker.

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
