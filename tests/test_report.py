"""The report: synthetic runs whose numbers are worked out by hand."""

import csv
import io
import json
import math
import re
from datetime import UTC, datetime
from html.parser import HTMLParser

import numpy as np
import pytest
import report
from records import (
    CORPUS,
    LENGTHS,
    MACHINE,
    VERSIONS,
    read_lines,
    write_run,
)
from records import write_lines as write_metrics

from analysis import published, report_pages
from analysis.report_figures import draw_follow_ups, draw_validation_losses
from analysis.report_findings import paper_findings, randomization_sentence
from analysis.report_measures import (
    PAPER,
    BatchingResult,
    MeanWithError,
    by_name,
    choose_loss_columns,
    minutes_decimals,
    our_results,
    reduction,
    thirds,
)
from analysis.report_pages import escape_markdown, shown_cells
from analysis.report_runs import (
    collect_rows,
    comparison_warnings,
    deviations,
    follow_ups,
    representatives,
)
from analysis.report_tables import make_tables

VL = ("vl1", "vl2", "vl3", "vl_average")


def rows_of(*folders):
    rows, left_out = collect_rows(folders)
    assert left_out == []
    return rows


def results_of(*folders):
    rows = rows_of(*folders)
    return our_results(rows, choose_loss_columns(rows))


def named_results(*folders):
    return by_name(rows_of(*folders), results_of(*folders))


def tables_of(rows):
    return {table.key: table for table in make_tables(rows, choose_loss_columns(rows))}


def verdicts_of(folder):
    return [finding.verdict for finding in paper_findings(named_results(folder))]


def text_of(rows, left_out=()):
    content = report.compose(
        rows, list(left_out), "the command", datetime(2026, 11, 21, tzinfo=UTC)
    )
    return report_pages.render(report.TEMPLATES / "report.md", **content)


def plain(markdown_line):
    """Without the blanks that align a table's columns."""
    return re.sub(r" +", " ", markdown_line)


# ---------------------------------------------------------------------------- definitions


def test_vl_is_the_mean_of_a_validation_and_its_neighbours_and_vlavg_of_epochs_100_to_220(tmp_path):
    write_run(tmp_path / "a", epochs=222, loss=lambda epoch: (epoch / 100) ** 2)
    (result,) = results_of(tmp_path).values()
    # (x-h)^2, x^2, (x+h)^2 have the mean x^2 + 2/3 h^2; squares of 50 to 110 sum to 409,310.
    smoothed = [x**2 + 2 / 3 * 0.02**2 for x in (1.0, 1.6, 2.2)]
    assert [result.measures[key].mean for key in VL] == pytest.approx(
        [*smoothed, 409_310 / 61 / 2500], rel=1e-12
    )
    assert result.measures["unpadded vl2"].mean == pytest.approx(2 * smoothed[1], rel=1e-12)


def test_a_definition_without_its_validations_gives_a_dash_and_a_footnote(tmp_path):
    folder = write_run(tmp_path / "sparse", epochs=222, step=4, loss=lambda epoch: epoch)
    rows = rows_of(folder)
    measures = results_of(folder)["RAND"].measures
    assert measures["vl1"].mean == pytest.approx((96 + 100 + 104) / 3)
    assert measures["vl3"].mean is None
    assert measures["vl_average"].mean == pytest.approx(160)
    (rand, *_), notes = shown_cells(tables_of(rows)["table_2"])
    assert rand[-3].text == "–"
    assert notes[rand[-3].note - 1] == f"{folder} has no validation of epoch 224"
    assert f"<sup>{rand[-3].note}</sup> {folder} has no validation of epoch 224" in text_of(rows)


def test_short_runs_show_the_thirds_of_their_epochs_and_say_so(tmp_path):
    write_run(tmp_path / "a", epochs=12, step=2, loss=lambda epoch: epoch)
    rows = rows_of(tmp_path)
    losses = choose_loss_columns(rows)
    assert not losses.as_published
    assert losses.epochs == ("epochs 1–4", "epochs 5–8", "epochs 9–12", "epochs 1–12")
    measures = results_of(tmp_path)["RAND"].measures
    assert [measures[key].mean for key in VL] == [3, 7, 11, 7]
    assert "VL3 \\| late third: ours, epochs 9–12" in text_of(rows)


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [(1, [(1, 0), (1, 0), (1, 1)]), (6, [(1, 2), (3, 4), (5, 6)]), (8, [(1, 2), (3, 5), (6, 8)])],
)
def test_thirds_cover_every_epoch_once(epochs, expected):
    assert thirds(epochs) == expected


