"""Test the benchmarks of whole epochs and of other recipes."""

import csv
import time

import numpy as np
import pytest
from helpers import tiny

from audio import frame_count
from benchmarks import peers, whole_epochs
from corpus.filelist import split_filelist_line
from hparams import create_hparams
from tacotron2_voice.utils.errors import UserError

SECONDS = [0.5, 0.8, 0.5, 1.2]


@pytest.fixture
def filelist(tmp_path):
    lines = [f"a{i}.wav|Text number {i}.|{seconds}\n" for i, seconds in enumerate(SECONDS)]
    path = tmp_path / "train.txt"
    path.write_text("".join(lines))
    return path


def test_noise_mels_for_benchmarks_are_as_long_as_the_clips_in_the_filelist(filelist, tmp_path):
    hparams = create_hparams(whole_epochs.AUDIO)
    whole_epochs.write_corpus(filelist, tmp_path / "out", hparams)
    listed = (tmp_path / "out" / "filelists" / "train_mel.txt").read_text().splitlines()
    clips = [split_filelist_line(line) for line in listed]
    assert [clip.text for clip in clips] == [f"Text number {i}." for i in range(4)]
    shapes = [np.load(clip.path).shape for clip in clips]
    assert shapes == [(80, frame_count(round(s * 22050), hparams)) for s in SECONDS]


def test_benchmark_rejects_a_filelist_when_a_line_has_no_seconds(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("a.wav|Text.|1.0\nb.wav|Text.\n")
    with pytest.raises(UserError, match=r"train\.txt:2"):
        whole_epochs.write_corpus(path, tmp_path, create_hparams(whole_epochs.AUDIO))


def test_benchmark_folder_is_rejected_when_it_contains_the_mels_of_another_filelist(
    filelist, tmp_path
):
    hparams = create_hparams(whole_epochs.AUDIO)
    whole_epochs.write_corpus(filelist, tmp_path / "out", hparams)
    whole_epochs.write_corpus(filelist, tmp_path / "out", hparams)
    filelist.write_text(filelist.read_text() + "b.wav|Another text.|0.5\n")
    with pytest.raises(UserError, match="out"):
        whole_epochs.write_corpus(filelist, tmp_path / "out", hparams)


@pytest.mark.thorough
def test_csv_file_has_a_row_for_each_chosen_experiment_of_table_2(filelist, tmp_path):
    out = tmp_path / "out"
    sizes = tiny().split(",")
    extra = ",".join(size for size in sizes if size.split("=")[0].endswith(("_dim", "filters")))
    whole_epochs.main(
        [str(filelist), str(out), "--only", "ssb_dbs_br", "--epochs", "1", "--extra", extra]
    )
    with (out / "table2.csv").open(newline="") as file:
        [row] = csv.DictReader(file)
    frames = [frame_count(round(s * 22050), create_hparams(whole_epochs.AUDIO)) for s in SECONDS]
    assert row["batching"] == "ssb_dbs_br"
    assert (int(row["batches"]), int(row["decoder_steps"])) == (1, max(frames))
    assert 0 < float(row["seconds_per_epoch"]) < 600


@pytest.mark.thorough
def test_experiment_leaves_no_process_when_it_exceeds_its_time_limit(
    filelist, tmp_path, monkeypatch
):
    script = tmp_path / "scripts" / "table2" / "rand.sh"
    script.parent.mkdir(parents=True)
    script.write_text(f"sleep 3; touch {tmp_path}/late & wait")
    monkeypatch.setattr(whole_epochs, "ROOT", tmp_path)
    (tmp_path / "out" / "filelists").mkdir(parents=True)
    failure = whole_epochs.run_experiment(
        "rand", tmp_path / "out", tmp_path, "", epochs=1, seconds=1
    )
    assert failure == "out of time"
    time.sleep(3)
    assert not (tmp_path / "late").exists()


def test_comparison_table_contains_the_speed_of_this_recipe_relative_to_other_recipes():
    common = {"precision": "bf16", "batch": "16x774x120", "peak_gb": 2.5}
    ours = common | {"recipe": peers.OURS, "seconds": [0.03, 0.04, 0.05]}
    other = common | {"recipe": "speechbrain", "seconds": [2.0, 2.0]}
    *_, row = peers.table_of([ours, other]).splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2:] == ["speechbrain", "2,000.0 ms", "6,192", "2.5 GB", "50.0"]


@pytest.mark.parametrize(
    "arguments", [["--shapes", "16x774"], ["--precisions", "bf17"], ["--tacotron2", "nowhere"]]
)
def test_comparison_of_recipes_rejects_an_invalid_option_before_the_first_measurement(
    arguments, capsys
):
    with pytest.raises(SystemExit):
        peers.main(arguments)
    message = capsys.readouterr().err
    assert arguments[0] in message
    assert arguments[1] in message
