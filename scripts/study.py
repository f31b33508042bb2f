"""The study of learning: every batching trained with several seeds, then transcribed.

    scripts/table2/all.sh --small        makes the corpus and its mels, then runs this

Experiments are the ten of the paper's Table 2, the exponential noise, and follow-ups: other batch
sizes, as many updates as RAND makes, random batches at the start. Each is trained by its script in
scripts/table2, and its last checkpoint (so that all have trained as many epochs) then speaks 100
numbers that are in no training set, which a recogniser transcribes: scripts/listen.py.

Two runs go side by side, the first seed of all experiments first. Ctrl-C stops both with a
checkpoint; the same command resumes. Settings come from the environment, as settings.sh names
them: CORPUS, EPOCHS, SEEDS, EXTRA.

    OUT/NAME/seed_N/                     a run of train.py
    OUT/NAME/seed_N/intelligibility.json its word error rate and the transcripts
    OUT/NAME/seed_N/epoch_minutes.json   what its epochs take, timed in turns at the end
    OUT/logs/NAME-seed_N.log             what both programs printed
    OUT/unseen/                          recordings of the 100 numbers, and their own rates
    OUT/report/                          the report, once every run has ended
"""

from project_root import ROOT

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from analysis.arguments import at_least_one, make_parser
from analysis.transcription import INTELLIGIBILITY_FILE, measure_reference, read_intelligibility
from errors import UserError
from files import lock, numbered_lines
from hparams import HParams, create_hparams
from progress import duration
from training.checkpoint import list_checkpoints

try:
    from analysis.lengths import read_lengths
    from analysis.recommendation import Limits, batching_overrides, recommend
    from analysis.runs import EPOCH_MINUTES_FILE
    from analysis.survey import PARAMETERS, Surveyor, match_zero_padding
except ImportError as error:
    sys.exit(f"study.py: {error}; pip install -r requirements-report.txt")

FEWER_SEEDS = 3  # of the experiments that nothing rests upon
BATCH_SIZES = (4, 8, 16)
RANDOM_EPOCHS = 2  # at the start of the follow-up that begins with random batches
PLANNED = 40  # epochs whose means are compared
TEN = "rand sb_br ssb_br bkt_br ats_br sb ssb sb_dbs ssb_dbs ssb_dbs_br".split()
EXPONENTIAL = "batching_strategy=semi_sorted_exponential"
RUN_CORPUS = "demo_corpus.json"


@dataclass(frozen=True)
class Experiment:
    """`script` of scripts/table2 with further overrides, under a name of its own."""

    name: str
    script: str
    overrides: str = ""
    all_seeds: bool = False  # or the first FEWER_SEEDS


@dataclass(frozen=True)
class StudyRun:
    experiment: Experiment
    seed: int

    @property
    def place(self) -> Path:
        """Of its run, in the study's folder."""
        return Path(self.experiment.name) / f"seed_{self.seed}"

    def __str__(self) -> str:
        return f"{self.experiment.name}, seed {self.seed}"


# ---------------------------------------------------------------------------- what is run


def matched_overrides(surveyor: Surveyor, batch_size: int) -> str:
    """Bucket size and bins with which BKT and ATS pad as the paper's do beside SSB.

    The paper chose them so that ZPR is equal but for 0.14 points, in the order SSB, BKT, ATS. On a
    small corpus its proportions, of a handful of batches a bucket, miss that order, so each is the
    value whose ZPR comes nearest to that of the one before it from below.

    Raises:
        UserError: if the corpus is so small that there is none.
    """
    noise = surveyor.survey(batch_size, "semi_sorted", epochs=PLANNED)
    settings, target = [], noise.zero_padding_rate
    for strategy in ("bucket", "alternated_sort"):
        found = match_zero_padding([surveyor.lengths], batch_size, strategy, target, epochs=PLANNED)
        if found is None:
            raise UserError(
                f"{len(surveyor.lengths)} training clips: too few for {PARAMETERS[strategy]} to "
                f"keep the zero-padding rate below {target:.2%}; make a larger corpus"
            )
        value, target = found
        settings.append(f"{PARAMETERS[strategy]}={value}")
    return ",".join(settings)


def recommended_overrides(surveyor: Surveyor, hparams: HParams) -> str:
    """The exponential noise that mixes as much as the paper's batching, as --recommend finds it."""
    size = hparams.batch_size
    paper = surveyor.survey(size, "semi_sorted", dynamic_batch_size=True, epochs=PLANNED)
    found = recommend(surveyor, size, Limits(paper.novelty), epochs=PLANNED)
    exponential = [x for x in found if x.strategy == "semi_sorted_exponential"]
    [best] = [x for x in exponential if x.dynamic_batch_size]
    return batching_overrides(best)


