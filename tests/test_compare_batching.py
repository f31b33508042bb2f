"""Test scripts/compare_batching.py: options, output files and recommended settings."""

import re

import numpy as np
import pandas as pd
import pytest
from helpers import LJSPEECH_LENGTHS, ROOT
from test_search import survey

from corpus.lengths import read_lengths
from hparams import create_hparams
from length_batching import REGISTRY, STRATEGIES, BatchingError
from length_batching.search import Surveyor
from scripts import compare_batching as program
from scripts.table2 import published
from tacotron2_voice.utils.errors import UserError

HPARAMS = create_hparams(program.PAPER_SETTING)  # the hop length is 276 samples
SAMPLES = np.random.default_rng(0).integers(22_050, 220_500, 40)


def write_csv(path, samples=SAMPLES):
    lines = ["id,samples", *(f"clip{i},{n}" for i, n in enumerate(samples))]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_filelist(path, samples=SAMPLES):
    path.write_text("".join(f"no/such/{n}.wav|Go on.|{n / 22050:.6f}\n" for n in samples))
    return path


def run(capsys, *arguments):
    program.main([str(argument) for argument in arguments])
    return capsys.readouterr().out


def error_of(capsys, *arguments):
    with pytest.raises((SystemExit, UserError, BatchingError, OSError)) as stopped:
        program.main([str(argument) for argument in arguments])
    return f"{stopped.value} {capsys.readouterr().err}"


@pytest.fixture
def without_rendering(monkeypatch):
    """Draw plots without rendering them, because test_figures.py renders them and rendering is
    slow."""
    monkeypatch.setattr(program.figures, "write_figure", lambda figure, path: path)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("--hparams batch_sise=3", "batch_sise"),
        ("--hparams batch_capacity=9", "batch_capacity=9"),
        ("--epochs 0", "--epochs: '0'"),
        ("--min-pair-novelty 2", "--min-novelty: '2'"),
        ("-o lengths.csv", "lengths.csv"),
    ],
)
def test_compare_batching_error_names_the_option_when_its_value_is_invalid(
    tmp_path, capsys, monkeypatch, arguments, named
):
    monkeypatch.chdir(tmp_path)
    assert named in error_of(capsys, write_csv(tmp_path / "lengths.csv"), *arguments.split())
    assert not (tmp_path / "compare_batching").exists()


def test_compare_batching_writes_a_report_a_table_and_a_plot(tmp_path, capsys):
    out = tmp_path / "out"
    shown = run(
        capsys,
        *(write_csv(tmp_path / "lengths.csv"), "-o", out, "--epochs", 3),
        *("--hparams", "batch_size=4,bucket_size=8,num_bins=5,n_frames_per_step=3"),
    )
    names = {path.name for path in out.iterdir()}
    assert names == {"comparison.md", "comparison.csv", "epoch_excerpt.svg"}
    for path in out.iterdir():
        assert str(path) in shown
    rows = pd.read_csv(out / "comparison.csv")
    assert len(rows) == 2 * len(STRATEGIES)  # each strategy with fixed and with dynamic batch sizes
    lengths = np.sort(1 + SAMPLES // 276)
    [row] = rows[(rows.strategy == "sorted") & ~rows.dynamic_batch_size].itertuples()
    steps = [-(-int(length) // 3) for length in lengths[3::4]]
    assert row.decoder_steps == sum(steps)
    assert row.padded_fraction == pytest.approx(1 - lengths.sum() / (12 * sum(steps)))


@pytest.mark.usefixtures("without_rendering")
@pytest.mark.parametrize("samples", [[22_050], [22_050, 44_100, 60_000], [22_050] * 30])
def test_compare_batching_accepts_tiny_corpora(tmp_path, capsys, samples):
    path = write_csv(tmp_path / "lengths.csv", samples)
    shown = run(capsys, path, "-o", tmp_path / "out", "--epochs", 2)
    assert "train.py --hparams" in shown
    assert "ATS: " in shown
    assert "num_bins=58" in shown
    assert "nan" not in shown


def test_compare_batching_reports_parameters_that_make_the_order_fully_random(tmp_path):
    path = write_csv(tmp_path / "lengths.csv", [*range(22_050, 22_115), 44_000])
    surveyor = program.read_corpus(path, HPARAMS, None)
    *_, bucket, bins = program.describe_corpus(path, HPARAMS, surveyor)
    assert "bucket_size=1024" in bucket
    assert "num_bins=58: a bin contains at most one batch" in bins


def test_plans_for_ljspeech_match_table_2_of_the_paper():
    frames = read_lengths(LJSPEECH_LENGTHS, HPARAMS)
    orders = [np.random.default_rng(seed).permutation(13_100)[:10_480] for seed in range(4)]
    surveyors = [Surveyor(frames[order], seed=seed) for seed, order in enumerate(orders)]
    strategies = {entry.short_name: name for name, entry in REGISTRY.items()}
    for name, theirs in published.TABLE_2.items():
        strategy, options = strategies[name.split("-")[0]], {"dynamic_batch_size": "DBS" in name}
        found = [s.survey(16, strategy, epochs=2, **options) for s in surveyors]
        rate = 100 * np.mean([one.zero_padding_rate for one in found])
        length = np.mean([one.average_batch_length for one in found])
        assert rate == pytest.approx(theirs.zero_padding_rate, abs=0.1), name
        assert length == pytest.approx(theirs.average_batch_length, abs=1), name


def recommended_settings(shown):
    [line] = [line for line in shown.splitlines() if "train.py --hparams " in line]
    return create_hparams(line.split()[-1])


@pytest.mark.usefixtures("without_rendering")
@pytest.mark.parametrize("options", [(), ("--min-pair-novelty", 0.7), ("--min-pair-novelty", 1)])
def test_compare_batching_recommends_the_default_strategy_of_training(tmp_path, capsys, options):
    path = write_csv(tmp_path / "lengths.csv")
    common = (path, "-o", tmp_path / "out", "--epochs", 4, "--hparams", "batch_size=4")
    shown = run(capsys, *common, *options)
    assert recommended_settings(shown) == create_hparams("batch_size=4")
    words = " ".join(shown.split())
    assert "loss was 14 ± 4% higher than with RAND after the same number of epochs" in words
    [document] = re.findall(r"docs/[\w/-]+\.md", shown)
    assert (ROOT / document).is_file()


@pytest.mark.usefixtures("without_rendering")
def test_compare_batching_prints_the_requested_pair_novelty(tmp_path, capsys):
    path, lengths = write_csv(tmp_path / "lengths.csv"), 1 + SAMPLES // 276
    common = (path, "-o", tmp_path / "out", "--epochs", 4, "--hparams", "batch_size=4")
    paper = survey(lengths, 4, "semi_sorted", epochs=4, dynamic_batch_size=True)
    assert f"pair novelty of at least {100 * paper.novelty:.2f}%" in run(capsys, *common)
    assert "pair novelty of at least 70.00%" in run(capsys, *common, "--min-pair-novelty", 0.7)
    shown = run(capsys, *common, "--min-pair-novelty", 1)
    assert "No strategy reaches a pair novelty of 100.00%" in shown


@pytest.mark.usefixtures("without_rendering")
def test_compare_batching_recommends_random_batches_when_nothing_is_saved(tmp_path, capsys):
    path = write_csv(tmp_path / "lengths.csv", [22_050] * 30)
    shown = run(capsys, path, "-o", tmp_path / "out", "--epochs", 2)
    hparams = recommended_settings(shown)
    assert (hparams.batching_strategy, hparams.dynamic_batch_size) == ("random", False)
