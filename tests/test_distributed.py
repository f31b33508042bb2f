"""Test that training never hangs, and has the same result for any number of processes."""

import math
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import (
    Child,
    Together,
    act_at,
    assert_same,
    curves,
    fork_server,
    free_port,
    load,
    make_corpus,
    metrics,
    newest,
    print_into,
)
from same_run import BY_PROCESSES, without_times
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from training_runs import copied_corpus

import train
from batching import make_sampler
from hparams import create_hparams
from tacotron2_voice.utils.errors import UserError
from training import distributed, start, validation
from training.trainer import Trainer

# The 14 clips form 5 batches of up to 3 clips.
# The optimizer steps of an epoch have 2, 2 and 1 batches.
SETTINGS = {
    "batches_per_update": 2,
    "dynamic_batch_size": False,
    "epochs": 2,
    "log_interval": 1,
    "iters_per_checkpoint": 2,
    "keep_checkpoints": 9,
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def alone(corpus, tmp_path_factory) -> Path:
    """Return the output folder of a run that trains in a single process with SETTINGS."""
    out = tmp_path_factory.mktemp("alone") / "out"
    assert Child(flags(out, corpus)).end().code == 0
    return out


def flags(out: Path, corpus, *more: str, **overrides) -> list[str]:
    return ["-o", str(out), "--hparams", corpus.hparams(**SETTINGS | overrides), *more]


def on(out: Path, *more: str) -> list[str]:
    """Return the arguments that resume a run."""
    return ["-o", str(out), "--resume", *more]


def check_all(ended, code: int = 0) -> None:
    for rank, child in enumerate(ended):
        assert child.code == code, f"process {rank}:\n{child.output}"
        assert "Traceback" not in child.output


def assert_same_result(one: Path, other: Path) -> None:
    """Assert that checkpoints and metrics are bitwise equal, except for times and the number of
    processes."""
    assert newest(one).name == newest(other).name
    for name in (newest(one).name, "best.pt"):
        a, b = load(one / name), load(other / name)
        for part in ("state_dict", "optimizer", "sampler", "iteration", "corpus", "learning_rate"):
            assert_same(a[part], b[part], f"{name}/{part}")
        assert_same(_without(a["loop"]), _without(b["loop"]))
    for kind in ("epoch", "validation"):
        lines = [without_times(metrics(folder, kind)) for folder in (one, other)]
        assert [_without(line) for line in lines[0]] == [_without(line) for line in lines[1]]
    a, b = (_without(curves(folder)) for folder in (one, other))
    assert {tag: a[tag] for tag in a if tag.startswith("training")} == {
        tag: b[tag] for tag in b if tag.startswith("training")
    }


def _without(record: dict) -> dict:
    times = {"seconds", "prepare_seconds", "data_wait_seconds", "process_wait_seconds"}
    left_out = BY_PROCESSES | times | {"peak_memory_bytes"}
    return {k: v for k, v in record.items() if k.rpartition("/")[2] not in left_out}


# ---------------------------------------------------------------------------- equal results


def test_training_results_of_one_and_two_processes_are_bitwise_equal(corpus, alone, tmp_path):
    """The same test for the fast decoder is in test_speakers_training.py."""
    check_all(Together(2, flags(tmp_path / "two", corpus)).end())
    assert_same_result(alone, tmp_path / "two")


# The 14 clips form 14 batches. The four optimizer steps of an epoch have 4, 4, 4 and 2 batches.
OF_FOUR = {"batches_per_update": 4, "batch_size": 1, "epochs": 3, "epochs_per_validation": 3}


@pytest.fixture(scope="module")
def alone_of_four(corpus, tmp_path_factory) -> Path:
    """Return the output folder of a run that trains in a single process with OF_FOUR."""
    out = tmp_path_factory.mktemp("of_four") / "out"
    assert Child(flags(out, corpus, **OF_FOUR)).end().code == 0
    return out


def assert_agrees(out: Path, alone: Path) -> None:
    """Assert that losses and gradient norms are close to the values of a run in one process.

    Several processes sum in a different order, so training losses and gradient norms differ by
    4e-7.

    Validation losses with one and with several processes differ by 1e-4. The gradients of
    convolution biases before batch norms are only rounding errors, but Adam scales them to full
    steps. In training, batch norm cancels the convolution biases. In validation, the convolution
    biases are not canceled completely, because the running mean of batch norm lags behind.
    """
    for name in ("loss", "masked_loss", "gradient_norm"):
        a, b = (np.array(curves(x)[f"training/{name}"]) for x in (out, alone))
        assert a.shape == (12, 2)
        np.testing.assert_allclose(a, b, rtol=1e-5, err_msg=name)
    [found], [expected] = (metrics(x, "validation") for x in (out, alone))
    for name in ("validation_loss", "validation_loss_unpadded"):
        assert found[name] == pytest.approx(expected[name], rel=2e-3)


@pytest.mark.thorough
def test_batches_per_update_is_increased_to_the_number_of_processes(corpus, tmp_path):
    out = tmp_path / "out"
    first, second = Together(2, flags(out, corpus, batches_per_update=1, epochs=1)).end()
    check_all([first, second])
    assert "note: batches_per_update was changed to 2" in first.output
    assert second.output == ""
    [record] = metrics(out, "run")
    assert record["hparams"]["batches_per_update"] == 2
    [epoch] = metrics(out, "epoch")
    assert epoch["processes"] == 2
    assert 1 <= epoch["step_imbalance"] < 2
    assert epoch["num_batches"] > epoch["iteration"] == math.ceil(epoch["num_batches"] / 2)
    assert "for other processes" in first.output


# ---------------------------------------------------------------------------- stopping and resuming


def stop_at(step: int) -> None:
    act_at(Trainer, "step", lambda: os.kill(os.getpid(), signal.SIGTERM), step)


def test_all_processes_stop_when_one_process_receives_a_signal(corpus, alone, tmp_path):
    out = tmp_path / "out"
    first, second = Together(2, flags(out, corpus), {1: (stop_at, 1)}).end()
    check_all([first, second])
    again = (
        f"stopped and saved; resume with: torchrun --nproc-per-node 2 train.py -o {out} --resume"
    )
    assert again in first.output
    # The run was stopped inside an epoch.
    assert load(newest(out))["loop"]["batches_trained"] > 0
    assert Child(on(out)).end().code == 0
    assert_same_result(out, alone)


@pytest.mark.thorough
def test_run_with_two_processes_resumes_with_four_processes(corpus, alone_of_four, tmp_path):
    out = tmp_path / "out"
    check_all(Together(2, flags(out, corpus, **OF_FOUR), {1: (stop_at, 1)}).end())
    assert 0 < load(newest(out))["loop"]["batches_trained"] < 14
    check_all(Together(4, on(out)).end())
    assert_agrees(out, alone_of_four)


def launch(log: Path, port: int, arguments: list[str]) -> None:
    """Run torchrun as if it ran on one of two machines.

    The training processes are forked, because this saves the time for imports.
    """
    print_into(log)
    torch.set_num_threads(1)
    config = LaunchConfig(2, 2, 1, run_id="both", rdzv_backend="c10d", max_restarts=3)
    config.rdzv_endpoint, config.start_method = f"127.0.0.1:{port}", "fork"
    elastic_launch(config, train.main)(arguments)


@pytest.mark.thorough
def test_torchrun_restarts_a_killed_process(corpus, tmp_path):
    """Each of the two torchrun processes stands for a machine."""
    settings = {"epochs": 8, "epochs_per_validation": 8, "keep_checkpoints": 2}
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "out"
    assert Child(flags(undisturbed, corpus, **settings)).end().code == 0
    arguments, port = flags(out, corpus, "--resume", **settings), free_port()
    logs = [tmp_path / f"machine{number}.log" for number in range(2)]
    machines = [fork_server().Process(target=launch, args=(log, port, arguments)) for log in logs]
    try:
        for machine in machines:
            machine.start()
        wait_until(lambda: trained(out) >= 2, logs)
        os.kill(started_by(machines[1])[0], signal.SIGKILL)
        reached = trained(out)
        wait_until(lambda: trained(out) > reached, logs)
        machines[0].terminate()
        again = (
            "torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:PORT"
        )
        again = f"stopped and saved; resume with: {again} train.py -o {out}"
        wait_until(lambda: again in "".join(log.read_text() for log in logs), logs)
        # After the run has printed how to resume, torchrun may need some time to exit.
        wait_until(lambda: not started_by(machines[1]), logs)
    finally:
        for machine in machines:
            machine.kill()
    assert 0 < trained(out) < trained(undisturbed)
    assert Child(on(out)).end().code == 0
    assert_same_result(out, undisturbed)


def test_restarted_processes_ignore_values_from_dead_processes(monkeypatch):
    """The store of torchrun still contains values from the dead processes."""
    store = torch.distributed.HashStore()
    store.set("start", "gone")
    store.set("gone/all", "some others")
    monkeypatch.setattr(distributed, "rendezvous", lambda *_, **__: iter([(store, 0, 0)]))
    with ThreadPoolExecutor() as threads:
        second = threads.submit(distributed.shared_store, 1, 2, 20)
        time.sleep(0.1)
        first = threads.submit(distributed.shared_store, 0, 2, 20)
        first.result(20).set("address", "here")
        assert second.result(20).get("address") == b"here"
    assert store.get("start") != b"gone"


def trained(out: Path) -> int:
    return max([int(path.stem.split("_")[1]) for path in out.glob("checkpoint_*.pt")], default=0)


def started_by(launcher) -> list[int]:
    """Return the processes that torchrun has started, or [] if torchrun has exited."""
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
    return [int(pid) for pid in children.read_text().split()] if children.exists() else []


def wait_until(condition, logs: list[Path]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, [log.read_text() for log in logs]
        time.sleep(0.01)


# ---------------------------------------------------------------------------- deadlocks


@pytest.mark.thorough
def test_processes_exit_when_one_process_does_not_respond(corpus, tmp_path):
    arguments = flags(tmp_path / "out", corpus, "--process-timeout", "2")
    stopped = act_at, Trainer, "step", stop_answering, 3
    both = Together(2, arguments, {1: stopped})
    began = time.monotonic()
    first = both.children[0].end(30)
    both.children[1].process.kill()
    assert first.code == 1
    assert "another process of this run exited or does not respond" in first.output
    assert "Traceback" not in first.output
    assert time.monotonic() - began < 20


def stop_answering() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.thorough
def test_processes_save_and_exit_when_a_clip_is_unreadable(corpus, alone, tmp_path):
    folder, out = tmp_path / "clips", tmp_path / "out"
    filelist, clip = copied_corpus(corpus, folder), folder / "train05.wav"
    hparams = flags(out, corpus, training_files=filelist)
    ended = Together(2, hparams, {0: (delete_after_first_epoch, clip)}).end()
    outputs = "".join(child.output for child in ended)
    assert [child.code for child in ended] == [1, 1], outputs
    assert f"{filelist}:6: {clip}: no such file" in outputs
    assert f"saved a checkpoint of the last completed optimizer step: {newest(out)}" in outputs
    assert f"torchrun --nproc-per-node 2 train.py -o {out} --resume" in outputs
    assert "Traceback" not in outputs
    shutil.copy(corpus.folder / clip.name, clip)
    check_all(Together(2, on(out)).end())
    assert_same_result(out, alone)


def delete_after_first_epoch(path: Path) -> None:
    act_at(train, "log_epoch", lambda: path.unlink())


@pytest.mark.thorough
def test_processes_warn_when_validation_fails_in_one_process(corpus, alone, tmp_path):
    out = tmp_path / "out"
    ended = Together(2, flags(out, corpus), {1: (fail_in_validation,)}).end()
    check_all(ended)
    warning = (
        "warning: the validation of epoch 2 failed, but training continues: ValueError: not finite"
    )
    assert [warning in child.output for child in ended] == [True, False]
    assert metrics(out, "validation") == []
    assert_same(load(newest(out))["state_dict"], load(newest(alone))["state_dict"])


def fail_in_validation() -> None:
    def fail(*_) -> None:
        raise ValueError("not finite")

    vars(validation)["_validate_batch"] = fail


def test_process_waits_for_torch_threads_at_exit(monkeypatch):
    """If the interpreter exits before a torch thread has released its tensors, the process
    aborts."""
    at_exit: list = []
    monkeypatch.setattr(distributed.atexit, "register", lambda *call: at_exit.append(call))
    monkeypatch.setattr(distributed.dist, "is_initialized", lambda: True)
    distributed.leave_at_exit()
    # During this sleep, the torch threads can finish.
    assert at_exit == [(time.sleep, distributed.SECONDS_TO_LEAVE)]


# ---------------------------------------------------------------------------- rejected runs


def refused(ended) -> str:
    """Return the error of a run whose processes exited before training. Only the first process may
    print an error."""
    assert [child.code for child in ended] == [1] * len(ended), [e.output for e in ended]
    first, *others = ended
    assert all("train.py:" not in child.output for child in others)
    assert "Traceback" not in "".join(child.output for child in ended)
    return first.output[first.output.index("train.py: ") :]


def other_code() -> None:
    vars(start)["fingerprint_of_code"] = lambda *_: "0123456789abcdef"


@pytest.mark.thorough
def test_run_fails_when_processes_have_different_settings(corpus, tmp_path):
    """The error reports the rank of the first process with different settings."""
    out, fewer = tmp_path / "out", without_first_clip(corpus, tmp_path)
    other = flags(out, corpus, learning_rate=0.5, training_files=fewer)
    message = refused(Together(2, [flags(out, corpus), other], {1: (other_code,)}).end())
    assert "the processes differ" in message
    assert "process 1 (" in message
    assert "learning_rate is 0.5, expected 0.001" in message
    assert "the corpus is " in message
    assert "the project's code is 0123456789abcdef" in message
    assert not out.exists()


def test_run_fails_when_the_epochs_setting_differs_between_processes(corpus, alone, tmp_path):
    out = shutil.copytree(alone, tmp_path / "out")
    message = refused(Together(2, [on(out), on(out, "--hparams", "epochs=3")]).end())
    assert "epochs is 3, expected 2 " in message
    check_all(ended := Together(2, on(out)).end())
    assert "this run is already finished (epoch 2)" in ended[0].output


def without_first_clip(corpus, folder: Path) -> Path:
    fewer = folder / "train.txt"
    fewer.write_text("".join(corpus.train.read_text().splitlines(keepends=True)[1:]))
    return fewer


@pytest.mark.thorough
def test_resume_fails_when_only_some_processes_allow_new_clips(corpus, alone, tmp_path):
    out = shutil.copytree(alone, tmp_path / "out")
    fewer = without_first_clip(corpus, tmp_path)
    arguments = on(out, "--hparams", f"epochs=3,training_files={fewer}")
    message = refused(Together(2, [[*arguments, "--new-clips"], arguments]).end())
    assert "process 1: " in message
    assert "--resume --new-clips" in message
    check_all(Together(2, [*arguments, "--new-clips"]).end())
    assert metrics(out, "run")[-1]["changed_clips"] == {"added": 0, "gone": 1, "changed": 0}


def test_training_error_is_printed_once_when_it_occurs_in_all_processes(corpus, tmp_path):
    said = refused(Together(2, flags(tmp_path / "out", corpus, sync_batch_norm=True)).end())
    assert "sync_batch_norm=True" in said
    assert len(said.splitlines()) == 1


def test_sampler_is_rejected_when_optimizer_steps_cannot_be_split_among_processes():
    hparams = create_hparams("batches_per_update=3,batch_size=2")
    with pytest.raises(UserError, match="multiple of 2"):
        make_sampler(np.arange(1, 9), hparams, world_size=2)


def test_shared_batch_norm_does_not_communicate_when_there_is_one_process():
    model = torch.nn.Sequential(torch.nn.Conv1d(2, 3, 1), torch.nn.BatchNorm1d(3))
    x = torch.randn(4, 2, 5)
    expected = model(x)
    shared = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert isinstance(shared[1], torch.nn.SyncBatchNorm)
    assert list(shared.state_dict()) == list(model.state_dict())
    with distributed.batch_norm_alone(shared):
        assert torch.equal(shared(x), expected)
    assert "forward" not in vars(shared[1])
