"""Create the report of `prepare`: an HTML page with a summary, plots and the clips' problems.

page = report_page("mine", summary, len(clips), findings, warnings, plots, out, hparams)
"""

import base64
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import jinja2

from corpus.clips import Clip
from corpus.warnings import Finding
from hparams import HParams

TEMPLATE = Path(__file__).with_name("report_page.html")
MAX_FLAGGED = 200  # maximum number of rows in the table of clips with problems


def report_page(
    title: str,
    summary: Mapping[str, str],
    num_clips: int,
    findings: Sequence[Finding],
    warnings: Sequence[str],
    plots: Mapping[str, bytes],
    out: Path,
    hparams: HParams,
) -> str:
    """Return the report of `prepare` as an HTML page.

    Args:
        title: the name of the corpus.
        summary: the summary, as {name of the row: value}.
        num_clips: the total number of clips in all sets.
        findings: problems of individual clips.
        warnings: warnings about the corpus as a whole.
        plots: maps each caption to a PNG, which is embedded in the page.
        out: the folder for the page. Links to clips are relative to this folder.
    """
    problems_by_path = defaultdict[str, list[str]](list)
    clips = dict[str, Clip]()
    for finding in findings:
        for clip, detail in finding.notes:
            problems_by_path[clip.path].append(f"{finding.problem} ({detail})")
            clips[clip.path] = clip
    ranked = sorted(clips.values(), key=lambda clip: -len(problems_by_path[clip.path]))
    flagged = [
        {
            "id": clip.id,
            "link": quote(os.path.relpath(clip.path, os.path.realpath(out))),
            "seconds": f"{clip.measured.num_samples / hparams.sampling_rate:.2f}",
            "problems": problems_by_path[clip.path],
            "text": clip.text,
        }
        for clip in ranked[:MAX_FLAGGED]
    ]
    template = jinja2.Template(TEMPLATE.read_text("utf-8"), autoescape=True)
    return template.render(
        title=title,
        summary=summary,
        findings=sorted(findings, key=lambda finding: -len(finding.notes)),
        warnings=warnings,
        plots={caption: base64.b64encode(png).decode() for caption, png in plots.items()},
        flagged=flagged,
        num_flagged=len(ranked),
        num_clips=num_clips,
    )