def test_one_short_run_makes_all_rows_show_thirds(tmp_path):
    write_run(tmp_path / "a", epochs=222)
    write_run(tmp_path / "b", "SB", epochs=4)
    losses = choose_loss_columns(rows_of(tmp_path))
    assert not losses.as_published
    assert losses.epochs == ("",) * 4  # other epochs in each row: no heading could name them


def test_a_third_without_a_validation_has_a_footnote(tmp_path):
    write_run(tmp_path / "a", epochs=3, step=3)
    measure = results_of(tmp_path)["RAND"].measures["vl1"]
    assert measure.mean is None
    assert measure.missing.endswith("has no validation of epoch 1")


def test_numbers_of_an_epoch_are_means_medians_and_the_largest(tmp_path):
    write_run(tmp_path / "a", epochs=4, minutes=lambda epoch: [9, 3, 4, 5][epoch - 1])
    measures = results_of(tmp_path)["RAND"].measures
    assert measures["minutes"].mean == 4.5  # median: the slow first epoch does not count
    assert measures["zero_padding_rate"].mean == pytest.approx(10.5)
    assert measures["average_batch_length"].mean == 130
    assert measures["decoder_steps"].mean == 1502.5
    assert measures["peak_memory_bytes"].mean == 2.5  # GiB, of the last epoch
    assert measures["prepare_seconds"].mean == 250  # ms


def test_seeds_become_one_row_with_the_standard_error_of_the_mean(tmp_path):
    for seed in range(3):
        write_run(
            tmp_path / f"{seed}",
            seed=seed,
            loss=lambda epoch, seed=seed: 1.0 + seed,
            overrides=f"num_workers={seed},bucket_size={20 + seed}",  # neither matters to RAND
        )
    (row,) = rows_of(tmp_path)
    measure = results_of(tmp_path)["RAND"].measures["vl3"]
    assert (measure.mean, measure.num_runs) == (2, 3)
    assert measure.standard_error == pytest.approx(1 / math.sqrt(3))
    assert "2.000 ± 0.577" in text_of([row])


# ---------------------------------------------------------------------------- the paper's own


def test_tables_3_and_4_follow_from_the_published_table_2():
    for name, (minutes, per_cent) in published.TABLE_3.items():
        saved, share = reduction(PAPER, "RAND", name, "minutes")
        assert saved.mean == pytest.approx(minutes, abs=1e-9)
        assert share.mean == pytest.approx(per_cent, abs=0.01)
    for pairs in published.TABLE_4.values():
        for before, after, per_cent in pairs:
            fall = reduction(PAPER, before, after, "vl3")[1]
            assert fall.mean == pytest.approx(per_cent, abs=0.01)


def test_the_paper_bears_out_its_own_findings():
    for finding in paper_findings(PAPER):  # as if ours were the paper's
        assert finding.verdict.split(";")[0] == "holds", finding


def test_a_reduction_carries_the_errors_of_both_means():
    results = {
        "A": BatchingResult("A", {"x": MeanWithError(10.0, 0.3, 3)}),
        "B": BatchingResult("B", {"x": MeanWithError(8.0, 0.4, 3)}),
    }
    amount, share = reduction(results, "A", "B", "x")
    assert (amount.mean, amount.standard_error) == pytest.approx((2, 0.5))
    assert (share.mean, share.standard_error) == pytest.approx((20, 10 * math.hypot(0.24, 0.4)))


def test_there_are_no_per_cents_of_nothing():
    results = {n: BatchingResult(n, {"x": MeanWithError(x)}) for n, x in (("A", 0.0), ("B", 1.0))}
    amount, share = reduction(results, "A", "B", "x")
    assert amount.missing == share.missing == "there are no per cents of A's 0"


