"""Fits the weights of another model to this one (--warm_start): its symbols and speakers by name.

saved, notes = fitted(source, hparams)
load_weights(model, saved, source.path, hparams.ignore_layers)
"""

from typing import Any

import torch

from common.errors import UserError
from hparams import HParams, hparams_from_dict
from synthesis import checkpoint_file
from text import SymbolTable
from training.checkpoint import Checkpoint

MAX_NAMED = 200  # characters of a list of names
SPEAKERS = checkpoint_file.SPEAKER_EMBEDDING
# The weights that read the memory. Its last columns are the speaker's, and theirs.
READERS = (
    "decoder.attention_rnn.weight_ih",
    "decoder.attention_layer.memory_layer.linear_layer.weight",
    "decoder.decoder_rnn.weight_ih",
    "decoder.linear_projection.linear_layer.weight",
    "decoder.gate_layer.linear_layer.weight",
)


def fitted(source: Checkpoint, hparams: HParams) -> tuple[dict[str, Any], list[str]]:
    """A checkpoint's state with the embeddings of this run's symbols and speakers, and what was
    changed, in sentences. Tensors that `ignore_layers` names are left as they are.

    Raises:
        UserError: if the checkpoint does not say to which symbols its rows belong.
    """
    saved, notes = source.state, list[str]()
    if "embedding.weight" not in hparams.ignore_layers:
        saved, new = map_symbols(source, hparams.table, hparams.seed)
        drawn = f", drawn from the mean and spread of the old: {' '.join(new):.{MAX_NAMED}}"
        count = len(hparams.table)
        notes.append(
            f"of {count} symbols {count - len(new)} keep their rows of the embedding, {len(new)} "
            f"are new{drawn if new else ''}"
        )
    if hparams.speaker_embedding_dim and SPEAKERS not in hparams.ignore_layers:
        saved, note = map_speakers(saved, hparams)
        notes.append(note)
    return saved, notes


def map_symbols(
    source: Checkpoint, table: SymbolTable, seed: int
) -> tuple[dict[str, Any], list[str]]:
    """Adapt a checkpoint's embedding to the symbols of `table`. Returns the checkpoint's state and
    the new symbols; the state is unchanged if its symbols are the same.

    A known symbol keeps its row. A new symbol's row is drawn with `seed` from the normal
    distribution of all old rows, column by column.

    Raises:
        UserError: if the checkpoint does not say to which symbols its rows belong.
    """
    saved, theirs = source.state, hparams_from_dict(source.state.get("hparams", {}))
    old = checkpoint_file.embedding_of(saved["state_dict"])
    if theirs.table.symbols == table.symbols or old is None:
        return saved, []  # `load_weights` says what does not fit
    if len(old) != theirs.n_symbols:
        raise UserError(
            f"{source.path}: embedding.weight has {len(old)} rows, and no table of symbols says "
            "of which; leave it out with --hparams ignore_layers=[embedding.weight]"
        )
    old, ids = old.float(), {symbol: i for i, symbol in enumerate(theirs.table.symbols)}
    noise = torch.randn(len(table), old.shape[1], generator=torch.Generator().manual_seed(seed))
    rows = old.mean(dim=0) + noise * old.std(dim=0)
    for i, symbol in enumerate(table.symbols):
        if symbol in ids:
            rows[i] = old[ids[symbol]]
    new = [symbol for symbol in table.symbols if symbol not in ids]
    return _with_weights(saved, {"embedding.weight": rows}), new


def map_speakers(saved: dict[str, Any], hparams: HParams) -> tuple[dict[str, Any], str]:
    """Adapt a checkpoint's state to the speakers of `hparams`. Returns the state, and what was
    changed in a sentence.

    A known speaker keeps its row of the embedding, and a new one gets the mean of all old rows. A
    model of one voice gets an embedding that is still without effect: every speaker begins as that
    voice. UserError cannot arise here: `load_weights` says what does not fit.
    """
    names, dim = hparams.speakers, hparams.speaker_embedding_dim
    old = saved["state_dict"].get(SPEAKERS)
    known = tuple(saved.get("hparams", {}).get("speakers", ()))
    if old is None:
        rows = torch.empty(len(names), dim)
        generator = torch.Generator().manual_seed(hparams.seed)
        torch.nn.init.xavier_uniform_(rows, generator=generator)
        weights = {name.removeprefix("module."): x for name, x in saved["state_dict"].items()}
        wider = {
            name: torch.nn.functional.pad(weights[name], (0, dim))
            for name in READERS
            if name in weights and weights[name].dim() == 2
        }
        note = f"all {len(names)} speakers begin with the one voice of the checkpoint"
        return _with_weights(saved, {SPEAKERS: rows, **wider}), note
    if known == names or old.dim() != 2 or len(old) != len(known):
        return saved, f"all {len(names)} speakers keep their rows of the embedding"
    index_of = {name: index for index, name in enumerate(known)}
    mean = old.float().mean(dim=0)
    rows = torch.stack([old[index_of[x]].float() if x in index_of else mean for x in names])
    new = [name for name in names if name not in index_of]
    begin = f" and begin with the mean of the old: {', '.join(new):.{MAX_NAMED}}" if new else ""
    kept = f"{len(names) - len(new)} keep their rows of the embedding, {len(new)} are new"
    return _with_weights(saved, {SPEAKERS: rows}), f"of {len(names)} speakers {kept}{begin}"


def _with_weights(saved: dict[str, Any], changed: dict[str, torch.Tensor]) -> dict[str, Any]:
    weights = {name.removeprefix("module."): x for name, x in saved["state_dict"].items()}
    return saved | {"state_dict": weights | changed}
