"""The tables of a report: the paper's figures with ours beside them.

A summary is a DataFrame with a line for each row of a table: `ours`, `standard_error`, `runs`, and
in `note` why there is no number.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis import published
from analysis.runs import Run, Runs

BEST = "SSB-DBS-BR"  # the paper's batching
RANDOMIZED = [("SB", "SB-BR"), ("SSB", "SSB-BR"), ("SSB-DBS", "SSB-DBS-BR")]
LOSSES = ("vl1", "vl2", "vl3", "vl_average")
# Of every epoch's record: how the epochs of a run are combined, and the unit shown.
EPOCH_MEASURES = {
    "minutes": ("median", 1.0),
    "zero_padding_rate": ("mean", 100.0),
    "average_batch_length": ("mean", 1.0),
    "num_batches": ("mean", 1.0),
    "decoder_steps": ("mean", 1.0),
    "frames_per_second": ("median", 1.0),
    "padded_frames_per_second": ("median", 1.0),
    "clips_per_second": ("median", 1.0),
    "peak_memory_bytes": ("max", 2.0**-30),
    "data_wait_seconds": ("median", 1.0),
    "prepare_seconds": ("median", 1000.0),
}
PAPER = pd.DataFrame(published.TABLE_2, index=published.PublishedRow._fields).T


# ---------------------------------------------------------------------------- tables


@dataclass(frozen=True)
class Column:
    """A quantity of a table. `ours`: a summary, or a text for each line."""

    heading: str
    decimals: int
    ours: pd.DataFrame | Sequence[str]
    published: Sequence[float] | Sequence[str] | None = None  # None: ours alone
    sides: tuple[str, str] = ("published", "ours")  # head the two
    published_decimals: int | None = None  # None: as ours

    def cells(self) -> pd.DataFrame:
        """`ours`, `standard_error`, `runs`, `note`, `published`, a line for each of the table."""
        columns = ["published", "ours", "standard_error", "runs", "note"]
        ours = self.ours
        if not isinstance(ours, pd.DataFrame):
            ours = pd.DataFrame({"ours": ours, "note": ""})
        found = ours.reset_index(drop=True).reindex(columns=columns)
        return found if self.published is None else found.assign(published=list(self.published))


class ShownCell(NamedTuple):
    """A cell in words. `note` is the number of its footnote, 0 for none; `side` its CSS class."""

    text: str
    error: str = ""  # "± 0.12"
    note: int = 0
    side: str = "label"


@dataclass(frozen=True)
class Table:
    """`lines` are the labels of each line, under `headings`."""

    key: str
    title: str
    headings: tuple[str, ...]
    lines: Sequence[tuple[str, ...]]
    columns: Sequence[Column]
    note: str

    def shown(self) -> tuple[list[list[ShownCell]], list[str]]:
        """Every line's cells, and the footnotes."""
        shown = [[ShownCell(label) for label in labels] for labels in self.lines]
        notes: list[str] = []
        for column in self.columns:
            for line, cell in zip(shown, column.cells().to_dict("records"), strict=True):
                if column.published is not None:
                    decimals = column.published_decimals or column.decimals
                    line.append(ShownCell(_number(cell["published"], decimals), side="published"))
                if cell["note"] and cell["note"] not in notes:
                    notes.append(cell["note"])
                error, note = "", notes.index(cell["note"]) + 1 if cell["note"] else 0
                if cell["standard_error"] >= 0:
                    least = 10.0**-column.decimals
                    small = cell["standard_error"] < least / 2
                    error = f"<{least:g}" if small else f"{cell['standard_error']:.{column.decimals}f}"
                    error = f"± {error}"
                text = _number(cell["ours"], column.decimals)
                line.append(ShownCell(text, error, note, "ours"))
        return shown, notes


def _number(value: float | str, decimals: int) -> str:
    if isinstance(value, str):
        return value or "–"
    return "–" if math.isnan(value) else f"{value:,.{decimals}f}".replace("-", "−")


def tidy(tables: Sequence[Table]) -> pd.DataFrame:
    """A line for every cell of the tables, not rounded."""
    frames = []
    for table in tables:
        headings, last = [column.heading for column in table.columns], ""
        for column in table.columns:
            several = headings.count(column.heading) > 1  # follows the last that is there once
            name = f"{last}: {column.heading}" if several else column.heading
            last = last if several else column.heading
            cells = column.cells().assign(table=table.key, quantity=name)
            cells["row"] = [" / ".join(labels) for labels in table.lines]
            frames.append(cells)
    found = pd.concat(frames, ignore_index=True)
    order = found["table"].factorize()[0], found.groupby("table")["row"].transform(
        lambda rows: rows.factorize()[0]
    )
    found = found.iloc[np.lexsort(order[::-1])]
    columns = "table row quantity published ours standard_error runs note".split()
    return found[columns].astype({"runs": "Int64"})


