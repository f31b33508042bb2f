"""Compare named settings: train a model with each named setting and each seed, transcribe the
speech, and write a report.

    python scripts/study.py runs/study --hparams @filelists/ljspeech/settings.txt \\
        --settings "RAND: batching_strategy=random,random_epochs=0" "default:" \\
        --seeds 1 2 3 --points 5 10 20 --texts filelists/ljspeech/val.txt

--settings accepts named settings of the form "NAME: OVERRIDES", where OVERRIDES are settings for
train.py, or @FILE with one such line per name. The program trains a model with each named setting
and each seed. After each epoch in --points, the checkpoint synthesizes the texts, and a recognizer
transcribes the speech. The report compares all named settings with the first named setting. Press
Ctrl-C to save and stop. Run the same command again to resume; you can add named settings, seeds and
later points.

    OUT/values.csv             one line per epoch of every run; word error rates only for --points
    OUT/study.json             all named settings
    OUT/NAME/seed_N/           a run; epoch_N.pt and transcripts_N.json for each epoch in --points
    OUT/logs/NAME-seed_N.log   the output of training and evaluation
    OUT/report.md, report.svg  means over seeds, compared after the same number of epochs,
                               optimizer steps, decoder steps or minutes
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

RATE = "word_error_rate"
INDEX = ["name", "seed", "epoch"]
COLUMNS = [*INDEX, *list(SPENT)[1:], *MEASURES, RATE, "words"]


def read_settings(given: Sequence[str]) -> dict[str, str]:
    """Parse the option --settings, and return {name: overrides}.

    Raises:
        UserError: if any line does not have the form "NAME: OVERRIDES", or if a name occurs twice.
            The error message lists all bad lines.
    """
    lines: list[tuple[str, str]] = []  # pairs (place, text)
    for text in given:
        if text.startswith("@"):
            path = text[1:]
            lines += [(f"{path}:{number}", line) for number, line in files.numbered_lines(path)]
        else:
            lines.append(("--settings", text))
    settings: dict[str, str] = {}
    problems: list[str] = []
    for place, line in lines:
        if line.startswith("#"):
            continue
        name, colon, overrides = (part.strip() for part in line.partition(":"))
        if not colon or not re.fullmatch(r"\w[\w.+-]*", name):
            expected = "expected NAME: OVERRIDES; the name consists of letters, digits and '_.+-'"
            problems.append(f"{place}: {line[:60]!r} ({expected})")
        elif name in settings:
            problems.append(f"{place}: the name {name!r} occurs twice")
        else:
            settings[name] = overrides
    _check(problems)
    return settings


def _check(problems: Sequence[str]) -> None:
    if problems:
        raise UserError("\n  ".join(["invalid settings:", *grouped(problems)]))


def remember(path: Path, hparams: str, settings: Mapping[str, str]) -> None:
    """Add the named settings to the file `path`.

    Raises:
        UserError: if settings are invalid, or if the file already contains different settings with
            the same name.
    """
    known = files.read_json(path) if path.exists() else {}
    problems: list[str] = []
    for name, overrides in settings.items():
        lines = override_lines(f"{hparams},{overrides}")
        try:
            create_hparams(",".join(lines))
        except UserError as error:
            problems += [f"{name}: {problem.strip()}" for problem in str(error).splitlines()[1:]]
            continue
        before = known.setdefault(name, lines)
        if before != lines:
            problems.append(
                f"{path}: {name} was trained with {before}, not {lines}; choose a different name, or "
                "a different folder as OUT"
            )
    _check(problems)
    files.write_json(path, known)


def read_values(path: Path) -> pd.DataFrame:
    """Read values.csv, indexed by (name, seed, epoch). Return an empty table if the file does not
    exist."""
    content = files.read_bytes(path) if os.path.lexists(path) else ",".join(COLUMNS).encode()
    try:
        return pd.read_csv(io.BytesIO(content), dtype={"name": str})[COLUMNS].set_index(INDEX)
    except (ValueError, KeyError) as error:
        fix = "delete the file; the next run rebuilds it"
        raise UserError(
            f"{path}: this file does not contain the values of a study ({error}); {fix}"
        ) from None


class Study:
    """Train a model with each named setting and each seed, and transcribe the speech of the models.

    Args:
        out: folder for all files.
        hparams: overrides of settings for all runs.
        settings: {name: additional overrides}.
        points: epochs after which the checkpoint's speech is transcribed.
        texts: recordings with the texts, in a format that scripts/evaluate.py accepts.
        evaluation_options: additional options for scripts/evaluate.py.
    """

    def __init__(
        self,
        out: Path,
        hparams: str,
        settings: Mapping[str, str],
        points: list[int],
        texts: Path,
        evaluation_options: Sequence[str] = (),
    ):
        self.out = out
        # Validate after every epoch, so that a validation loss is available after each of the
        # selected epochs.
        self.hparams = f"epochs_per_validation=1,{hparams}"
        self.settings = settings
        self.points = points
        self.texts = texts
        self.evaluation_options = evaluation_options
        self.values = read_values(out / "values.csv")
        self.stops = 0
        self.failed: list[str] = []
        self._write_lock = threading.Lock()

    def stop(self, *_) -> None:
        """Handle a signal. After the first signal, the running programs save their work and exit.
        After the second signal, the running programs are stopped immediately."""
        self.stops += 1

    def points_left(self, name: str, seed: int) -> list[int]:
        """Return the epochs in `points` for which the run has no word error rate yet."""
        done = self.values[RATE].dropna().index
        return [point for point in self.points if (name, seed, point) not in done]

    def run(self, seeds: Sequence[int], concurrent_runs: int) -> None:
        """Train all unfinished runs. If a run fails, the other runs continue."""
        jobs = [(name, seed) for seed in seeds for name in self.settings]
        left = [job for job in jobs if self.points_left(*job)]
        print(f"{len(jobs)} runs of {self.points[-1]} epochs, {len(left)} left", flush=True)
        with ThreadPoolExecutor(concurrent_runs) as pool:
            ended = pool.map(lambda job: self.train_and_transcribe(*job), left)
            for result in progress_bar("study", len(left), " runs", iterable=ended):
                print(result, flush=True)

    def train_and_transcribe(self, name: str, seed: int) -> str:
        """Train one run up to the last epoch in `points`, and transcribe the speech after each
        epoch in `points`. Return a line that describes the result."""
        folder = self.out / name / f"seed_{seed}"
        run = f"{name}, seed {seed}"
        log = self.out / "logs" / f"{name}-seed_{seed}.log"
        rate = np.nan
        try:
            for point in self.points_left(name, seed):
                kept = folder / f"epoch_{point}.pt"
                transcripts = folder / f"transcripts_{point}.json"
                if not kept.exists():
                    overrides = f"{self.hparams},{self.settings[name]},seed={seed},epochs={point}"
                    train = [ROOT / "train.py", "-o", folder, "--resume", "--hparams", overrides]
                    self.execute(train, log)
                    epoch = read_progress(folder)["epoch"].max()
                    if epoch != point:
                        raise UserError(
                            f"the run is already at epoch {epoch}; remove {point} from --points"
                        )
                    newest = list_checkpoints(folder)[-1][1]
                    files.write_atomically(kept, partial(shutil.copyfile, newest))
                if not transcripts.exists():
                    evaluate = [ROOT / "scripts/evaluate.py", "--checkpoint", kept, "--words-only"]
                    evaluate += ["--recordings", self.texts, *self.evaluation_options]
                    evaluate += ["-o", transcripts]
                    self.execute(evaluate, log)
                rate = self.keep(name, seed, point, read_result(transcripts, Intelligibility))
        except UserError as error:
            if self.stops:
                return f"{run}: stopped"
            self.failed.append(f"{run}: {error}")
            return self.failed[-1]
        return f"{run}: word error rate {rate:.3f}"

    def keep(self, name: str, seed: int, point: int, result: Intelligibility) -> float:
        """Add the epochs of a run up to epoch `point`, and the word error rate after this epoch, to
        values.csv. Return the word error rate."""
        progress = read_progress(self.out / name / f"seed_{seed}").query("epoch <= @point")
        own = progress.assign(name=name, seed=seed).set_index(INDEX).reindex(columns=COLUMNS[3:])
        words = sum(len(transcript.text.split()) for transcript in result.transcripts)
        own.loc[(name, seed, point), [RATE, "words"]] = [result.word_error_rate, words]
        with self._write_lock:
            self.values = own if self.values.empty else own.combine_first(self.values)
            content = self.values[own.columns].to_csv(float_format="%.6g")
            files.write_bytes(self.out / "values.csv", content.encode())
        return result.word_error_rate or 0.0

    def execute(self, command: list, log: Path) -> None:
        """Run a Python program, and append its output to `log`. Raise UserError if the program
        fails."""
        if self.stops:
            raise UserError("stopped")
        signals_sent = 0
        with open(log, "ab") as output:
            process = subprocess.Popen(
                [sys.executable, *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Start the program in a new session, so that it does not receive Ctrl-C from the
                # terminal. The program receives only the signals that the loop below sends.
                start_new_session=True,
            )
        while (status := process.poll()) is None:
            time.sleep(0.1)
            if signals_sent < self.stops:
                signals_sent += 1
                process.send_signal(signal.SIGTERM if signals_sent == 1 else signal.SIGINT)
        if status:
            raise UserError(f"{Path(command[0]).name} exited with status {status}, see {log}")


def budget_table(values: pd.DataFrame, quantity: str, spent: str, points: Sequence[int]) -> str:
    """Return a Markdown table that compares a quantity between the named settings at equal budgets.

    `spent` is a cumulative amount, such as minutes. Each epoch in `points` defines a budget: the
    smallest amount that any run has spent at the end of this epoch. Each cell contains the mean
    over seeds, its standard error, and the difference in percent from the first named setting.
    """
    names = list(values["name"].unique())
    cells: dict[float, list[str]] = {}
    # A word error rate of 0 has no logarithm. Therefore, replace 0 with the rate that half a word
    # error would give.
    least = 0.5 / values["words"].max() if quantity == RATE else 0
    at_points = values[values["epoch"].isin(points)]
    for budget in at_points.groupby("epoch")[spent].min() if spent != "epoch" else points:
        compared = against_first(at_budget(values, quantity, spent, budget, least), names)
        column: list[str] = []
        cells[budget] = column
        for mean, sem, above, p in compared.itertuples(index=False):
            cell = "–" if np.isnan(mean) else f"{mean:.3f}"
            cell += "" if np.isnan(sem) else f" ± {sem:.3f}"
            star = "\\*" if p < LEVEL else ""
            column.append(cell + ("" if np.isnan(above) else f" ({above:+.0f}%{star})"))
    titles = [f"{x:,.{0 if x % 1 == 0 else 3}f} {SPENT[spent]}" for x in cells]
    return markdown_table(["name", *titles], [*zip(names, *cells.values(), strict=True)])


def write_report(study: Study) -> None:
    """Write OUT/report.md and the plot of the report. The report omits settings without results."""
    rows = study.values.reset_index()
    values = pd.concat([rows[:0], *(rows[rows["name"] == name] for name in study.settings)])
    if values.empty:
        return
    figure = draw_progress(values, [*MEASURES, RATE], ["epoch", "minutes"])
    parts = [
        f"# A study\n\nAll runs: `{study.hparams}`. Texts: `{study.texts}`.",
        markdown_table(["name", "settings"], [*study.settings.items()], 2),
        f"![]({write_figure(figure, study.out / 'report.svg').name})",
        "The cells contain means ± standard errors over seeds. The numbers in parentheses are "
        "differences in percent from the first row. Differences are paired by seed; \\* marks "
        "differences that are significant at the 5% level (Holm's method). Each column compares "
        "the runs after the same amount of training, for example after 20 minutes. Each "
        "column belongs to an epoch in --points. Its amount of training is the smallest amount with "
        "which any run finished this epoch. The minutes do not include validation.",
    ]
    for quantity in (LOSS, RATE):
        parts.append(f"## {quantity.replace('_', ' ').capitalize()}")
        parts += [budget_table(values, quantity, spent, study.points) for spent in SPENT]
    files.write_bytes(study.out / "report.md", ("\n\n".join(parts) + "\n").encode())
    print(f"Wrote {study.out / 'report.md'}")


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("out", type=Path, metavar="OUT", help="write all files to this folder")
    add(
        "--hparams",
        default="",
        help="override settings for all runs: name=value,..., as with train.py --hparams",
    )
    add(
        "--settings",
        nargs="+",
        required=True,
        metavar="NAME:OVERRIDES",
        help="compare these settings; @FILE: read them from a file with lines of the form NAME:OVERRIDES",
    )
    add(
        "--seeds",
        nargs="+",
        type=whole_number(0),
        default=[1],
        help="train with each of these seeds (default: 1)",
    )
    add(
        "--points",
        nargs="+",
        type=whole_number(1),
        required=True,
        help="at the end of each of these epochs, synthesize and transcribe the texts",
    )
    add(
        "--texts",
        type=Path,
        required=True,
        help="synthesize the texts of these recordings: a folder in LJSpeech's layout, or a filelist",
    )
    add(
        "--concurrent-runs",
        type=whole_number(1),
        default=1,
        help="maximum number of concurrent runs (default: %(default)s)",
    )
    add_recognizer_options(parser)
    args = parser.parse_args(arguments)
    files.check_is_folder(args.out, "OUT")
    settings = read_settings(args.settings)
    read_recordings(args.texts)
    (args.out / "logs").mkdir(parents=True, exist_ok=True)
    with files.folder_locked(
        args.out, "another process is training these runs. Wait until it has finished"
    ):
        remember(args.out / "study.json", args.hparams, settings)
        evaluation_options = ["--recognizer", args.recognizer]
        evaluation_options += ["--whisper-model", args.whisper_model]
        points = sorted(set(args.points))
        study = Study(args.out, args.hparams, settings, points, args.texts, evaluation_options)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # A shell may start this program in the background with SIGINT ignored. In this case,
            # the program must continue to ignore SIGINT.
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, study.stop)
        study.run(args.seeds, args.concurrent_runs)
        if study.stops:
            print("study.py: stopped; run the same command to resume", file=sys.stderr)
            sys.exit(128 + signal.SIGINT)
        write_report(study)
    if study.failed:
        sys.exit(
            "\n".join(["study.py: the report does not contain these failed runs:", *study.failed])
        )


if __name__ == "__main__":
    run_program(main)
