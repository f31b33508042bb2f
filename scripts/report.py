"""Puts finished runs beside the paper's Tables 1-4 and Figures 1-4; needs no GPU.

    python scripts/report.py RUN_DIR... -o report/

Each RUN_DIR is the output folder of train.py, or a folder in which such folders lie at any depth.
Writes report.md, report.html (one file that links to nothing), report.csv (every number of the
tables) and the figures. Runs that are alike but for their seed become one row, mean ± standard
error. What is broken or unfinished is named and left out.
"""

import project_root

import argparse
import base64
import csv
import html
import io
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from analysis import figures as batching_figures
from analysis import published
from analysis.report_figures import draw_validation_losses, figure_lengths
from analysis.report_runs import (
    LENGTHS_FILE,
    Row,
    deviations,
    find_runs,
    group_runs,
    read_run,
    warnings,
)
from analysis.report_tables import (
    Column,
    Finding,
    Losses,
    Measure,
    Table,
    by_name,
    choose_losses,
    make_tables,
    minutes_decimals,
    our_results,
    paper_findings,
    randomization_sentence,
)
from files import write_atomically

TITLE = "Ten batchings of Tacotron 2: ours beside the paper's"
LARGEST_INLINE_SVG = 1_000_000  # bytes; a larger drawing goes into the page as PNG


# ---------------------------------------------------------------------------- what it says


@dataclass(frozen=True)
class Block:
    """A piece of the report; `kind` is heading, text, warning, facts, list, table, findings or
    figure."""

    kind: str
    content: object
    title: str = ""


def collect(folders: Sequence[Path]) -> tuple[list[Row], list[str]]:
    """Rows of the runs found, and what was left out with the reason."""
    directories, left_out = find_runs(folders)
    runs = []
    for directory in directories:
        try:
            runs.append(read_run(directory))
        except ValueError as error:
            left_out.append(str(error))
    rows, doubled = group_runs(runs)
    return rows, left_out + doubled


def compose(rows: list[Row], left_out: list[str], command: str, date: datetime) -> list[Block]:
    """The report from its head to its end."""
    losses = choose_losses(rows)
    tables, results = make_tables(rows, losses), our_results(rows, losses)
    named = by_name(rows, results)
    blocks = [Block("heading", TITLE), *_head(rows, left_out, command, date)]
    blocks += [Block("heading", "The paper's findings", "h2")]
    blocks += [Block("text", _caution(rows, losses))]
    blocks += [Block("findings", paper_findings(rows, losses))]
    blocks += [Block("heading", "Tables", "h2")]
    for key, table in tables.items():
        blocks.append(Block("table", table))
        if key == "batch_randomization":
            sentence = randomization_sentence(named, minutes_decimals(results.values()))
            blocks.append(Block("text", sentence))
    blocks += [Block("heading", "Figures", "h2")]
    source = (
        f"Figures 1 to 3 and the last are drawn from {rows[0].runs[0].directory / LENGTHS_FILE}."
    )
    blocks += [Block("text", source)]
    blocks += [Block("figure", stem, caption) for stem, caption in FIGURES.items()]
    return blocks


def _head(rows: list[Row], left_out: list[str], command: str, date: datetime) -> list[Block]:
    runs = [run for row in rows for run in row.runs]
    blocks = []
    unlike = deviations(rows)
    if unlike:
        blocks.append(Block("warning", unlike, "This is not a reproduction of the paper:"))
    else:
        blocks.append(
            Block(
                "text",
                "The settings, the model, the number of epochs and the number of clips are the "
                "paper's: this is a reproduction of it, on other hardware and with a split of its "
                "own, for the paper does not publish its split.",
            )
        )
    lacking = [name for name in published.TABLE_2 if name not in {row.name for row in rows}]
    if lacking:
        left_out = [*left_out, "no finished run of " + ", ".join(lacking)]
    if left_out:
        blocks.append(Block("warning", left_out, "Left out or lacking:"))
    mixed = warnings(rows)
    if mixed:
        title = "The runs are not all alike, so their rows compare only with care:"
        blocks.append(Block("warning", mixed, title))
    blocks.append(Block("facts", _facts(runs, rows, command, date)))
    return blocks