def size_of_equal_updates(surveyor: Surveyor, batch_size: int) -> int:
    """The base batch size with which SSB-DBS-BR makes most nearly as many updates as RAND."""
    updates = math.ceil(len(surveyor.lengths) / batch_size)

    def difference(size: int) -> float:
        found = surveyor.survey(size, "semi_sorted", dynamic_batch_size=True, epochs=PLANNED)
        return abs(found.num_batches - updates)

    return min(range(1, batch_size + 1), key=difference)


def experiments(surveyor: Surveyor, hparams: HParams) -> list[Experiment]:
    """All of the study, the follow-ups last."""
    main = [Experiment(name, name, all_seeds=name in ("rand", "ssb_dbs_br")) for name in TEN]
    recommended = recommended_overrides(surveyor, hparams)
    main.append(Experiment("ssb_exp_dbs_br_recommended", "ssb_dbs_br", recommended, True))
    default = f"{EXPONENTIAL},local_randomization_factor={HParams().local_randomization_factor}"
    main.append(Experiment("ssb_exp_dbs_br", "ssb_dbs_br", default))
    equal = size_of_equal_updates(surveyor, hparams.batch_size)
    follow_ups = [
        (f"ssb_dbs_br_batch_{equal}", "ssb_dbs_br", f"batch_size={equal}"),
        ("ssb_dbs_br_random_epochs", "ssb_dbs_br", f"random_epochs={RANDOM_EPOCHS}"),
    ]
    for size in (size for size in BATCH_SIZES if size != hparams.batch_size):
        for name in ("ssb_dbs_br", "rand"):
            follow_ups.append((f"{name}_batch_{size}", name, f"batch_size={size}"))
    return main + [
        # The first seeds of those with random epochs said that these help: they may be recommended.
        Experiment(*row, all_seeds="random_epochs" in row[0])
        for row in dict.fromkeys(follow_ups)
    ]


def jobs_in_order(found: list[Experiment], seeds: list[int]) -> list[StudyRun]:
    """Seed by seed; of each the experiments in their order, follow-ups last."""
    return [
        StudyRun(experiment, seed)
        for place, seed in enumerate(seeds)
        for experiment in found
        if experiment.all_seeds or place < FEWER_SEEDS
    ]


# ---------------------------------------------------------------------------- running


class Runner:
    """Runs programs in sessions of their own: a Ctrl-C reaches them through `stop` alone."""

    def __init__(self) -> None:
        self.stopping = False
        self._processes: set[subprocess.Popen] = set()
        self._lock = threading.Lock()

    def stop(self, *_) -> None:
        """Ask every program to save and end; the second time, to end at once. A signal handler."""
        self.stopping = True
        with self._lock:
            for process in self._processes:
                os.killpg(process.pid, signal.SIGINT)  # bash waits for train.py, and ends with it

    def run(self, command: list, log: Path, environment: dict[str, str]) -> int:
        """The exit status of a command, whose output is added to `log`."""
        with open(log, "a", encoding="utf-8") as output:
            with self._lock:
                if self.stopping:
                    return 128 + signal.SIGINT
                process = subprocess.Popen(
                    list(map(str, command)),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env=os.environ | environment,
                )
                self._processes.add(process)
            # Not reaped before it has left the set: its number might be another program's by then.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            with self._lock:
                self._processes.discard(process)
            return process.wait()


class Study:
    """The jobs of a study and how far they are. `shared`: overrides of all runs."""

    def __init__(self, out: Path, epochs: int, jobs: list[StudyRun], runner: Runner, shared: str):
        self.out, self.epochs, self.jobs = out, epochs, jobs
        self.runner, self.shared = runner, shared
        self.failed: list[str] = []
        self.seconds: list[float] = []  # of the jobs that ended in this process
        self.done = sum(self.is_done(job) for job in jobs)

    def is_done(self, job: StudyRun) -> bool:
        found = self.out / job.place / INTELLIGIBILITY_FILE
        return found.exists() and read_intelligibility(found).epochs >= self.epochs

    def run(self, side_by_side: int) -> None:
        """All jobs that are not done yet; one that fails does not stop the others."""
        left = [job for job in self.jobs if not self.is_done(job)]
        print(f"{len(self.jobs)} runs of {self.epochs} epochs, {len(left)} left", flush=True)
        with ThreadPoolExecutor(side_by_side) as pool:
            list(pool.map(lambda job: self._run_job(job, side_by_side), left))

    def _run_job(self, job: StudyRun, side_by_side: int) -> None:
        if self.runner.stopping:
            return
        began = time.monotonic()
        print(f"{job}: training", flush=True)
        log = self.out / "logs" / f"{job.experiment.name}-seed_{job.seed}.log"
        problem = self._train(job, log) or self._transcribe(job, log)
        if self.runner.stopping:
            return
        self.seconds.append(time.monotonic() - began)
        if problem:
            self.failed.append(f"{job}: {problem}, see {log}")
            ended = f"failed: {problem}, see {log}"
        else:
            self.done += 1
            rate = read_intelligibility(self.out / job.place / INTELLIGIBILITY_FILE)
            ended = f"word error rate {rate.word_error_rate:.3f}"
        left = len(self.jobs) - self.done - len(self.failed)
        seconds = left * sum(self.seconds) / len(self.seconds) / min(side_by_side, max(left, 1))
        print(
            f"{job}: {ended}, after {duration(self.seconds[-1])}; {self.done} of "
            f"{len(self.jobs)} done, about {duration(seconds)} left",
            flush=True,
        )

    def _train(self, job: StudyRun, log: Path) -> str:
        """What went wrong, if anything."""
        extra = ",".join(filter(None, [self.shared, job.experiment.overrides]))
        environment = {"NAME": job.experiment.name, "SEEDS": str(job.seed), "EXTRA": extra}
        script = ROOT / "scripts" / "table2" / f"{job.experiment.script}.sh"
        status = self.runner.run(["bash", script], log, environment)
        return f"training ended with status {status}" if status else ""

    def _transcribe(self, job: StudyRun, log: Path) -> str:
        """What went wrong, if anything."""
        folder = self.out / job.place
        _, last = list_checkpoints(folder)[-1]
        command = [sys.executable, ROOT / "scripts" / "listen.py", "--checkpoint", last]
        command += ["--recordings", self.out / "unseen", "-o", folder / INTELLIGIBILITY_FILE]
        status = self.runner.run(command, log, {})
        return f"transcription ended with status {status}" if status else ""


