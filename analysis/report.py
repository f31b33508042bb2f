"""The tables of a report: the paper's figures with ours beside them.

A summary is a DataFrame with a line for each row of a table: `ours`, `standard_error`, `runs`, and
in `note` why there is no number. Titles, notes and captions are in scripts/templates/texts.jinja.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from analysis import published
from analysis.runs import Run, Runs

BEST = "SSB-DBS-BR"  # the paper's batching
RANDOMIZED = [("SB", "SB-BR"), ("SSB", "SSB-BR"), ("SSB-DBS", "SSB-DBS-BR")]
PAPER = pd.DataFrame(published.TABLE_2, index=published.PublishedRow._fields).T
CELL = ["published", "ours", "standard_error", "runs", "note"]
LOSSES, PAPER_LOSSES = ("vl1", "vl2", "vl3", "vl_average"), ("VL1", "VL2", "VL3", "VLavg")
PADDING = ["zero_padding_rate", "average_batch_length"]
# Of every epoch: how the epochs of a run are combined, the unit, the heading and its decimals.
OF_EPOCHS = {
    "zero_padding_rate": ("mean", 100, "ZPR (%)", 2),
    "average_batch_length": ("mean", 1, "ABL (frames)", 2),
    "minutes": ("median", 1, "minutes per epoch", 2),
    "num_batches": ("mean", 1, "batches", 1),
    "decoder_steps": ("mean", 1, "decoder steps", 0),
    "frames_per_second": ("median", 1, "real frames/s", 0),
    "padded_frames_per_second": ("median", 1, "padded frames/s", 0),
    "clips_per_second": ("median", 1, "clips/s", 2),
    "peak_memory_bytes": ("max", 2**-30, "peak memory (GiB)", 2),
    "data_wait_seconds": ("median", 1, "waiting for data (s)", 2),
    "prepare_seconds": ("median", 1000, "preparation (ms)", 1),
}


@dataclass(frozen=True)
class Column:
    """A quantity of a table: a summary, and the paper's values where it has some."""

    heading: str
    decimals: int
    ours: pd.DataFrame
    published: pd.Series | Sequence[str] | None = None
    sides: tuple[str, str] = ("published", "ours")  # head the two

    def cells(self) -> pd.DataFrame:
        """[lines] the columns CELL."""
        notes = self.ours.get("note", "")
        found = self.ours.assign(note=notes).reset_index(drop=True).reindex(columns=CELL)
        return found if self.published is None else found.assign(published=list(self.published))


@dataclass(frozen=True)
class Table:
    """`lines` are the labels of each line, under `headings`; `facts` are for its texts."""

    key: str
    headings: tuple[str, ...]
    lines: Sequence[tuple[str, ...]]
    columns: Sequence[Column]
    facts: dict = field(default_factory=dict)

    def shown(self) -> tuple[list[list[str]], list[str]]:
        """Every line's cells as text, with the numbers of footnotes; and the footnotes."""
        notes = list(dict.fromkeys(n for c in self.columns for n in c.cells()["note"] if n))
        shown = [list(labels) for labels in self.lines]
        for column in self.columns:
            for line, cell in zip(shown, column.cells().to_dict("records"), strict=True):
                if column.published is not None:
                    # The paper gives minutes with two decimals; an epoch of ours may take seconds.
                    decimals = min(column.decimals, 2 if "minutes" in column.heading else 3)
                    line.append(_number(cell["published"], decimals))
                text, least = _number(cell["ours"], column.decimals), 10.0**-column.decimals
                if cell["standard_error"] < least / 2:
                    text += f" ±\u00a0<{least:.{column.decimals}f}"
                elif cell["standard_error"] > 0:
                    text += f" ±\u00a0{cell['standard_error']:.{column.decimals}f}"
                line.append(text + (f" [{notes.index(cell['note']) + 1}]" if cell["note"] else ""))
        return shown, notes


def _number(value: float | str, decimals: int) -> str:
    if isinstance(value, str):
        return value or "–"
    return "–" if math.isnan(value) else f"{value:,.{decimals}f}".replace("-", "−")


