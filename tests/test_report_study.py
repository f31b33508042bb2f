"""What a study adds to the report: made-up runs whose numbers are worked out by hand."""

import csv
import json
import re
from datetime import UTC, datetime

import numpy as np
import pytest
import report
from records import write_run
from scipy.stats import spearmanr, t

from analysis import published, report_pages
from analysis.epoch_times import EPOCH_MINUTES_FILE
from analysis.paired import holm
from analysis.report_findings import BEST
from analysis.report_measures import choose_loss_columns
from analysis.report_pages import shown_cells
from analysis.report_runs import collect_rows
from analysis.report_study import (
    is_study,
    loss_at,
    mixing,
    outcomes,
    rank_correlation,
    study_findings,
    study_tables,
    word_error_rate_above_0,
)
from analysis.report_study_figures import draw_mixing_and_learning
from analysis.report_tables import make_tables
from analysis.transcription import INTELLIGIBILITY_FILE

RATES = {"RAND": 0.10, "SSB-DBS-BR": 0.20, "SSB-DBS": 0.30, "SB-BR": 0.40}
JITTER = (0.0, 0.01, 0.025)  # of a seed


def write_rate(run, rate, epochs=12):
    (run / INTELLIGIBILITY_FILE).write_text(
        json.dumps(
            {
                "word_error_rate": rate,
                "recordings": 0.08,
                "recordings_after_griffin_lim": 0.09,
                "texts": 100,
                "checkpoint": "checkpoint_12.pt",
                "epochs": epochs,
                "transcripts": [{"text": "one", "heard": "one"}],
            }
        )
    )
    return run


def write_study(folder, names=tuple(RATES), seeds=(0, 1, 2), minutes=lambda name: 3.0):
    for place, name in enumerate(names):
        for seed in seeds:
            run = write_run(
                folder / name / str(seed),
                name,
                step=1,
                seed=seed,
                loss=lambda epoch, place=place, seed=seed: (
                    (1 + 0.1 * place + JITTER[seed] * (1 + place)) * 12 / epoch
                ),
                minutes=lambda epoch, name=name: minutes(name) * (1 + 0.01 * (epoch % 3)),
            )
            write_rate(run, RATES[name] + JITTER[seed])
    return folder


def rows_of(folder):
    rows, left_out = collect_rows([folder])
    assert left_out == []
    return rows


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return rows_of(write_study(tmp_path_factory.mktemp("study")))


def table_of(rows, key):
    tables = {table.key: table for table in study_tables(rows, choose_loss_columns(rows))}
    return dict(tables[key].rows), tables[key]


def verdicts(rows):
    findings = study_findings(rows, choose_loss_columns(rows))
    return {finding.claim: finding.verdict for finding in findings}


def test_runs_without_what_was_heard_are_no_study(tmp_path, rows):
    write_run(tmp_path / "a")
    assert not is_study(rows_of(tmp_path))
    assert is_study(rows)


def test_what_was_heard_of_another_epoch_leaves_the_run_out(tmp_path):
    write_rate(write_run(tmp_path / "a"), 0.1, epochs=4)
    rows, [problem] = collect_rows([tmp_path])
    assert rows == []
    assert re.search(
        r"intelligibility\.json: of epoch 4, and the run has 12; .*listen\.py", problem
    )


def test_word_error_rates_are_means_over_seeds_beside_those_of_the_recordings(rows):
    lines, table = table_of(rows, "learning")
    rate, minutes, updates = (cell for _, cell in lines["SSB-DBS-BR", "3"])
    mean = np.mean(JITTER)
    assert rate.mean == pytest.approx(0.2 + mean)
    assert rate.standard_error == pytest.approx(np.std(JITTER, ddof=1) / np.sqrt(3))
    assert minutes.mean == pytest.approx(12 * 3.0 * 1.01)
    assert updates.mean == 12 * 12
    assert "100 texts" in table.note
    assert "0.080, after mel and Griffin-Lim 0.090" in table.note


