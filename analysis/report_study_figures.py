"""The figure of a study: whether how batches mix the clips foretells what is learnt."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from analysis.figures import STYLES
from analysis.report_runs import ReportRow
from analysis.report_study import MEASURES, mixing, one_batch_size, outcomes


def draw_mixing_and_learning(rows: Sequence[ReportRow]) -> Figure:
    """Loss at equal updates and word error rate against novelty and spread, a point a row."""
    compared = one_batch_size(rows)
    surveys = mixing(compared)
    figure = Figure(figsize=(11, 8), layout="constrained")
    panels = figure.subplots(2, len(MEASURES), squeeze=False)
    for line, (outcome, found) in zip(panels, outcomes(compared).items(), strict=True):
        for axes, measure in zip(line, MEASURES, strict=True):
            for row, survey, mean in zip(compared, surveys, found, strict=True):
                if mean.mean is None:
                    continue
                style = STYLES[row.runs[0].hparams.batching_strategy]
                filled = row.runs[0].hparams.dynamic_batch_size
                axes.errorbar(
                    getattr(survey, measure),
                    mean.mean,
                    yerr=mean.standard_error,
                    marker=style.marker,
                    color=style.colour,
                    markerfacecolor=style.colour if filled else "white",
                    linestyle="none",
                    label=row.label,
                )
            axes.set_xlabel(measure)
            axes.set_ylabel(outcome)
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure
