"""The drawing of what an epoch takes under each batching and precision."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from analysis.figures import STYLES


def draw_epoch_minutes(rows: Sequence[dict]) -> Figure | None:
    """Bars of minutes per epoch with their standard errors, a panel for each precision.

    Args:
        rows: of the JSON of benchmarks/train_epochs.py; those that were not measured are left out.

    Returns:
        None if none was measured.
    """
    rows = [row for row in rows if row["status"] == "measured"]
    if not rows:
        return None
    precisions = list(dict.fromkeys(row["precision"] for row in rows))
    panels = [[row for row in rows if row["precision"] == precision] for precision in precisions]
    heights = [len(panel) for panel in panels]
    figure = Figure(figsize=(7, 1.2 + 0.45 * sum(heights)), layout="constrained")
    every = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)
    for axes, panel in zip(every[:, 0], panels, strict=True):
        places = range(len(panel))
        minutes = [row["minutes_per_epoch"] for row in panel]
        errors = [row["standard_error_minutes"] or 0 for row in panel]
        axes.barh(
            places,
            minutes,
            xerr=errors,
            color=[STYLES[row["strategy"]].colour for row in panel],
            height=0.7,
        )
        for place, value, error in zip(places, minutes, errors, strict=True):
            look = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
            axes.annotate(f"{value:.3g}", (value + error, place), **look)
        axes.set_yticks(places, [f"{row['batching']}, {row['capacity']:,} frames" for row in panel])
        axes.invert_yaxis()
        axes.set_title(panel[0]["precision"], loc="left", fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
    every[-1, 0].set_xlim(0, 1.12 * max(row["minutes_per_epoch"] for row in rows))
    every[-1, 0].set_xlabel("minutes per epoch")
    return figure