def test_every_experiment_stands_against_rand_paired_by_seed(rows):
    lines, table = table_of(rows, "paired")
    assert [cell for _, cell in lines["RAND",]][1::3] == ["", "", ""]
    late = np.mean([12 / epoch for epoch in range(9, 13)])

    def losses(name):
        place = list(RATES).index(name)
        return late * np.array([1 + 0.1 * place + j * (1 + place) for j in JITTER])

    others = list(RATES)[1:]
    logs = np.log([losses(name) for name in RATES])
    residuals = logs - logs.mean(1, keepdims=True) - logs.mean(0, keepdims=True) + logs.mean()
    error = np.sqrt(2 / 3 * (residuals**2).sum() / 6)
    ratios = dict(zip(RATES, logs.mean(1) - logs[0].mean(), strict=True))
    p_values = [2 * t.sf(abs(ratios[name]) / error, 6) for name in others]
    for name in others:
        loss, change, p = (cell for _, cell in lines[name,][:3])
        assert loss.mean == pytest.approx(np.mean(losses(name)))
        assert change.mean == pytest.approx(100 * np.expm1(ratios[name]))
        adjusted = holm(p_values)[others.index(name)]
        assert p == (f"{adjusted:.3f}" if adjusted >= 0.001 else "<0.001") + "*" * bool(
            adjusted < 0.05
        )
    assert shown_cells(table)[0][0][0].text == "RAND"


def test_losses_at_equal_time_and_updates_lie_between_two_validations(tmp_path):
    [row] = rows_of(write_run(tmp_path / "a", step=2, loss=lambda epoch: float(epoch)))
    spent = lambda run: np.arange(10.0, 130.0, 10.0)  # noqa: E731
    assert loss_at(row.runs[0], spent, 50.0) == pytest.approx(2 * 5)  # between epochs 4 and 6
    for outside in (19.0, 121.0):
        with pytest.raises(LookupError, match="no validations before and after"):
            loss_at(row.runs[0], spent, outside)


def test_equal_budgets_are_those_of_the_cheapest_run(tmp_path):
    write_study(tmp_path, minutes=lambda name: 2.0 if name == BEST else 4.0)
    lines, table = table_of(rows_of(tmp_path), "equal_budgets")
    assert [column.heading for column in table.columns][::3] == [
        "at equal epochs", "at equal time, 24.24 minutes", "at 144 updates"
    ]  # fmt: skip
    rand = [cell for _, cell in lines["RAND",]]
    best = [cell for _, cell in lines[BEST,]]
    assert rand[3].mean > rand[0].mean  # half of its time
    assert best[3].mean == pytest.approx(best[0].mean)
    assert best[1].mean > 0 > best[4].mean


def test_smaller_batches_have_a_table_of_their_own(tmp_path):
    for size in (4, 8, 16):
        run = write_run(tmp_path / str(size), "RAND", overrides=f"batch_size={size}")
        write_rate(run, 1 / size)
    write_rate(write_run(tmp_path / "other", "SSB-DBS-BR", overrides="batch_size=16"), 0.5)
    write_rate(write_run(tmp_path / "third", "SB", overrides="batch_size=16"), 0.5)
    lines, _ = table_of(rows_of(tmp_path), "small_batches")
    assert list(lines) == [("RAND", "4"), ("RAND", "8"), ("RAND", "16"), (BEST, "16")]
    assert lines["RAND", "4"][1][1].mean == 0.25


