"""Fit the weights of another model to this model (--warm_start), and match symbols and speakers by
name.

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

MAX_NAMED = 200  # largest number of characters of a list of names in a message
SPEAKERS = checkpoint_file.SPEAKER_EMBEDDING
# These weights are multiplied with the memory. If a model has several speakers, the memory ends
# with the speaker's vector, so these weights have more columns at the end.
READERS = (
    "decoder.attention_rnn.weight_ih",
    "decoder.attention_layer.memory_layer.linear_layer.weight",
    "decoder.decoder_rnn.weight_ih",
    "decoder.linear_projection.linear_layer.weight",
    "decoder.gate_layer.linear_layer.weight",
)


def fitted(source: Checkpoint, hparams: HParams) -> tuple[dict[str, Any], list[str]]:
    """Return a checkpoint's state with the embeddings of this run's symbols and speakers.

    The second value contains a sentence for each change. Tensors in `ignore_layers` do not change.

    Raises:
        UserError: if the checkpoint does not list the symbols or speakers of its rows.
    """
    saved = source.state
    notes: list[str] = []
    if "embedding.weight" not in hparams.ignore_layers:
        saved, new = map_symbols(source, hparams.table, hparams.seed)
        count = len(hparams.table)
        note = (
            f"of {count} symbols, {count - len(new)} keep their rows of the embedding and "
            f"{len(new)} are new"
        )
        if new:
            names = " ".join(new)
            note += f", drawn from the mean and spread of the old rows: {names:.{MAX_NAMED}}"
        notes.append(note)
    if hparams.speaker_embedding_dim and SPEAKERS not in hparams.ignore_layers:
        saved, note = map_speakers(Checkpoint(source.path, saved), hparams)
        notes.append(note)
    return saved, notes


def different_audio(source: Checkpoint, hparams: HParams) -> list[str]:
    """Return the audio settings of a checkpoint that differ from this run's, each with both
    values."""
    theirs = source.state.get("hparams", {})
    return [
        f"{name}={theirs[name]}, here {getattr(hparams, name)}"
        for name in MEL_SETTINGS
        if name in theirs and theirs[name] != getattr(hparams, name)
    ]


def map_symbols(
    source: Checkpoint, table: SymbolTable, seed: int
) -> tuple[dict[str, Any], list[str]]:
    """Adapt a checkpoint's embedding to the symbols of `table`.

    Returns the checkpoint's state and the new symbols. A known symbol keeps its row. A new symbol's
    row is drawn with `seed` from the normal distribution of all old rows, column by column.

    Raises:
        UserError: if the checkpoint does not list the symbols of its rows.
    """
    saved = source.state
    theirs = hparams_from_dict(saved.get("hparams", {}))
    old = checkpoint_file.embedding_of(saved["state_dict"])
    if theirs.table.symbols == table.symbols or old is None:
        return saved, []  # `load_weights` rejects weights that do not fit.
    if len(old) != theirs.n_symbols:
        raise UserError(
            f"{source.path}: embedding.weight has {len(old)} rows, expected {theirs.n_symbols}, "
            "the size of its symbol table. Leave it out with --hparams "
            "ignore_layers=[embedding.weight]"
        )
    old = old.float()
    ids = {symbol: i for i, symbol in enumerate(theirs.table.symbols)}
    noise = torch.randn(len(table), old.shape[1], generator=torch.Generator().manual_seed(seed))
    rows = old.mean(dim=0) + noise * old.std(dim=0)
    for i, symbol in enumerate(table.symbols):
        if symbol in ids:
            rows[i] = old[ids[symbol]]
    weights = {name.removeprefix("module."): x for name, x in saved["state_dict"].items()}
    new = [symbol for symbol in table.symbols if symbol not in ids]
    return saved | {"state_dict": weights | {"embedding.weight": rows}}, new


def map_speakers(source: Checkpoint, hparams: HParams) -> tuple[dict[str, Any], str]:
    """Adapt a checkpoint's state to the speakers of `hparams`.

    Returns the state and a sentence on the changes. A known speaker keeps its row of the embedding,
    and a new speaker gets the mean of all old rows. A model of one speaker gets an embedding
    without effect, so that every speaker begins as the model's one speaker.

    Raises:
        UserError: if the checkpoint does not list the speakers of its rows (Mellotron's checkpoints
            do not).
    """
    saved = source.state
    names = hparams.speakers
    dim = hparams.speaker_embedding_dim
    weights = {name.removeprefix("module."): x for name, x in saved["state_dict"].items()}
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
        note = f"all {len(names)} speakers begin as the one speaker of the checkpoint"
        return saved | {"state_dict": weights | wider | {SPEAKERS: rows}}, note
    if old.dim() != 2 or len(old) != len(known):
        raise UserError(
            f"{source.path}: {SPEAKERS} has {len(old)} rows, expected {len(known)}, one for each "
            f"speaker of the checkpoint. Ignore this layer with --hparams ignore_layers=[{SPEAKERS}]"
        )
    index_of = {name: index for index, name in enumerate(known)}
    mean = old.float().mean(dim=0)
    rows = torch.stack([old[index_of[x]].float() if x in index_of else mean for x in names])
    new = [name for name in names if name not in index_of]
    note = (
        f"of {len(names)} speakers, {len(names) - len(new)} keep their rows of the embedding and "
        f"{len(new)} are new"
    )
    if new:
        note += f" and begin with the mean of the old rows: {', '.join(new):.{MAX_NAMED}}"
    return saved | {"state_dict": weights | {SPEAKERS: rows}}, note
