"""Train named settings with several seeds, transcribe their speech, and report what they learnt.

    python scripts/study.py runs/study --hparams @filelists/ljspeech/settings.txt \\
        --settings "RAND: batching_strategy=random,random_epochs=0" "default:" \\
        --seeds 1 2 3 --points 5 10 20 --texts filelists/ljspeech/val.txt

--settings takes NAME: OVERRIDES, or @FILE with such lines; the first is what others are compared
with. train.py trains each with every seed. After each epoch of --points its checkpoint speaks the
held-out texts, and a recognizer transcribes them. Ctrl-C stops with checkpoints; the same command
resumes, and may name more settings, seeds and later points.

    OUT/values.csv             a line for every epoch of every run; what is in it is not done again
    OUT/study.json             the settings of every name, which stay
    OUT/NAME/seed_N/           the run, and epoch_N.pt and transcripts_N.json for each point
    OUT/logs/NAME-seed_N.log   what both programs printed
    OUT/report.md, report.svg  means over seeds, at equal epochs, updates, decoder steps and minutes
"""

from project_root import ROOT

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from evaluation.figures import draw_progress, write_figure
from evaluation.recognizers import add_recognizer_options
from evaluation.recordings import read_recordings
from evaluation.results import Intelligibility, read_result
from hparams import create_hparams, override_lines
from scripts.table2.findings import LEVEL, LOSS, against_first, at_budget
from scripts.table2.runs import MEASURES, SPENT, read_progress
from tacotron2_voice.utils import files
from tacotron2_voice.utils.arguments import make_parser, whole_number
from tacotron2_voice.utils.console import markdown_table, progress_bar
from tacotron2_voice.utils.errors import UserError, grouped
from tacotron2_voice.utils.program import run_program
from training.checkpoint import list_checkpoints

RATE, INDEX = "word_error_rate", ["name", "seed", "epoch"]
COLUMNS = [*INDEX, *list(SPENT)[1:], *MEASURES, RATE, "words"]


def read_settings(given: Sequence[str]) -> dict[str, str]:
    """The overrides of every name; UserError for lines that are not NAME: OVERRIDES."""
    lines, settings, problems = [], dict[str, str](), list[str]()
    for text in given:
        numbered = files.numbered_lines(text[1:]) if text.startswith("@") else [(0, text)]
        lines += [(f"{text[1:]}:{n}" if n else "--settings", line) for n, line in numbered]
    for place, line in [(place, line) for place, line in lines if not line.startswith("#")]:
        name, colon, overrides = map(str.strip, line.partition(":"))
        if not colon or not re.fullmatch(r"\w[\w.+-]*", name):
            expected = "expected NAME: OVERRIDES"
            fix = "write a name of letters, digits, '_', '.', '+' and '-', and a colon"
            problems.append(f"{place}: {line[:60]!r}, {expected}; {fix}")
        elif name in settings:
            problems.append(f"{place}: {name!r} is there twice; rename one of them")
        else:
            settings[name] = overrides
    if problems:
        raise UserError("\n  ".join(["settings refused:", *grouped(problems)]))
    return settings


def remember(path: Path, hparams: str, settings: Mapping[str, str]) -> None:
    """Add the settings of every name to the file `path`; UserError if they cannot be used, or if
    it has others under a name."""
    known, problems = files.read_json(path) if path.exists() else {}, list[str]()
    for name, overrides in settings.items():
        lines = override_lines(f"{hparams},{overrides}")
        try:
            create_hparams(",".join(lines))
        except UserError as error:
            problems += [f"{name}: {problem.strip()}" for problem in str(error).splitlines()[1:]]
            continue
        if (before := known.setdefault(name, lines)) != lines:
            fix = "rename it, or change OUT"
            problems.append(f"{path}: {name} has {before}, not {lines}; {fix}")
    if problems:
        raise UserError("\n  ".join(["settings refused:", *grouped(problems)]))
    files.write_json(path, known)


def read_values(path: Path) -> pd.DataFrame:
    """[name, seed, epoch] what is in a file of values; none if there is no such file."""
    content = files.read_bytes(path) if os.path.lexists(path) else ",".join(COLUMNS).encode()
    try:
        return pd.read_csv(io.BytesIO(content), dtype={"name": str})[COLUMNS].set_index(INDEX)
    except (ValueError, KeyError) as error:
        fix = "restore it, or delete it to have it made from the runs"
        raise UserError(f"{path}: not the values of a study: {error}; {fix}") from None