def test_saved_minutes_and_losses_are_worked_out_of_ours(tmp_path):
    write_run(tmp_path / "r", "RAND", minutes=lambda _: 4.0)
    write_run(tmp_path / "s", "SSB-DBS-BR", minutes=lambda _: 3.0, loss=lambda _: 0.9)
    write_run(tmp_path / "t", "SSB-DBS", minutes=lambda _: 3.3, loss=lambda _: 1.2)
    tables = tables_of(rows_of(tmp_path))
    cells = dict(tables["table_3"].rows)
    assert [ours.mean for _, ours in cells["SSB-DBS-BR",]] == pytest.approx([1.0, 25.0])
    cells = {labels[1:]: pairs for labels, pairs in tables["table_4"].rows}
    assert cells["SSB-DBS", "SSB-DBS-BR"][2][1].mean == pytest.approx(25.0)
    cells = dict(tables["batch_randomization"].rows)
    assert cells["SSB-DBS", "SSB-DBS-BR"][2][1].mean == pytest.approx(100 * 0.3 / 3.3)
    assert cells["SB", "SB-BR"][2][1].missing == "not measured: no finished run of SB"


def test_findings_say_holds_does_not_hold_and_not_measured(tmp_path):
    write_run(tmp_path / "r", "RAND", minutes=lambda _: 4.0)
    write_run(tmp_path / "s", "SB-BR", minutes=lambda _: 3.0)
    write_run(tmp_path / "t", "SSB-BR", minutes=lambda _: 5.0, loss=lambda _: 2.0)
    write_run(tmp_path / "u", "SSB-DBS-BR", minutes=lambda _: 3.0, loss=lambda _: 0.5)
    sorting, dynamic, saving, order, semi, randomizing, sizes, best = verdicts_of(tmp_path)
    assert sorting == "mixed: holds in 1, does not hold in 1 (2 of 4 not measured)"
    assert dynamic == "holds (2 of 3 not measured)"
    assert saving == "holds in part: an epoch is shorter, but by less"  # 25 % for 41 %
    assert order == randomizing == "not measured"
    assert semi == "does not hold (2 of 3 not measured); one seed, may be noise"
    assert sizes.startswith("holds (2 of 3 not measured); one seed")
    assert best == "holds among the 4 measured; one seed, may be noise"


def test_no_change_bears_out_no_claim(tmp_path):
    write_run(tmp_path / "a", "SSB")
    write_run(tmp_path / "b", "SSB-BR")
    assert verdicts_of(tmp_path)[3] == "does not hold (2 of 3 not measured)"


def test_a_change_within_two_standard_errors_is_undecided(tmp_path):
    for seed in range(2):
        write_run(tmp_path / f"a{seed}", "SSB", seed=seed, minutes=lambda _, s=seed: 4.0 + s)
        write_run(tmp_path / f"b{seed}", "SSB-BR", seed=seed, minutes=lambda _, s=seed: 3.9 + s)
    assert verdicts_of(tmp_path)[3] == "undecided (2 of 3 not measured)"
    sentence = randomization_sentence(named_results(tmp_path), 2)
    assert sentence.startswith("The paper: yes, SSB 23.06 → SSB-BR 22.98 minutes (−0.35\u00a0%).")
    assert "Ours: undecided, SSB 4.50 → SSB-BR 4.40 minutes (−2.22\u00a0% ±" in sentence


# ---------------------------------------------------------------------------- rows


def test_the_papers_rows_come_first_and_in_its_order(tmp_path):
    names = ["SSB-exp-DBS-BR", "RAND-DBS", *reversed(published.TABLE_2), "BKT-width"]
    for name in names:
        write_run(tmp_path / name, name)
    rows = rows_of(tmp_path)
    labels = [row.label for row in rows]
    assert labels == [*published.TABLE_2, "RAND-DBS", "SSB-exp-DBS-BR", "BKT-width"]
    lines, _ = shown_cells(tables_of(rows)["table_2"])
    (line,) = (line for line in lines if line[0].text == "RAND-DBS")
    assert [cell.text for cell in line[:5]] == ["RAND-DBS", "–", "10.50", "–", "130.00"]


