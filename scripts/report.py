"""Puts finished runs beside the paper's Tables 1-4 and Figures 1-4; needs no GPU.

    python scripts/report.py RUN_DIR... -o report/

Each RUN_DIR is the output folder of train.py, or a folder in which such folders lie at any depth.
Writes report.md, report.html (one file that links to nothing), report.csv (every number of the
tables) and the figures. Runs that are alike but for their seed become one row, mean ± standard
error. What is broken or unfinished is named and left out.
"""

from project_root import ROOT

import shlex
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from analysis import figures, published
from analysis.arguments import make_parser
from analysis.report_figures import draw_follow_ups, draw_validation_losses, figure_lengths
from analysis.report_findings import paper_findings, randomization_sentence
from analysis.report_measures import (
    LossColumns,
    by_name,
    choose_loss_columns,
    error_of_timing,
    minutes_decimals,
    our_results,
)
from analysis.report_pages import inline_drawing, render, to_csv
from analysis.report_runs import (
    FinishedRun,
    ReportRow,
    collect_rows,
    comparison_warnings,
    deviations,
    follow_ups,
    representatives,
)
from analysis.report_study import is_study, study_findings, study_tables
from analysis.report_study_figures import draw_mixing_and_learning
from analysis.report_tables import make_tables
from analysis.survey import Surveyor
from data_utils import LENGTHS_FILE
from files import write_atomically

TITLE = "Ten batchings of Tacotron 2: ours beside the paper's"
TEMPLATES = ROOT / "scripts" / "templates"
FIGURES = {
    "figure_1_padded_batches": "Figure 1: 48 clips of the corpus in batches of 8 (LRF 0.15), as "
    "the paper draws them.",
    "figure_2_parameter_sweeps": "Figure 2: the parameters of SSB, BKT and ATS against ZPR and "
    "ABL, and the lengths of the batches at the value used.",
    "figure_3_padded_batches_dynamic": "Figure 3: the clips of Figure 1 in batches of dynamic "
    "size.",
    "figure_4_loss_over_epochs": "Figure 4: validation loss over epochs; bands are one standard "
    "error.",
    "figure_4_loss_over_time": "Figure 4, over training time: what a user gains.",
    "length_against_position": "Length against place in the epoch for every strategy (Doetsch et "
    "al., Figure 1), with fixed sizes.",
}
TEST = (
    "Changes are paired by seed, and fitted to the runs of all batchings: log value = batching + "
    "seed + chance. A claim is confirmed or contradicted where the change is beyond chance: "
    "two-sided t-test at 5 %, adjusted by Holm's method over the pairs of the claim. Minutes of an "
    "epoch are of steps timed in turns where time_epochs.py did so, else the runs' own; to their "
    "standard error that of the timing is added, or it is no smaller than that of the median of a "
    "run's epochs, so that what else the machine did decides nothing. Three to five seeds see only "
    "large effects: what is undecided may still be true."
)
STUDY_FIGURES = {
    "loss_over_updates": "Validation loss over updates of the weights; bands are one standard "
    "error.",
    "follow_ups": "Batchings that were trained with several settings; bands are one standard "
    "error.",
    "mixing_and_learning": "Novelty and spread of the batches against what was learnt, an "
    "experiment a point; filled: dynamic sizes.",
}


def figures_of(rows: list[ReportRow]) -> dict[str, str]:
    """The captions of the report's figures, by their files' names."""
    captions = FIGURES | (STUDY_FIGURES if is_study(rows) else {})
    if not follow_ups(rows):
        captions.pop("follow_ups", None)
    return captions


def compose(rows: list[ReportRow], left_out: list[str], command: str, date: datetime) -> dict:
    """What the templates show, by the names that they use."""
    losses = choose_loss_columns(rows)
    results = our_results(rows, losses)
    named = by_name(rows, results)
    unlike = deviations(rows)
    introduction = (
        "The settings, the model, the number of epochs and the number of clips are the paper's: "
        "this is a reproduction of it, on other hardware and with a split of its own, for the "
        "paper does not publish its split."
    )
    study = is_study(rows)
    if study:
        introduction = (
            "A study of learning with a small model and a synthetic voice that speaks numbers: "
            "what is found here need not hold for LJSpeech and the full-size model."
        )
    lacking = [name for name in published.TABLE_2 if name not in named]
    if lacking:
        left_out = [*left_out, "no finished run of " + ", ".join(lacking)]
    notices = {
        "This is not a reproduction of the paper:": unlike,
        "Left out or lacking:": left_out,
        "The runs are not all alike, so their rows compare only with care:": comparison_warnings(
            rows
        ),
    }
    return {
        "title": TITLE,
        "introduction": "" if unlike and not study else introduction,
        "notices": [(heading, items) for heading, items in notices.items() if items],
        "facts": _facts(rows, command, date),
        "caution": _caution(rows, losses, study),
        "findings": study_findings(rows, losses) if study else paper_findings(named),
        "tables": make_tables(rows, losses) + (study_tables(rows, losses) if study else []),
        "conclusions": {
            "batch_randomization": randomization_sentence(named, minutes_decimals(results.values()))
        },
        "lengths_source": "Figures 1 to 3 and the last are drawn from "
        f"{rows[0].runs[0].directory / LENGTHS_FILE}.",
        "figures": figures_of(rows),
    }


