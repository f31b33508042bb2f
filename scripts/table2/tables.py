"""Make the tables of the report, which show published values next to our measurements.

    measured = Measured(read_runs([Path("runs")]))
    for table in paper_tables(measured): ...

The summary of a quantity, such as a loss, is a DataFrame. Each row of a table in the report has its
own row in the DataFrame. The DataFrame has the columns `ours`, `standard_error`, `runs` and `note`.
If a value is missing, the note contains the reason. The titles, notes and captions of the report
are in texts.jinja.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from scripts.table2 import published
from scripts.table2.runs import LOSSES, OF_EPOCHS, Runs

BEST = "SSB-DBS-BR"  # the strategy that the paper recommends
PAPER = pd.DataFrame(published.TABLE_2, index=published.PublishedRow._fields).T
CELL = ["published", "ours", "standard_error", "runs", "note"]
SIDES = ("published", "ours")
VL = ("vl1", "vl2", "vl3", "vl_average")  # names of the columns that contain validation losses
PAPER_VL = ("VL1", "VL2", "VL3", "VLavg")
THIRDS = ("early third", "middle third", "late third", "all validations")
PADDING = ["zero_padding_rate", "average_batch_length"]
Pairs = Sequence[tuple[str, str]]  # (from, to): labels of the two rows to compare


@dataclass(frozen=True)
class Column:
    """A column of a table: the summary of a quantity and, if available, the published values."""

    heading: str
    decimals: int
    ours: pd.DataFrame
    published: Iterable | None = None
    sides: tuple[str, str] = SIDES  # headings above the published values and above our values

    def cells(self) -> pd.DataFrame:
        """Return a DataFrame with the columns in CELL and one row per line of the table."""
        cells = self.ours.reset_index(drop=True).reindex(columns=CELL)
        return cells if self.published is None else cells.assign(published=list(self.published))


@dataclass(frozen=True)
class Table:
    """A table of the report. `lines` contains the labels of the runs in each line."""

    key: str
    headings: tuple[str, ...]
    lines: Sequence[tuple[str, ...]]
    columns: Sequence[Column]
    facts: dict = field(default_factory=dict)

    def in_text(self) -> tuple[list[list[str]], list[str]]:
        """Format all cells as text. Return (lines of the table, footnotes that the cells refer
        to)."""
        notes = list(dict.fromkeys(n for c in self.columns for n in c.cells()["note"] if n))
        lines = [list(labels) for labels in self.lines]
        for column in self.columns:
            decimals = column.decimals
            # Published minutes have two decimals. Our minutes have more decimals if the epochs are
            # short.
            places = 2 if "minutes" in column.heading else decimals
            for line, cell in zip(lines, column.cells().to_dict("records"), strict=True):
                if column.published is not None:
                    line.append(_number(cell["published"], places))
                text = _number(cell["ours"], decimals)
                error = cell["standard_error"]
                if error >= 0:
                    # Smallest positive number that can be written with `decimals` decimals.
                    least = 10.0**-decimals
                    small = f"<{least:.{decimals}f}"
                    text += f" ±\u00a0{small if error < least / 2 else f'{error:.{decimals}f}'}"
                line.append(text + (f" [{notes.index(cell['note']) + 1}]" if cell["note"] else ""))
        return lines, notes


def _number(value: float | str, decimals: int) -> str:
    if isinstance(value, str):
        return value or "–"
    return "–" if math.isnan(value) else f"{value:,.{decimals}f}".replace("-", "−")


def tidy(tables: Sequence[Table]) -> pd.DataFrame:
    """Return a DataFrame with one row per cell of the tables. The values are not rounded."""
    frames = []
    for table in tables:
        headings = [column.heading for column in table.columns]
        name = ""
        for column in table.columns:
            # If several columns have the same heading, add the closest unique heading to their left
            # as a prefix.
            several = headings.count(column.heading) > 1
            name = name if several else column.heading
            quantity = f"{name}: {column.heading}" if several else name
            row = [" / ".join(labels) for labels in table.lines]
            frames.append(column.cells().assign(table=table.key, row=row, quantity=quantity))
    return pd.concat(frames)[["table", "row", "quantity", *CELL]].astype({"runs": "Int64"})


def thirds(epochs: int) -> list[tuple[int, int]]:
    """Return four pairs (first epoch, last epoch): one pair for each third of a run, and one pair
    for the whole run."""
    edges = [epochs * part // 3 for part in range(4)]
    return [*((a + 1, b) for a, b in itertools.pairwise(edges)), (1, epochs)]


class Measured:
    """Compute all quantities of all runs, and summarize them over the seeds of each row.

    If all runs are long enough, VL1 to VL3 and VLavg are measured at the same epochs as in the
    paper (`as_published`). If any run is too short, the validation losses VL1, VL2 and VL3 are the
    means over the first, second and last third of each run. In this case, VLavg is the mean over
    all validations.
    """

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        by_run = runs.epochs.groupby("run")
        epochs = by_run.size()
        points = published.EPOCHS_SHOWN
        self.as_published = bool(epochs.min() >= published.EPOCHS)
        self.values = pd.DataFrame({k: by_run[k].agg(x[0]) * x[1] for k, x in OF_EPOCHS.items()})
        self.values = self.values.loc[list(runs.by_folder)]
        for folder, run in runs.by_folder.items():
            losses = run.epochs.set_index("epoch")[LOSSES]
            step = run.hparams.epochs_per_validation
            for place, key in enumerate(VL):
                # In the paper, VL1 to VL3 are means of three validations: before, at and after the
                # given epoch (Ge et al. 2021, section 4.3). VLavg is the mean over a range of
                # epochs.
                if self.as_published and place < 3:
                    first, last = points[place] - step, points[place] + step
                else:
                    whole = (points[0], points[-1])
                    first, last = whole if self.as_published else thirds(len(losses))[place]
                    first += -first % step
                means = losses.reindex(range(first, last + 1, step)).mean(skipna=False)
                self.values.loc[folder, [key, f"unpadded {key}"]] = means.to_numpy()
        # Use two decimals, as in the paper. Use more decimals if epochs are so short that their
        # minutes would have fewer than three significant digits.
        least = max(1e-6, self.values["minutes"].min())
        decimals = max(2, min(6, 2 - math.floor(math.log10(least))))
        self.headings = {key: (heading, places) for key, (*_, heading, places) in OF_EPOCHS.items()}
        self.headings["minutes"] = "minutes per epoch", decimals
        self.sides = {}
        for place, (first, last) in enumerate(thirds(epochs.min())):
            theirs = f"epoch {points[place]}" if place < 3 else f"epochs {points[0]}–{points[-1]}"
            padded = unpadded = f"{PAPER_VL[place]}, {theirs}"
            if not self.as_published:
                # If the runs have different numbers of epochs, the thirds of the runs cover
                # different epochs. In this case, the heading contains no epochs.
                span = f", epochs {first}–{last}" if first < last else f", epoch {last}"
                span = span if epochs.nunique() == 1 else ""
                padded, unpadded = f"{PAPER_VL[place]} | {THIRDS[place]}", THIRDS[place] + span
                self.sides[padded] = f"published, {theirs}", f"ours{span}"
            self.headings |= {VL[place]: (padded, 3), f"unpadded {VL[place]}": (unpadded, 3)}

    def summary(self, key: str, labels: Sequence[str]) -> pd.DataFrame:
        """Return the mean and the standard error of a quantity over the runs of each row. The mean
        and the standard error are NaN if the value of any run is missing.

        Gonzalez et al. (ICASSP 2023) also report each result as a mean and a standard error.
        """
        by_row = self.values[key].groupby(self.runs.table["label"])
        summary = by_row.agg(["mean", "sem", "count"]).set_axis(CELL[1:4], axis=1).assign(note="")
        lacking = self.values[self.values[key].isna()]
        for label, runs in lacking.groupby(self.runs.table["label"]):
            summary.loc[label] = np.nan, np.nan, 0, "missing in " + ", ".join(runs.index)
        summary = summary.reindex(list(labels))
        missing = "not measured: no finished run of " + summary.index.to_series()
        return summary.fillna({"note": missing, "runs": 0})

    def column(
        self, key: str, labels: Sequence[str], heading: str = "", names: Sequence | None = None
    ) -> Column:
        """Return a column with the summary of a quantity. If `names` is given, the column also
        contains the published values."""
        theirs = None if names is None else PAPER[key].reindex(list(names))
        usual, decimals = self.headings.get(key, (key, 3))
        sides = self.sides.get(heading or usual, SIDES)
        return Column(heading or usual, decimals, self.summary(key, labels), theirs, sides)

    def falls(self, key: str, pairs: Pairs) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return how much a quantity decreases from the first to the second row of each pair, as
        differences and as percentages.

        The standard errors assume that the two means are independent.
        """
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
    """Return the published decrease of a quantity for each pair of strategies: the difference
    (`fall`) and the percentage (`per_cent`). Decreases that the paper does not state are computed
    from Table 2 of the paper."""
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
    """Return Tables 1 to 4 with our values, and additional tables that the paper does not have."""
    rows = measured.runs.rows
    column = measured.column
    everyone = list(rows.index)
    names = dict.fromkeys([*published.TABLE_2, *rows["name"]])
    labels = [label for n in names for label in list(rows.index[rows["name"] == n]) or [n]]
    paper_names = [label.partition(" ")[0] for label in labels]
    saved = [("RAND", n) for n in dict.fromkeys([*published.TABLE_3, *names]) if n != "RAND"]
    ours = measured.falls("minutes", saved)
    theirs = published_falls("minutes", saved)
    decimals = measured.headings["minutes"][1]
    table_2 = [column(key, labels, names=paper_names) for key in (*PADDING, "minutes", *VL)]
    table_3 = [Column("minutes saved", decimals, ours[0], theirs["fall"])]
    table_3 += [Column("saved (%)", 2, ours[1], theirs["per_cent"])]
    unpadded = [column(f"unpadded {key}", everyone) for key in VL]
    costs = [column(key, everyone) for key in list(OF_EPOCHS)[3:]]

    def falls(key: str, pairs: Pairs, headings: Sequence[str]) -> list[Column]:
        """Return three columns: the values of the first and of the second row of each pair, and the
        decrease in percent."""
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
    batching = ("strategy",)
    with_br = ("without BR", "with BR")
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
    """Return Table 1: the parameters and the padding of the strategies.

    The padding of a strategy is measured with batch randomization (BR). If there are only runs
    without BR, these runs are used, because BR does not change the padding.
    """
    runs = measured.runs
    labels: list[str] = []
    ours = {"value": [""] * 3, "range": [""] * 3}
    parameters, values, ranges = zip(*published.TABLE_1.values(), strict=True)
    for place, name in enumerate(published.TABLE_1):
        only_without = name in runs.rows.index and f"{name}-BR" not in runs.rows.index
        labels.append(name if only_without else f"{name}-BR")
        if labels[-1] in runs.rows.index:
            run = runs.first(labels[-1])
            size = run.hparams.batch_size
            clips = len(run.lengths)
            own = "[0, inf)", f"[{size}, {clips})", f"[1, {-(-clips // size)}]"
            ours["value"][place] = f"{getattr(run.hparams, parameters[place]):g}"
            ours["range"][place] = own[place]
    theirs = {"value": [f"{value:g}" for value in values], "range": ranges}
    columns = [Column(x, 0, pd.DataFrame({"ours": ours[x], "note": ""}), theirs[x]) for x in ours]
    with_br = [f"{name}-BR" for name in published.TABLE_1]
    columns += [measured.column(key, labels, names=with_br) for key in PADDING]
    lines = list(zip(published.TABLE_1, parameters, strict=True))
    return Table("table_1", ("strategy", "parameter"), lines, columns)
