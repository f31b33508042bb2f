"""The study of learning: every batching trained with several seeds, then transcribed.

    scripts/table2/all.sh --small        makes the corpus and its mels, then runs this

Experiments are the ten of the paper's Table 2, the exponential noise, and follow-ups. Each is
trained by its script in scripts/table2; its last checkpoint then speaks 100 unseen numbers, which a
recogniser transcribes. Two runs go side by side, the first seed of all experiments first. Ctrl-C
stops both with a checkpoint; the same command resumes.

    OUT/NAME/seed_N/           a run of train.py; intelligibility.json: its word error rate and the
                               transcripts; epoch_minutes.json: its epochs, timed at the end
    OUT/logs/NAME-seed_N.log   what both programs printed
    OUT/unseen/                recordings of the 100 numbers, and their own rates
    OUT/report/                the report, once every run has ended
"""

from project_root import ROOT

import math
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from analysis.arguments import at_least_one, make_parser
from analysis.recommendation import batching_overrides, recommend
from analysis.runs import EPOCH_MINUTES_FILE
from analysis.survey import PARAMETERS, Survey, Surveyor, in_threads
from analysis.transcription import INTELLIGIBILITY_FILE, Intelligibility, read_findings
from corpus.lengths import read_lengths
from errors import UserError
from files import lock, open_to_append, read_json
from hparams import HParams, create_hparams
from progress import progress_bar
from training.checkpoint import list_checkpoints

FEWER_SEEDS = 3  # of the experiments that nothing rests upon
PLANNED = 40  # epochs whose means are compared
TEN = "rand sb_br ssb_br bkt_br ats_br sb ssb sb_dbs ssb_dbs ssb_dbs_br".split()


class Experiment(NamedTuple):
    """`script` of scripts/table2 with further overrides, under a name of its own."""

    name: str
    script: str
    overrides: str = ""
    all_seeds: bool = False  # or the first FEWER_SEEDS


Jobs = list[tuple[Experiment, int]]  # with the seed


def matched_overrides(surveyor: Surveyor, batch_size: int) -> str:
    """Bucket size (in whole batches) and bins with which BKT and ATS pad as the paper's do beside
    SSB.

    On a small corpus the paper's proportions miss its order, so each value is the one whose ZPR
    comes nearest to that of the one before from below, of all. UserError if the corpus has none.
    """
    num_clips, settings = len(surveyor.lengths), []
    target = surveyor.survey(batch_size, "semi_sorted", epochs=PLANNED).zero_padding_rate
    buckets = range(batch_size, max(batch_size + 1, num_clips), batch_size)
    bins = range(1, math.ceil(num_clips / batch_size) + 1)
    for strategy, values in (("bucket", buckets), ("alternated_sort", bins)):
        survey = partial(surveyor.survey, batch_size, strategy, epochs=PLANNED)
        found = in_threads("matching", lambda value, survey=survey: survey(value=value), values)
        below = [one for one in found if one.zero_padding_rate <= target]
        if not below:
            few = f"{num_clips} training clips: too few for {PARAMETERS[strategy]} to"
            raise UserError(f"{few} keep padding below {target:.2%}; make a larger corpus")
        best = max(below, key=lambda one: one.zero_padding_rate)
        settings.append(f"{best.parameter}={best.value}")
        target = best.zero_padding_rate
    return ",".join(settings)


def experiments(surveyor: Surveyor, hparams: HParams) -> list[Experiment]:
    """All of the study, the follow-ups last."""
    best, batch_size, lrf = "ssb_dbs_br", hparams.batch_size, "local_randomization_factor"

    def survey(size: int) -> Survey:
        return surveyor.survey(size, "semi_sorted", dynamic_batch_size=True, epochs=PLANNED)

    # The exponential noise that mixes as much as the paper's batching, the recommended one.
    advice = recommend(surveyor, batch_size, survey(batch_size).novelty, epochs=PLANNED)
    exponential = [x for x in advice if x.strategy == "semi_sorted_exponential"]
    [recommended] = [batching_overrides(x) for x in exponential if x.dynamic_batch_size]
    # The base batch size with which SSB-DBS-BR makes most nearly as many updates as RAND.
    updates = math.ceil(len(surveyor.lengths) / batch_size)
    sizes = range(1, batch_size + 1)
    equal = min(sizes, key=lambda size: abs(survey(size).num_batches - updates))
    usual = f"batching_strategy=semi_sorted_exponential,{lrf}={getattr(HParams(), lrf)}"
    return [
        *(Experiment(name, name, all_seeds=name in ("rand", best)) for name in TEN),
        Experiment("ssb_exp_dbs_br_recommended", best, recommended, True),
        Experiment("ssb_exp_dbs_br", best, usual),
        Experiment(f"{best}_batch_{equal}", best, f"batch_size={equal}"),
        # The first seeds said that random epochs help: they may be recommended.
        Experiment(f"{best}_random_epochs", best, "random_epochs=2", True),
    ]


def jobs_in_order(found: list[Experiment], seeds: list[int]) -> Jobs:
    """Seed by seed; of each the experiments in their order."""
    few = seeds[:FEWER_SEEDS]
    return [(x, seed) for seed in seeds for x in found if x.all_seeds or seed in few]