def record_unseen(out: Path, corpus: Path, texts: int, hparams: HParams) -> None:
    """Record the numbers that follow those of the corpus, and measure their own rates.

    Raises:
        UserError: if the corpus is no demo corpus, or a program is missing.
    """
    missing = "no such file: --small takes a corpus of scripts/make_demo_corpus.py; leave CORPUS "
    lines = numbered_lines(corpus / RUN_CORPUS, missing + "unset, and one is made")
    made_from = json.loads("".join(line for _, line in lines))
    command = [sys.executable, ROOT / "scripts" / "make_demo_corpus.py", out / "unseen"]
    command += ["--clips", texts, "--skip", made_from["clips"], "--seed", made_from["seed"]]
    if subprocess.run(list(map(str, command)), check=False).returncode != 0:
        raise UserError("the unseen numbers could not be recorded")
    reference = measure_reference(out / "unseen", hparams)
    print(
        f"reference word error rate {reference.recordings:.3f}, after mel and Griffin-Lim "
        f"{reference.after_griffin_lim:.3f}"
    )


def prepare(out: Path, texts: int) -> Study:
    """The study of the environment's settings.

    Raises:
        UserError: if one of them cannot be used, or another process runs a study in `out`.
    """
    hparams = create_hparams(os.environ["EXTRA"])
    record_unseen(out, Path(os.environ["CORPUS"]), texts, hparams)
    clips = read_lengths(out / "filelists" / "train_mel.txt", hparams)
    surveyor = Surveyor(clips.frames, frames_per_step=hparams.n_frames_per_step)
    seeds = [int(seed) for seed in os.environ["SEEDS"].split()]
    jobs = jobs_in_order(experiments(surveyor, hparams), seeds)
    matched = matched_overrides(surveyor, hparams.batch_size)
    shared = f"{os.environ['EXTRA'].strip(',')},{matched}"
    return Study(out, int(os.environ["EPOCHS"]), jobs, Runner(), shared)


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--side-by-side", type=at_least_one, default=2, help="runs (2)")
    parser.add_argument("--texts", type=at_least_one, default=100, help="unseen numbers (100)")
    args = parser.parse_args(arguments)
    out = args.out
    again = "the same command resumes it"
    try:
        (out / "logs").mkdir(parents=True, exist_ok=True)
        with lock(out):
            study = prepare(out, args.texts)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                    signal.signal(number, study.runner.stop)
            study.run(args.side_by_side)
    except BlockingIOError:
        sys.exit(f"study.py: another process runs a study in {out}: wait for it, or stop it first")
    except KeyboardInterrupt:
        sys.exit(f"study.py: stopped; {again}")
    except (UserError, OSError) as error:
        sys.exit(f"study.py: {error}")
    if study.runner.stopping:
        print(f"study.py: stopped with checkpoints; {again}", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    out = out.resolve()
    timed = all((out / job.place / EPOCH_MINUTES_FILE).exists() for job in study.jobs)
    if not (study.failed or timed):
        time_epochs = [sys.executable, "benchmarks/epoch.py", "--runs", str(out)]
        if subprocess.run(time_epochs, cwd=ROOT, check=False).returncode != 0:
            sys.exit(f"study.py: epochs could not be timed; {again}")
    report = [sys.executable, "scripts/report.py", str(out), "-o", str(out / "report")]
    status = subprocess.run(report, cwd=ROOT, check=False).returncode
    if study.failed:
        sys.exit("\n".join(["study.py: failed, and left out of the report:", *study.failed]))
    sys.exit(status)


if __name__ == "__main__":
    main()