def _facts(rows: list[ReportRow], command: str, date: datetime) -> list[tuple[str, str]]:
    runs = [run for row in rows for run in row.runs]

    def every(describe: Callable[[FinishedRun], object]) -> str:
        return "; ".join(dict.fromkeys(str(describe(run)) for run in runs))

    def corpus(run: FinishedRun) -> str:
        c, h = run.record.corpus, run.hparams
        hours = c.training_frames * h.hop_length / h.sampling_rate / 3600
        return (
            f"{c.training_clips:,} clips ({hours:.2f} hours) for training, "
            f"{c.validation_clips:,} for validation; fingerprint {c.fingerprint[:16]}"
        )

    def machine(run: FinishedRun) -> str:
        m = run.record.machine
        return (
            f"{m.get('processor')}, cores: {m.get('cores')}, threads: {m.get('threads')}, "
            f"{m.get('system')}"
        )

    def versions(run: FinishedRun) -> str:
        return ", ".join(f"{name} {v}" for name, v in run.record.versions.items() if v)

    times = sorted(run.record.time.astimezone() for run in runs)
    return [
        ("report made", f"{date:%Y-%m-%d %H:%M %z}"),
        ("made again by", command),
        (
            "runs",
            f"{len(runs)} in {len(rows)} rows, begun or resumed {times[0]:%Y-%m-%d %H:%M} to "
            f"{times[-1]:%Y-%m-%d %H:%M %z}",
        ),
        ("seeds", ", ".join(map(str, sorted({run.hparams.seed for run in runs})))),
        ("epochs", every(lambda run: len(run.metrics.epochs))),
        ("corpus", every(corpus)),
        ("trained on", every(lambda run: run.record.machine.get("device"))),
        ("machine", every(machine)),
        ("versions", every(versions)),
        ("commit", every(lambda run: run.record.commit or "unknown")),
        ("the paper", "Ge et al., Interspeech 2021; LJSpeech, one GeForce GTX 1080, fp32"),
    ]


def _caution(rows: list[ReportRow], losses: LossColumns, study: bool) -> str:
    sentences = [
        "Minutes are of this machine and the paper's of a GTX 1080, so compare differences, not "
        "minutes."
    ]
    if not any(map(error_of_timing, rows)):
        sentences.append("What else the machine did meanwhile is in them too.")
    if not losses.as_published:
        sentences.append("Our VL3 is that of the runs' late third, not of the paper's epoch 220.")
    if study:
        sentences.append(TEST)
        return " ".join(sentences)
    seeds = [len(row.runs) for row in rows]
    if min(seeds) == 1:
        sentences.append(
            "Where a row has one seed, a difference of losses may be noise: no one can tell from "
            "it how much two runs of the same batching differ."
        )
    if max(seeds) > 1:
        sentences.append("A change of less than two standard errors is called undecided.")
    return " ".join(sentences)


def draw_figures(rows: list[ReportRow], out: Path) -> list[Path]:
    """Every figure as .svg and .png; gives the files' paths."""
    lengths, options = figure_lengths(rows)
    batch_size = rows[0].runs[0].hparams.batch_size
    sweep = {name: value for name, value in options.items() if name != "num_buckets"}
    curves = rows
    if is_study(rows):  # its follow-ups have a figure of their own
        curves = list(representatives(rows).values())
    drawn = [
        figures.draw_padded_batches(lengths, dynamic=False),
        figures.draw_parameter_sweeps(Surveyor(lengths), batch_size, **sweep),
        figures.draw_padded_batches(lengths, dynamic=True),
        draw_validation_losses(curves, over="epochs"),
        draw_validation_losses(curves, over="time"),
        figures.draw_length_against_position(lengths, batch_size, **options),
    ]
    if is_study(rows):
        drawn.append(draw_validation_losses(curves, over="updates"))
        if several := follow_ups(rows):
            drawn.append(draw_follow_ups(several))
        drawn.append(draw_mixing_and_learning(rows))
    return [
        path
        for stem, figure in zip(figures_of(rows), drawn, strict=True)
        for path in figures.write_figure(figure, out / stem)
    ]


def write_report(rows: list[ReportRow], left_out: list[str], command: str, out: Path) -> list[Path]:
    """Fill the folder `out`; gives the files' paths."""
    out.mkdir(parents=True, exist_ok=True)
    pictures = draw_figures(rows, out)
    content = compose(rows, left_out, command, datetime.now().astimezone())
    drawings = {stem: inline_drawing(out / stem) for stem in figures_of(rows)}
    texts = {
        "report.md": render(TEMPLATES / "report.md", **content),
        "report.csv": to_csv(content["tables"]),
        "report.html": render(TEMPLATES / "report.html", **content, drawings=drawings),
    }
    for name, text in texts.items():
        write_atomically(out / name, lambda file, t=text: file.write_text(t, encoding="utf-8"))
    return [*(out / name for name in texts), *pictures]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN_DIR")
    parser.add_argument("-o", "--out", type=Path, default=Path("report"), help="default: report")
    args = parser.parse_args(arguments)
    rows, left_out = collect_rows(args.runs)
    for problem in left_out:
        print(f"left out: {problem}", file=sys.stderr)
    if not rows:
        sys.exit("report: no finished run to report on; what was found is named above")
    given = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "scripts/report.py", *map(str, given)])
    count = sum(len(row.runs) for row in rows)
    print(f"{count} runs in {len(rows)} rows; drawing the figures", flush=True)
    try:
        written = write_report(rows, left_out, command, args.out)
    except OSError as error:
        sys.exit(f"report: {args.out} cannot be written: {error}; free the place or choose -o")
    for path in written:
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
