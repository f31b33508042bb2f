"""The tables of a report: what runs measured, the paper's figures beside it, what they prove."""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from analysis import published
from analysis.report_runs import Row, Run, differing, representatives

FIRST, _, LAST = published.EPOCHS_SHOWN
GIB = 2**30
# A saving this many points below the published one is called smaller, not the same.
POINTS_OF_GRACE = 5


@dataclass(frozen=True)
class Measure:
    """A mean over runs with its standard error (None for one run), or why there is none."""

    mean: float | None = None
    standard_error: float | None = None
    num_runs: int = 0
    missing: str = ""


@dataclass(frozen=True)
class Result:
    """The numbers of one batching, ours or the paper's. `settings` must agree to be compared."""

    label: str
    measures: dict[str, Measure]
    settings: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Column:
    """Of a table: decimals of ours and of the published figure; `sides` head published | ours."""

    heading: str
    decimals: int
    paired: bool = True
    sides: tuple[str, str] = ("published", "ours")
    published_decimals: int | None = None  # None: as ours


@dataclass(frozen=True)
class Table:
    """`rows`: labels, then for every column (published, ours); a cell is a Measure or a text."""

    key: str
    title: str
    headings: tuple[str, ...]  # over the labels
    columns: tuple[Column, ...]
    rows: list[tuple[tuple[str, ...], list[tuple[Measure | str, Measure | str]]]]
    note: str = ""


@dataclass(frozen=True)
class Finding:
    claim: str
    published: list[str]
    ours: list[str]
    verdict: str


# ---------------------------------------------------------------------------- numbers of a run


def measure(runs: Sequence[Run], of: Callable[[Run], float]) -> Measure:
    """Mean and standard error (n - 1) of `of` over runs; missing if it raises LookupError for one.

    Gonzalez et al. (ICASSP 2023) report mean and standard error of the mean over seeds.
    """
    values, missing = [], []
    for run in runs:
        try:
            values.append(of(run))
        except LookupError as error:
            missing.append(f"{run.directory} {error.args[0]}")
    if missing:
        return Measure(missing="; ".join(missing))
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Measure(statistics.fmean(values), error, len(values))


def per_epoch(combine: Callable[[Iterable[float]], float], name: str, factor: float = 1.0):
    """A function of a run: `combine` over its epochs of what their lines call `name`."""
    return lambda run: factor * combine([epoch[name] for epoch in run.epochs])


def smoothed_loss(run: Run, epoch: int, name: str) -> float:
    """VL: mean of the validation after `epoch`, the one before and the one after it (Ge21, 4.3).

    Raises:
        LookupError: naming the epochs that lack their validation.
    """
    step = run.hparams.epochs_per_validation
    return _mean_loss(run, [epoch - step, epoch, epoch + step], name)


def average_loss(run: Run, first: int, last: int, name: str) -> float:
    """Mean of the validations of epochs `first` to `last`; LookupError if any is lacking."""
    step = run.hparams.epochs_per_validation
    epochs = [epoch for epoch in range(first, last + 1) if epoch % step == 0]
    if not epochs:
        when = _span(first, last) if last >= first else "so short a run"
        raise LookupError(f"has no validation of {when}")
    return _mean_loss(run, epochs, name)


def _mean_loss(run: Run, epochs: list[int], name: str) -> float:
    by_epoch = {validation["epoch"]: validation[name] for validation in run.validations}
    lacking = [str(epoch) for epoch in epochs if epoch not in by_epoch]
    if lacking:
        what = "epoch" if len(lacking) == 1 else "epochs"
        raise LookupError(f"has no validation of {what} {', '.join(lacking)}")
    return statistics.fmean(by_epoch[epoch] for epoch in epochs)


def _span(first: int, last: int) -> str:
    return f"epoch {first}" if first == last else f"epochs {first}–{last}"


# ---------------------------------------------------------------------------- losses to show


