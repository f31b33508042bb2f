"""Provide a tiny corpus, a tiny model and training runs that tests can kill."""

import faulthandler
import json
import multiprocessing
import multiprocessing.forkserver
import os
import runpy
import signal
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from same_run import TIMES, compare_runs, differences

from hparams import HParams
from model import Tacotron2
from tacotron2_voice import griffin_lim
from tacotron2_voice.utils import plots

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"  # tests/data/README.md lists the source of each file
GOLDEN = DATA / "golden"
LJSPEECH_LENGTHS = DATA / "ljspeech" / "lengths.csv"
LJSPEECH_CLIPS = DATA / "ljspeech" / "wavs"
SAMPLING_RATE = 22050
HOP = 800
SENTENCES = (
    "Ah.",
    "Go on.",
    "A dog.",
    "Two cats.",
    "It rains now.",
    "We sat down.",
    "She reads a lot.",
    "The tea is cold.",
    "They left at noon.",
    "A ship came home late.",
    "The old man had a hat on.",
    "Nobody knew where it was.",
    "The river froze over in May.",
    "He paid three pounds for the map.",
)
TINY = {
    "sampling_rate": SAMPLING_RATE,
    "hop_length": HOP,
    "n_mel_channels": 10,
    "symbols_embedding_dim": 8,
    "encoder_embedding_dim": 8,
    "encoder_n_convolutions": 1,
    "attention_rnn_dim": 8,
    "decoder_rnn_dim": 8,
    "prenet_dim": 8,
    "attention_dim": 6,
    "attention_location_n_filters": 2,
    "attention_location_kernel_size": 5,
    "postnet_embedding_dim": 8,
    "postnet_n_convolutions": 2,
    "batch_size": 3,
    "random_epochs": 0,
    "validation_batch_size": 3,
    "num_workers": 0,
    "log_interval": 3,
    "iters_per_checkpoint": 4,
    "keep_checkpoints": 2,
    "epochs": 2,
    "decoder": "reference",  # the reference decoder is faster for such a small model
}


def tiny(**settings) -> str:
    """Return the settings of the tiny model as an argument for --hparams."""
    return ",".join(f"{name}={value}" for name, value in (TINY | settings).items())


# Settings of a small model whose speech always ends after 12 decoder steps.
SMALL_MODEL = (
    "symbols_embedding_dim=16,encoder_embedding_dim=16,attention_rnn_dim=16,decoder_rnn_dim=16,"
    "prenet_dim=8,attention_dim=8,attention_location_n_filters=4,postnet_embedding_dim=16,"
    "max_decoder_steps=12"
)


def save_small_model(path: Path, hparams: HParams, **more: object) -> Path:
    """Write a checkpoint in the format of NVIDIA, with the settings of this project."""
    torch.manual_seed(0)
    saved = {"iteration": 7, "state_dict": Tacotron2(hparams).state_dict()}
    torch.save(saved | {"hparams": asdict(hparams)} | more, path)
    return path


@dataclass(frozen=True)
class Corpus:
    folder: Path
    train: Path  # training filelist
    val: Path

    def hparams(self, **overrides) -> str:
        """Return the settings for training on this corpus as an argument for --hparams."""
        return tiny(**{"training_files": self.train, "validation_files": self.val} | overrides)


# Settings of the run that tests stop and resume. This run has 4 epochs of 4 or 5 optimizer steps.
# Checkpoints are saved inside and between epochs. Validation runs after epochs 2 and 4.
LONG = {"epochs": 4, "iters_per_checkpoint": 3, "log_interval": 2, "n_frames_per_step": 4}
LONG |= {"learning_rate_warmup_steps": 30}  # every optimizer step has a different learning rate
SECONDS = {"train": np.linspace(0.2, 0.8, 14), "val": (0.2, 0.3, 0.4, 0.5, 0.7)}


def make_corpus(folder: Path, durations_by_list: dict = SECONDS) -> Corpus:
    """Write 14 training and 5 validation clips: noisy gliding tones of 0.2 to 0.8 s."""
    import soundfile  # imported here because GPU machines may lack soundfile

    rng = np.random.default_rng(7)
    for name, durations in durations_by_list.items():
        lines = []
        for i, seconds in enumerate(durations):
            time = np.arange(round(seconds * SAMPLING_RATE)) / SAMPLING_RATE
            tone = 0.4 * np.sin(2 * np.pi * (200 + 60 * i + 150 * time) * time)
            path = folder / f"{name}{i:02d}.wav"
            soundfile.write(path, tone + 0.01 * rng.standard_normal(len(time)), SAMPLING_RATE)
            lines.append(f"{path}|{SENTENCES[i]}|{len(time) / SAMPLING_RATE:.6f}")
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Corpus(folder, folder / "train.txt", folder / "val.txt")