class Study:
    """Runs `jobs`, whose programs are stopped by `stop` alone. `shared`: overrides of all runs."""

    def __init__(self, out: Path, epochs: int, shared: str, jobs: Jobs):
        self.out, self.epochs, self.shared, self.jobs = out, epochs, shared, jobs
        self.stops = 0
        self.failed: list[str] = []

    def stop(self, *_) -> None:
        """Ask every program to save and end; the second time, to end at once. A signal handler."""
        self.stops += 1

    def folder(self, experiment: Experiment, seed: int) -> Path:
        return self.out / experiment.name / f"seed_{seed}"

    def run(self, side_by_side: int) -> None:
        """All jobs that are not done yet; one that fails does not stop the others."""
        left = []
        for job in self.jobs:
            found = self.folder(*job) / INTELLIGIBILITY_FILE
            if not found.exists() or read_findings(found, Intelligibility).epochs < self.epochs:
                left.append(job)
        print(f"{len(self.jobs)} runs of {self.epochs} epochs, {len(left)} left", flush=True)
        with ThreadPoolExecutor(side_by_side) as pool:
            ended = pool.map(lambda job: self._train_and_transcribe(*job), left)
            for result in progress_bar("study", len(left), " runs", iterable=ended):
                print(result, flush=True)

    def _train_and_transcribe(self, experiment: Experiment, seed: int) -> str:
        """How it ended."""
        name, folder = f"{experiment.name}, seed {seed}", self.folder(experiment, seed)
        log = self.out / "logs" / f"{experiment.name}-seed_{seed}.log"
        extra = ",".join(filter(None, [self.shared, experiment.overrides]))
        settings = {"NAME": experiment.name, "SEEDS": str(seed), "EXTRA": extra}
        script, found = f"scripts/table2/{experiment.script}.sh", folder / INTELLIGIBILITY_FILE
        doing, status = "training", self.execute(["bash", ROOT / script], log, settings)
        if not status:
            command = [sys.executable, ROOT / "scripts/listen.py", "-o", found]
            command += ["--checkpoint", list_checkpoints(folder)[-1][1]]
            command += ["--recordings", self.out / "unseen"]
            doing, status = "transcription", self.execute(command, log)
        if self.stops:
            return f"{name}: stopped"
        if status:
            self.failed.append(f"{name}: {doing} ended with status {status}, see {log}")
            return self.failed[-1]
        rate = read_findings(found, Intelligibility).word_error_rate
        return f"{name}: word error rate {rate:.3f}"

    def execute(self, command: list, log: Path, environment: dict[str, str] | None = None) -> int:
        """The exit status of a command, whose output is added to `log`."""
        if self.stops:
            return 128 + signal.SIGINT
        with open_to_append(log) as output:
            process = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C does not reach it
                env=os.environ | (environment or {}),
            )
        told = 0
        while (status := process.poll()) is None:
            time.sleep(0.1)
            if told < self.stops:
                told += 1
                os.killpg(process.pid, signal.SIGINT)  # bash waits for train.py, and ends with it
        return status


def run_study(out: Path, side_by_side: int, texts: int) -> Study:
    """The study of the environment's settings: CORPUS, EPOCHS, SEEDS and EXTRA; UserError if one
    of them cannot be used. The unseen numbers are those that follow the corpus'."""
    try:
        extra, corpus = os.environ["EXTRA"], Path(os.environ["CORPUS"])
        epochs, seeds = int(os.environ["EPOCHS"]), list(map(int, os.environ["SEEDS"].split()))
    except (KeyError, ValueError) as error:
        fix = "scripts/table2/all.sh --small sets EXTRA, CORPUS, EPOCHS and SEEDS, whole numbers"
        raise UserError(f"in the environment: {error}; {fix}") from None
    hparams = create_hparams(extra)
    missing = "no such file: --small takes a corpus of scripts/make_demo_corpus.py; leave CORPUS "
    made_from = read_json(corpus / "demo_corpus.json", missing + "unset to have one made")
    if not isinstance(made_from, dict) or not made_from.keys() >= {"clips", "seed"}:
        raise UserError(
            f"{corpus}/demo_corpus.json: expected clips and seed; make the corpus again"
        )
    command = [sys.executable, ROOT / "scripts" / "make_demo_corpus.py", out / "unseen"]
    command += ["--clips", texts, "--skip", made_from["clips"], "--seed", made_from["seed"]]
    if subprocess.run(list(map(str, command)), check=False).returncode != 0:
        raise UserError("the unseen numbers could not be recorded")
    clips = read_lengths(out / "filelists" / "train_mel.txt", hparams)
    surveyor = Surveyor(clips.frames, frames_per_step=hparams.n_frames_per_step)
    jobs = jobs_in_order(experiments(surveyor, hparams), seeds)
    shared = f"{extra.strip(',')},{matched_overrides(surveyor, hparams.batch_size)}"
    study = Study(out, epochs, shared, jobs)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, study.stop)
    study.run(side_by_side)
    return study


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--side-by-side", type=at_least_one, default=2, help="runs (2)")
    parser.add_argument("--texts", type=at_least_one, default=100, help="unseen numbers (100)")
    args = parser.parse_args(arguments)
    out = args.out.resolve()
    (out / "logs").mkdir(parents=True, exist_ok=True)
    with lock(out):
        study = run_study(out, args.side_by_side, args.texts)
    if study.stops:
        print("study.py: stopped with checkpoints; the same command resumes it", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    programs: list[list] = [["scripts/report.py", out, "-o", out / "report"]]
    timed = all((study.folder(*job) / EPOCH_MINUTES_FILE).exists() for job in study.jobs)
    if not (study.failed or timed):
        programs.insert(0, ["benchmarks/epoch.py", "--runs", out])
    for program in programs:
        if subprocess.run([sys.executable, *program], cwd=ROOT, check=False).returncode:
            sys.exit(f"study.py: {program[0]} failed; the same command resumes the study")
    if study.failed:
        sys.exit("\n".join(["study.py: failed, and left out of the report:", *study.failed]))


if __name__ == "__main__":
    main()