@dataclass(frozen=True)
class Losses:
    """Which validations VL1-3 and VLavg are of: the paper's, or those of the runs' thirds."""

    of_paper: bool
    names: tuple[str, str, str, str]  # for people
    epochs: tuple[str, str, str, str]  # what of our runs they are of, "" where runs differ

    def values(self, run: Run, name: str) -> list[Callable[[], float]]:
        """VL1, VL2, VL3 and VLavg of a run, each to be called."""
        if self.of_paper:
            parts = [lambda e=e: smoothed_loss(run, e, name) for e in published.EPOCHS_SHOWN]
            return [*parts, lambda: average_loss(run, FIRST, LAST, name)]
        parts = [lambda a=a, b=b: average_loss(run, a, b, name) for a, b in thirds(len(run.epochs))]
        return [*parts, lambda: average_loss(run, 1, len(run.epochs), name)]


def thirds(epochs: int) -> list[tuple[int, int]]:
    """First and last epoch of the early, middle and late third of a run."""
    edges = [epochs * part // 3 for part in range(4)]
    return [(a + 1, b) for a, b in itertools.pairwise(edges)]


def choose_losses(rows: Sequence[Row]) -> Losses:
    """The paper's epochs if every run has the validation after the last of them, else thirds."""
    lengths = {len(run.epochs) for row in rows for run in row.runs}
    needed = LAST + published.SETTINGS["epochs_per_validation"]
    if min(lengths) >= needed:
        epochs = tuple(f"epoch {epoch}" for epoch in published.EPOCHS_SHOWN)
        return Losses(True, ("VL1", "VL2", "VL3", "VLavg"), (*epochs, _span(FIRST, LAST)))
    spans = ("",) * 4
    if len(lengths) == 1:
        (last,) = lengths
        spans = (*(_span(a, b) if a <= b else "" for a, b in thirds(last)), _span(1, last))
    return Losses(False, ("early third", "middle third", "late third", "all validations"), spans)


# ---------------------------------------------------------------------------- numbers of a row


def our_results(rows: Sequence[Row], losses: Losses) -> dict[str, Result]:
    """By label, in the order of `rows`."""
    mean, median = statistics.fmean, statistics.median
    numbers = {
        "zpr": per_epoch(mean, "zero_padding_rate", 100),
        "abl": per_epoch(mean, "average_batch_length"),
        "minutes": per_epoch(median, "minutes"),
        "batches": per_epoch(mean, "num_batches"),
        "steps": per_epoch(mean, "decoder_steps"),
        "frames/s": per_epoch(median, "frames_per_second"),
        "padded frames/s": per_epoch(median, "padded_frames_per_second"),
        "clips/s": per_epoch(median, "clips_per_second"),
        "memory": per_epoch(max, "peak_memory_bytes", 1 / GIB),
        "waiting": per_epoch(median, "data_wait_seconds"),
        "preparing": per_epoch(median, "prepare_seconds", 1000),
    }
    for i in range(4):
        for key, name in (
            ("vl", "validation_loss"),
            ("unpadded vl", "validation_loss_unpadded"),
        ):
            numbers[f"{key}{i + 1}"] = lambda run, i=i, name=name: losses.values(run, name)[i]()
    return {
        row.label: Result(
            row.label, {key: measure(row.runs, of) for key, of in numbers.items()}, row.settings
        )
        for row in rows
    }


def paper_results() -> dict[str, Result]:
    """The paper's Table 2."""
    results = {}
    for name, row in published.TABLE_2.items():
        numbers = {
            "zpr": row.zero_padding_rate,
            "abl": row.average_batch_length,
            "minutes": row.minutes_per_epoch,
            "vl4": row.validation_loss_average,
        }
        numbers |= {f"vl{i}": loss for i, loss in enumerate(row.validation_losses, 1)}
        results[name] = Result(name, {key: Measure(value) for key, value in numbers.items()})
    return results


def by_name(rows: Sequence[Row], results: dict[str, Result]) -> dict[str, Result]:
    """The results that stand for a batching's name."""
    return {name: results[row.label] for name, row in representatives(rows).items()}


def look_up(results: dict[str, Result], name: str, key: str) -> Measure:
    if name not in results:
        return Measure(missing=f"not measured: no finished run of {name}")
    return results[name].measures[key]


# What the paper prints, which rounding may keep from what its Table 2 gives.
PRINTED = {("minutes", "RAND", name): saved for name, (_, saved) in published.TABLE_3.items()} | {
    ("vl3", before, after): fall
    for pairs in published.TABLE_4.values()
    for before, after, fall in pairs
}


def reduction(
    results: dict[str, Result], before: str, after: str, key: str
) -> tuple[Measure, Measure]:
    """By how much, and how many per cent, `key` falls from one batching to another.

    Standard errors are those of a difference and a ratio of independent means.
    """
    a, b = look_up(results, before, key), look_up(results, after, key)
    missing = a.missing or b.missing
    if not missing:
        unlike = differing(results[before].settings, results[after].settings)
        if unlike:
            one, other = results[before].label, results[after].label
            missing = f"{one} and {other} differ in {', '.join(unlike)}, so they do not compare"
    if not missing and not a.mean:
        missing = f"there are no per cents of {before}'s 0"
    if missing:
        return Measure(missing=missing), Measure(missing=missing)
    runs, error, error_per_cent = min(a.num_runs, b.num_runs), None, None
    if a.standard_error is not None and b.standard_error is not None:
        error = math.hypot(a.standard_error, b.standard_error)
        ratio = b.mean / a.mean
        error_per_cent = 100 * math.hypot(ratio * a.standard_error, b.standard_error) / a.mean
    return (
        Measure(a.mean - b.mean, error, runs),
        Measure(100 * (1 - b.mean / a.mean), error_per_cent, runs),
    )


# ---------------------------------------------------------------------------- tables


def make_tables(rows: Sequence[Row], losses: Losses) -> dict[str, Table]:
    """All tables of the report, by key."""
    ours, paper = our_results(rows, losses), paper_results()
    named = by_name(rows, ours)
    minutes = minutes_decimals(ours.values())
    tables = [
        table_1(rows, named, paper),
        table_2(rows, ours, paper, losses, minutes),
        table_3(named, paper, minutes),
        table_4(named, paper, losses),
        randomization_table(named, paper, minutes),
        unpadded_table(ours, losses),
        cost_table(ours),
    ]
    return {table.key: table for table in tables}


def minutes_decimals(results: Iterable[Result]) -> int:
    """Two as the paper, more where an epoch takes seconds, so that three digits are left."""
    least = min(result.measures["minutes"].mean for result in results)
    return max(2, min(6, 2 - math.floor(math.log10(least)))) if least > 0 else 2


def _minutes(heading: str, decimals: int) -> Column:
    return Column(heading, decimals, published_decimals=2)


def table_1(rows: Sequence[Row], ours: dict[str, Result], paper: dict[str, Result]) -> Table:
    """The parameters, and the padding that they give. Rates do not depend on BR."""
    lines = []
    for name, (parameter, value, paper_range) in published.TABLE_1.items():
        chosen = representatives(rows)
        row = chosen.get(f"{name}-BR") or chosen.get(name)
        of = row.name if row else f"{name}-BR"
        hparams = row.runs[0].hparams if row else None
        cells: list = [
            (f"{value:g}", f"{getattr(hparams, parameter):g}" if row else look_up(ours, of, "zpr")),
            (paper_range, _range(name, row.runs[0]) if row else look_up(ours, of, "zpr")),
        ]
        cells += [(look_up(paper, f"{name}-BR", k), look_up(ours, of, k)) for k in ("zpr", "abl")]
        lines.append(((name, parameter), cells))
    return Table(
        "table_1",
        "Table 1: the strategies' parameters and the padding that they give",
        ("batching", "parameter"),
        (
            Column("value", 0),
            Column("range", 0),
            Column("ZPR (%)", 2),
            Column("ABL (frames)", 2),
        ),
        lines,
        "ZPR: zero-padding rate, the mean over batches weighted by their clips; ABL: average batch "
        "length. Batch sizes are fixed.",
    )


def _range(name: str, run: Run) -> str:
    clips, size = len(run.lengths), run.hparams.batch_size
    return {"SSB": "[0, inf)", "BKT": f"[{size}, {clips})", "ATS": f"[1, {-(-clips // size)}]"}[
        name
    ]


def table_2(
    rows: Sequence[Row],
    ours: dict[str, Result],
    paper: dict[str, Result],
    losses: Losses,
    minutes_decimals: int,
) -> Table:
    """Padding, time and validation loss of the paper's ten batchings and of what else was run."""
    columns = [
        Column("ZPR (%)", 2),
        Column("ABL (frames)", 2),
        _minutes("minutes per epoch", minutes_decimals),
        *_loss_columns(losses),
    ]
    keys = ("zpr", "abl", "minutes", "vl1", "vl2", "vl3", "vl4")
    labels = {name: [row.label for row in rows if row.name == name] for name in published.TABLE_2}
    extra = [row.label for row in rows if row.name not in published.TABLE_2]
    order = [(name, label) for name in labels for label in labels[name] or [name]]
    lines = [
        ((label,), [(look_up(paper, name, k), look_up(ours, label, k)) for k in keys])
        for name, label in order + [(None, label) for label in extra]
    ]
    note = (
        "Minutes are the median over epochs. VL is the validation loss, the reference's mean over "
        "padding too, of random validation batches that are the same in every run. "
    )
    if losses.of_paper:
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
    if extra:
        note += " The paper has no figures for the batchings after its ten."
    return Table("table_2", "Table 2: time and loss", ("batching",), tuple(columns), lines, note)


def _loss_columns(losses: Losses, paired: bool = True) -> list[Column]:
    paper = ("VL1", "VL2", "VL3", "VLavg")
    paper_epochs = (*(f"epoch {e}" for e in published.EPOCHS_SHOWN), _span(FIRST, LAST))
    columns = []
    for i in range(4):
        ours = losses.names[i] + (f", {losses.epochs[i]}" if losses.epochs[i] else "")
        if losses.of_paper or not paired:
            columns.append(Column(ours, 3, paired))
        else:
            sides = (f"published, {paper_epochs[i]}", f"ours, {losses.epochs[i]}".rstrip(", "))
            columns.append(Column(f"{paper[i]} | {losses.names[i]}", 3, True, sides))
    return columns


def table_3(ours: dict[str, Result], paper: dict[str, Result], decimals: int) -> Table:
    """Minutes saved per epoch against RAND."""
    names = [*published.TABLE_3, *(n for n in published.TABLE_2 if n not in published.TABLE_3)]
    names += [name for name in ours if name not in published.TABLE_2]
    names.remove("RAND")
    lines = []
    for name in names:
        saved = reduction(paper, "RAND", name, "minutes")
        if name in published.TABLE_3:
            saved = tuple(Measure(number) for number in published.TABLE_3[name])
        cells = list(zip(saved, reduction(ours, "RAND", name, "minutes"), strict=True))
        lines.append(((name,), cells))
    return Table(
        "table_3",
        "Table 3: time saved per epoch against RAND",
        ("batching",),
        (_minutes("minutes saved", decimals), Column("saved (%)", 2)),
        lines,
        f"The paper's Table 3 has {_and(list(published.TABLE_3))}; for the others the published "
        "side is worked out from its Table 2.",
    )


def table_4(ours: dict[str, Result], paper: dict[str, Result], losses: Losses) -> Table:
    """How far what is changed lowers VL3."""
    lines = []
    for change, pairs in published.TABLE_4.items():
        for before, after, per_cent in pairs:
            cells = [
                (look_up(paper, name, "vl3"), look_up(ours, name, "vl3"))
                for name in (before, after)
            ]
            cells.append((Measure(per_cent), reduction(ours, before, after, "vl3")[1]))
            lines.append(((change, before, after), cells))
    what = "VL3" if losses.of_paper else "VL3 (ours: late third)"
    return Table(
        "table_4",
        "Table 4: what lowers the validation loss",
        ("change", "from", "to"),
        (Column(f"{what}, from", 3), Column(f"{what}, to", 3), Column("lower by (%)", 2)),
        lines,
        "A negative figure means that the loss rose.",
    )


RANDOMIZED = (("SB", "SB-BR"), ("SSB", "SSB-BR"), ("SSB-DBS", "SSB-DBS-BR"))


def randomization_table(ours: dict[str, Result], paper: dict[str, Result], decimals: int) -> Table:
    """Does batch randomization shorten an epoch?"""
    lines = []
    for before, after in RANDOMIZED:
        cells = [
            (look_up(paper, name, "minutes"), look_up(ours, name, "minutes"))
            for name in (before, after)
        ]
        cells.append(tuple(reduction(r, before, after, "minutes")[1] for r in (paper, ours)))
        lines.append(((before, after), cells))
    return Table(
        "batch_randomization",
        "Does batch randomization shorten an epoch?",
        ("without BR", "with BR"),
        (
            _minutes("minutes without", decimals),
            _minutes("minutes with", decimals),
            Column("shorter by (%)", 2),
        ),
        lines,
        "A negative figure means that the epoch became longer.",
    )


def randomization_sentence(ours: dict[str, Result], decimals: int) -> str:
    """Whether BR shortens an epoch, published and ours, of SSB as the paper tells it."""
    told = []
    before, after = RANDOMIZED[1]
    for side, results in (("The paper", paper_results()), ("Ours", ours)):
        shorter = reduction(results, before, after, "minutes")[1]
        if shorter.missing:
            told.append(f"{side}: –, {shorter.missing}.")
            continue
        a, b = (results[name].measures["minutes"].mean for name in (before, after))
        digits = 2 if side == "The paper" else decimals
        answer = {"holds": "yes", "does not hold": "no"}.get(_outcome(shorter), "undecided")
        told.append(
            f"{side}: {answer}, {before} {a:.{digits}f} → {after} {b:.{digits}f} minutes "
            f"({_signed(-shorter.mean)}\u00a0%{_error(shorter)})."
        )
    return " ".join(told)


def unpadded_table(ours: dict[str, Result], losses: Losses) -> Table:
    """Validation loss per real frame."""
    keys = tuple(f"unpadded vl{i}" for i in range(1, 5))
    return Table(
        "unpadded_loss",
        "Validation loss without padding",
        ("batching",),
        tuple(_loss_columns(losses, paired=False)),
        [((r.label,), [("", r.measures[key]) for key in keys]) for r in ours.values()],
        "The mean over real frames alone, at the same validations. The paper has no such figure.",
    )


def cost_table(ours: dict[str, Result]) -> Table:
    """What an epoch does, how fast, and with what."""
    columns = {
        "batches": Column("batches", 1, False),
        "steps": Column("decoder steps", 0, False),
        "frames/s": Column("real frames/s", 0, False),
        "padded frames/s": Column("padded frames/s", 0, False),
        "clips/s": Column("clips/s", 2, False),
        "memory": Column("peak memory (GiB)", 2, False),
        "waiting": Column("waiting for data (s)", 2, False),
        "preparing": Column("preparation (ms)", 1, False),
    }
    return Table(
        "costs",
        "What an epoch does and costs",
        ("batching",),
        tuple(columns.values()),
        [((r.label,), [("", r.measures[key]) for key in columns]) for r in ours.values()],
        "Batches and decoder steps (the frames that the decoder goes through one by one): mean of "
        "an epoch. Speeds and seconds: median over epochs; clips/s are the other papers' "
        "utterances/s; preparation is the planning of an epoch's batches. Memory: the most that "
        "any epoch held, of the GPU; without one, of the process since its start.",
    )


# ---------------------------------------------------------------------------- the paper's findings


def paper_findings(rows: Sequence[Row], losses: Losses) -> list[Finding]:
    """The paper's claims, its figures, ours, and whether ours bear them out."""
    paper = paper_results()
    ours = by_name(rows, our_results(rows, losses))
    tested = lambda claim, pairs, key: _compare(claim, pairs, key, ours, paper)  # noqa: E731
    sorted_ones = ("SB-BR", "SSB-BR", "BKT-BR", "ATS-BR")
    pairs = {change: [(b, a) for b, a, _ in rows] for change, rows in published.TABLE_4.items()}
    semi_sorting, randomizing, dynamic = pairs.values()
    return [
        tested(
            "Batches of clips of similar length shorten an epoch against random ones.",
            [("RAND", name) for name in sorted_ones],
            "minutes",
        ),
        tested("Dynamic batch sizes (DBS) shorten it further.", dynamic, "minutes"),
        _saving(ours, paper),
        tested("Batch randomization (BR) shortens it slightly.", RANDOMIZED, "minutes"),
        tested("Semi-sorting learns better than sorting (VL3).", semi_sorting, "vl3"),
        tested("Batch randomization lowers the loss (VL3).", randomizing, "vl3"),
        tested("Dynamic batch sizes lower the loss (VL3).", dynamic, "vl3"),
        _best(ours, paper),
    ]


def _compare(claim, pairs, key, ours, paper) -> Finding:
    """A claim that `key` falls from the first to the second batching of every pair."""
    told, changes = ([], []), []
    for before, after in pairs:
        for i, results in enumerate((paper, ours)):
            per_cent = reduction(results, before, after, key)[1]
            if i == 0 and (key, before, after) in PRINTED:
                per_cent = Measure(PRINTED[key, before, after])
            if per_cent.missing:
                told[i].append(f"{before} → {after}: – ({per_cent.missing})")
                continue
            told[i].append(
                f"{before} → {after}: {_signed(-per_cent.mean)}\u00a0%{_error(per_cent)}"
            )
            if i == 1:
                changes.append(per_cent)
    verdict = _verdict([_outcome(change) for change in changes], len(pairs))
    return Finding(claim, *told, verdict + (_doubt(changes) if key.startswith("vl") else ""))


def _doubt(changes: list[Measure]) -> str:
    """Losses differ between seeds too: without several, no one knows by how much."""
    return "; one seed, may be noise" if any(c.standard_error is None for c in changes) else ""


def _outcome(fall: Measure) -> str:
    """Did it fall? With several seeds a change within two standard errors decides nothing."""
    if fall.standard_error is not None and abs(fall.mean) < 2 * fall.standard_error:
        return "undecided"
    return "holds" if fall.mean > 0 else "does not hold"


def _verdict(outcomes: list[str], of: int) -> str:
    if not outcomes:
        return "not measured"
    kinds = set(outcomes)
    if len(kinds) == 1:
        verdict = outcomes[0]
    else:
        counts = [(outcomes.count(kind), kind) for kind in ("holds", "does not hold", "undecided")]
        verdict = "mixed: " + ", ".join(f"{kind} in {count}" for count, kind in counts if count)
    lacking = of - len(outcomes)
    return verdict + (f" ({lacking} of {of} not measured)" if lacking else "")


def _saving(ours: dict[str, Result], paper: dict[str, Result]) -> Finding:
    name = "SSB-DBS-BR"
    wanted = published.TABLE_3[name][1]
    per_cent = reduction(ours, "RAND", name, "minutes")[1]
    if per_cent.missing:
        ours_told, verdict = f"– ({per_cent.missing})", "not measured"
    else:
        ours_told, verdict = f"{per_cent.mean:.2f}\u00a0%{_error(per_cent)}", _outcome(per_cent)
        if verdict == "holds" and per_cent.mean < wanted - POINTS_OF_GRACE:
            verdict = "holds in part: an epoch is shorter, but by less"
    claim = f"{name} saves {wanted:.0f} % of an epoch's time against RAND."
    return Finding(claim, [f"{wanted:.2f}\u00a0%"], [ours_told], verdict)


def _best(ours: dict[str, Result], paper: dict[str, Result]) -> Finding:
    """The paper's batching has the least VL3 of its ten."""
    name, told, verdict = "SSB-DBS-BR", [], "not measured"
    for results in (paper, ours):
        losses = {
            n: look_up(results, n, "vl3")
            for n in published.TABLE_2
            if n in results and not reduction(results, n, name, "vl3")[1].missing
        }
        ranked = sorted((m.mean, n) for n, m in losses.items())
        told.append([f"{n} {loss:.3f}{_error(losses[n])}" for loss, n in ranked[:3]])
        if results is ours and len(ranked) > 1:
            best_other = next(n for _, n in ranked if n != name)
            fall = reduction(ours, best_other, name, "vl3")[1]
            verdict = _outcome(fall)
            if verdict == "holds" and len(ranked) < len(published.TABLE_2):
                verdict += f" among the {len(ranked)} measured"
            verdict += _doubt([fall])
    claim = f"{name} has the lowest loss of all (VL3; the three lowest are shown)."
    return Finding(claim, told[0], told[1] or ["– (not measured)"], verdict)


def _signed(per_cent: float) -> str:
    return f"{per_cent:+.2f}".replace("-", "−")


def _error(value: Measure) -> str:
    return "" if value.standard_error is None else f" ±\u00a0{value.standard_error:.2g}"


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