def flags(out: Path, hparams: str, *more) -> list[str]:
    """Return arguments for train.py."""
    return ["-o", str(out), "--hparams", hparams, *map(str, more)]


# ---------------------------------------------------------------------------- files of a run


def metrics(directory: Path, kind: str | None = None) -> list[dict]:
    """Return the records of metrics.jsonl. If `kind` is given, return only the records of this
    kind."""
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if kind in (None, line["kind"])]


def curves(directory: Path) -> dict[str, list]:
    """Return a dict from TensorBoard tags to lists of points.

    A point of a curve is (optimizer step, value). The values of durations, plots and audio cannot
    be compared, so a point of these curves contains only the optimizer step.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(
        str(directory / "logs"), {"scalars": 0, "images": 0, "audio": 0, "tensors": 0}
    ).Reload()
    found: dict[str, list] = {
        tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }
    for tag in found:
        if tag.rpartition("/")[2] in TIMES:
            found[tag] = [(step,) for step, _ in found[tag]]
    found |= {tag: [(e.step,) for e in events.Images(tag)] for tag in events.Tags()["images"]}
    found |= {tag: [(e.step,) for e in events.Audio(tag)] for tag in events.Tags()["audio"]}
    # TensorBoard reads files in the order of their names, so the points may not be sorted.
    return {tag: sorted(points) for tag, points in found.items()}


def load(path: Path) -> dict:
    return torch.load(path, weights_only=True)


def newest(directory: Path) -> Path:
    return max(directory.glob("checkpoint_*.pt"), key=lambda path: int(path.stem.split("_")[1]))


def assert_same(one, other, path: str = "") -> None:
    """Assert that two nested dicts, lists or tensors are bitwise equal."""
    assert differences(one, other, path) == []


def assert_same_run(one: Path, other: Path) -> None:
    """Assert that two runs have equal checkpoints and logs, except times."""
    assert compare_runs(one, other) == []
    assert newest(one).name == newest(other).name
    assert curves(one) == curves(other)


# ---------------------------------------------------------------------------- separate processes


@dataclass
class Ended:
    code: int  # exit code, or the negative number of the signal that killed the process
    output: str  # stdout and stderr


def fork_server():
    """Return a multiprocessing context in which the fork server has already imported the slow
    modules (preload.py)."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preload"])
    # The first call starts the fork server. The server reads PYTHONPATH only when it starts.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests'}")
        multiprocessing.forkserver.ensure_running()
    return context


class Child:
    """Run `train.main(arguments)` in a forked process, in a separate session.

    Args:
        hook: called with `hook_arguments` before training, for example to schedule a crash.
        log: file for the output (default: the name of the output folder with the suffix .log).
    """

    def __init__(self, arguments: list, hook=None, *hook_arguments, log: Path | None = None):
        arguments = [str(argument) for argument in arguments]
        self.log = log or Path(arguments[arguments.index("-o") + 1]).with_suffix(".log")
        self.process = fork_server().Process(
            target=_run_child, args=(self.log, arguments, hook, hook_arguments)
        )
        self.process.start()

    def end(self, timeout: float = 120) -> Ended:
        self.process.join(timeout)
        if self.process.exitcode is None:
            # this signal makes the process print its stack traces
            os.kill(self.process.pid, signal.SIGUSR1)
            self.process.join(1)
            self.process.kill()
            self.process.join()
            raise TimeoutError(f"still running after {timeout} s:\n{self.log.read_text()}")
        return Ended(self.process.exitcode, self.log.read_text())


class Together:
    """Run `train.main(arguments)` in several processes, like torchrun.

    Args:
        arguments: arguments for all processes, or a list of arguments per process.
        hooks: maps a rank to a hook and its arguments.
    """

    def __init__(self, world_size: int, arguments: list, hooks: dict | None = None):
        if not isinstance(arguments[0], list):
            arguments = [arguments] * world_size
        out = Path(arguments[0][arguments[0].index("-o") + 1])
        port = free_port()
        self.children = [
            Child(
                arguments[rank],
                train_with_others,
                *(rank, world_size, port, *(hooks or {}).get(rank, ())),
                log=out.with_name(f"{out.name}.{rank}.log"),
            )
            for rank in range(world_size)
        ]

    def end(self, timeout: float = 120) -> list[Ended]:
        """Wait for all processes, and return the exit code and the output of each process."""
        try:
            return [child.end(timeout) for child in self.children]
        finally:
            for child in self.children:
                child.process.kill()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def train_with_others(rank: int, world_size: int, port: int, hook=None, *hook_arguments) -> None:
    """Set the environment variables of torchrun in one of several local processes, and call
    `hook`."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    if hook is not None:
        hook(*hook_arguments)


def print_into(log: Path) -> None:
    """Redirect the output of this process and its children to a file."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)


