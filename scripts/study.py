"""Studies of learning: models trained under several batchings and seeds, then transcribed.

    scripts/table2/all.sh --small       makes the corpus and its mels, then runs this; the other
                                        studies are named at the top of all.sh

Each run is trained by a script of scripts/table2. After certain epochs its checkpoint speaks 100
unseen numbers, which a recogniser transcribes. Two runs go side by side, the first seed of all
experiments first. Ctrl-C stops both with a checkpoint; the same command resumes. Time is measured
at the end, in turns, so other work beside a study does no harm.

    OUT/values.csv             raw values of the finished runs, an epoch a line: a run that is in it
                               is not trained again, so the file continues a study elsewhere
    OUT/study.json             what it was made with; other settings need another OUT
    OUT/NAME/seed_N/           a run of train.py; epoch_N.pt, intelligibility_N.json: a checkpoint,
                               and its word error rate and transcripts
    OUT/logs/NAME-seed_N.log   what both programs printed
    OUT/unseen/                recordings of the 100 numbers, and their own rates
    OUT/report/                the report, once every run has ended
"""

from project_root import ROOT

import itertools
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.arguments import at_least_one, make_parser
from common.console import progress_bar
from common.errors import UserError
from common.files import lock, open_to_append, read_json, write_atomically, write_json
from corpus.lengths import read_lengths
from hparams import HParams, batching_options, create_hparams
from length_batching import REGISTRY, LengthBatchSampler
from paper.learning import (
    VALUES_FILE,
    is_complete,
    read_values,
    values_of,
    with_minutes,
    write_report,
    write_values,
)
from paper.recommendation import batching_overrides, recommend
from paper.survey import PARAMETERS, Survey, Surveyor, in_threads
from paper.transcription import Intelligibility, read_findings
from training.checkpoint import list_checkpoints

TRAINING_LIST = Path("filelists") / "train_mel.txt"
PLANNED = 40  # epochs whose means are compared
TEN = "rand sb_br ssb_br bkt_br ats_br sb ssb sb_dbs ssb_dbs ssb_dbs_br".split()
# After which epochs a run is transcribed, beside the last.
POINTS = {
    "small-long": (5, 10, 15, 20, 30, 40, 50),
    "full": (5, 10, 15),
    "full-one-frame": (5, 10, 15),
}
TIMED = ("small", *POINTS)
STUDIES = (*TIMED, "small-plateau", "full-attention")
# Those of POINTS lower the learning rate, each run at the same share of its own updates: constant
# for three quarters, so that most points compare runs at one rate, then halved four times, as in
# the demo.
CONSTANT_SHARE, HALVINGS = 0.75, 4


class Experiment(NamedTuple):
    """`script` of scripts/table2 with further overrides, under a name of its own."""

    name: str
    script: str
    overrides: str = ""


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


def experiments(study: str, surveyor: Surveyor, hparams: HParams) -> list[Experiment]:
    """All of a study, that which the others are compared with first, and the follow-ups last."""
    best, batch_size = "ssb_dbs_br", hparams.batch_size
    random_first = Experiment(f"{best}_random_epochs", best, "random_epochs=2")
    if study == "full":
        return [Experiment("rand", "rand"), Experiment(best, best), random_first]
    if study == "full-one-frame":
        return [random_first._replace(overrides="random_epochs=2,n_frames_per_step=1")]
    if study == "full-attention":
        found = []
        for weight, gradient in itertools.product((5, 0), (False, True)):
            name = f"{'' if weight else 'un'}guided_{'with' if gradient else 'no'}_gradient"
            attention = f"attention_location_gradient={gradient},guided_attention_weight={weight}"
            found.append(Experiment(name, best, f"random_epochs=2,{attention}"))
        return found
    if study == "small-plateau":
        reference = "attention_location_gradient=True,guided_attention_weight=0"
        found = [Experiment(name, name) for name in ("rand", "sb_br", best)]
        return [*found, random_first, Experiment("rand_reference_attention", "rand", reference)]

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
    as_many = Experiment(f"{best}_batch_{equal}", best, f"batch_size={equal}")
    exp = Experiment("ssb_exp_dbs_br_recommended", best, recommended)
    if study == "small-long":
        return [Experiment("rand", "rand"), Experiment(best, best), random_first, exp, as_many]
    return [*(Experiment(name, name) for name in TEN), exp, as_many, random_first]


def settings_of(experiment: Experiment, shared: str) -> HParams:
    """Its settings, with the batching that its script is named after."""
    first, *rest = experiment.script.upper().split("_")
    [strategy] = [name for name, found in REGISTRY.items() if found.short_name == first]
    script = f"batching_strategy={strategy},dynamic_batch_size={'DBS' in rest}"
    script += f",batch_randomization={'BR' in rest}"
    return create_hparams(f"batch_size=16,random_epochs=0,{script},{shared},{experiment.overrides}")


