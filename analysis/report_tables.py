"""The tables of a report: the paper's figures with ours beside them."""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis import published
from analysis.report_measures import (
    FIRST,
    LAST,
    LOSSES,
    PAPER,
    LossColumns,
    MeanWithError,
    Results,
    by_name,
    epoch_span,
    look_up,
    minutes_decimals,
    our_results,
    reductions,
    side_by_side,
)
from analysis.report_runs import ReportRow, representatives

RANDOMIZED = (("SB", "SB-BR"), ("SSB", "SSB-BR"), ("SSB-DBS", "SSB-DBS-BR"))
Cell = MeanWithError | str


@dataclass(frozen=True)
class TableColumn:
    """Decimals of ours and of the published figure; `sides` head published | ours."""

    heading: str
    decimals: int
    paired: bool = True  # False: ours alone
    sides: tuple[str, str] = ("published", "ours")
    published_decimals: int | None = None  # None: as ours


PADDING = {
    "zero_padding_rate": TableColumn("ZPR (%)", 2),
    "average_batch_length": TableColumn("ABL (frames)", 2),
}


@dataclass(frozen=True)
class ReportTable:
    """`rows`: labels, then for every column (published, ours)."""

    key: str
    title: str
    headings: tuple[str, ...]  # over the labels
    columns: tuple[TableColumn, ...]
    rows: list[tuple[tuple[str, ...], list[tuple[Cell, Cell]]]]
    note: str


def make_tables(rows: Sequence[ReportRow], losses: LossColumns) -> list[ReportTable]:
    """All tables of the report."""
    ours = our_results(rows, losses)
    named = by_name(rows, ours)
    minutes = minutes_decimals(ours.values())
    return [
        table_1(rows, named),
        table_2(rows, ours, losses, minutes),
        table_3(named, minutes),
        table_4(named, losses),
        randomization_table(named, minutes),
        unpadded_table(ours, losses),
        cost_table(rows, ours),
    ]


def _minutes(heading: str, decimals: int) -> TableColumn:
    return TableColumn(heading, decimals, published_decimals=2)


def _before_and_after(ours: Results, before: str, after: str, key: str) -> list[tuple[Cell, Cell]]:
    """Two batchings and by how many per cent `key` falls between them."""
    pairs = [side_by_side(ours, name, key) for name in (before, after)]
    return [*pairs, reductions(ours, before, after, key)[1]]


def table_1(rows: Sequence[ReportRow], ours: Results) -> ReportTable:
    """The parameters, and the padding that they give. Rates do not depend on BR."""
    lines, chosen = [], representatives(rows)
    for name, (parameter, value, paper_range) in published.TABLE_1.items():
        row = chosen.get(f"{name}-BR") or chosen.get(name)
        our_name = row.name if row else f"{name}-BR"
        our_value = our_range = look_up(ours, our_name, "minutes")  # says why there is none
        if row:
            hparams, clips = row.runs[0].hparams, len(row.runs[0].lengths)
            our_value = f"{getattr(hparams, parameter):g}"
            our_range = {
                "SSB": "[0, inf)",
                "BKT": f"[{hparams.batch_size}, {clips})",
                "ATS": f"[1, {-(-clips // hparams.batch_size)}]",
            }[name]
        cells = [(f"{value:g}", our_value), (paper_range, our_range)]
        cells += [(look_up(PAPER, f"{name}-BR", k), look_up(ours, our_name, k)) for k in PADDING]
        lines.append(((name, parameter), cells))
    return ReportTable(
        "table_1",
        "Table 1: the strategies' parameters and the padding that they give",
        ("batching", "parameter"),
        (TableColumn("value", 0), TableColumn("range", 0), *PADDING.values()),
        lines,
        "ZPR: zero-padding rate, the mean over batches weighted by their clips; ABL: average batch "
        "length. Batch sizes are fixed.",
    )


def table_2(
    rows: Sequence[ReportRow], ours: Results, losses: LossColumns, decimals: int
) -> ReportTable:
    """Padding, time and validation loss of the paper's ten batchings and of what else was run."""
    minutes = _minutes("minutes per epoch", decimals)
    columns = (*PADDING.values(), minutes, *_loss_columns(losses))
    lines = []
    for name in dict.fromkeys([*published.TABLE_2, *(row.name for row in rows)]):
        for label in [row.label for row in rows if row.name == name] or [name]:
            keys = published.PublishedRow._fields
            lines.append(
                ((label,), [(look_up(PAPER, name, k), look_up(ours, label, k)) for k in keys])
            )
    note = f"Minutes are the median over epochs{_timed_in_turns(rows)}. " + (
        "VL is the validation loss, the reference's mean over "
        "padding too, of random validation batches that are the same in every run. "
    )
    if losses.as_published:
        note += (
            "VL1–3: mean of the validation of that epoch, the one before and the one after it; "
            f"VLavg: mean over epochs {FIRST} to {LAST}, as the paper defines them."
        )
    else:
        note += (
            "Not every run reached the paper's epochs, so ours are the means of the validations "
            "in the early, middle and late third of a run, and of all its validations: they stand "
            "beside the published losses, but are not of the same moment of training."
        )
    if any(row.name not in published.TABLE_2 for row in rows):
        note += " The paper has no figures for the batchings after its ten."
    return ReportTable("table_2", "Table 2: time and loss", ("batching",), columns, lines, note)