# ---------------------------------------------------------------------------- numbers of runs


@dataclass(frozen=True)
class Losses:
    """Which validations VL1-3 and VLavg are of: the paper's, or those of the runs' thirds."""

    as_published: bool
    names: tuple[str, ...]
    spans: tuple[str, ...]  # our epochs, "" where runs differ


def thirds(epochs: int) -> list[tuple[int, int]]:
    """First and last epoch of the early, middle and late third of a run, and of all of it."""
    edges = [epochs * part // 3 for part in range(4)]
    return [*((a + 1, b) for a, b in zip(edges, edges[1:], strict=False)), (1, epochs)]


def choose_losses(runs: Runs) -> Losses:
    """The paper's epochs if every run has the validation after the last of them, else thirds."""
    lengths = runs.epochs.groupby("run").size()
    if lengths.min() >= published.EPOCHS:
        shown = [f"epoch {epoch}" for epoch in published.EPOCHS_SHOWN]
        whole = f"epochs {published.EPOCHS_SHOWN[0]}–{published.EPOCHS_SHOWN[-1]}"
        return Losses(True, ("VL1", "VL2", "VL3", "VLavg"), (*shown, whole))
    names = ("early third", "middle third", "late third", "all validations")
    alike = lengths.nunique() == 1
    spans = [f"epochs {a}–{b}".replace(f"s {b}–{b}", f" {b}") for a, b in thirds(lengths.iloc[0])]
    return Losses(False, names, tuple(spans) if alike else ("",) * 4)


def loss_of(run: Run, losses: Losses, column: int, name: str) -> float:
    """Mean of the loss `name` over the validations of a column of LOSSES, NaN if one is missing.

    VL1-3 of the paper are means of the validation after an epoch, the one before and the one after
    it (Ge21, 4.3); all others are means of all validations of a span of epochs.
    """
    step, (first, *_, last) = run.hparams.epochs_per_validation, published.EPOCHS_SHOWN
    if losses.as_published and column < 3:
        middle = published.EPOCHS_SHOWN[column]
        wanted = [middle - step, middle, middle + step]
    else:
        if not losses.as_published:
            first, last = thirds(len(run.epochs))[column]
        wanted = [epoch for epoch in range(first, last + 1) if epoch % step == 0]
    return run.epochs.set_index("epoch")[name].reindex(wanted).mean(skipna=False)


def measure(runs: Runs, losses: Losses) -> pd.DataFrame:
    """[runs] every quantity of a run, NaN where it has none."""
    by_run = runs.epochs.groupby("run")
    values = pd.DataFrame({k: by_run[k].agg(how) * x for k, (how, x) in EPOCH_MEASURES.items()})
    for folder, run in runs.found.items():
        for place, key in enumerate(LOSSES):
            values.loc[folder, key] = loss_of(run, losses, place, "validation_loss")
            loss = loss_of(run, losses, place, "validation_loss_unpadded")
            values.loc[folder, f"unpadded {key}"] = loss
        heard = run.transcription
        values.loc[folder, "word_error_rate"] = heard.word_error_rate if heard else np.nan
        values.loc[folder, "training_minutes"] = run.epochs["hours"].iloc[-1] * 60
        values.loc[folder, "updates"] = run.epochs["updates"].iloc[-1]
    return values.loc[list(runs.found)]


def summarize(runs: Runs, values: pd.Series, missing: str = "has no such value") -> pd.DataFrame:
    """Mean and standard error over the runs of each row; no number where a run lacks it.

    Gonzalez et al. (ICASSP 2023) report mean and standard error of the mean over seeds. Times have
    the error of the timing added, which is one measurement for all seeds.
    """
    labels = runs.table["label"]
    by_row = values.groupby(labels)
    found = pd.DataFrame({"ours": by_row.mean(skipna=False), "runs": by_row.size()})
    found["standard_error"] = by_row.sem(skipna=False)
    lacking = values.index[values.isna()]
    notes = pd.Series(lacking, lacking, dtype=object).groupby(labels).agg(", ".join)
    found["note"] = (notes + f" {missing}").reindex(found.index).fillna("")
    found["runs"] = found["runs"].where(found["ours"].notna(), 0)
    if values.name in ("minutes", "training_minutes"):
        timing = error_of_timing(runs) * found["ours"]
        added = np.hypot(found["standard_error"].fillna(0), timing)
        found["standard_error"] = added.where(timing > 0, found["standard_error"])
    return found.loc[runs.rows.index]


def error_of_timing(runs: Runs) -> pd.Series:
    """[rows] standard error of minutes that were timed in turns, as a share; 0 for logged ones."""
    return runs.table.groupby("label")["relative_error"].max()


def falls(
    runs: Runs, found: pd.DataFrame, pairs: Sequence[tuple[str, str]]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """By how much, and by how many per cent, a summary falls between the names of each pair.

    Standard errors are those of a difference and a ratio of independent means.
    """
    before, after = (named(runs, found, [pair[side] for pair in pairs]) for side in (0, 1))
    chosen = runs.representatives()
    notes = before["note"].where(before["note"] != "", after["note"]).tolist()
    for place, pair in enumerate(pairs):
        if not notes[place]:
            first, second = (chosen[name] for name in pair)
            if unlike := runs.differing(first, second):
                notes[place] = f"{first} and {second} cannot be compared: other {', '.join(unlike)}"
            elif not before["ours"][place]:
                notes[place] = f"{first} has 0, of which there are no per cents"
    a, b = before["ours"], after["ours"]
    difference = pd.DataFrame(
        {
            "ours": a - b,
            "standard_error": np.hypot(before["standard_error"], after["standard_error"]),
            "runs": np.minimum(before["runs"], after["runs"]),
        }
    )
    errors = np.hypot(b / a * before["standard_error"], after["standard_error"])
    share = difference.assign(ours=100 * (1 - b / a), standard_error=100 * errors / a)
    is_known = pd.Series(notes) == ""
    return tuple(
        frame.where(is_known).assign(note=notes, runs=frame["runs"].where(is_known, 0))
        for frame in (difference, share)
    )


def named(runs: Runs, found: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The lines of a summary for the rows that stand for these names."""
    chosen = runs.representatives()
    lines = found.reindex([chosen.get(name, name) for name in names]).reset_index(drop=True)
    missing = [f"not measured: no finished run of {name}" for name in names]
    absent = ~pd.Series(names).isin(chosen)
    return lines.assign(
        note=lines["note"].mask(absent, missing), runs=lines["runs"].fillna(0).astype(int)
    )


def published_falls(key: str, pairs: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """The same of the paper, as it prints them, else from its Table 2: `fall` and `per_cent`."""
    both = PAPER.reindex([a for a, _ in pairs])[key], PAPER.reindex([b for _, b in pairs])[key]
    before, after = (side.to_numpy() for side in both)
    found = pd.DataFrame({"fall": before - after, "per_cent": 100 * (1 - after / before)})
    printed = {(a, b, "vl3"): (None, fall) for p in published.TABLE_4.values() for a, b, fall in p}
    printed |= {("RAND", name, "minutes"): fall for name, fall in published.TABLE_3.items()}
    for place, pair in enumerate(pairs):
        for column, value in zip(found, printed.get((*pair, key), ()), strict=False):
            if value is not None:
                found.loc[place, column] = value
    return found


# ---------------------------------------------------------------------------- the paper's tables


def minutes_decimals(values: pd.DataFrame) -> int:
    """Two as the paper, more where an epoch takes seconds, so that three digits are left."""
    least = values["minutes"].min()
    return max(2, min(6, 2 - math.floor(math.log10(least)))) if least > 0 else 2


def paper_tables(runs: Runs, values: pd.DataFrame, losses: Losses) -> list[Table]:
    """Tables 1 to 4 beside ours, and what the paper leaves out."""
    no_loss = "lacks a validation of these epochs"
    found = {k: summarize(runs, values[k], no_loss if "vl" in k else "") for k in values}
    minutes = minutes_decimals(values)
    return [
        _table_1(runs, found),
        _table_2(runs, found, losses, minutes),
        _table_3(runs, found["minutes"], minutes),
        _table_4(runs, found["vl3"], losses),
        _randomization_table(runs, found["minutes"], minutes),
        _unpadded_table(runs, found, losses),
        _cost_table(runs, found),
    ]


Summaries = dict[str, pd.DataFrame]


def _padding(ours: Callable[[str], pd.DataFrame], names: Sequence[str]) -> list[Column]:
    shown = PAPER.reindex(names)
    return [
        Column("ZPR (%)", 2, ours("zero_padding_rate"), shown["zero_padding_rate"]),
        Column("ABL (frames)", 2, ours("average_batch_length"), shown["average_batch_length"]),
    ]


def _table_1(runs: Runs, found: Summaries) -> Table:
    """The parameters, and the padding that they give. Rates do not depend on BR."""
    chosen, lines, names, ours = runs.representatives(), [], [], []
    for name, (parameter, _, _) in published.TABLE_1.items():
        names.append(name if name in chosen and f"{name}-BR" not in chosen else f"{name}-BR")
        lines.append((name, parameter))
        if names[-1] not in chosen:
            ours.append(("", ""))
            continue
        run = runs.first(chosen[names[-1]])
        size, clips = run.hparams.batch_size, len(run.lengths)
        limits = {
            "SSB": "[0, inf)",
            "BKT": f"[{size}, {clips})",
            "ATS": f"[1, {-(-clips // size)}]",
        }
        ours.append((f"{getattr(run.hparams, parameter):g}", limits[name]))
    _, their_values, their_ranges = zip(*published.TABLE_1.values(), strict=True)
    our_values, our_ranges = zip(*ours, strict=True)
    columns = [
        Column("value", 0, our_values, [f"{value:g}" for value in their_values]),
        Column("range", 0, our_ranges, their_ranges),
        *_padding(
            lambda key: named(runs, found[key], names), [f"{n}-BR" for n in published.TABLE_1]
        ),
    ]
    title = "Table 1: the strategies' parameters and the padding that they give"
    note = (
        "ZPR: zero-padding rate, the mean over batches weighted by their clips; ABL: average batch "
        "length. Batch sizes are fixed."
    )
    return Table("table_1", title, ("batching", "parameter"), lines, columns, note)


def _loss_columns(
    losses: Losses, ours: Sequence[pd.DataFrame], names: Sequence[str] | None
) -> list[Column]:
    """VL1-3 and VLavg; with the paper's for `names`, unless that is None."""
    first, *_, last = published.EPOCHS_SHOWN
    paper_spans = [*(f"epoch {epoch}" for epoch in published.EPOCHS_SHOWN), f"epochs {first}–{last}"]
    columns = []
    for place, paper_name in enumerate(("VL1", "VL2", "VL3", "VLavg")):
        name, span = losses.names[place], losses.spans[place]
        theirs = None if names is None else PAPER.reindex(names)[LOSSES[place]]
        heading, sides = f"{name}, {span}".rstrip(", "), ("published", "ours")
        if theirs is not None and not losses.as_published:
            heading = f"{paper_name} | {name}"
            sides = (f"published, {paper_spans[place]}", f"ours, {span}".rstrip(", "))
        columns.append(Column(heading, 3, ours[place], theirs, sides))
    return columns


def _table_2(runs: Runs, found: Summaries, losses: Losses, decimals: int) -> Table:
    """Padding, time and validation loss of the paper's ten batchings and of what else was run."""
    lines = []
    for name in dict.fromkeys([*published.TABLE_2, *runs.rows["name"]]):
        labels = runs.rows.index[runs.rows["name"] == name]
        lines += [(name, label) for label in labels] or [(name, name)]
    names, labels = zip(*lines, strict=True)

    def ours(key: str) -> pd.DataFrame:
        shown = found[key].reindex(labels)
        missing = pd.Series(labels, labels).radd("not measured: no finished run of ")
        return shown.assign(note=shown["note"].fillna(missing), runs=shown["runs"].fillna(0))

    columns = [
        *_padding(ours, names),
        Column(
            "minutes per epoch",
            decimals,
            ours("minutes"),
            PAPER.reindex(names)["minutes"],
            published_decimals=2,
        ),
        *_loss_columns(losses, [ours(key) for key in LOSSES], names),
    ]
    timed = ", of training steps timed in turns; ± includes the error of the timing"
    note = (
        f"Minutes are the median over epochs{timed if _is_timed(runs) else ''}. VL is the "
        "validation loss, like the reference's a mean over padding too, on random validation "
        "batches that are the same in every run. "
    )
    first, *_, last = published.EPOCHS_SHOWN
    if losses.as_published:
        note += (
            "VL1–3: mean of the validation of that epoch, the one before and the one after it; "
            f"VLavg: mean over epochs {first} to {last}, as the paper defines them."
        )
    else:
        note += (
            "Not every run reached the paper's epochs, so ours are means of the validations in the "
            "early, middle and late third of a run, and of all its validations: they are not of "
            "the same moment of training as the published losses."
        )
    if set(names) > set(published.TABLE_2):
        note += " The paper has no figures for the batchings after its ten."
    lines = [(label,) for label in labels]
    return Table("table_2", "Table 2: time and loss", ("batching",), lines, columns, note)


def _is_timed(runs: Runs) -> bool:
    return bool(runs.table["relative_error"].any())


def _table_3(runs: Runs, minutes: pd.DataFrame, decimals: int) -> Table:
    """Minutes saved per epoch against RAND."""
    names = dict.fromkeys([*published.TABLE_3, *published.TABLE_2, *runs.rows["name"]])
    pairs = [("RAND", name) for name in names if name != "RAND"]
    ours, theirs = falls(runs, minutes, pairs), published_falls("minutes", pairs)
    columns = [
        Column("minutes saved", decimals, ours[0], theirs["fall"], published_decimals=2),
        Column("saved (%)", 2, ours[1], theirs["per_cent"]),
    ]
    title = "Table 3: time saved per epoch against RAND"
    note = (
        f"The paper's Table 3 has {', '.join(published.TABLE_3)}; for the others the published "
        "side is calculated from its Table 2."
    )
    return Table("table_3", title, ("batching",), [(name,) for _, name in pairs], columns, note)


def _before_and_after(
    runs: Runs,
    found: pd.DataFrame,
    key: str,
    pairs: Sequence[tuple[str, str]],
    headings: tuple[str, str, str],
    decimals: int,
) -> list[Column]:
    """Two batchings and by how many per cent `key` falls between them."""
    columns = []
    for side in (0, 1):
        names = [pair[side] for pair in pairs]
        ours, theirs = named(runs, found, names), PAPER.reindex(names)[key]
        published_decimals = 2 if key == "minutes" else None
        columns.append(
            Column(headings[side], decimals, ours, theirs, published_decimals=published_decimals)
        )
    theirs = published_falls(key, pairs)["per_cent"]
    return [*columns, Column(headings[2], 2, falls(runs, found, pairs)[1], theirs)]


def _table_4(runs: Runs, vl3: pd.DataFrame, losses: Losses) -> Table:
    """How far what is changed lowers VL3."""
    lines = [(what, *pair[:2]) for what, found in published.TABLE_4.items() for pair in found]
    loss = "VL3" if losses.as_published else "VL3 (ours: late third)"
    headings = (f"{loss}, from", f"{loss}, to", "lower by (%)")
    columns = _before_and_after(runs, vl3, "vl3", [line[1:] for line in lines], headings, 3)
    title, note = "Table 4: what lowers the validation loss", "Negative: the loss rose."
    return Table("table_4", title, ("change", "from", "to"), lines, columns, note)


def _randomization_table(runs: Runs, minutes: pd.DataFrame, decimals: int) -> Table:
    headings = ("minutes without", "minutes with", "shorter by (%)")
    columns = _before_and_after(runs, minutes, "minutes", RANDOMIZED, headings, decimals)
    title, note = "Does batch randomization shorten an epoch?", "Negative: the epoch is longer."
    labels = ("without BR", "with BR")
    return Table("batch_randomization", title, labels, RANDOMIZED, columns, note)


def _unpadded_table(runs: Runs, found: Summaries, losses: Losses) -> Table:
    columns = _loss_columns(losses, [found[f"unpadded {key}"] for key in LOSSES], None)
    note = "The mean over real frames alone, at the same validations. Not in the paper."
    lines = [(label,) for label in runs.rows.index]
    title = "Validation loss without padding"
    return Table("unpadded_loss", title, ("batching",), lines, columns, note)


def _cost_table(runs: Runs, found: Summaries) -> Table:
    """What an epoch does, how fast, and with what."""
    columns = [
        Column("batches", 1, found["num_batches"]),
        Column("decoder steps", 0, found["decoder_steps"]),
        Column("real frames/s", 0, found["frames_per_second"]),
        Column("padded frames/s", 0, found["padded_frames_per_second"]),
        Column("clips/s", 2, found["clips_per_second"]),
        Column("peak memory (GiB)", 2, found["peak_memory_bytes"]),
        Column("waiting for data (s)", 2, found["data_wait_seconds"]),
        Column("preparation (ms)", 1, found["prepare_seconds"]),
    ]
    busy = ", as logged by the runs with whatever else the machine did" * _is_timed(runs)
    note = (
        "Batches and decoder steps (which the decoder takes one after another): mean of an epoch. "
        f"Speeds and seconds: median over epochs{busy}; clips/s are other papers' utterances/s; "
        "preparation is the planning of an epoch's batches. Memory: the peak of any epoch, of the "
        "GPU; without one, of the process since its start."
    )
    lines = [(label,) for label in runs.rows.index]
    return Table("costs", "What an epoch does and costs", ("batching",), lines, columns, note)