def falling_rate(lengths: np.ndarray, hparams: HParams, epochs: int) -> str:
    """The overrides that lower the learning rate in the last quarter of the epochs."""
    options = batching_options(hparams) | {"random_epochs": hparams.random_epochs}
    sampler = LengthBatchSampler(lengths, **options)
    counts = np.cumsum([len(sampler.plan_of(epoch)) for epoch in range(epochs)])
    start = int(counts[math.ceil(CONSTANT_SHARE * epochs) - 1])
    half_life = max(1, round((int(counts[-1]) - start) / HALVINGS))
    rate = f"learning_rate_decay_start={start},learning_rate_half_life={half_life}"
    return f"learning_rate_schedule=exponential,{rate}"


class Study:
    """Runs `jobs`, whose programs are stopped by `stop` alone. `shared`: overrides of all runs;
    `points`: epochs after which they are transcribed; `rates`: further overrides of a job."""

    def __init__(
        self,
        out: Path,
        epochs: int,
        shared: str,
        jobs: Jobs,
        points: Sequence[int],
        rates: Mapping[tuple[str, int], str] = MappingProxyType({}),
    ):
        self.out, self.epochs, self.shared, self.jobs = out, epochs, shared, jobs
        self.points, self.rates = [*points], rates
        self.values = read_values(out / VALUES_FILE)
        self.stops = 0
        self.failed: list[str] = []
        self._writing = threading.Lock()

    def stop(self, *_) -> None:
        """Ask every program to save and end; the second time, to end at once. A signal handler."""
        self.stops += 1

    def folder(self, experiment: Experiment, seed: int) -> Path:
        return self.out / experiment.name / f"seed_{seed}"

    def findings(self, experiment: Experiment, seed: int) -> dict[int, Path]:
        """The file of each transcription, by epoch."""
        folder = self.folder(experiment, seed)
        return {point: folder / f"intelligibility_{point}.json" for point in self.points}

    def run(self, side_by_side: int) -> None:
        """All jobs that are not done yet; one that fails does not stop the others."""
        left = []
        for experiment, seed in self.jobs:
            if not is_complete(self.values, experiment.name, seed, self.epochs, self.points):
                left.append((experiment, seed))
        print(f"{len(self.jobs)} runs of {self.epochs} epochs, {len(left)} left", flush=True)
        with ThreadPoolExecutor(side_by_side) as pool:
            ended = pool.map(lambda job: self._train_and_transcribe(*job), left)
            for result in progress_bar("study", len(left), " runs", iterable=ended):
                if result:
                    print(result, flush=True)

    def _train_and_transcribe(self, experiment: Experiment, seed: int) -> str:
        """How it ended; nothing if it was not started."""
        if self.stops:
            return ""
        name, folder = f"{experiment.name}, seed {seed}", self.folder(experiment, seed)
        log = self.out / "logs" / f"{experiment.name}-seed_{seed}.log"
        rate, files = self.rates.get((experiment.name, seed), ""), self.findings(experiment, seed)
        extra = ",".join(filter(None, [self.shared, experiment.overrides, rate]))
        settings = {"NAME": experiment.name, "SEEDS": str(seed), "EXTRA": extra}
        for point in self.points or [self.epochs]:
            found = files.get(point)
            if found and found.exists():
                continue
            script = ["bash", ROOT / f"scripts/table2/{experiment.script}.sh"]
            doing, status = "training", self.execute(script, log, settings | {"EPOCHS": str(point)})
            if found and not status:
                kept = folder / f"epoch_{point}.pt"
                newest = list_checkpoints(folder)[-1][1]
                write_atomically(kept, partial(shutil.copyfile, newest))
                command = [sys.executable, ROOT / "scripts/listen.py", "-o", found]
                command += ["--checkpoint", kept, "--recordings", self.out / "unseen"]
                command += ["--words-only"]
                doing, status = "transcription", self.execute(command, log)
            if self.stops:
                return f"{name}: stopped"
            if status:
                self.failed.append(f"{name}: {doing} ended with status {status}, see {log}")
                return self.failed[-1]
        with self._writing:
            own = values_of(folder, experiment.name, seed, files)
            self.values = pd.concat([self.values.dropna(how="all", axis=1), own])
            write_values(self.out / VALUES_FILE, self.values)
        if not files:
            return f"{name}: trained"
        rate_text = read_findings(files[self.epochs], Intelligibility).word_error_rate
        return f"{name}: word error rate {rate_text:.3f}"

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


def remember(path: Path, made_with: dict) -> None:
    """Write down what a study is made with; UserError if `path` says something else."""
    if path.exists() and (before := read_json(path)) != made_with:
        raise UserError(f"{path}: made with {before}, not {made_with}; choose another OUT")
    write_json(path, made_with)


