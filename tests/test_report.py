"""Compare the report of Table 2 with values calculated by hand and with recorded values."""

import gc
import io
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import DATA, metrics
from records import LENGTHS, write_lines, write_run
from scipy.stats import ttest_rel

from evaluation.results import Intelligibility, read_result
from scripts.table2 import published, report
from scripts.table2.figures import draw_losses
from scripts.table2.findings import (
    CLAIMS,
    against_first,
    at_budget,
    findings,
    loss_at,
    p_text,
    paired_change,
    verdict,
)
from scripts.table2.runs import read_progress, read_runs
from scripts.table2.tables import (
    BEST,
    PAPER,
    THIRDS,
    VL,
    Measured,
    paper_tables,
    published_falls,
    tidy,
)
from tacotron2_voice.utils.errors import UserError

STUDY = DATA / "study"
NAMES = ("RAND", "SSB-DBS-BR", "SSB-DBS", "SB-BR")
JITTER = (0.0, 0.01, 0.025)  # each seed adds one of these values to the losses


@pytest.fixture(autouse=True)
def no_collection(monkeypatch):
    """Turn off garbage collection, because statsmodels collects garbage in each call, which takes a
    second."""
    monkeypatch.setattr(gc, "collect", lambda *_: 0)


def write_study(folder, names=NAMES, seeds=(0, 1, 2), minutes=lambda name: 3.0):
    """Write a study in which the loss of each strategy is 0.1 higher than the loss of the previous
    strategy."""
    for rank, name in enumerate(names):
        for seed in seeds:
            write_run(
                folder / name / str(seed),
                name,
                step=1,
                seed=seed,
                loss=lambda epoch, rank=rank, seed=seed: (
                    (1 + 0.1 * rank + JITTER[seed] * (1 + rank)) * 12 / epoch
                ),
                minutes=lambda epoch, name=name: minutes(name) * (1 + 0.01 * (epoch % 3)),
            )
    return folder


def cells_of(tables):
    return tidy(tables).set_index(["table", "row", "quantity"])


def cells(folder):
    return cells_of(paper_tables(Measured(read_runs([folder]))))


def verdicts(folder):
    return {f.claim: f.verdict for f in findings(Measured(read_runs([folder])))}


# ---------------------------------------------------------------------------- recorded numbers


@pytest.fixture(scope="module")
def recorded():
    """Return report.csv from tests/data/study.

    An older version of the report program wrote this file without statsmodels. The older version
    summed in a different order, so values differ in the 13th digit. The p-values have three digits.
    """
    found = pd.read_csv(STUDY / "report.csv", keep_default_na=False, na_values=[""])
    return found.set_index(["table", "row", "quantity"])


def test_tables_of_a_real_study_equal_the_recorded_numbers(recorded):
    """Standard errors of minutes are not compared, because the recorded runs were
    interleaved."""
    found = cells(STUDY)
    expected = recorded.loc[found.index]
    for column in ("published", "ours", "standard_error", "runs"):
        ours = found[column]
        theirs = expected[column]
        if column == "runs":
            ours = ours.fillna(0)
            theirs = theirs.fillna(0)
        elif column == "standard_error":
            timed = ours.index.get_level_values("quantity").str.contains("minutes|saved|shorter")
            ours = ours[~timed]
            theirs = theirs[~timed]
        numbers = pd.to_numeric(theirs, errors="coerce")
        compared = pd.to_numeric(ours, errors="coerce").astype(float)
        np.testing.assert_allclose(compared, numbers, rtol=1e-9, atol=1e-9, err_msg=column)
        texts = numbers.isna() & theirs.notna()
        assert ours[texts].tolist() == theirs[texts].tolist()


@pytest.mark.parametrize(
    ("measured", "table", "quantity"),
    [
        ("word_error_rate", "paired", "word error rate"),
        ("validation_loss_unpadded", "equal_budgets", "at equal epochs"),
    ],
)
def test_changes_between_strategies_of_a_real_study_equal_the_recorded_numbers(
    recorded, measured, table, quantity
):
    """The results after the last epoch are compared with RAND, paired by seed. Holm's method
    adjusts the p-values."""
    runs = read_runs([STUDY])
    parts = []
    for folder, row in runs.table.iterrows():
        progress = read_progress(Path(folder)).assign(name=row["label"], seed=row["seed"])
        result = read_result(Path(folder) / "intelligibility.json", Intelligibility)
        progress.loc[progress.index[-1], "word_error_rate"] = result.word_error_rate
        parts.append(progress)
    values = pd.concat(parts)
    names = [*runs.rows.index]
    reached = at_budget(values, measured, "epoch", values["epoch"].max())
    compared = against_first(reached, names)
    expected = recorded.loc[table].xs(f"{quantity}: against RAND (%)", level="quantity")
    numbers = pd.to_numeric(expected["ours"])[names[1:]]
    np.testing.assert_allclose(compared["ours"][1:], numbers, rtol=1e-9)
    errors = [paired_change(reached, "RAND", name)["standard_error"] for name in names[1:]]
    expected_errors = pd.to_numeric(expected["standard_error"])[names[1:]]
    np.testing.assert_allclose(errors, expected_errors, rtol=1e-9)
    p = recorded.loc[table].xs(f"{quantity}: p", level="quantity")["ours"][names[1:]]
    assert [p_text(value) for value in compared["p"][1:]] == p.tolist()