def _facts(runs, rows: list[Row], command: str, date: datetime) -> list[tuple[str, str]]:
    def every(of) -> str:
        return "; ".join(dict.fromkeys(str(of(run)) for run in runs))

    def corpus(run) -> str:
        c, h = run.record["corpus"], run.hparams
        hours = c["training_frames"] * h.hop_length / h.sampling_rate / 3600
        return (
            f"{c['training_clips']:,} clips ({hours:.2f} hours) for training, "
            f"{c['validation_clips']:,} for validation; fingerprint {c['fingerprint'][:16]}"
        )

    def machine(run) -> str:
        m = run.record["machine"]
        return (
            f"{m.get('processor')}, cores: {m.get('cores')}, threads: {m.get('threads')}, "
            f"{m.get('system')}"
        )

    times = sorted(datetime.fromisoformat(run.record["time"]).astimezone() for run in runs)
    return [
        ("report made", f"{date:%Y-%m-%d %H:%M %z}"),
        ("made again by", command),
        (
            "runs",
            f"{len(runs)} in {len(rows)} rows, begun or resumed {times[0]:%Y-%m-%d %H:%M} to "
            f"{times[-1]:%Y-%m-%d %H:%M %z}",
        ),
        ("seeds", ", ".join(map(str, sorted({run.hparams.seed for run in runs})))),
        ("epochs", every(lambda run: len(run.epochs))),
        ("corpus", every(corpus)),
        ("trained on", every(lambda run: run.record["machine"].get("device"))),
        ("machine", every(machine)),
        (
            "versions",
            every(lambda r: ", ".join(f"{k} {v}" for k, v in r.record["versions"].items() if v)),
        ),
        ("commit", every(lambda run: run.record.get("commit") or "unknown")),
        ("the paper", "Ge et al., Interspeech 2021; LJSpeech, one GeForce GTX 1080, fp32"),
    ]


def _caution(rows: list[Row], losses: Losses) -> str:
    text = (
        "Minutes are of this machine and the paper's of a GTX 1080, so compare differences, not "
        "minutes; what else the machine did meanwhile is in them too. "
    )
    if not losses.of_paper:
        text += "Our VL3 is that of the runs' late third, not of the paper's epoch 220. "
    if min(len(row.runs) for row in rows) == 1:
        text += (
            "Where a row has one seed, a difference of losses may be noise: no one can tell from "
            "it how much two runs of the same batching differ. "
        )
    if max(len(row.runs) for row in rows) > 1:
        text += "A change of less than two standard errors is called undecided. "
    return text.strip()


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


def draw_figures(rows: list[Row], out: Path) -> list[Path]:
    """Every figure as .svg and .png; gives the files' paths."""
    lengths, options = figure_lengths(rows)
    batch_size = rows[0].runs[0].hparams.batch_size
    sweep = {name: value for name, value in options.items() if name != "num_buckets"}
    figures = (
        batching_figures.draw_padded_batches(lengths, dynamic=False),
        batching_figures.draw_parameter_sweeps(lengths, batch_size, **sweep),
        batching_figures.draw_padded_batches(lengths, dynamic=True),
        draw_validation_losses(rows, over_time=False),
        draw_validation_losses(rows, over_time=True),
        batching_figures.draw_length_against_position(lengths, batch_size, **options),
    )
    written = []
    for stem, figure in zip(FIGURES, figures, strict=True):
        written += batching_figures.write_figure(figure, out / stem)
    return written


# ---------------------------------------------------------------------------- cells


def cell(value: Measure | str, column: Column, notes: list[str], ours: bool) -> tuple[str, int]:
    """The text of a cell and the number of its footnote (0: none), which is added to `notes`."""
    if isinstance(value, str):
        return value or "–", 0
    if value.mean is None:
        if not ours:
            return "–", 0  # the paper has none; the table's note says so
        if value.missing not in notes:
            notes.append(value.missing)
        return "–", notes.index(value.missing) + 1
    decimals = column.decimals
    if not ours and column.published_decimals is not None:
        decimals = column.published_decimals
    text = f"{value.mean:,.{decimals}f}".replace("-", "−")
    if value.standard_error is not None:
        least = 10.0**-decimals
        error = f"{value.standard_error:.{decimals}f}"
        text += f" ± {error}" if value.standard_error >= least / 2 else f" ± <{least:.{decimals}f}"
    return text, 0