class Study:
    """Trains and transcribes the runs of `settings`; `stop` ends their programs."""

    def __init__(
        self,
        out: Path,
        hparams: str,
        settings: Mapping[str, str],
        points: list[int],
        texts: Path,
        listening: Sequence[str] = (),  # options of scripts/evaluate.py
    ):
        self.out, self.hparams = out, f"epochs_per_validation=1,{hparams}"  # a loss at each point
        self.settings, self.points, self.texts = settings, points, texts
        self.listening = listening
        self.values = read_values(out / "values.csv")
        self.stops, self.failed = 0, list[str]()
        self._writing = threading.Lock()

    def stop(self, *_) -> None:
        """Ask every program to save and end; the second time, to end at once. A signal handler."""
        self.stops += 1

    def points_left(self, name: str, seed: int) -> list[int]:
        done = self.values[RATE].dropna().index
        return [point for point in self.points if (name, seed, point) not in done]

    def run(self, seeds: Sequence[int], side_by_side: int) -> None:
        """Make all runs that are not in the values yet; one that fails stops no other."""
        jobs = [(name, seed) for seed in seeds for name in self.settings]
        left = [job for job in jobs if self.points_left(*job)]
        print(f"{len(jobs)} runs of {self.points[-1]} epochs, {len(left)} left", flush=True)
        with ThreadPoolExecutor(side_by_side) as pool:
            ended = pool.map(lambda job: self.train_and_transcribe(*job), left)
            for result in progress_bar("study", len(left), " runs", iterable=ended):
                print(result, flush=True)

    def train_and_transcribe(self, name: str, seed: int) -> str:
        """How it ended, in words."""
        folder, run = self.out / name / f"seed_{seed}", f"{name}, seed {seed}"
        log, rate = self.out / "logs" / f"{name}-seed_{seed}.log", np.nan
        try:
            for point in self.points_left(name, seed):
                kept, heard = folder / f"epoch_{point}.pt", folder / f"transcripts_{point}.json"
                if not kept.exists():
                    overrides = f"{self.hparams},{self.settings[name]},seed={seed},epochs={point}"
                    train = [ROOT / "train.py", "-o", folder, "--resume", "--hparams", overrides]
                    self.execute(train, log)
                    if (epoch := read_progress(folder)["epoch"].max()) != point:
                        raise UserError(f"it is at epoch {epoch}, leave {point} out of --points")
                    newest = list_checkpoints(folder)[-1][1]
                    files.write_atomically(kept, partial(shutil.copyfile, newest))
                if not heard.exists():
                    listen = [ROOT / "scripts/evaluate.py", "--checkpoint", kept, "--words-only"]
                    listen += ["--recordings", self.texts, *self.listening, "-o", heard]
                    self.execute(listen, log)
                rate = self.keep(name, seed, point, read_result(heard, Intelligibility))
        except UserError as error:
            if self.stops:
                return f"{run}: stopped"
            self.failed.append(f"{run}: {error}")
            return self.failed[-1]
        return f"{run}: word error rate {rate:.3f}"

    def keep(self, name: str, seed: int, point: int, heard: Intelligibility) -> float:
        """Add the epochs of a run and a word error rate, which is returned, to the values."""
        progress = read_progress(self.out / name / f"seed_{seed}").query("epoch <= @point")
        own = progress.assign(name=name, seed=seed).set_index(INDEX).reindex(columns=COLUMNS[3:])
        words = sum(len(transcript.text.split()) for transcript in heard.transcripts)
        own.loc[(name, seed, point), [RATE, "words"]] = heard.word_error_rate, words
        with self._writing:
            self.values = own if self.values.empty else own.combine_first(self.values)
            content = self.values[own.columns].to_csv(float_format="%.6g")
            files.write_bytes(self.out / "values.csv", content.encode())
        return heard.word_error_rate or 0.0

    def execute(self, command: list, log: Path) -> None:
        """Run a Python program, whose output is added to `log`; UserError if it fails."""
        if self.stops:
            raise UserError("stopped")
        told = 0
        with files.open_to_append(log) as output:
            streams: dict = {"stdin": subprocess.DEVNULL}
            # In a session of its own a Ctrl-C does not reach it; `stop` does.
            streams |= {"stdout": output, "stderr": subprocess.STDOUT, "start_new_session": True}
            process = subprocess.Popen([sys.executable, *map(str, command)], **streams)
        while (status := process.poll()) is None:
            time.sleep(0.1)
            if told < self.stops:
                told += 1
                process.send_signal(signal.SIGTERM if told == 1 else signal.SIGINT)
        if status:
            raise UserError(f"{Path(command[0]).name} ended with status {status}, see {log}")