# ---------------------------------------------------------------------------- definitions


def test_report_averages_losses_around_the_published_epochs(tmp_path):
    """The loss is the square of the epoch. The mean of (x-h)^2, x^2 and (x+h)^2 is x^2 + 2/3 h^2,
    and the sum of n^2 for n = 50 to 110 is 409,310."""
    write_run(tmp_path / "a", epochs=222, loss=lambda epoch: (epoch / 100) ** 2)
    values = Measured(read_runs([tmp_path])).values.iloc[0]
    smoothed = [x**2 + 2 / 3 * 0.02**2 for x in (1.0, 1.6, 2.2)]
    expected = [*smoothed, 409_310 / 61 / 2500]
    assert values[[*VL]].tolist() == pytest.approx(expected, rel=1e-12)
    assert values["unpadded vl2"] == pytest.approx(2 * smoothed[1], rel=1e-12)


def test_report_table_shows_a_dash_and_a_footnote_when_a_validation_is_missing(tmp_path):
    folder = write_run(tmp_path / "sparse", epochs=222, step=4, loss=lambda epoch: epoch)
    measured = Measured(read_runs([folder]))
    assert measured.values["vl1"].item() == pytest.approx((96 + 100 + 104) / 3)
    table = paper_tables(measured)[1]
    [rand, *_], notes = table.in_text()
    assert rand[-3].startswith("– [")
    assert any(str(folder) in note for note in notes)


def test_columns_of_the_report_table_cover_thirds_of_the_epochs_when_runs_are_short(tmp_path):
    write_run(tmp_path / "a", epochs=12, step=2, loss=lambda epoch: epoch)
    measured = Measured(read_runs([tmp_path]))
    spans = ["epochs 1–4", "epochs 5–8", "epochs 9–12", "epochs 1–12"]
    headings = [measured.headings[f"unpadded {key}"][0] for key in VL]
    assert headings == [f"{name}, {span}" for name, span in zip(THIRDS, spans, strict=True)]
    assert measured.values.iloc[0][[*VL]].tolist() == [3, 7, 11, 7]
    write_run(tmp_path / "b", "SB", epochs=222)
    # If the runs have different numbers of epochs, the headings contain no ranges of epochs.
    headings = Measured(read_runs([tmp_path])).headings
    assert [headings[f"unpadded {key}"][0] for key in VL] == [*THIRDS]


def test_published_time_and_loss_reductions_equal_values_computed_from_table_2():
    for name, printed in published.TABLE_3.items():
        before = PAPER["minutes"]["RAND"]
        after = PAPER["minutes"][name]
        fall = (before - after, 100 * (1 - after / before))
        assert fall == pytest.approx(printed, abs=0.01)
        assert tuple(published_falls("minutes", [("RAND", name)]).iloc[0]) == printed
    table_4 = published.SEMI_SORTED | published.RANDOMIZED | published.DYNAMIC
    for (before, after), fall in table_4.items():
        expected = 100 * (1 - PAPER["vl3"][after] / PAPER["vl3"][before])
        assert fall == pytest.approx(expected, abs=0.01)


def test_report_table_shows_no_time_saving_when_the_settings_of_the_two_strategies_differ(tmp_path):
    write_run(tmp_path / "a", "RAND")
    write_run(tmp_path / "b", BEST, overrides="prenet_dim=64")
    saved = cells(tmp_path).loc["table_3", BEST, "saved (%)"]
    assert "prenet_dim" in saved["note"]
    assert pd.isna(saved["ours"])


# ---------------------------------------------------------------------------- changes paired by seed


def change(first, second):
    """Return the change between two strategies.

    Each argument maps the seeds to the results of a strategy.
    """
    rows = [("a", *x) for x in first.items()] + [("b", *x) for x in second.items()]
    return paired_change(pd.DataFrame(rows, columns=["label", "seed", "value"]), "a", "b")