def test_a_bare_name_means_the_settings_that_most_rows_have(tmp_path):
    for name in ("SB", "SSB"):
        write_run(tmp_path / name, name, overrides="batch_size=8")
    for size in (4, 8, 16):
        write_run(tmp_path / str(size), "RAND", overrides=f"batch_size={size}")
    labels = [row.label for row in rows_of(tmp_path)]
    assert labels == ["RAND", "RAND (batch_size 4)", "RAND (batch_size 16)", "SB", "SSB"]


def test_rows_of_one_name_differ_in_their_labels_and_the_papers_setting_stays_bare(tmp_path):
    write_run(tmp_path / "a", "SSB", loss=lambda _: 3.0)
    write_run(tmp_path / "b", "SSB", loss=lambda _: 1.0, overrides="local_randomization_factor=0.3")
    write_run(tmp_path / "c", "SSB-BR", loss=lambda _: 1.5)
    rows = rows_of(tmp_path)
    assert [row.label for row in rows] == ["SSB-BR", "SSB", "SSB (LRF 0.3)"]
    assert reduction(named_results(tmp_path), "SSB", "SSB-BR", "vl3")[1].mean == pytest.approx(50)
    assert any("in Tables 1, 3 and 4 it is SSB" in text for text in comparison_warnings(rows))


def test_of_several_rows_the_one_that_compares_with_the_others_stands_for_the_name(tmp_path):
    write_run(tmp_path / "a", "RAND", epochs=100)
    write_run(tmp_path / "b", "RAND", epochs=12)
    write_run(tmp_path / "c", "SB", epochs=12)
    rows = rows_of(tmp_path)
    assert {row.label for row in rows} == {"RAND (epochs 100)", "RAND", "SB"}
    assert representatives(rows)["RAND"].settings["epochs"] == 12


def test_settings_of_the_batching_itself_do_not_keep_two_from_being_compared(tmp_path):
    write_run(tmp_path / "a", "RAND")
    write_run(
        tmp_path / "b",
        "SSB-rank-DBS",
        overrides="batch_capacity=700,local_randomization_factor=0.3,bucket_size=96",
    )
    assert reduction(named_results(tmp_path), "RAND", "SSB-rank-DBS", "minutes")[0].mean == 0
    # The paper has no such batching, so its own parameter is no deviation; the capacity is.
    found = "\n".join(deviations(rows_of(tmp_path)))
    assert "local_randomization_factor" not in found
    assert "bucket_size" not in found
    assert "batch_capacity 700 instead of None" in found


def test_a_warm_start_is_no_second_run_of_the_same(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", started_from="other.pt")
    assert len(rows_of(tmp_path)) == 2


def test_of_one_seed_twice_the_later_run_is_kept_and_the_other_named(tmp_path):
    write_run(tmp_path / "a", loss=lambda _: 5.0, time="2026-11-20T12:00:00+0000")
    write_run(tmp_path / "b", loss=lambda _: 7.0, time="2026-11-20T13:30:00+0200")  # 11:30 UTC
    rows, left_out = collect_rows([tmp_path])
    assert [run.directory.name for row in rows for run in row.runs] == ["a"]
    (problem,) = left_out
    assert problem.startswith(f"{tmp_path / 'b'}: the same settings and seed 0")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"lengths": LENGTHS, "corpus": CORPUS | {"fingerprint": "d0d0"}}, "corpus"),
        ({"machine": MACHINE | {"device": "B GPU"}}, "machine's device"),
        ({"versions": VERSIONS | {"torch": "9"}}, "version of torch"),
        ({"commit": "b" * 40}, "commit"),
        ({"epochs": 24}, "epochs"),
        ({"overrides": "prenet_dim=64"}, "prenet_dim"),
    ],
)
def test_runs_that_are_not_alike_share_a_table_only_under_a_warning(tmp_path, change, what):
    write_run(tmp_path / "a", "RAND")
    write_run(tmp_path / "b", "SB", **change)
    rows = rows_of(tmp_path)
    (warning,) = comparison_warnings(rows)
    assert warning.startswith(f"{what}: ")
    assert str(tmp_path / "a") in warning
    assert str(tmp_path / "b") in warning
    text = text_of(rows)
    assert text.index("not all alike") < text.index("Table 1")
    saved = reduction(named_results(tmp_path), "RAND", "SB", "minutes")[0]
    if what in ("commit", "version of torch"):  # software: warned of, compared all the same
        assert saved.mean == 0
    else:
        assert saved.missing == f"RAND and SB differ in {what}, so they do not compare"