def set_up(study: str, out: Path, texts: int) -> Study:
    """The study of the environment's settings: CORPUS, EPOCHS, SEEDS and EXTRA; UserError if one
    of them cannot be used. The unseen numbers are those that follow the corpus'."""
    try:
        extra, corpus = os.environ["EXTRA"], Path(os.environ["CORPUS"])
        epochs, seeds = int(os.environ["EPOCHS"]), list(map(int, os.environ["SEEDS"].split()))
    except (KeyError, ValueError) as error:
        fix = "scripts/table2/all.sh --small sets EXTRA, CORPUS, EPOCHS and SEEDS, whole numbers"
        raise UserError(f"in the environment: {error}; {fix}") from None
    hparams = create_hparams(f"batch_size=16,{extra}")  # 16 is that of the scripts
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
    clips = read_lengths(out / TRAINING_LIST, hparams)
    surveyor = Surveyor(clips.frames, frames_per_step=hparams.n_frames_per_step)
    found = experiments(study, surveyor, hparams)
    jobs = [(experiment, seed) for seed in seeds for experiment in found]
    shared, rates = extra.strip(","), {}
    if study == "small":
        shared += f",{matched_overrides(surveyor, hparams.batch_size)}"
    if study in POINTS:
        for experiment, seed in jobs:
            settings = replace(settings_of(experiment, shared), seed=seed)
            rates[experiment.name, seed] = falling_rate(clips.frames, settings, epochs)
    made_with = {"study": study, "settings": shared} | ({"epochs": epochs} if rates else {})
    remember(out / "study.json", made_with)
    points = [point for point in POINTS.get(study, ()) if point < epochs]
    points += [epochs] if study != "small-plateau" else []
    return Study(out, epochs, shared, jobs, points, rates)


def batching_text(hparams: HParams) -> str:
    """The batching as overrides, without random epochs."""
    options = batching_options(hparams) | {"seed": 0}
    options["batching_strategy"] = options.pop("strategy")
    return ",".join(f"{name}={value}" for name, value in options.items())


def time_in_turns(study: Study) -> None:
    """Add the minutes of every experiment's epochs to the raw values: of one update after another
    of all batchings, by benchmarks/epoch.py."""
    named = {experiment.name: experiment for experiment, _ in study.jobs}
    settings = {name: settings_of(x, study.shared) for name, x in named.items()}
    batchings = {name: batching_text(h) for name, h in settings.items()}
    random = batching_text(settings_of(Experiment("rand", "rand"), study.shared))
    different = list(dict.fromkeys([random, *batchings.values()]))
    first = next(iter(settings.values()))
    clips, file = study.out / TRAINING_LIST, study.out / "minutes.json"
    # Frames as in the runs: epoch.py's default hop is the paper's, which is longer.
    model = f"batch_size=16,{study.shared},hop_length={first.hop_length}"
    model += f",n_frames_per_step={first.n_frames_per_step}"
    command = [sys.executable, ROOT / "benchmarks" / "epoch.py", clips, "--json", file]
    command += ["--hparams", model, "--capacities", "", "--batches", "20", "--repeats", "3"]
    command += ["--batchings", *different]
    if subprocess.run(list(map(str, command)), cwd=ROOT, check=False).returncode:
        raise UserError("benchmarks/epoch.py failed; the same command resumes the study")
    rows = dict(zip(different, read_json(file)["rows"], strict=True))
    minutes = {}
    for name, h in settings.items():
        parts = [rows[random]] * h.random_epochs
        parts += [rows[batchings[name]]] * (study.epochs - h.random_epochs)
        of_epochs = [part["minutes_per_epoch"] for part in parts]
        error = max(p["standard_error_minutes"] / p["minutes_per_epoch"] for p in parts)
        minutes[name] = of_epochs, error
    study.values = with_minutes(study.values, minutes)
    write_values(study.out / VALUES_FILE, study.values)


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("study", choices=STUDIES, help="small-long: all.sh --small --long")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--side-by-side", type=at_least_one, default=2, help="runs (2)")
    parser.add_argument("--texts", type=at_least_one, default=100, help="unseen numbers (100)")
    args = parser.parse_args(arguments)
    out = args.out.resolve()
    (out / "logs").mkdir(parents=True, exist_ok=True)
    with lock(out):
        study = set_up(args.study, out, args.texts)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, study.stop)
            elif number == signal.SIGINT:  # in the background; the programs would inherit it
                signal.signal(number, lambda *_: None)
        study.run(args.side_by_side)
        if study.stops:
            print(
                "study.py: stopped with checkpoints; the same command resumes it", file=sys.stderr
            )
            sys.exit(128 + signal.SIGINT)
        if args.study in TIMED and study.values["minutes"].isna().any():
            time_in_turns(study)
        if not study.values.empty:
            report(args.study, study)
    if study.failed:
        sys.exit("\n".join(["study.py: failed, and left out of the report:", *study.failed]))


def report(name: str, study: Study) -> None:
    """The report of a study, from the raw values."""
    out = study.out / "report"
    out.mkdir(exist_ok=True)
    settings = {x.name: f"{x.script}.sh {x.overrides}".strip() for x, _ in study.jobs}
    command = f"scripts/table2/all.sh {' '.join(f'--{word}' for word in name.split('-', 1))}"
    about = f"# The study {name}\n\nMade by `{command}`, from `{VALUES_FILE}`. All runs: "
    write_report(study.values, study.points, settings, out, f"{about}`{study.shared}`.")


if __name__ == "__main__":
    main()