def test_p_value_of_a_paired_change_equals_the_p_value_of_scipy():
    first = {1: 1.0, 2: 1.5, 3: 0.8}
    second = {1: 1.2, 2: 1.4, 3: 1.1}
    found = change(first, second)
    logs = np.log(list(second.values())), np.log(list(first.values()))
    assert found["p"] == pytest.approx(ttest_rel(*logs).pvalue, rel=1e-9)
    assert found["ours"] == pytest.approx(100 * math.expm1((logs[0] - logs[1]).mean()))
    assert found["runs"] == 3


def test_paired_change_has_no_p_value_when_there_is_one_seed():
    one = change({1: 1.0}, {1: 2.0})
    assert one["ours"] == pytest.approx(100)
    assert math.isnan(one["p"])
    assert change({1: 1.0}, {2: 2.0})["runs"] == 0


def test_p_value_is_1_when_no_seed_changes_and_0_when_all_seeds_change_by_the_same_factor():
    for factor, p in ((1, 1.0), (3, 0.0)):
        assert change({1: 1.0, 2: 2.0}, {1: 1.0 * factor, 2: 2.0 * factor})["p"] == p


def test_loss_is_interpolated_between_two_validations(tmp_path):
    runs = read_runs([write_run(tmp_path / "a", step=2, loss=lambda epoch: float(epoch))])
    runs.epochs["hours"] = np.arange(10.0, 130.0, 10.0)
    # The expected loss is the mean of the losses of epochs 4 and 6.
    assert loss_at(runs, "hours", 50.0).item() == pytest.approx(2 * 5)
    assert loss_at(runs, "hours", 19.0).isna().all()
    assert loss_at(runs, "hours", 121.0).isna().all()


# ---------------------------------------------------------------------------- findings


def test_verdicts_include_confirmed_contradicted_undecided_and_not_measured(tmp_path):
    found = verdicts(write_study(tmp_path / "all"))
    assert found[CLAIMS[5][0]].startswith("confirmed (2 of 3 not measured)")
    assert found[CLAIMS[3][0]].startswith("undecided")
    assert found[CLAIMS[7][0]] == "contradicted (6 of 9 not measured)"
    assert found[CLAIMS[4][0]] == "not measured"
    one_seed = verdicts(write_study(tmp_path / "one", seeds=(1,)))
    assert one_seed[CLAIMS[5][0]].startswith("not tested, one seed: 1 of 1 changes agree")


def test_verdict_counts_the_comparisons_per_result_when_results_differ():
    def of(*pairs):
        columns = ["ours", "p"]
        return verdict("x", pd.DataFrame(pairs, columns=columns).assign(runs=3))

    assert of((-1, 0.01), (-2, 0.04)) == "confirmed"
    assert of((-1, 0.01), (2, 0.3)) == "in part: confirmed in 1, undecided in 1"
    assert of((-1, 0.01), (2, 0.03)) == "mixed: confirmed in 1, contradicted in 1"


def test_verdict_on_the_time_saving_is_undecided_when_minutes_per_epoch_vary(tmp_path):
    """If the measured saving is smaller than the saving in the paper, the finding counts as partly
    confirmed."""
    claim = CLAIMS[2][0]
    minutes = {"RAND": 3.0, BEST: 1.5}
    quiet = write_study(tmp_path / "quiet", tuple(minutes), minutes=minutes.get)
    assert verdicts(quiet)[claim] == "confirmed"
    [finding] = [f for f in findings(Measured(read_runs([quiet]))) if f.claim == claim]
    assert finding.ours[0].startswith(f"RAND → {BEST}: −50.00% ± ")
    assert finding.published == [f"RAND → {BEST}: −41.25%"]
    # The median of the minutes per epoch is the same for all seeds of a strategy.
    for name, value in minutes.items():
        for seed in range(3):
            folder = tmp_path / "busy" / name / str(seed)
            uneven = lambda epoch, m=value: m * (1 if epoch % 2 else 8)  # noqa: E731
            write_run(folder, name, seed=seed, minutes=uneven)
    assert verdicts(tmp_path / "busy")[claim] == "undecided"
    less = write_study(tmp_path / "less", tuple(minutes), minutes={"RAND": 3.0, BEST: 2.4}.get)
    assert verdicts(less)[claim].startswith("confirmed in part")


# ---------------------------------------------------------------------------- figures and files