def test_alike_runs_give_no_warning(tmp_path):
    write_run(tmp_path / "a", "RAND")
    write_run(tmp_path / "b", "SSB-DBS-BR", seed=1)
    assert comparison_warnings(rows_of(tmp_path)) == []


# ---------------------------------------------------------------------------- resumed and broken


def test_of_a_resumed_run_the_last_settings_count_and_changes_are_named(tmp_path):
    folder = write_run(tmp_path / "a", epochs=12)
    lines = read_lines(folder)
    again = json.loads(json.dumps(lines[0])) | {"iteration": 6, "epoch": 7, "commit": "b" * 40}
    again["machine"]["device"] = "B GPU"
    again["hparams"] |= {"learning_rate": 0.5, "num_workers": 9}
    lines[0]["hparams"]["epochs"] = 6
    seventh = next(i for i, line in enumerate(lines) if line["epoch"] == 7)
    write_metrics(folder, [*lines[:seventh], again, *lines[seventh:]])
    (row,) = rows_of(folder)
    assert row.runs[0].hparams.learning_rate == 0.5
    assert comparison_warnings([row]) == [
        f"{folder} was resumed at epoch 7 with other learning_rate: 0.001, then 0.5; "
        f"machine's device: A GPU, then B GPU; commit: {'a' * 40}, then {'b' * 40}"
    ]


def metrics(change):
    return lambda folder: write_metrics(folder, change(read_lines(folder)))


def lengths(text):
    return lambda folder: (folder / "lengths.csv").write_text(text)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (metrics(lambda lines: [*lines[:4], '{"kind"', *lines[5:]]), "metrics.jsonl:5: not JSON"),
        (metrics(lambda lines: [lines[0] | {"corpus": 3}]), "metrics.jsonl:1: corpus=3"),
        (metrics(lambda lines: lines[:1]), "unfinished, 0 of 12 epochs"),
        (metrics(lambda lines: lines[:-3]), "unfinished, 10 of 12 epochs"),
        (metrics(lambda lines: lines[:1] + lines[4:]), "its first epoch is 3: the run went on"),
        (lambda folder: (folder / "lengths.csv").unlink(), "lengths.csv: no such file"),
        (lengths("id,samples\na,1\n"), "lengths.csv:1: 'id,samples'"),
        (lengths("id,frames\na,1\nb,x\nc,0\n"), "lengths.csv:3: 'b,x'"),
        (lengths("id,frames\na,100\n"), "lengths.csv: 1 clips of 100 frames, but the run trained"),
    ],
)
def test_a_broken_or_unfinished_run_is_named_and_left_out(tmp_path, spoil, message):
    write_run(tmp_path / "good")
    spoil(write_run(tmp_path / "bad", "SSB-BR"))
    rows, left_out = collect_rows([tmp_path])
    assert [row.label for row in rows] == ["RAND"]
    (problem,) = left_out
    assert problem.startswith(str(tmp_path / "bad"))
    assert message in problem
    assert escape_markdown(problem) in text_of(rows, left_out)


def test_half_a_last_line_is_mentioned_and_the_run_reported(tmp_path):
    folder = write_run(tmp_path / "a")
    write_metrics(folder, [*read_lines(folder), '{"kind": "r'], end="")
    rows, (problem,) = collect_rows([tmp_path])
    assert len(rows) == 1
    assert "only half a line, left out" in problem


def test_runs_are_found_at_any_depth_and_once(tmp_path):
    write_run(tmp_path / "out" / "rand" / "seed_0")
    write_run(tmp_path / "out" / "rand" / "seed_1", seed=1)
    (tmp_path / "empty").mkdir()
    places = ["out", "out/rand/seed_1", "empty", "no"]
    rows, left_out = collect_rows([tmp_path / place for place in places])
    assert [run.hparams.seed for row in rows for run in row.runs] == [0, 1]
    assert len(left_out) == 2
    assert left_out[0].startswith(f"{tmp_path / 'empty'}: no metrics.jsonl")
    assert left_out[1].startswith(f"{tmp_path / 'no'}: no such folder")