def budget_table(values: pd.DataFrame, quantity: str, spent: str, points: Sequence[int]) -> str:
    """Markdown: a quantity of every name once all have spent what the cheapest run had after each
    of `points`: mean ± standard error over seeds, and per cent above the first name."""
    names, cells = list(values["name"].unique()), dict[float, list[str]]()
    least = 0.5 / values["words"].max() if quantity == RATE else 0  # half a wrong word, not none
    at_points = values[values["epoch"].isin(points)]
    for budget in at_points.groupby("epoch")[spent].min() if spent != "epoch" else points:
        compared = against_first(at_budget(values, quantity, spent, budget, least), names)
        column = cells[budget] = []
        for mean, sem, above, p in compared.itertuples(index=False):
            cell = "–" if np.isnan(mean) else f"{mean:.3f}"
            cell += "" if np.isnan(sem) else f" ± {sem:.3f}"
            star = "\\*" if p < LEVEL else ""
            column.append(cell + ("" if np.isnan(above) else f" ({above:+.0f} %{star})"))
    titles = [f"{x:,.{0 if x % 1 == 0 else 3}f} {SPENT[spent]}" for x in cells]
    return markdown_table(["", *titles], [*zip(names, *cells.values(), strict=True)])


def write_report(study: Study) -> None:
    """Write OUT/report.md, with a picture, of the study's settings that have values."""
    rows = study.values.reset_index()
    values = pd.concat([rows[:0], *(rows[rows["name"] == name] for name in study.settings)])
    if values.empty:
        return
    figure = draw_progress(values, [*MEASURES, RATE], ["epoch", "minutes"])
    parts = [
        f"# A study\n\nAll runs: `{study.hparams}`. Texts: `{study.texts}`.",
        markdown_table(["", "settings"], [*study.settings.items()], 2),
        f"![]({write_figure(figure, study.out / 'report.svg').name})",
        "Means ± standard errors over seeds; in brackets per cent above the first, paired by seed; "
        "\\* significant (5 %, Holm). Budgets are the cheapest run's. Minutes are of training.",
    ]
    for quantity in (LOSS, RATE):
        parts.append(f"## {quantity.replace('_', ' ').capitalize()}")
        parts += [budget_table(values, quantity, spent, study.points) for spent in SPENT]
    files.write_bytes(study.out / "report.md", ("\n\n".join(parts) + "\n").encode())
    print(f"wrote {study.out / 'report.md'}")


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("out", type=Path, metavar="OUT")
    add("--hparams", default="", help="of all runs, as train.py takes them")
    add("--settings", nargs="+", required=True, metavar="NAME:OVERRIDES")
    add("--seeds", nargs="+", type=whole_number(0), default=[1], help="default: 1")
    add("--points", nargs="+", type=whole_number(1), required=True, help="epochs")
    add("--texts", type=Path, required=True, help="recordings as scripts/evaluate.py takes them")
    add("--side-by-side", type=whole_number(1), default=1, help="runs at once (%(default)s)")
    add_recognizer_options(parser)
    args = parser.parse_args(arguments)
    files.refuse_no_folder(args.out, "OUT")
    settings = read_settings(args.settings)
    read_recordings(args.texts)
    (args.out / "logs").mkdir(parents=True, exist_ok=True)
    with files.lock(args.out):
        remember(args.out / "study.json", args.hparams, settings)
        options = args.out, args.hparams, settings, sorted({*args.points}), args.texts
        listening = ["--recognizer", args.recognizer, "--whisper-model", args.whisper_model]
        study = Study(*options, listening)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as in the background
                signal.signal(number, study.stop)
        study.run(args.seeds, args.side_by_side)
        if study.stops:
            print("study.py: stopped; the same command resumes it", file=sys.stderr)
            sys.exit(128 + signal.SIGINT)
        write_report(study)
    if study.failed:
        sys.exit("\n".join(["study.py: failed, and left out of the report:", *study.failed]))


if __name__ == "__main__":
    run_program(main)
