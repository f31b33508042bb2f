"""The tables of a report: the paper's figures with ours beside them.

A summary is a DataFrame with a line for each row of a table: `ours`, `standard_error`, `runs`, and
in `note` why there is no number. Titles, notes and captions are in texts.jinja.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from scripts.table2 import published
from scripts.table2.runs import LOSSES, OF_EPOCHS, Runs

BEST = "SSB-DBS-BR"  # the paper's batching
PAPER = pd.DataFrame(published.TABLE_2, index=published.PublishedRow._fields).T
CELL = ["published", "ours", "standard_error", "runs", "note"]
SIDES = ("published", "ours")
VL, PAPER_VL = ("vl1", "vl2", "vl3", "vl_average"), ("VL1", "VL2", "VL3", "VLavg")
THIRDS = ("early third", "middle third", "late third", "all validations")
PADDING = ["zero_padding_rate", "average_batch_length"]
Pairs = Sequence[tuple[str, str]]  # of labels: from the first to the second


@dataclass(frozen=True)
class Column:
    """A quantity of a table: a summary, and the paper's values where it has some."""

    heading: str
    decimals: int
    ours: pd.DataFrame
    published: Iterable | None = None
    sides: tuple[str, str] = SIDES  # head the two

    def cells(self) -> pd.DataFrame:
        """[lines] the columns CELL."""
        cells = self.ours.reset_index(drop=True).reindex(columns=CELL)
        return cells if self.published is None else cells.assign(published=list(self.published))


@dataclass(frozen=True)
class Table:
    """`lines` are the labels of each line, under `headings`; `facts` are for its texts."""

    key: str
    headings: tuple[str, ...]
    lines: Sequence[tuple[str, ...]]
    columns: Sequence[Column]
    facts: dict = field(default_factory=dict)

    def in_text(self) -> tuple[list[list[str]], list[str]]:
        """Every line's cells as text, with the numbers of footnotes; and the footnotes."""
        notes = list(dict.fromkeys(n for c in self.columns for n in c.cells()["note"] if n))
        lines = [list(labels) for labels in self.lines]
        for column in self.columns:
            decimals = column.decimals
            # The paper gives minutes with two; an epoch of ours may take seconds.
            places = 2 if "minutes" in column.heading else decimals
            for line, cell in zip(lines, column.cells().to_dict("records"), strict=True):
                if column.published is not None:
                    line.append(_number(cell["published"], places))
                text, error = _number(cell["ours"], decimals), cell["standard_error"]
                if error >= 0:
                    least = 10.0**-decimals  # that can be seen
                    small = f"<{least:.{decimals}f}"
                    text += f" ±\u00a0{small if error < least / 2 else f'{error:.{decimals}f}'}"
                line.append(text + (f" [{notes.index(cell['note']) + 1}]" if cell["note"] else ""))
        return lines, notes


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