def test_without_any_finished_run_the_report_says_so(tmp_path, capsys):
    with pytest.raises(SystemExit, match="no finished run to report on"):
        report.main([str(tmp_path), "-o", str(tmp_path / "report")])
    assert f"left out: {tmp_path}: no metrics.jsonl" in capsys.readouterr().err
    assert not (tmp_path / "report").exists()


# ---------------------------------------------------------------------------- the head

AS_PAPER = "batch_size=16,win_time=50,hop_time=12.5,load_mel_from_disk=True,num_workers=7"


def test_a_run_with_the_papers_settings_is_called_a_reproduction(tmp_path):
    lengths = np.tile(LENGTHS, 219)[: published.TRAINING_CLIPS]
    options = {
        "epochs": 222,
        "overrides": AS_PAPER,
        "lengths": lengths,
        "clips": (10_480, 2_620),
    }
    write_run(tmp_path / "a", "SSB-BR", **options)
    rows = rows_of(tmp_path)
    assert deviations(rows) == []
    text = text_of(rows)
    assert "this is a reproduction of it" in text
    assert "no finished run of RAND, SB-BR, BKT-BR" in text


def test_whatever_is_not_the_papers_setting_heads_the_report(tmp_path):
    write_run(
        tmp_path / "a", "SSB", epochs=12, overrides=f"{AS_PAPER},prenet_dim=64,precision=bf16"
    )
    write_run(
        tmp_path / "b", "BKT", epochs=12, overrides=f"{AS_PAPER},prenet_dim=64,bucket_size=96"
    )
    rows = rows_of(tmp_path)
    assert set(deviations(rows)) == {
        "48 training clips instead of 10,480",
        "10 validation clips instead of 2,620",
        "12 epochs instead of 222",
        "another model: prenet_dim 64 instead of 256",
        f"precision bf16 instead of fp32 ({tmp_path / 'a'})",
        f"bucket_size 96 instead of 1024 ({tmp_path / 'b'})",
    }
    assert text_of(rows).split("\n")[2] == "**This is not a reproduction of the paper:**"


def test_a_warm_start_is_no_reproduction(tmp_path):
    write_run(tmp_path / "a", started_from="other.pt")
    assert any("began from other.pt" in text for text in deviations(rows_of(tmp_path)))


# ---------------------------------------------------------------------------- figure 4


def test_figure_4_draws_losses_over_epochs_and_over_the_time_until_then(tmp_path):
    for seed in range(2):
        write_run(
            tmp_path / f"{seed}",
            seed=seed,
            epochs=6,
            minutes=lambda epoch: 30.0 * epoch,
            loss=lambda epoch, s=seed: 10.0 - epoch + 2 * s,
        )
    write_run(tmp_path / "sb", "SB", epochs=6, minutes=lambda _: 60.0)
    rows = rows_of(tmp_path)
    epochs, hours = (draw_validation_losses(rows, over=over).axes[0] for over in ("epochs", "time"))
    rand, sb = epochs.get_lines()
    np.testing.assert_allclose(rand.get_xydata(), [(2, 9), (4, 7), (6, 5)])
    np.testing.assert_allclose(hours.get_lines()[0].get_xdata(), [1.5, 5.0, 10.5])
    np.testing.assert_allclose(hours.get_lines()[1].get_xdata(), [2, 4, 6])
    (band,) = epochs.collections  # of RAND alone; losses 2 apart have a standard error of 1
    assert {(2.0, 10.0), (2.0, 8.0)} <= set(map(tuple, band.get_paths()[0].vertices.tolist()))
    assert rand.get_color() != sb.get_color()
    assert rand.get_marker() != sb.get_marker()
    assert hours.get_xlabel() == "training time (hours)"


def test_figure_4_leaves_out_the_first_epochs_and_says_so(tmp_path):
    write_run(tmp_path / "a", epochs=40, loss=lambda epoch: 100.0 if epoch < 6 else 1 + 1 / epoch)
    axes = draw_validation_losses(rows_of(tmp_path), over="epochs").axes[0]
    assert axes.get_ylim()[1] < 2
    assert [text.get_text() for text in axes.texts] == [
        "higher losses of the first epochs are cut off"
    ]