def tidy(tables: Sequence[Table]) -> pd.DataFrame:
    """A line for every cell of the tables, not rounded."""
    frames = []
    for table in tables:
        headings, name = [column.heading for column in table.columns], ""
        for column in table.columns:
            several = headings.count(column.heading) > 1  # follows the last that is there once
            name = name if several else column.heading
            quantity = f"{name}: {column.heading}" if several else name
            row = [" / ".join(labels) for labels in table.lines]
            frames.append(column.cells().assign(table=table.key, row=row, quantity=quantity))
    return pd.concat(frames)[["table", "row", "quantity", *CELL]].astype({"runs": "Int64"})


# ---------------------------------------------------------------------------- numbers of runs


def thirds(epochs: int) -> list[tuple[int, int]]:
    """First and last epoch of the early, middle and late third of a run, and of all of it."""
    edges = [epochs * part // 3 for part in range(4)]
    return [*((a + 1, b) for a, b in itertools.pairwise(edges)), (1, epochs)]


class Measured:
    """Every quantity of every run, and its summaries over the seeds of each row.

    VL1-3 and VLavg are of the paper's epochs (`as_published`) if every run has the validation
    after the last of them; else of the runs' thirds, and of all validations.
    """

    def __init__(self, runs: Runs):
        self.runs = runs
        lengths = runs.epochs.groupby("run").size()
        self.as_published = bool(lengths.min() >= published.EPOCHS)
        first, *_, last = published.EPOCHS_SHOWN
        self.paper_spans = [f"epoch {n}" for n in published.EPOCHS_SHOWN]
        self.paper_spans.append(f"epochs {first}–{last}")
        self.loss_names, self.spans = PAPER_LOSSES, self.paper_spans
        if not self.as_published:
            self.loss_names = ("early third", "middle third", "late third", "all validations")
            spans = [f"epochs {a}–{b}" if a < b else f"epoch {b}" for a, b in thirds(lengths.min())]
            self.spans = spans if lengths.nunique() == 1 else [""] * 4
        self.values = self._measure()
        # Two as the paper, more where an epoch takes seconds, so that three digits are left.
        least = max(1e-6, self.values["minutes"].min())
        self.decimals = max(2, min(6, 2 - math.floor(math.log10(least))))

    def _measure(self) -> pd.DataFrame:
        by_run = self.runs.epochs.groupby("run")
        values = pd.DataFrame({k: by_run[k].agg(q[0]) * q[1] for k, q in OF_EPOCHS.items()})
        values["training_minutes"] = by_run["hours"].last() * 60
        values["updates"] = by_run["updates"].last()
        for folder, run in self.runs.found.items():
            losses = run.epochs.set_index("epoch")[["validation_loss", "validation_loss_unpadded"]]
            for place, key in enumerate(LOSSES):
                means = losses.reindex(self._validations(run, place)).mean(skipna=False)
                values.loc[folder, [key, f"unpadded {key}"]] = means.to_numpy()
            heard = run.transcription
            values.loc[folder, "word_error_rate"] = heard.word_error_rate if heard else np.nan
        return values.loc[list(self.runs.found)]

    def _validations(self, run: Run, column: int) -> list[int]:
        """Epochs of the validations that a column of LOSSES is the mean of.

        VL1-3 of the paper are means of the validation after an epoch, the one before and the one
        after it (Ge21, 4.3); all others are means of all validations of a span of epochs.
        """
        step, (first, *_, last) = run.hparams.epochs_per_validation, published.EPOCHS_SHOWN
        if self.as_published and column < 3:
            middle = published.EPOCHS_SHOWN[column]
            return [middle - step, middle, middle + step]
        if not self.as_published:
            first, last = thirds(len(run.epochs))[column]
        return [epoch for epoch in range(first, last + 1) if epoch % step == 0]

    def summary(self, values: str | pd.Series) -> pd.DataFrame:
        """Mean and standard error over the runs of each row; no number where a run lacks it.

        Gonzalez et al. (ICASSP 2023) report mean and standard error of the mean over seeds. Times
        have the error of the timing added, which is one measurement for all seeds.
        """
        values = self.values[values] if isinstance(values, str) else values
        labels = self.runs.table["label"]
        by_row = values.groupby(labels)
        found = pd.DataFrame(
            {"ours": by_row.mean(), "standard_error": by_row.sem(), "runs": by_row.count()}
        )
        lacking = values.index[values.isna()].to_series().groupby(labels).agg(", ".join)
        found["note"] = (lacking + " without it").reindex(found.index).fillna("")
        found.loc[lacking.index, ["ours", "standard_error", "runs"]] = np.nan, np.nan, 0
        if values.name in ("minutes", "training_minutes"):
            timing, error = self.error_of_timing * found["ours"], found["standard_error"]
            found["standard_error"] = error.where(timing == 0, np.hypot(error.fillna(0), timing))
        return found.reindex(self.runs.rows.index)

    @property
    def error_of_timing(self) -> pd.Series:
        """[rows] standard error of minutes timed in turns, as a share; 0 for logged ones."""
        return self.runs.table.groupby("label")["relative_error"].max()

    def lines(self, key: str, labels: list[str]) -> pd.DataFrame:
        """Those of a summary, some of which may not be measured."""
        missing = [f"not measured: no finished run of {label}" for label in labels]
        found = self.summary(key).reindex(labels).reset_index(drop=True)
        return found.fillna({"note": pd.Series(missing), "runs": 0})

    def falls(
        self, key: str, pairs: Sequence[tuple[str, str]]
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """By how much, and by how many per cent, a quantity falls from one row to another.

        Standard errors are those of a difference and a ratio of independent means.
        """
        before, after = (self.lines(key, [pair[side] for pair in pairs]) for side in (0, 1))
        notes = before["note"].where(before["note"] != "", after["note"]).tolist()
        for place, (first, second) in enumerate(pairs):
            if not notes[place] and (unlike := self.runs.differing(first, second)):
                notes[place] = f"{first} and {second} differ in {', '.join(unlike)}"
        known = (pd.Series(notes) == "") & (before["ours"] != 0)
        (a, b), (error_a, error_b) = (
            [frame[name].where(known) for frame in (before, after)]
            for name in ("ours", "standard_error")
        )
        count = before["runs"].clip(upper=after["runs"]).where(pd.Series(notes) == "", 0)
        shared = {"runs": count, "note": notes}
        share_error = 100 * np.hypot(b / a * error_a, error_b) / a
        fall = {"ours": a - b, "standard_error": np.hypot(error_a, error_b)}
        share = {"ours": 100 * (1 - b / a), "standard_error": share_error}
        return pd.DataFrame(fall | shared), pd.DataFrame(share | shared)


def published_falls(key: str, pairs: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """The same of the paper, as it prints them, else from its Table 2: `fall` and `per_cent`."""
    before, after = (PAPER.reindex([p[side] for p in pairs])[key].to_numpy() for side in (0, 1))
    found = pd.DataFrame({"fall": before - after, "per_cent": 100 * (1 - after / before)})
    if key == "vl3":
        printed = {(a, b): fall for table in published.TABLE_4.values() for a, b, fall in table}
        found["per_cent"] = pd.Series(map(printed.get, pairs)).fillna(found["per_cent"])
    for place, (first, second) in enumerate(pairs):
        if key == "minutes" and first == "RAND" and second in published.TABLE_3:
            found.loc[place] = published.TABLE_3[second]
    return found


# ---------------------------------------------------------------------------- tables


def paper_tables(measured: Measured) -> list[Table]:
    """Tables 1 to 4 beside ours, and what the paper leaves out."""
    rows, batching = measured.runs.rows, ("batching",)
    names = dict.fromkeys([*published.TABLE_2, *rows["name"]])
    labels = [label for n in names for label in list(rows.index[rows["name"] == n]) or [n]]
    paper_names = [label.partition(" ")[0] for label in labels]
    saved = [("RAND", n) for n in dict.fromkeys([*published.TABLE_3, *names]) if n != "RAND"]
    ours, theirs = measured.falls("minutes", saved), published_falls("minutes", saved)
    table_3 = [
        Column("minutes saved", measured.decimals, ours[0], theirs["fall"]),
        Column("saved (%)", 2, ours[1], theirs["per_cent"]),
    ]
    changes = [(what, *pair[:2]) for what, table in published.TABLE_4.items() for pair in table]
    loss = "VL3" if measured.as_published else "VL3 (ours: late third)"
    losses = [f"{loss}, from", f"{loss}, to", "lower by (%)"]
    minutes = ["minutes without", "minutes with", "shorter by (%)"]
    with_br = ("without BR", "with BR")

    def table(key: str, keys: Sequence[str], labels: list[str], names: list | None = None) -> Table:
        columns = [quantity(measured, name, labels, names) for name in keys]
        return Table(key, batching, [(label,) for label in labels], columns)

    return [
        _table_1(measured),
        table("table_2", [*PADDING, "minutes", *LOSSES], labels, paper_names),
        Table("table_3", batching, [(name,) for _, name in saved], table_3),
        _table_of_falls(measured, "table_4", ("change", "from", "to"), changes, "vl3", losses),
        _table_of_falls(measured, "batch_randomization", with_br, RANDOMIZED, "minutes", minutes),
        table("unpadded_loss", [f"unpadded {key}" for key in LOSSES], list(rows.index)),
        table("costs", list(OF_EPOCHS)[3:], list(rows.index)),
    ]


def quantity(
    measured: Measured, key: str, labels: list[str], paper_names: list[str] | None
) -> Column:
    """A column of OF_EPOCHS or LOSSES; with the paper's values of `paper_names`, if not None."""
    ours = measured.lines(key, labels)
    theirs = None if paper_names is None else PAPER.reindex(paper_names)[key]
    if key in OF_EPOCHS:
        _, _, heading, decimals = OF_EPOCHS[key]
        return Column(heading, measured.decimals if key == "minutes" else decimals, ours, theirs)
    place = LOSSES.index(key.removeprefix("unpadded "))
    name, span = measured.loss_names[place], measured.spans[place]
    if theirs is None or measured.as_published:
        return Column(f"{name}, {span}".rstrip(", "), 3, ours, theirs)
    sides = (f"published, {measured.paper_spans[place]}", f"ours, {span}".rstrip(", "))
    return Column(f"{PAPER_LOSSES[place]} | {name}", 3, ours, theirs, sides)


def texts(values: Iterable[str]) -> pd.DataFrame:
    """A summary of what is no number."""
    return pd.DataFrame({"ours": list(values)})


def _table_1(measured: Measured) -> Table:
    """The strategies' parameters, and the padding that they give. Rates do not depend on BR."""
    runs, labels = measured.runs, []
    values, ranges = [""] * len(published.TABLE_1), [""] * len(published.TABLE_1)
    for place, (name, (parameter, _, _)) in enumerate(published.TABLE_1.items()):
        only_without = name in runs.rows.index and f"{name}-BR" not in runs.rows.index
        labels.append(name if only_without else f"{name}-BR")
        if labels[-1] in runs.rows.index:
            run = runs.first(labels[-1])
            size, clips = run.hparams.batch_size, len(run.lengths)
            values[place] = f"{getattr(run.hparams, parameter):g}"
            ranges[place] = ("[0, inf)", f"[{size}, {clips})", f"[1, {-(-clips // size)}]")[place]
    parameters, their_values, their_ranges = zip(*published.TABLE_1.values(), strict=True)
    with_br = [f"{name}-BR" for name in published.TABLE_1]
    columns = [
        Column("value", 0, texts(values), [f"{value:g}" for value in their_values]),
        Column("range", 0, texts(ranges), their_ranges),
        *(quantity(measured, key, labels, with_br) for key in PADDING),
    ]
    lines = list(zip(published.TABLE_1, parameters, strict=True))
    return Table("table_1", ("batching", "parameter"), lines, columns)


def _table_of_falls(
    measured: Measured,
    table: str,
    labels: tuple[str, ...],
    lines: Sequence[tuple[str, ...]],
    key: str,
    headings: list[str],
) -> Table:
    """Two rows, which end each line, and by how many per cent `key` falls between them."""
    columns, decimals = [], measured.decimals if key == "minutes" else 3
    for side in (-2, -1):
        names = [line[side] for line in lines]
        theirs = PAPER.reindex(names)[key]
        columns.append(Column(headings[side + 2], decimals, measured.lines(key, names), theirs))
    pairs = [(line[-2], line[-1]) for line in lines]
    theirs = published_falls(key, pairs)["per_cent"]
    columns.append(Column(headings[2], 2, measured.falls(key, pairs)[1], theirs))
    return Table(table, labels, lines, columns)
