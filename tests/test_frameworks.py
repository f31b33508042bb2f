"""The sampler in other people's training loops: examples/frameworks, in one process and in two."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers import ROOT

PROGRAMS: dict[str, tuple[str, ...]] = {  # and the packages that they need
    "plain_loop": (),
    "stateful_loader": ("torchdata",),
    "accelerate_loop": ("accelerate",),
    "hf_trainer": ("transformers", "accelerate"),
    "lightning_trainer": ("lightning", "torchdata"),
}
each_number_of_processes = pytest.mark.parametrize("processes", [1, 2])


def where_installed(names: Iterable[str], packages_of: Callable[[str], Iterable[str]]) -> list:
    """Parameters, each skipped where one of the packages that it needs is missing."""
    params = []
    for name in names:
        missing = [package for package in packages_of(name) if find_spec(package) is None]
        reason = f"no {', '.join(missing)}: requirements/frameworks.txt"
        params.append(pytest.param(name, marks=pytest.mark.skipif(bool(missing), reason=reason)))
    return params


NEEDED = sorted({package for packages in PROGRAMS.values() for package in packages})


def run(folder: Path, processes: int, *jobs: str) -> list[list]:
    """What each process returned for each job of framework_runs.py, or how it ended."""
    command = [sys.executable, "-W", "ignore", "-W", "default::UserWarning:batching"]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command += [str(ROOT / "tests" / "framework_runs.py"), str(folder), *jobs]
    for _ in range(2):
        folder.mkdir()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        if "Timeout (" not in done.stderr:
            break
        # Two processes of Lightning waited for each other for ever once in some hundred runs. A
        # sampler that makes them wait does so again.
        warnings.warn(f"waited for ever, started again: {jobs}: {done.stderr}", stacklevel=2)
        shutil.move(folder, folder.with_name("waited"))
    assert done.returncode == 0, done.stdout + done.stderr
    texts = [(folder / f"result.{rank}").read_text() for rank in range(processes)]
    results = [list(ranks) for ranks in zip(*map(json.loads, texts), strict=True)]
    if processes > 1 and not isinstance(results[0][0], str):
        assert "shared by 2 processes, as torch.distributed says" in done.stderr
    return results


def steps(folder: Path, processes: int) -> list[list[dict]]:
    """[ranks][steps] the clips and the loss of every step."""
    texts = [(folder / f"steps.{rank}").read_text() for rank in range(processes)]
    return [[json.loads(line) for line in text.splitlines()] for text in texts]


@pytest.fixture(scope="module")
def losses_of_plain_loop(tmp_path_factory):
    @cache
    def losses(processes):
        folder = tmp_path_factory.mktemp("plain") / "runs"
        assert run(folder, processes, "plain_loop --folder whole") == [[None] * processes]
        return [step["loss"] for rank in steps(folder / "whole", processes) for step in rank]

    return losses


@each_number_of_processes
@pytest.mark.parametrize("program", where_installed(PROGRAMS, lambda _: NEEDED))
def test_programs_train_every_clip_and_resume(program, processes, tmp_path, losses_of_plain_loop):
    """With workers and without, at the end of an epoch and at random places inside, exactly; the
    losses are those of the plain loop."""
    draw = random.Random(f"{program} {processes}")
    epoch = 13 if processes == 1 else 7
    inside = draw.sample([step for step in range(1, 3 * epoch) if step % epoch], 4)
    places = [*((place, 0) for place in inside[:3]), (inside[3], 2), (epoch, 0), (epoch, 2)]
    jobs = [f"{program} --folder whole0", f"{program} --folder whole2 --workers 2"]
    for place, workers in places:
        job = f"{program} --folder at{place}-{workers} --workers {workers}"
        jobs += [f"{job} --stop {place}", f"{job} --resume"]
    folder = tmp_path / "runs"
    assert run(folder, processes, *jobs) == [[None] * processes] * len(jobs)
    whole = steps(folder / "whole0", processes)
    assert {len(rank) for rank in whole} == {3 * epoch}
    for start in range(0, 3 * epoch, epoch):
        batches = [step["clips"] for rank in whole for step in rank[start : start + epoch]]
        assert Counter(clip for batch in batches for clip in batch) == Counter(range(300))
    # As they round sums of gradients in different orders.
    losses = [step["loss"] for rank in whole for step in rank]
    assert losses == pytest.approx(losses_of_plain_loop(processes), rel=1e-5)
    assert steps(folder / "whole2", processes) == whole
    for place, workers in places:
        assert steps(folder / f"at{place}-{workers}", processes) == whole


STOPS = {1: ([7, 18], [5, 20], [3, 7, 13, 20, 30]), 2: ([4, 9], [3, 5, 7, 12, 18])}


@each_number_of_processes
@pytest.mark.parametrize("program", where_installed(PROGRAMS, PROGRAMS.__getitem__))
def test_stops_in_several_epochs_lose_no_clip(program, processes, tmp_path):
    """An epoch has 13 steps in one process, 7 in two; some stops are at its very end."""
    jobs = [f"{program} --folder whole"]
    for stops in STOPS[processes]:
        job = f"{program} --folder stopped{stops[0]}"
        jobs += [f"{job} --stop {stops[0]}"]
        jobs += [f"{job} --resume --stop {stop}" for stop in stops[1:]] + [f"{job} --resume"]
    folder = tmp_path / "runs"
    assert run(folder, processes, *jobs) == [[None] * processes] * len(jobs)
    for stops in STOPS[processes]:
        stopped = steps(folder / f"stopped{stops[0]}", processes)
        assert stopped == steps(folder / "whole", processes), stops


def packages_of(framework: str) -> list[str]:
    return ["torchdata", framework]  # all their jobs are in one program, which imports both


FORGETFUL = {
    "accelerate": [
        "accelerate_forgetful num_workers=2", "accelerate_forgetful use_stateful_dataloader=True",
        "accelerate_forgetful ranks_given=True", "accelerate_forgetful wrapped=True",
        "accelerate_stateful epoch=1", "accelerate_skipping epoch=1",
    ],
    "transformers": [
        "trainer_resumed", "trainer_resumed prepare=False steps_per_update=2",
    ],
    "lightning": ["lightning_forgetful"],
}  # fmt: skip


@each_number_of_processes
@pytest.mark.parametrize("framework", where_installed(FORGETFUL, packages_of))
def test_forgetful_users_lose_no_clip(framework, processes, tmp_path):
    jobs = FORGETFUL[framework]
    for job, ranks in zip(jobs, run(tmp_path / "runs", processes, *jobs), strict=True):
        assert not any(isinstance(rank, str) for rank in ranks), (job, ranks)
        for epochs in zip(*ranks, strict=True):
            clips = Counter(clip for batches in epochs for batch in batches for clip in batch)
            assert clips == Counter(range(90)), job
            assert len({len(batches) for batches in epochs}) == 1
        if job.startswith("accelerate_stateful"):  # the epoch resumed, and the same one whole
            assert ranks[0][0] == ranks[0][1]


NOT_CONSTANT = 'batches_per_epoch=None: .* expected "constant"'
EPOCH_NOT_KNOWN = r"an unknown epoch; expected loader.set_epoch\(epoch\)"
REFUSED = {
    "accelerate": {
        "accelerate_forgetful dispatch_batches=True": "dispatch_batches=True: .* expected False",
        "accelerate_stateful num_workers=2": "use_stateful_dataloader: .* without workers",
        "accelerate_forgetful split_batches=True": "ValueError: In order to use `split_batches==T",
        "accelerate_skipping": EPOCH_NOT_KNOWN,
        "accelerate_stateful": EPOCH_NOT_KNOWN,
    },
    "transformers": {"trainer_resumed batches_per_epoch=None": NOT_CONSTANT},
    "lightning": {
        "lightning_refused batches_per_epoch=None": NOT_CONSTANT,
        "lightning_refused": "resumes a DataLoader at .* start; expected .*StatefulDataLoader",
        "lightning_refused use_distributed_sampler=True": "set `Trainer.use_distributed_sampler=F",
    },
}


@pytest.mark.parametrize("framework", where_installed(REFUSED, packages_of))
def test_what_would_lose_clips_is_refused(framework, tmp_path):
    said = REFUSED[framework]
    for (job, words), ranks in zip(said.items(), run(tmp_path / "runs", 2, *said), strict=True):
        for rank in ranks:
            assert isinstance(rank, str), job
            assert re.search(words, rank)