def _run_child(log: Path, arguments: list[str], hook, hook_arguments) -> None:
    os.setsid()
    print_into(log)
    faulthandler.register(signal.SIGUSR1, file=2)
    import train

    make_plots_empty(setattr)
    # Fork the workers of the DataLoader, as a run on Linux does.
    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(1)
    torch.cuda.is_available = lambda: False
    if hook is not None:
        hook(*hook_arguments)
    code: int | str | None = 0
    try:
        train.main(arguments)
    except SystemExit as stop:
        code = stop.code
    sys.stdout.flush()  # Python also flushes stdout before it prints an exit message
    sys.exit(code)  # sys.exit deletes the objects of the run, as at the end of a program


def call_alone(log: Path, function, *arguments) -> None:
    """Call a function in a new session, and write its output to `log`.

    Only child processes may call this function.
    """
    os.setsid()
    print_into(log)
    function(*arguments)


def run_program(folder: Path, arguments: list[str], timeout: float = 120) -> Ended:
    """Run `python ARGUMENTS` in `folder`, which contains a copy of the project.

    To save time, the libraries are already imported, and plots are not drawn. The modules of the
    project are imported from the copy.

    Args:
        arguments: a program and its options, or "-m" with a module and its options.
    """
    log = folder.with_suffix(".log")
    process = fork_server().Process(target=_run_program, args=(log, folder, arguments))
    process.start()
    process.join(timeout)
    if process.exitcode is None:
        process.kill()
        process.join()
    return Ended(process.exitcode, log.read_text(encoding="utf-8"))


def _run_program(log: Path, folder: Path, arguments: list[str]) -> None:
    print_into(log)
    for name, module in list(sys.modules.items()):
        if _of_the_project(getattr(module, "__file__", None) or "/"):
            del sys.modules[name]
    libraries = [path for path in sys.path if not _of_the_project(path)]
    is_module = arguments[0] == "-m"
    own = folder if is_module else (folder / arguments[0]).parent
    sys.path[:] = [str(own), *libraries]
    os.chdir(folder)
    # child processes of the program must also import the copied project
    os.environ["PYTHONPATH"] = ""
    # With any other start method, the program would start its own processes with the fork server of
    # the tests.
    multiprocessing.set_start_method("fork", force=True)
    context = multiprocessing.get_context("fork")
    save_figure = Figure.savefig
    sys.argv[:] = arguments
    with pytest.MonkeyPatch.context() as patch:
        # With any start method except fork, child processes would import all libraries again.
        patch.setattr(multiprocessing, "get_context", lambda _=None: context)
        patch.setattr(Figure, "savefig", lambda _, *a, **b: save_figure(Figure((1, 1)), *a, **b))
        if is_module:
            sys.argv[:] = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(arguments[0], run_name="__main__")


def _of_the_project(file: str) -> bool:
    """Return whether a file belongs to the project, but not to a virtual environment inside it."""
    path = Path(file).resolve()
    return path.is_relative_to(ROOT) and not path.is_relative_to(Path(sys.prefix).resolve())


def synthesize_quickly(set_attribute) -> None:
    """Replace Griffin-Lim with a fast function of the log-mel, and do not draw plots."""
    repeat = lambda _, mels: (mel.mean(0).repeat(256)[:-1] / 20 for mel in mels)  # noqa: E731
    set_attribute(griffin_lim.GriffinLim, "stream", repeat)
    set_attribute(plots, "draw_alignment", lambda *_, **__: Figure((1, 1)))


def make_plots_empty(set_attribute) -> None:
    """Skip drawing the plots of a run, because drawing takes longer than training."""
    from training import tensorboard

    for name in ("draw_alignment", "draw_mels", "draw_stop_token"):
        set_attribute(tensorboard, name, lambda *_, **__: Figure(figsize=(1, 1)))


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def act_at(owner, name: str, act, call: int = 1, *, after: bool = False) -> None:
    """Patch the function `owner.name` so that call number `call` also calls `act`.

    If `after` is true, `act` is called after the original function, otherwise before it.
    """
    original = getattr(owner, name)
    calls = 0

    def wrapped(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == call and not after:
            act()
        result = original(*args, **kwargs)
        if calls == call and after:
            act()
        return result

    setattr(owner, name, wrapped)


OTHER_THAN_FILES = ("a folder", "a named pipe", "a device")


def make_other_than_file(path: Path, kind: str) -> None:
    """Create a folder, a named pipe or a device at `path`."""
    if kind == "a folder":
        path.mkdir()
    elif kind == "a named pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(os.devnull)