def test_both_batchings_are_compared_at_every_base_batch_size_and_at_what_the_cheaper_spent(
    tmp_path,
):
    for size, minutes in ((4, 3.0), (16, 2.0)):
        for name, loss in (("RAND", 2.0), (BEST, 1.0)):
            for seed in range(3):
                folder = tmp_path / f"{name}-{size}-{seed}"
                run = write_run(
                    folder,
                    name,
                    seed=seed,
                    overrides=f"batch_size={size}",
                    minutes=lambda _, m=minutes * loss: m,
                    loss=lambda _, x=loss * (1 + seed / 10): x,
                )
                write_rate(run, 0.1)
    write_rate(write_run(tmp_path / "alone", "RAND", overrides="batch_size=8"), 0.1)
    lines, table = table_of(rows_of(tmp_path), "same_base")
    assert list(lines) == [("4",), ("16",)]
    cells = [cell for _, cell in lines["4",]]
    assert cells[0].mean == 12
    assert cells[1].mean == pytest.approx(-50)  # of a loss that does not change with the epochs
    assert cells[3].mean == pytest.approx(12 * 3.0)  # of the cheaper, SSB-DBS-BR
    assert cells[2].endswith("*")
    assert [column.heading for column in table.columns][3:5] == [
        "minutes",
        "change at equal minutes (%)",
    ]


def test_settings_of_the_best_are_compared_with_it_and_not_with_rand(tmp_path):
    found = [  # name, overrides, loss, word error rate
        ("RAND", "", 1.0, 0.1),
        (BEST, "", 2.0, 0.2),
        ("SSB-exp-DBS-BR", "", 1.5, 0.15),
        (BEST, "random_epochs=2", 1.0, 0.05),
    ]
    for place, (name, overrides, loss, rate) in enumerate(found):
        for seed in range(3):
            run = write_run(
                tmp_path / f"{place}_{seed}",
                name,
                step=1,
                seed=seed,
                overrides=overrides,
                loss=lambda epoch, x=loss * (1 + seed / 9): x * 12 / epoch,
            )
            write_rate(run, rate)
    lines, table = table_of(rows_of(tmp_path), "best")
    assert list(lines) == [(BEST,), (f"{BEST} (random_epochs 2)",), ("SSB-exp-DBS-BR",)]
    headings = [column.heading for column in table.columns]
    assert headings[:3] == ["unpadded loss, late third", f"against {BEST} (%)", "p"]
    own, other, noise = ([cell for _, cell in line] for line in lines.values())
    assert own[1] == ""
    assert other[1].mean == pytest.approx(-50)
    assert noise[1].mean == pytest.approx(-25)
    assert other[2].endswith("*")
    place = headings.index("word error rate")
    assert (own[place].mean, other[place].mean) == pytest.approx((0.2, 0.05))
    assert other[headings.index("decoder steps per epoch") + 1].mean == pytest.approx(0)


def test_novelty_and_spread_are_correlated_with_what_was_learnt(rows):
    lines, _ = table_of(rows, "foretelling")
    assert {labels[:2] for labels in lines} == {
        (measure, outcome) for measure in ("novelty", "spread") for outcome in outcomes(rows)
    }
    surveys = mixing(rows)
    rates = [RATES[row.name] for row in rows]
    found = lines["spread", "word error rate at the end", "4"][0][1]
    assert found.mean == pytest.approx(spearmanr([s.spread for s in surveys], rates).statistic)
    assert -1 <= found.mean < 0  # more mixing, fewer words wrong, as RATES has it


def test_too_few_or_equal_experiments_have_no_correlation():
    assert rank_correlation([(1, 2), (2, 3)])[0].missing == "fewer than four experiments"
    assert rank_correlation([(1, 2)] * 5)[0].missing == "all experiments are alike"
    rho, p_value = rank_correlation([(1, 2), (2, 3), (3, 5), (4, 4)])
    assert rho.mean == pytest.approx(0.8)
    assert p_value == pytest.approx(spearmanr([1, 2, 3, 4], [2, 3, 5, 4]).pvalue)


