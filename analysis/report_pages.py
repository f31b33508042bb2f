"""A report's cells as text, and its pages: Markdown and HTML from templates, and CSV."""

import base64
import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2

from analysis.report_findings import Finding
from analysis.report_measures import MeanWithError
from analysis.report_tables import Cell, ReportTable, TableColumn
from analysis.tables import markdown_table

LARGEST_INLINE_SVG = 1_000_000  # bytes; a larger drawing goes into the page as PNG
CSV_HEADER = "table row quantity published ours standard_error runs note".split()


class ShownCell(NamedTuple):
    """A cell in words. `note` is the number of its footnote, 0 for none; `side` its CSS class."""

    text: str
    error: str = ""  # "± 0.12"
    note: int = 0
    side: str = "label"

    def __str__(self) -> str:
        return f"{self.text} {self.error}".rstrip()


def shown_cells(table: ReportTable) -> tuple[list[list[ShownCell]], list[str]]:
    """Every row's cells, and the footnotes."""
    notes: list[str] = []
    lines = []
    for labels, pairs in table.rows:
        line = [ShownCell(label) for label in labels]
        for column, (theirs, ours) in zip(table.columns, pairs, strict=True):
            if column.paired:
                line.append(_shown_cell(theirs, column, notes, "published"))
            line.append(_shown_cell(ours, column, notes, "ours"))
        lines.append(line)
    return lines, notes


def _shown_cell(value: Cell, column: TableColumn, notes: list[str], side: str) -> ShownCell:
    """The cell; why ours is missing is added to `notes`. The table's note says it of theirs."""
    if isinstance(value, str):
        return ShownCell(value or "–", side=side)
    if value.mean is None and side == "published":
        return ShownCell("–", side=side)
    if value.mean is None:
        if value.missing not in notes:
            notes.append(value.missing)
        return ShownCell("–", note=notes.index(value.missing) + 1, side=side)
    decimals, error = column.decimals, ""
    if side == "published" and column.published_decimals is not None:
        decimals = column.published_decimals
    if value.standard_error is not None:
        least = 10.0**-decimals
        small = value.standard_error < least / 2
        error = f"± <{least:.{decimals}f}" if small else f"± {value.standard_error:.{decimals}f}"
    return ShownCell(f"{value.mean:,.{decimals}f}".replace("-", "−"), error, side=side)


# ---------------------------------------------------------------------------- Markdown


def escape_markdown(text: object) -> str:
    """`text` in a line of Markdown that shows it as it stands, but for `|`, which only tables
    have to escape."""
    return re.sub(r"([\\`*<\[])", r"\\\1", " ".join(str(text).split()))


def table_in_markdown(table: ReportTable) -> str:
    titles = list(table.headings)
    for column in table.columns:
        sides = column.sides if column.paired else ()
        titles += [f"{column.heading}: {side}" for side in sides] or [column.heading]
    rows = [
        [escape_markdown(cell) + (f"<sup>{cell.note}</sup>" if cell.note else "") for cell in line]
        for line in shown_cells(table)[0]
    ]
    return markdown_table(list(map(escape_markdown, titles)), rows, len(table.headings))


def findings_in_markdown(findings: Sequence[Finding]) -> str:
    rows = [
        [
            escape_markdown(finding.claim),
            *(
                "<br>".join(map(escape_markdown, side))
                for side in (finding.published, finding.ours)
            ),
            f"**{escape_markdown(finding.verdict)}**",
        ]
        for finding in findings
    ]
    return markdown_table(["the paper finds", "published", "ours", "verdict"], rows, 4)


# ---------------------------------------------------------------------------- pages


def render(template: Path, **content) -> str:
    """A page from a Jinja2 template. One named .html escapes all that it shows."""
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        autoescape=jinja2.select_autoescape(["html"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    pages.filters |= {
        "markdown": escape_markdown,
        "table_in_markdown": table_in_markdown,
        "findings_in_markdown": findings_in_markdown,
        "cells": shown_cells,
    }
    return pages.get_template(template.name).render(content)


class Drawing(NamedTuple):
    """A figure for a page: one of the two, the other is empty."""

    svg: str = ""
    png: str = ""  # base64


def inline_drawing(path_without_suffix: Path) -> Drawing:
    """A figure that a page can hold: its SVG, or its PNG where that is smaller by far.

    The SVG loses its prologue and addresses, and every id in it gets the file's name in front.
    """
    name = path_without_suffix.name
    svg = path_without_suffix.with_name(name + ".svg").read_text(encoding="utf-8")
    if len(svg) > LARGEST_INLINE_SVG:
        png = path_without_suffix.with_name(name + ".png").read_bytes()
        return Drawing(png=base64.b64encode(png).decode())
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    return Drawing(svg=re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg))


# ---------------------------------------------------------------------------- CSV


def to_csv(tables: Sequence[ReportTable]) -> str:
    """Every cell of the tables a line, not rounded; empty where there is no number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    for table in tables:
        quantities = _unlike([column.heading for column in table.columns])
        for labels, pairs in table.rows:
            for quantity, (theirs, ours) in zip(quantities, pairs, strict=True):
                row = [table.key, " / ".join(labels), quantity, _raw(theirs), _raw(ours)]
                if isinstance(ours, MeanWithError):
                    # csv writes None as an empty field, and a float in full
                    row += [ours.standard_error, ours.num_runs, ours.missing]
                else:
                    row += ["", "", ""]
                writer.writerow(row)
    return text.getvalue()


def _unlike(headings: list[str]) -> list[str]:
    """Headings that a table has several times follow the last that it has once: "loss: p"."""
    names, last = [], ""
    for heading in headings:
        several = headings.count(heading) > 1
        names.append(f"{last}: {heading}" if several else heading)
        last = last if several else heading
    return names


def _raw(value: Cell) -> str | float | None:
    return value if isinstance(value, str) else value.mean