def test_every_batching_has_a_look_of_its_own(tmp_path):
    names = [*published.TABLE_2, "SSB-rank-DBS-BR", "SSB-exp-DBS-BR"]
    for name in names:
        write_run(tmp_path / name, name)
    write_run(tmp_path / "lrf", "SSB", overrides="local_randomization_factor=0.3")
    rows = rows_of(tmp_path)
    assert len(looks_of(draw_validation_losses(rows, over="epochs"))) == len(names) + 1
    assert len(looks_of(draw_follow_ups(follow_ups(rows)))) == 2  # SSB's alone


def looks_of(figure) -> set:
    return {
        (
            line.get_color(),
            line.get_marker(),
            line.get_markerfacecolor(),
            str(line._dash_pattern),
        )
        for line in figure.axes[0].get_lines()
    }


# ---------------------------------------------------------------------------- files


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.links, self.cells, self._in_cell = [], [], [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href", "action", "data"):
                self.links.append(value)
        if tag == "td":
            self._in_cell = True
            self.cells.append("")

    def handle_endtag(self, tag):
        self._in_cell = self._in_cell and tag != "td"

    def handle_data(self, data):
        if self._in_cell:
            self.cells[-1] += data


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A report of four runs, one of them with a name that HTML could take for its own."""
    folder = tmp_path_factory.mktemp("made")
    evil = "<script>alert(1)</script> & | `x`"
    write_run(folder / "runs" / "rand", "RAND", commit=evil)
    for seed in range(2):
        write_run(
            folder / "runs" / f"ssb_{seed}",
            "SSB-DBS-BR",
            seed=seed,
            commit=evil,
            minutes=lambda _, s=seed: 2.0 + s / 4,
            loss=lambda epoch: 1 / epoch,
        )
    broken = write_run(folder / "runs" / "unfinished <b>", "SB")
    write_metrics(broken, [*read_lines(broken)[:2], '{"kind"', *read_lines(broken)[3:]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", io.StringIO())
        report.main([str(folder / "runs"), "-o", str(folder / "report")])
        (folder / "printed").write_text(report.sys.stdout.getvalue())
    return folder


def test_the_report_says_what_it_wrote(made):
    lines = (made / "printed").read_text().splitlines()
    written = {line.removeprefix("wrote ") for line in lines if "wrote" in line}
    assert written == {str(path) for path in (made / "report").iterdir()}
    stems = {path.stem for path in (made / "report").iterdir()}
    assert stems == {"report", *report.FIGURES}
    assert len(written) == 3 + 2 * len(report.FIGURES)


def test_the_page_needs_no_other_file_and_escapes_what_runs_say(made):
    text = (made / "report" / "report.html").read_text()
    assert not re.search(r"https?://|@import|src=(?!\"data:)|url\((?!#)", text)
    page = Page(text)
    assert {"script", "link", "iframe", "b"}.isdisjoint(page.tags)
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; | `x`" in text
    assert "unfinished &lt;b&gt;" in text
    assert page.tags.count("svg") == len(report.FIGURES)
    assert len(page.ids) == len(set(page.ids))  # no two figures share one
    used = re.findall(r"url\(#([^)]+)\)", text) + [link[1:] for link in page.links]
    assert used
    assert set(used) <= set(page.ids)


def test_every_number_is_in_the_page_and_in_the_markdown(made):
    cells = Page((made / "report" / "report.html").read_text()).cells
    lines = [plain(line) for line in (made / "report" / "report.md").read_text().splitlines()]
    for table in tables_of(collect_rows([made / "runs"])[0]).values():
        for line in shown_cells(table)[0]:
            in_page = [f"{cell}{cell.note or ''}" for cell in line]
            assert in_page in [cells[i : i + len(line)] for i in range(len(cells))]
            notes = [f"<sup>{cell.note}</sup>" if cell.note else "" for cell in line]
            marked = [escape_markdown(cell) + note for cell, note in zip(line, notes, strict=True)]
            assert "| " + " | ".join(marked) + " |" in lines


def test_the_csv_holds_numbers_that_are_not_rounded(made):
    with open(made / "report" / "report.csv", encoding="utf-8", newline="") as file:
        records = {(r["table"], r["row"], r["quantity"]): r for r in csv.DictReader(file)}
    record = records["table_3", "SSB-DBS-BR", "saved (%)"]
    assert float(record["published"]) == 41.25
    assert float(record["ours"]) == pytest.approx(100 * (1 - 2.125 / 3))
    record = records["table_2", "SSB-DBS-BR", "minutes per epoch"]
    assert (record["published"], record["ours"], record["runs"]) == ("19.28", "2.125", "2")
    assert float(record["standard_error"]) == pytest.approx(0.125)


def test_the_head_names_date_machine_versions_seeds_and_the_command(made):
    text = (made / "report" / "report.md").read_text()
    command = f"python scripts/report.py {made / 'runs'} -o {made / 'report'}"
    for part in (
        f"made again by: {command}",
        "trained on: A GPU",
        "python 3.11.7, torch 2.13.0, numpy 2.4.6",
        "seeds: 0, 1",
        f"corpus: 48 clips ({LENGTHS.sum() * 256 / 22050 / 3600:.2f} hours) for training",
        "metrics.jsonl:3: not JSON",
    ):
        assert part in text
    for stem in report.FIGURES:
        assert f"]({stem}.svg)" in text


def test_a_large_drawing_goes_into_the_page_as_png(made, monkeypatch):
    monkeypatch.setattr(report_pages, "LARGEST_INLINE_SVG", 0)
    drawing = report_pages.inline_drawing(made / "report" / next(iter(report.FIGURES)))
    rows, left_out = collect_rows([made / "runs"])
    content = report.compose(rows, left_out, "", datetime(2026, 11, 21, tzinfo=UTC))
    content |= {"figures": {"large": 'a "title"'}, "drawings": {"large": drawing}}
    page = report_pages.render(report.TEMPLATES / "report.html", **content)
    assert '<img alt="a &#34;title&#34;" src="data:image/png;base64,iVBOR' in page


def test_a_report_that_cannot_be_written_says_where(tmp_path):
    write_run(tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match="file cannot be written"):
        report.main([str(tmp_path / "run"), "-o", str(tmp_path / "file")])


def test_runs_without_a_validation_and_of_very_few_clips_are_reported_too(tmp_path, monkeypatch):
    def write_svg_alone(figure, path):  # in half the time
        figure.savefig(f"{path}.svg")
        return []

    monkeypatch.setattr(report.figures, "write_figure", write_svg_alone)
    write_run(tmp_path / "a", "SSB", epochs=1, lengths=np.array([7, 9]))
    write_run(tmp_path / "b", "SB", epochs=1, lengths=np.array([7, 9]), minutes=lambda _: 0.0)
    report.main([str(tmp_path), "-o", str(tmp_path / "report")])
    text = (tmp_path / "report" / "report.md").read_text()
    assert f"{tmp_path / 'a'} has no validation of so short a run" in text
    assert f"{tmp_path / 'a'} has no validation of epoch 1" in text
    assert "SB → SB-BR: – (not measured" in text


def test_small_minutes_keep_three_digits():
    def result(minutes):
        return BatchingResult("x", {"minutes": MeanWithError(minutes)})

    assert minutes_decimals([result(32.8), result(17.6)]) == 2
    assert minutes_decimals([result(0.15), result(3.0)]) == 3
    assert minutes_decimals([result(0.0999)]) == 4


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"minutes": 3.0', f'"minutes": {400 * "9"}'),
        ('"minutes": 3.0', '"minutes": 1e300'),
        ('"num_batches": 12', f'"num_batches": {400 * "9"}'),
        ('"time": "2026-11-20T10:00:00+0000"', '"time": "0001-01-01T00:00:00"'),
    ],
)
def test_a_run_with_absurd_values_is_named_and_left_out(tmp_path, capsys, before, after):
    folder = write_run(tmp_path / "run") / "metrics.jsonl"
    text = folder.read_text(encoding="utf-8")
    assert before in text
    folder.write_text(text.replace(before, after), encoding="utf-8")
    with pytest.raises(SystemExit, match="no finished run"):
        report.main([str(tmp_path / "run"), "-o", str(tmp_path / "out")])
    shown = capsys.readouterr().err
    assert "metrics.jsonl:" in shown
    assert len(shown) < 6000