def test_a_saving_within_the_noise_of_the_epochs_is_undecided(tmp_path):
    claim = f"{BEST} saves 41 % of an epoch's time against RAND."
    minutes = {"RAND": 3.0, "SSB-DBS-BR": 1.5}
    quiet = write_study(tmp_path / "quiet", tuple(minutes), minutes=minutes.get)
    assert verdicts(rows_of(quiet))[claim] == "confirmed"
    for name, value in minutes.items():  # medians exactly as far apart in every seed
        for seed in range(3):
            run = write_run(
                tmp_path / "busy" / name / str(seed),
                name,
                seed=seed,
                minutes=lambda epoch, value=value: value * (1 if epoch % 2 else 8),
            )
            write_rate(run, 0.1)
    assert verdicts(rows_of(tmp_path / "busy"))[claim] == "undecided"


def test_time_measured_in_turns_has_one_error_for_all_seeds(tmp_path):
    minutes = {"RAND": 3.0, "SSB-DBS-BR": 1.5}
    claim = f"{BEST} saves 41 % of an epoch's time against RAND."
    for relative_error, verdict in ((0.05, "confirmed"), (0.3, "undecided")):
        study = write_study(tmp_path / verdict, tuple(minutes), minutes=minutes.get)
        for run in study.glob("*/*"):
            # Twice as long as they were: what was measured in turns counts.
            found = {"minutes": [2 * minutes[run.parent.name]] * 12}
            (run / EPOCH_MINUTES_FILE).write_text(
                json.dumps(found | {"relative_error": relative_error})
            )
        rows = rows_of(study)
        assert verdicts(rows)[claim] == verdict
        [finding] = [
            f for f in study_findings(rows, choose_loss_columns(rows)) if "41 %" in f.claim
        ]
        error = 50 * np.sqrt(2) * relative_error  # of the ratio, 0.5, in per cent
        assert finding.ours[0].startswith(f"RAND → SSB-DBS-BR: −50.00\u00a0% ± {error:.2g}, p ")


def test_times_in_all_tables_are_those_measured_in_turns_with_their_error(tmp_path):
    study = write_study(tmp_path, ("RAND", "SSB-DBS-BR"))
    share = {"RAND": 0.03, "SSB-DBS-BR": 0.04}
    for run in study.glob("*/*"):
        found = {"minutes": [2.0 if run.parent.name == "RAND" else 1.0] * 12}
        found["relative_error"] = share[run.parent.name]
        (run / EPOCH_MINUTES_FILE).write_text(json.dumps(found))
    rows = rows_of(study)
    losses = choose_loss_columns(rows)
    tables = {table.key: table for table in make_tables(rows, losses)}
    minutes = dict(tables["table_2"].rows)["SSB-DBS-BR",][2][1]
    assert (minutes.mean, minutes.standard_error) == (1.0, 0.04)
    assert "timed in turns" in tables["table_2"].note
    saved = dict(tables["table_3"].rows)["SSB-DBS-BR",][1][1]
    assert saved.mean == 50
    assert saved.standard_error == pytest.approx(50 * np.hypot(0.03, 0.04))
    trained = table_of(rows, "learning")[0]["SSB-DBS-BR", "3"][1][1]
    assert (trained.mean, trained.standard_error) == (12.0, pytest.approx(12 * 0.04))

    # After 12 minutes RAND is at its epoch 6 and the other at 12. The losses fall as 1 / epoch.
    at_time = dict(table_of(rows, "equal_budgets")[1].rows)["SSB-DBS-BR",][3:6]
    change = at_time[1][1]
    logs = [np.log([1 + j for j in JITTER]) - np.log(6), np.log([1.1 + 2 * j for j in JITTER])]
    logs[1] -= np.log(12)
    differences = logs[1] - logs[0]
    ratio = np.exp(differences.mean())
    assert change.mean == pytest.approx(100 * (ratio - 1))
    own = np.sqrt(((differences - differences.mean()) ** 2).sum() / 2 / 3)
    # A standard error of the timing before 12 minutes, on the line from the epoch before.
    later = [np.log(1 + 6 * 0.03 * (6 / 5 - 1)), np.log(1 + 12 * 0.04 * (12 / 11 - 1))]
    assert change.standard_error == pytest.approx(100 * ratio * np.hypot(own, np.hypot(*later)))
    at_updates = dict(table_of(rows, "equal_budgets")[1].rows)["SSB-DBS-BR",][7][1]
    assert at_updates.standard_error == pytest.approx(200 * ratio * own)  # both at epoch 12