def test_loss_plot_has_bands_of_one_standard_error(tmp_path):
    for seed in range(2):
        write_run(
            tmp_path / f"{seed}",
            seed=seed,
            epochs=6,
            minutes=lambda epoch: 30.0 * epoch,
            loss=lambda epoch, s=seed: 10.0 - epoch + 2 * s,
        )
    write_run(tmp_path / "sb", "SB", epochs=6, minutes=lambda _: 60.0)
    panels = [("validation_loss", "epoch"), ("validation_loss", "hours")]
    epochs, hours = draw_losses(read_runs([tmp_path]), ["RAND", "SB"], panels).axes
    rand, sb = epochs.get_lines()[:2]
    np.testing.assert_allclose(rand.get_xydata(), [(2, 9), (4, 7), (6, 5)])
    np.testing.assert_allclose(hours.get_lines()[0].get_xdata(), [1.5, 5.0, 10.5])
    # The mean of two losses that differ by 2 has a standard error of 1.
    band = epochs.collections[0]
    assert {(2.0, 10.0), (2.0, 8.0)} <= set(map(tuple, band.get_paths()[0].vertices.tolist()))
    assert (rand.get_color(), rand.get_marker()) != (sb.get_color(), sb.get_marker())
    assert hours.get_xlabel() == "training time (hours)"


def test_loss_plot_cuts_off_high_losses_of_the_first_epochs(tmp_path):
    loss = lambda epoch: 100.0 if epoch < 6 else 1 + 1 / epoch  # noqa: E731
    runs = read_runs([write_run(tmp_path / "high" / "a", epochs=40, loss=loss)])
    axes = draw_losses(runs, ["RAND"], [("validation_loss", "epoch")]).axes[0]
    assert axes.get_ylim()[1] < 2
    # A note in the plot says that high losses are cut off.
    assert axes.texts[0].get_text()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Write a report for four runs with special HTML characters in their commit and folder."""
    folder = tmp_path_factory.mktemp("made")
    evil = "<script>alert(1)</script> & | `x`"
    write_run(folder / "runs" / "rand", "RAND", commit=evil)
    for seed in range(2):
        options = {"seed": seed, "commit": evil, "minutes": lambda _, s=seed: 2.0 + s / 4}
        write_run(folder / "runs" / f"ssb_{seed}", BEST, **options)
    broken = write_run(folder / "runs" / "unfinished <b>", "SB")
    write_lines(broken, [*metrics(broken)[:2], '{"kind"', *metrics(broken)[3:]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", io.StringIO())
        report.main([str(folder / "runs"), "-o", str(folder / "report")])
        (folder / "printed").write_text(report.sys.stdout.getvalue())
    return folder


@pytest.mark.thorough
def test_report_lists_every_file_that_it_wrote(made):
    written = (made / "printed").read_text().splitlines()[1:]
    paths = {Path(line.removeprefix("wrote ")) for line in written}
    assert paths == set((made / "report").iterdir())
    text = (made / "report" / "report.md").read_text()
    assert all(f"({path.name})" in text for path in paths if path.suffix == ".svg")
    assert "\\<script>alert(1)\\</script> & | \\`x\\`" in text


def test_report_contains_the_provenance_of_its_numbers(made):
    text = (made / "report" / "report.md").read_text()
    for part in (
        f"python -m scripts.table2.report {made / 'runs'} -o {made / 'report'}",
        "A GPU",
        "2.13.0",
        "seeds: 0; 1",
        f"{LENGTHS.sum() * 256 / 22050 / 3600:.2f}",
        "unfinished \\<b>: metrics.jsonl:3: ",
        "SB-BR, SSB-BR",
    ):
        assert part in text


def test_markdown_and_csv_reports_contain_every_number(made):
    text = (made / "report" / "report.md").read_text()
    lines = [re.sub(" +", " ", line) for line in text.splitlines()]
    for table in paper_tables(Measured(read_runs([made / "runs"]))):
        for line in table.in_text()[0]:
            assert "| " + " | ".join(map(report.escape_markdown, line)) + " |" in lines
    cells = pd.read_csv(made / "report" / "report.csv", index_col=["table", "row", "quantity"])
    saved = cells.sort_index().loc["table_3", BEST, "saved (%)"].squeeze()
    assert float(saved["published"]) == 41.25
    assert float(saved["ours"]) == pytest.approx(100 * (1 - 2.125 / 3))
    assert saved["runs"] == 1
    assert pd.isna(saved["standard_error"])


def test_report_fails_when_there_is_no_finished_run_or_no_folder(tmp_path):
    with pytest.raises(UserError, match=f"{tmp_path}: "):
        report.main([str(tmp_path), "-o", str(tmp_path / "report")])
    write_run(tmp_path / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file: "):
        report.main([str(tmp_path), "-o", str(tmp_path / "file")])


def test_report_shows_a_dash_when_runs_have_no_validation(tmp_path):
    write_run(tmp_path / "a", "SSB", epochs=1, lengths=np.array([7, 9]))
    write_run(tmp_path / "b", "SB", epochs=1, lengths=np.array([7, 9]), minutes=lambda _: 0.0)
    content = report.compose(read_runs([tmp_path]), "")
    assert "SB → SB-BR: – (" in report.render("report.md.jinja", **content)