def thirds(epochs: int) -> list[tuple[int, int]]:
    """First and last epoch of the early, middle and late third of a run, and of all of it."""
    edges = [epochs * part // 3 for part in range(4)]
    return [*((a + 1, b) for a, b in itertools.pairwise(edges)), (1, epochs)]


class Measured:
    """Every quantity of every run, and its summaries over the seeds of each row. VL1-3 and VLavg
    are of the paper's epochs (`as_published`) if every run has the validation after the last of
    them; else of the runs' thirds, and of all validations."""

    def __init__(self, runs: Runs) -> None:
        self.runs, by_run = runs, runs.epochs.groupby("run")
        epochs, points = by_run.size(), published.EPOCHS_SHOWN
        self.as_published = bool(epochs.min() >= published.EPOCHS)
        self.values = pd.DataFrame({k: by_run[k].agg(x[0]) * x[1] for k, x in OF_EPOCHS.items()})
        self.values = self.values.loc[list(runs.by_folder)]
        for folder, run in runs.by_folder.items():
            losses, step = run.epochs.set_index("epoch")[LOSSES], run.hparams.epochs_per_validation
            for place, key in enumerate(VL):
                # VL1-3 of the paper are means of the validation after an epoch, the one before and
                # the one after it (Ge21, 4.3); all others are of all validations of a span.
                if self.as_published and place < 3:
                    first, last = points[place] - step, points[place] + step
                else:
                    whole = (points[0], points[-1])
                    first, last = whole if self.as_published else thirds(len(losses))[place]
                    first += -first % step
                means = losses.reindex(range(first, last + 1, step)).mean(skipna=False)
                self.values.loc[folder, [key, f"unpadded {key}"]] = means.to_numpy()
        # Two decimals as the paper, more where an epoch takes seconds: three digits are left.
        least = max(1e-6, self.values["minutes"].min())
        decimals = max(2, min(6, 2 - math.floor(math.log10(least))))
        self.headings = {key: (heading, places) for key, (*_, heading, places) in OF_EPOCHS.items()}
        self.headings["minutes"] = "minutes per epoch", decimals
        self.sides = {}
        for place, (first, last) in enumerate(thirds(epochs.min())):
            theirs = f"epoch {points[place]}" if place < 3 else f"epochs {points[0]}–{points[-1]}"
            padded = unpadded = f"{PAPER_VL[place]}, {theirs}"
            if not self.as_published:
                # One heading cannot name the thirds of runs of several lengths.
                span = f", epochs {first}–{last}" if first < last else f", epoch {last}"
                span = span if epochs.nunique() == 1 else ""
                padded, unpadded = f"{PAPER_VL[place]} | {THIRDS[place]}", THIRDS[place] + span
                self.sides[padded] = f"published, {theirs}", f"ours{span}"
            self.headings |= {VL[place]: (padded, 3), f"unpadded {VL[place]}": (unpadded, 3)}

    def summary(self, key: str, labels: Sequence[str]) -> pd.DataFrame:
        """Mean and standard error of the mean over the runs of each row, as Gonzalez et al. (ICASSP
        2023) report; no number where a run lacks it."""
        by_row = self.values[key].groupby(self.runs.table["label"])
        summary = by_row.agg(["mean", "sem", "count"]).set_axis(CELL[1:4], axis=1).assign(note="")
        lacking = self.values[self.values[key].isna()]
        for label, runs in lacking.groupby(self.runs.table["label"]):
            summary.loc[label] = np.nan, np.nan, 0, ", ".join(runs.index) + " without it"
        summary = summary.reindex(list(labels))
        missing = "not measured: no finished run of " + summary.index.to_series()
        return summary.fillna({"note": missing, "runs": 0})

    def column(
        self, key: str, labels: Sequence[str], heading: str = "", names: Sequence | None = None
    ) -> Column:
        """The summary of a quantity; beside the paper's of the batchings `names`, if not None."""
        theirs = None if names is None else PAPER[key].reindex(list(names))
        usual, decimals = self.headings.get(key, (key, 3))
        sides = self.sides.get(heading or usual, SIDES)
        return Column(heading or usual, decimals, self.summary(key, labels), theirs, sides)

    def falls(self, key: str, pairs: Pairs) -> tuple[pd.DataFrame, pd.DataFrame]:
        """By how much, and by how many per cent, a quantity falls from one row to another, with
        the standard errors of a difference and of a ratio of independent means."""
        sides = (self.summary(key, labels) for labels in zip(*pairs, strict=True))
        before, after = (side.reset_index(drop=True) for side in sides)
        note = before["note"].where(before["note"] != "", after["note"])
        for place, pair in enumerate(pairs):
            if not note[place] and (unlike := self.runs.differing(*pair)):
                note[place] = f"{' and '.join(pair)} differ in {', '.join(unlike)}"
        runs = before["runs"].clip(upper=after["runs"]).where(note == "", 0)
        known = (note == "") & (before["ours"] != 0)
        a, b = before["ours"].where(known), after["ours"].where(known)
        error_a, error_b = before["standard_error"], after["standard_error"]
        fall = pd.DataFrame({"ours": a - b, "standard_error": np.hypot(error_a, error_b)})
        share_error = 100 * np.hypot(b / a * error_a, error_b) / a
        share = pd.DataFrame({"ours": 100 * (1 - b / a), "standard_error": share_error})
        return fall.where(known).assign(runs=runs, note=note), share.assign(runs=runs, note=note)


def published_falls(key: str, pairs: Pairs) -> pd.DataFrame:
    """The same of the paper, as it prints them, else from its Table 2: `fall` and `per_cent`."""
    falls = []
    for first, second in pairs:
        before, after = PAPER[key].reindex([first, second])
        fall, per_cent = before - after, 100 * (1 - after / before)
        if key == "minutes" and first == "RAND":
            fall, per_cent = published.TABLE_3.get(second, (fall, per_cent))
        for table in published.TABLE_4.values() if key == "vl3" else ():
            per_cent = table.get((first, second), per_cent)
        falls.append((fall, per_cent))
    return pd.DataFrame(falls, columns=["fall", "per_cent"])


def paper_tables(measured: Measured) -> list[Table]:
    """Tables 1 to 4 beside ours, and what the paper leaves out."""
    rows, column, everyone = measured.runs.rows, measured.column, list(measured.runs.rows.index)
    names = dict.fromkeys([*published.TABLE_2, *rows["name"]])
    labels = [label for n in names for label in list(rows.index[rows["name"] == n]) or [n]]
    paper_names = [label.partition(" ")[0] for label in labels]
    saved = [("RAND", n) for n in dict.fromkeys([*published.TABLE_3, *names]) if n != "RAND"]
    ours, theirs = measured.falls("minutes", saved), published_falls("minutes", saved)
    decimals = measured.headings["minutes"][1]
    table_2 = [column(key, labels, names=paper_names) for key in (*PADDING, "minutes", *VL)]
    table_3 = [Column("minutes saved", decimals, ours[0], theirs["fall"])]
    table_3 += [Column("saved (%)", 2, ours[1], theirs["per_cent"])]
    unpadded = [column(f"unpadded {key}", everyone) for key in VL]
    costs = [column(key, everyone) for key in list(OF_EPOCHS)[3:]]

    def falls(key: str, pairs: Pairs, headings: Sequence[str]) -> list[Column]:
        """Two rows, and by how many per cent `key` falls between them."""
        sides = zip(zip(*pairs, strict=True), headings[:2], strict=True)
        share, theirs = measured.falls(key, pairs)[1], published_falls(key, pairs)["per_cent"]
        columns = [column(key, labels, heading, labels) for labels, heading in sides]
        return [*columns, Column(headings[2], 2, share, theirs)]

    loss = "VL3" if measured.as_published else "VL3 (ours: late third)"
    lines = [(what, *pair) for what, pairs in published.TABLE_4.items() for pair in pairs]
    headings = [f"{loss}, from", f"{loss}, to", "lower by (%)"]
    table_4 = falls("vl3", [line[1:] for line in lines], headings)
    headings = ["minutes without", "minutes with", "shorter by (%)"]
    randomized = falls("minutes", list(published.RANDOMIZED), headings)
    batching, with_br = ("batching",), ("without BR", "with BR")
    return [
        _table_1(measured),
        Table("table_2", batching, [(label,) for label in labels], table_2),
        Table("table_3", batching, [(name,) for _, name in saved], table_3),
        Table("table_4", ("change", "from", "to"), lines, table_4),
        Table("batch_randomization", with_br, list(published.RANDOMIZED), randomized),
        Table("unpadded_loss", batching, [(label,) for label in everyone], unpadded),
        Table("costs", batching, [(label,) for label in everyone], costs),
    ]


def _table_1(measured: Measured) -> Table:
    """The strategies' parameters, and the padding that they give. Rates do not depend on BR."""
    runs, labels, ours = measured.runs, [], {"value": [""] * 3, "range": [""] * 3}
    parameters, values, ranges = zip(*published.TABLE_1.values(), strict=True)
    for place, name in enumerate(published.TABLE_1):
        only_without = name in runs.rows.index and f"{name}-BR" not in runs.rows.index
        labels.append(name if only_without else f"{name}-BR")
        if labels[-1] in runs.rows.index:
            run = runs.first(labels[-1])
            size, clips = run.hparams.batch_size, len(run.lengths)
            own = "[0, inf)", f"[{size}, {clips})", f"[1, {-(-clips // size)}]"
            ours["value"][place] = f"{getattr(run.hparams, parameters[place]):g}"
            ours["range"][place] = own[place]
    theirs = {"value": [f"{value:g}" for value in values], "range": ranges}
    columns = [Column(x, 0, pd.DataFrame({"ours": ours[x], "note": ""}), theirs[x]) for x in ours]
    with_br = [f"{name}-BR" for name in published.TABLE_1]
    columns += [measured.column(key, labels, names=with_br) for key in PADDING]
    lines = list(zip(published.TABLE_1, parameters, strict=True))
    return Table("table_1", ("batching", "parameter"), lines, columns)
