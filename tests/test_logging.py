"""Test metrics.jsonl and the TensorBoard files, and how a resumed run truncates them."""

import io
import math
import os
import threading
import time
import zlib
from dataclasses import replace

import numpy as np
import pytest
import soundfile
from helpers import metrics
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer.record_writer import RecordWriter

from tacotron2_voice.speech_end import StopReason
from training.metrics import RunLogger
from training.tensorboard import Example, FreeRunningPrediction, Prediction, plots_of

PLOTS = {"alignment", "mel", "stop_token"}
RUN = {"iteration": 0, "hparams": {"batch_size": 3, "text_cleaners": ["a", "b"]}}
EPOCH = {
    "epoch": 1,
    "iteration": 4,
    "train_loss": 2.5,
    "train_loss_unpadded": 2.75,
    "skipped_updates": 1,
    "step_imbalance": 1.5,
}
VALIDATION = {
    "epoch": 1,
    "iteration": 4,
    "validation_loss": 0.5,
    "validation_loss_unpadded": 0.75,
    "alignment_sharpness": 0.25,
    "spoken_stopped": 1,
}


@pytest.fixture(autouse=True)
def _threads(monkeypatch):
    # This call makes monkeypatch restore the hook after the test.
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)


def example(frames: int = 12, text: str = "a dog") -> Example:
    rng = np.random.default_rng(0)

    def uniform(*shape: int) -> np.ndarray:
        return rng.random(shape, np.float32)

    samples = (2 * np.sin(np.arange(4000) / 20)).astype(np.float32)
    mel = rng.normal(-5, 2, (10, frames)).astype(np.float32)
    target = np.eye(1, frames, frames - 1, dtype=np.float32)[0]
    forced = Prediction([*text], uniform(frames, len(text)), mel, uniform(frames))
    spoken = FreeRunningPrediction(
        [*text, "."], uniform(9, len(text) + 1), mel[:, :9], uniform(15), StopReason.REST
    )
    audio = dict.fromkeys(("predicted", "spoken", "recording"), samples)
    return Example("", mel, target, forced, [], 0.5, 22050, spoken, audio)


def events(directory) -> EventAccumulator:
    sizes = {"scalars": 0, "images": 0, "audio": 0, "tensors": 0}
    return EventAccumulator(str(directory / "logs"), sizes).Reload()


def scalars(directory) -> dict[str, list[tuple[int, float]]]:
    found = events(directory)
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_tensorboard_contains_settings_curves_plots_and_audio(tmp_path):
    logger = RunLogger(tmp_path, tmp_path / "logs")
    logger.log_run(RUN)
    logger.log_step(3, {"loss": 1.5, "loss_unpadded": 1.75})
    logger.log_epoch(EPOCH)
    logger.log_validation(VALIDATION, [example()])
    logger.close()
    assert scalars(tmp_path) == {
        "training/loss": [(3, 1.5)],
        "training/masked_loss": [(3, 1.75)],
        "epoch/loss": [(4, 2.5)],
        "epoch/masked_loss": [(4, 2.75)],
        "epoch/skipped_optimizer_steps": [(4, 1.0)],
        "epoch/imbalance": [(4, 1.5)],
        "validation/loss": [(4, 0.5)],
        "validation/masked_loss": [(4, 0.75)],
        "validation/focus_rate": [(4, 0.25)],
        "validation/spoken_stopped": [(4, 1.0)],
    }
    found = events(tmp_path)
    [settings] = found.Tensors("hparams/text_summary")
    assert b"| setting | value |" in settings.tensor_proto.string_val[0]
    assert b"| batch_size | 3 |" in settings.tensor_proto.string_val[0]
    assert set(found.Tags()["images"]) == {f"{x}{y}" for x in ("", "spoken/") for y in PLOTS}
    for name in found.Tags()["images"]:
        [plot] = found.Images(name)
        assert plot.width == 800
        assert plot.height >= 300
        assert len(plot.encoded_image_string) > 5000  # the file of an empty plot would be smaller
    assert set(found.Tags()["audio"]) == {"predicted", "spoken", "recording"}
    for name in found.Tags()["audio"]:
        [audio] = found.Audio(name)
        assert (audio.sample_rate, audio.length_frames) == (22050, 4000)
        # Audio that is too loud is scaled instead of clipped.
        samples, _ = soundfile.read(io.BytesIO(audio.encoded_audio_string))
        assert samples == pytest.approx(np.sin(np.arange(4000) / 20), abs=2e-4)


def test_tensorboard_plots_show_the_text_and_the_end_of_speech():
    """Without free-running inference, only the plots of teacher forcing exist."""
    figures = plots_of(example())
    titles = {name: figure.axes[0].get_title() for name, figure in figures.items()}
    assert titles == {
        "alignment": "alignment: a dog",
        "mel": "recording",
        "stop_token": "stop token",
        "spoken/alignment": "alignment, free-running: a dog.",
        "spoken/mel": "spoken",
        "spoken/stop_token": "stop token, free-running: attention rested on the last symbols",
    }
    end = figures["spoken/stop_token"].axes[0].get_lines()[-1]
    assert end.get_xdata() == [8.5, 8.5]  # the first 9 of 15 decoder steps are speech
    assert plots_of(replace(example(), free_running=None)).keys() == PLOTS