def _timed_in_turns(rows: Sequence[ReportRow]) -> str:
    if not any(run.epoch_minutes for row in rows for run in row.runs):
        return ""
    return ", of training steps timed in turns; ± has the error of the timing in it"


def _of_busy_runs(rows: Sequence[ReportRow]) -> str:
    return ", of the runs with all else that the machine did" if _timed_in_turns(rows) else ""


def _loss_columns(losses: LossColumns, paired: bool = True) -> list[TableColumn]:
    paper_epochs = [epoch_span(epoch, epoch) for epoch in published.EPOCHS_SHOWN]
    columns = []
    for paper_name, paper_span, name, span in zip(
        ("VL1", "VL2", "VL3", "VLavg"),
        [*paper_epochs, epoch_span(FIRST, LAST)],
        losses.names,
        losses.epochs,
        strict=True,
    ):
        if losses.as_published or not paired:
            columns.append(TableColumn(f"{name}, {span}".rstrip(", "), 3, paired))
        else:
            sides = (f"published, {paper_span}", f"ours, {span}".rstrip(", "))
            columns.append(TableColumn(f"{paper_name} | {name}", 3, True, sides))
    return columns


def table_3(ours: Results, decimals: int) -> ReportTable:
    """Minutes saved per epoch against RAND."""
    lines = []
    for name in dict.fromkeys([*published.TABLE_3, *published.TABLE_2, *ours]):
        if name != "RAND":
            lines.append(((name,), reductions(ours, "RAND", name, "minutes")))
    *names, last = published.TABLE_3
    return ReportTable(
        "table_3",
        "Table 3: time saved per epoch against RAND",
        ("batching",),
        (_minutes("minutes saved", decimals), TableColumn("saved (%)", 2)),
        lines,
        f"The paper's Table 3 has {', '.join(names)} and {last}; for the others the published "
        "side is worked out from its Table 2.",
    )


def table_4(ours: Results, losses: LossColumns) -> ReportTable:
    """How far what is changed lowers VL3."""
    lines = []
    for change, pairs in published.TABLE_4.items():
        for before, after, _ in pairs:
            cells = _before_and_after(ours, before, after, "vl3")
            lines.append(((change, before, after), cells))
    loss = "VL3" if losses.as_published else "VL3 (ours: late third)"
    return ReportTable(
        "table_4",
        "Table 4: what lowers the validation loss",
        ("change", "from", "to"),
        (
            TableColumn(f"{loss}, from", 3),
            TableColumn(f"{loss}, to", 3),
            TableColumn("lower by (%)", 2),
        ),
        lines,
        "A negative figure means that the loss rose.",
    )


def randomization_table(ours: Results, decimals: int) -> ReportTable:
    """Does batch randomization shorten an epoch?"""
    lines = [(pair, _before_and_after(ours, *pair, "minutes")) for pair in RANDOMIZED]
    return ReportTable(
        "batch_randomization",
        "Does batch randomization shorten an epoch?",
        ("without BR", "with BR"),
        (
            _minutes("minutes without", decimals),
            _minutes("minutes with", decimals),
            TableColumn("shorter by (%)", 2),
        ),
        lines,
        "A negative figure means that the epoch became longer.",
    )


def _table_of_ours(
    key: str, title: str, columns: dict[str, TableColumn], ours: Results, note: str
) -> ReportTable:
    """Quantities that the paper does not report, a column for each key."""
    lines = [
        ((result.label,), [("", result.measures[name]) for name in columns])
        for result in ours.values()
    ]
    return ReportTable(key, title, ("batching",), tuple(columns.values()), lines, note)


def unpadded_table(ours: Results, losses: LossColumns) -> ReportTable:
    """Validation loss per real frame."""
    columns = zip(LOSSES, _loss_columns(losses, paired=False), strict=True)
    return _table_of_ours(
        "unpadded_loss",
        "Validation loss without padding",
        {f"unpadded {key}": column for key, column in columns},
        ours,
        "The mean over real frames alone, at the same validations. The paper has no such figure.",
    )


def cost_table(rows: Sequence[ReportRow], ours: Results) -> ReportTable:
    """What an epoch does, how fast, and with what."""
    return _table_of_ours(
        "costs",
        "What an epoch does and costs",
        {
            "num_batches": TableColumn("batches", 1, False),
            "decoder_steps": TableColumn("decoder steps", 0, False),
            "frames_per_second": TableColumn("real frames/s", 0, False),
            "padded_frames_per_second": TableColumn("padded frames/s", 0, False),
            "clips_per_second": TableColumn("clips/s", 2, False),
            "peak_memory_bytes": TableColumn("peak memory (GiB)", 2, False),
            "data_wait_seconds": TableColumn("waiting for data (s)", 2, False),
            "prepare_seconds": TableColumn("preparation (ms)", 1, False),
        },
        ours,
        "Batches and decoder steps (which the decoder takes one after another): mean of an epoch. "
        f"Speeds and seconds: median over epochs{_of_busy_runs(rows)}; clips/s are the other "
        "papers' utterances/s; preparation is the planning of an epoch's batches. Memory: the most "
        "that any epoch held, of the GPU; without one, of the process since its start.",
    )