def cells(table: Table) -> tuple[list[list[tuple[str, int, str]]], list[str]]:
    """Every row's (text, footnote, class of the cell), and the footnotes."""
    notes: list[str] = []
    lines = []
    for labels, pairs in table.rows:
        line = [(label, 0, "label") for label in labels]
        for column, (theirs, ours) in zip(table.columns, pairs, strict=True):
            if column.paired:
                line.append((*cell(theirs, column, notes, ours=False), "published"))
            line.append((*cell(ours, column, notes, ours=True), "ours"))
        lines.append(line)
    return lines, notes


# ---------------------------------------------------------------------------- Markdown


def to_markdown(blocks: list[Block]) -> str:
    parts = []
    for block in blocks:
        content = block.content
        if block.kind == "heading":
            parts.append(("## " if block.title else "# ") + _md(content))
        elif block.kind == "text":
            parts.append(_md(content))
        elif block.kind == "warning":
            items = "\n".join(f"- {_md(item)}" for item in content)
            parts.append(f"**{_md(block.title)}**\n\n{items}")
        elif block.kind == "facts":
            parts.append("\n".join(f"- {name}: {_md(value)}" for name, value in content))
        elif block.kind == "findings":
            parts.append(_findings_markdown(content))
        elif block.kind == "table":
            parts.append(_table_markdown(content))
        elif block.kind == "figure":
            parts.append(f"![{_md(block.title)}]({content}.svg)\n\n{_md(block.title)}")
    return "\n\n".join(parts) + "\n"


def _md(text: str) -> str:
    """Text that Markdown shows as it stands."""
    text = re.sub(r"([\\`*|<\[])", r"\\\1", " ".join(text.split()))
    return text


def _table_markdown(table: Table) -> str:
    heads = [*table.headings]
    for column in table.columns:
        sides = column.sides if column.paired else None
        heads += [f"{column.heading}: {side}" for side in sides] if sides else [column.heading]
    lines, notes = cells(table)
    rows = [
        [_md(text) + (f"<sup>{note}</sup>" if note else "") for text, note, _ in line]
        for line in lines
    ]
    marks = ["---"] * len(table.headings) + ["---:"] * (len(heads) - len(table.headings))
    text = [f"### {_md(table.title)}", ""]
    text += ["| " + " | ".join(row) + " |" for row in [[_md(h) for h in heads], marks, *rows]]
    for number, note in enumerate(notes, 1):
        text += ["", f"<sup>{number}</sup> {_md(note)}"]
    return "\n".join([*text, "", _md(table.note)])


def _findings_markdown(findings: list[Finding]) -> str:
    rows = ["| the paper finds | published | ours | verdict |", "| --- | --- | --- | --- |"]
    for f in findings:
        theirs, ours = ("<br>".join(_md(line) for line in side) for side in (f.published, f.ours))
        rows.append(f"| {_md(f.claim)} | {theirs} | {ours} | **{_md(f.verdict)}** |")
    return "\n".join(rows)


# ---------------------------------------------------------------------------- CSV