def test_a_smaller_saving_than_the_published_is_confirmed_in_part(tmp_path):
    minutes = {"RAND": 3.0, "SSB-DBS-BR": 2.4}
    rows = rows_of(write_study(tmp_path, tuple(minutes), minutes=minutes.get))
    [finding] = [f for f in study_findings(rows, choose_loss_columns(rows)) if "saves" in f.claim]
    assert finding.verdict.startswith("confirmed in part")
    assert finding.kind == "fails"
    assert finding.published == ["RAND → SSB-DBS-BR: −41.25\u00a0%"]
    assert finding.ours[0].startswith("RAND → SSB-DBS-BR: −20.00\u00a0%")


def test_claims_are_contradicted_undecided_or_not_measured(rows, tmp_path):
    found = verdicts(rows)
    assert found["Batch randomization lowers the loss (VL3)."].startswith("confirmed (2 of 3 not")
    assert found["Batch randomization (BR) shortens it slightly."].startswith("undecided")
    assert found[f"{BEST} has the lowest loss of all (VL3; the three lowest are shown)."] == (
        "contradicted (6 of 9 not measured)"
    )
    assert found["Semi-sorting learns better than sorting (VL3)."] == "not measured"
    assert (
        found[f"After equal time {BEST} has a lower loss than RAND (unpadded)."] == "contradicted"
    )
    one_seed = verdicts(rows_of(write_study(tmp_path, seeds=(1,))))
    assert {verdict.split(" (")[0] for verdict in one_seed.values()} <= {
        "undecided",
        "not measured",
    }


def test_the_papers_figures_stand_beside_ours(rows):
    finding = study_findings(rows, choose_loss_columns(rows))[5]
    change = 100 * (published.TABLE_2["SSB-DBS-BR"].vl3 / published.TABLE_2["SSB-DBS"].vl3 - 1)
    assert finding.published[2] == f"SSB-DBS → SSB-DBS-BR: −{-change:.2f}\u00a0%"
    assert " ± " in finding.ours[2]
    assert ", p " in finding.ours[2]


def test_a_studys_report_says_what_it_is_and_how_it_tests(rows):
    made = datetime(2026, 11, 21, tzinfo=UTC)
    content = report.compose(rows, [], "the command", made)
    text = report_pages.render(report.TEMPLATES / "report.md", **content)
    assert text.splitlines()[2].startswith("A study of learning with a small model and a synthetic")
    assert "two-sided t-test" in text
    assert "loss_over_updates.svg" in text
    assert "mixing_and_learning.svg" in text
    lines = report_pages.to_csv(content["tables"]).splitlines()
    names = [tuple(row[:3]) for row in csv.reader(lines)]
    assert ("learning", "RAND / 3", "updates") in names
    assert ("paired", "SSB-DBS", "word error rate: against RAND (%)") in names
    assert len(set(names)) == len(names)  # a name for every number


def test_the_figure_has_a_point_for_every_experiment_and_measure(rows):
    figure = draw_mixing_and_learning(rows)
    assert len(figure.axes) == 4
    points = figure.axes[3].containers  # word error rate against spread
    assert sorted(float(p.lines[0].get_ydata()[0]) for p in points) == pytest.approx(
        sorted(rate + np.mean(JITTER) for rate in RATES.values())
    )


def test_a_word_error_rate_of_0_still_has_a_ratio(tmp_path):
    """As that of half a wrong word of those that were to be said."""
    [row] = rows_of(write_rate(write_run(tmp_path / "a"), 0.0).parent)
    [transcript] = row.runs[0].intelligibility.transcripts
    assert word_error_rate_above_0(row.runs[0]) == 0.5 / len(transcript.text.split())