def test_logs_are_truncated_to_the_checkpoint_when_a_run_resumes(tmp_path):
    """The logs are truncated even if the run folder was renamed."""
    before, folder = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    logger = RunLogger(before, before / "logs")
    logger.log_run(RUN)
    for step in range(5):
        logger.log_step(step, {"loss": float(step)})
    state = logger.state()
    logger.log_epoch(EPOCH)
    for step in range(5, 200):
        logger.log_step(step, {"loss": math.pi})
    logger.close()
    before.rename(folder)
    (folder / "metrics.jsonl").open("a").write('{"kind": "half of a li')
    with open(next((folder / "logs").iterdir()), "ab") as file:
        file.write(b"half of an event")
    again = RunLogger(folder, folder / "logs", state)
    again.log_step(5, {"loss": 5.0})
    changed = EPOCH | {"train_loss": 7.0}
    again.log_epoch(changed)
    again.close()
    assert metrics(folder) == [{"kind": "run"} | RUN, {"kind": "epoch"} | changed]
    found = scalars(folder)
    assert found["training/loss"] == [(step, float(step)) for step in range(6)]
    assert found["epoch/loss"] == [(4, 7.0)]


def test_saved_log_state_includes_buffered_lines(tmp_path, monkeypatch):
    write = RecordWriter.write
    monkeypatch.setattr(RecordWriter, "write", lambda *args: time.sleep(0.01) or write(*args))
    logger = RunLogger(tmp_path, tmp_path / "logs")
    for step in range(30):
        logger.log_step(step, {"loss": float(step)})
    state = logger.state()
    # This line opens the logs again, as a resumed run does.
    RunLogger(tmp_path, tmp_path / "logs", state).close()
    assert scalars(tmp_path)["training/loss"] == [(step, float(step)) for step in range(30)]


def test_metrics_are_written_to_disk_before_their_size_is_saved(tmp_path, monkeypatch):
    logger, synced = RunLogger(tmp_path, tmp_path / "logs"), []
    logger.log_run(RUN)
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file)))
    size = logger.state()["logs"]["metrics.jsonl"]
    logger.close()
    path = tmp_path / "metrics.jsonl"
    assert [(found.st_ino, found.st_size) for found in synced] == [(path.stat().st_ino, size)]


def test_warning_is_issued_when_the_disk_of_the_logs_is_full(tmp_path, monkeypatch, capfd):
    """Lines of metrics.jsonl that could not be written are written later, but TensorBoard data is
    lost."""
    logger = RunLogger(tmp_path, tmp_path / "logs")
    write, left = os.write, [20]

    def half(file, data):
        return write(file, data[: left.pop()] if left else data)

    monkeypatch.setattr(os, "write", half)

    def full(self, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RecordWriter, "write", full)
    logger.log_epoch(EPOCH)
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""  # no incomplete line is written
    logger.log_step(1, {str(number): 1.0 for number in range(1000)})
    logger.tensorboard._writer.file_writer.event_writer._async_writer._worker.join()
    logger.log_validation(VALIDATION, [example()])
    state = logger.state()
    printed = capfd.readouterr()
    assert printed.out.count("until the run is resumed: [Errno 28] No space left") == 1
    assert "warning: writing 1 lines of metrics.jsonl failed, but training continues" in printed.out
    assert "Traceback" not in printed.err
    assert [line["kind"] for line in metrics(tmp_path)] == ["epoch", "validation"]
    logger.close()
    assert state["metrics_checksum"] == zlib.crc32((tmp_path / "metrics.jsonl").read_bytes())


def test_only_tensorboard_fails_when_the_folder_name_is_not_valid_unicode(tmp_path, capsys):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    logger = RunLogger(folder, folder / "logs")
    logger.log_epoch(EPOCH)
    logger.close()
    assert "warning: cannot write to TensorBoard" in capsys.readouterr().out
    assert [line["kind"] for line in metrics(folder)] == ["epoch"]


def event_files(directory) -> set[str]:
    return {path.name for path in (directory / "logs").iterdir()}


def test_event_files_of_other_programs_are_not_changed(tmp_path):
    logger = RunLogger(tmp_path, tmp_path / "logs")
    logger.log_epoch(EPOCH)
    saved = logger.state()
    [ours] = event_files(tmp_path)
    logger.close()
    foreign = tmp_path / "logs" / "events.out.tfevents.1.elsewhere.2.0"
    foreign.write_bytes(b"of another program")
    later = tmp_path / "logs" / f"events.out.tfevents.{time.time():.0f}.here.3.0.tacotron2"
    later.write_bytes(b"after the checkpoint")
    logger = RunLogger(tmp_path, tmp_path / "logs", saved)
    newest = event_files(tmp_path) - {ours, foreign.name}
    assert len(newest) == 1
    assert later.name not in newest
    assert foreign.read_bytes() == b"of another program"
    assert f"logs/{foreign.name}" not in logger.state()["logs"]
    logger.close()
    RunLogger(tmp_path, tmp_path / "logs").close()  # a new run starts in the same folder
    assert foreign.read_bytes() == b"of another program"
    assert ours not in event_files(tmp_path)