def to_csv(tables: Sequence[Table]) -> str:
    """Every cell of the tables a line, not rounded; empty where there is no number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["table", "row", "quantity", "published", "ours", "standard_error", "runs", "note"]
    )
    for table in tables:
        for labels, pairs in table.rows:
            for column, (theirs, ours) in zip(table.columns, pairs, strict=True):
                row = [table.key, " / ".join(labels), column.heading, _raw(theirs), _raw(ours)]
                if isinstance(ours, Measure):
                    error = "" if ours.standard_error is None else repr(ours.standard_error)
                    row += [error, ours.num_runs, ours.missing]
                else:
                    row += ["", "", ""]
                writer.writerow(row)
    return text.getvalue()


def _raw(value: Measure | str) -> str:
    if isinstance(value, str):
        return value
    return "" if value.mean is None else repr(value.mean)


# ---------------------------------------------------------------------------- HTML

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, "Segoe UI", "Liberation Sans", Arial, sans-serif; color: #1a1a1a;
  background: #fff; max-width: 84rem; margin: 0 auto; padding: 1rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; } h2 { font-size: 1.3rem; margin-top: 2.5rem;
  border-bottom: 2px solid #0072b2; padding-bottom: .2rem; } h3 { font-size: 1.05rem;
  margin: 2rem 0 .5rem; }
p { max-width: 46rem; }
.warning { border-left: 5px solid #d55e00; background: #fdf3ec; padding: .6rem 1rem;
  margin: 1rem 0; overflow-wrap: anywhere; }
.warning ul { margin: .3rem 0 0; padding-left: 1.2rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; font-size: .9rem; }
dt { color: #555; } dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .45rem; text-align: right; white-space: nowrap; }
.many { font-size: .79rem; } .many td, .many th { padding: .3rem .35rem; }
thead th { border-bottom: 1px solid #888; font-weight: 600; vertical-align: bottom; }
thead tr:first-child th[colspan] { text-align: center; border-bottom: 1px solid #ccc; }
thead .side { font-weight: 400; }
tbody tr { border-bottom: 1px solid #e3e3e3; }
.label { text-align: left; }
.published { color: #555; border-left: 1px solid #ccc; }
td.ours { font-weight: 600; background: #eef5fa; } th.ours { background: #eef5fa; }
.error { font-weight: 400; font-size: .82em; color: #555; } .many .error { display: block; }
.alone { border-left: 1px solid #ccc; }
.findings td, .findings th { white-space: normal; text-align: left; vertical-align: top; }
.findings td:nth-child(2), .findings td:nth-child(3) { min-width: 16rem; }
.note { font-size: .82rem; color: #444; max-width: 60rem; margin: .4rem 0; }
.holds { color: #00664a; } .fails { color: #a33b00; } .open { color: #555; }
figure { margin: 2rem 0; } figure svg, figure img { width: 100%; height: auto; max-width: 68rem; }
figcaption { font-size: .9rem; color: #333; }
@media (max-width: 40rem) {
  body { font-size: 15px; padding: .75rem .75rem 3rem; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; }
  tbody .label:first-child { position: sticky; left: 0; background: #fff; }
  .findings tr { display: block; padding: .5rem 0; } .findings td { display: block; }
  .findings thead { display: none; }
  .findings td:nth-child(2)::before { content: "published: "; color: #777; }
  .findings td:nth-child(3)::before { content: "ours: "; color: #777; }
}
@media print {
  @page { size: A4 landscape; margin: 12mm; }
  body { font-size: 9.5pt; max-width: none; padding: 0; }
  .wide { overflow: visible; } table { font-size: 8.4pt; } th, td { padding: .15rem .35rem; }
  .many { font-size: 8pt; } .many td, .many th { padding: .15rem .25rem; }
  figure, tr, .warning { break-inside: avoid; } h2, h3 { break-after: avoid; }
  figure svg, figure img { max-height: 165mm; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""


def to_html(blocks: list[Block], out: Path) -> str:
    """The whole report as one page that needs no other file; figures are read from `out`."""
    body = "\n".join(_block_html(block, out) for block in blocks)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(TITLE)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _block_html(block: Block, out: Path) -> str:
    content, escape = block.content, html.escape
    if block.kind == "heading":
        tag = block.title or "h1"
        return f"<{tag}>{escape(content)}</{tag}>"
    if block.kind == "text":
        return f"<p>{escape(content)}</p>"
    if block.kind == "warning":
        items = "".join(f"<li>{escape(item)}</li>" for item in content)
        return f'<div class="warning"><strong>{escape(block.title)}</strong><ul>{items}</ul></div>'
    if block.kind == "facts":
        items = "".join(f"<dt>{escape(n)}</dt><dd>{escape(value)}</dd>" for n, value in content)
        return f"<dl>{items}</dl>"
    if block.kind == "findings":
        return _findings_html(content)
    if block.kind == "table":
        return _table_html(content)
    return (
        f"<figure>{_picture(out / content, block.title)}"
        f"<figcaption>{escape(block.title)}</figcaption></figure>"
    )


def _table_html(table: Table) -> str:
    escape = html.escape
    paired = any(column.paired for column in table.columns)
    span = ' rowspan="2"' if paired else ""
    upper = "".join(f'<th class="label"{span}>{escape(h)}</th>' for h in table.headings)
    lower = ""
    for column in table.columns:
        if column.paired:
            upper += f'<th colspan="2" class="published">{escape(column.heading)}</th>'
            lower += "".join(
                f'<th class="side {kind}">{escape(side).replace(", ", "<br>")}</th>'
                for kind, side in zip(("published", "ours"), column.sides, strict=True)
            )
        else:
            upper += f'<th class="alone"{span}>{escape(column.heading)}</th>'
    lines, notes = cells(table)
    body = ""
    for line in lines:
        body += "<tr>"
        for text, note, kind in line:
            mark = f"<sup>{note}</sup>" if note else ""
            text = re.sub(r" (± .*)", r' <span class="error">\1</span>', escape(text))
            body += f'<td class="{kind}">{text}{mark}</td>'
        body += "</tr>\n"
    below = "".join(
        f'<p class="note"><sup>{number}</sup> {escape(note)}</p>'
        for number, note in enumerate(notes, 1)
    )
    many = ' class="many"' if len(lines[0]) > 10 else ""
    head = f"<tr>{upper}</tr>" + (f"<tr>{lower}</tr>" if lower else "")
    return (
        f'<h3>{escape(table.title)}</h3>\n<div class="wide"><table{many}><thead>{head}</thead>\n'
        f'<tbody>{body}</tbody></table></div>\n{below}<p class="note">{escape(table.note)}</p>'
    )


def _findings_html(findings: list[Finding]) -> str:
    escape = html.escape
    rows = ""
    for f in findings:
        kind = "open"
        if f.verdict.startswith(("does not", "mixed", "holds in part")):
            kind = "fails"
        elif f.verdict.startswith("holds"):
            kind = "holds"
        sides = "".join(
            f"<td>{'<br>'.join(escape(line) for line in side)}</td>"
            for side in (f.published, f.ours)
        )
        rows += (
            f"<tr><td>{escape(f.claim)}</td>{sides}"
            f'<td class="{kind}"><strong>{escape(f.verdict)}</strong></td></tr>\n'
        )
    head = "".join(f"<th>{h}</th>" for h in ("the paper finds", "published", "ours", "verdict"))
    return f'<table class="findings"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _picture(path: Path, title: str) -> str:
    """The figure inside the page: its SVG, or its PNG where that is smaller by far."""
    svg = path.with_name(path.name + ".svg").read_text(encoding="utf-8")
    if len(svg) > LARGEST_INLINE_SVG:
        data = base64.b64encode(path.with_name(path.name + ".png").read_bytes()).decode()
        return f'<img alt="{html.escape(title)}" src="data:image/png;base64,{data}">'
    return inline_svg(svg, path.name, title)


def inline_svg(svg: str, prefix: str, title: str) -> str:
    """An SVG file as an element of a page: no prologue, no addresses, every id with a prefix."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    label = html.escape(title)
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


# ---------------------------------------------------------------------------- the program


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN_DIR")
    parser.add_argument("-o", "--out", type=Path, default=Path("report"), help="default: report")
    args = parser.parse_args(arguments)
    rows, left_out = collect(args.runs)
    for problem in left_out:
        print(f"left out: {problem}", file=sys.stderr)
    if not rows:
        sys.exit("report: no finished run to report on; what was found is named above")
    given = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "scripts/report.py", *map(str, given)])
    date = datetime.now().astimezone()
    count = sum(len(row.runs) for row in rows)
    print(f"{count} runs in {len(rows)} rows; drawing the figures", flush=True)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        pictures = draw_figures(rows, args.out)
        blocks = compose(rows, left_out, command, date)
        texts = {
            "report.md": to_markdown(blocks),
            "report.csv": to_csv([b.content for b in blocks if b.kind == "table"]),
            "report.html": to_html(blocks, args.out),
        }
        for name, text in texts.items():
            write_atomically(
                args.out / name, lambda file, t=text: file.write_text(t, encoding="utf-8")
            )
    except OSError as error:
        sys.exit(f"report: {args.out} cannot be written: {error}; free the place or choose -o")
    for path in [*(args.out / name for name in texts), *pictures]:
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
