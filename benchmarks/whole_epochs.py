"""Time whole epochs of the experiments in scripts/table2, on mels of noise.

    python -m benchmarks.whole_epochs lists/train.txt runs/epochs
    python -m benchmarks.whole_epochs lists/train.txt runs/epochs --only rand,ssb_dbs_br --seconds 300

The time of an epoch depends on the lengths of the clips and texts, but not on the audio. Therefore
the benchmark needs only a filelist with texts and seconds. The benchmark writes a mel of noise for
each clip, and runs the scripts in scripts/table2 with the settings of the paper. OUT/table2.csv has
one row per experiment. The columns contain the durations of the last and the first epoch in
seconds, the numbers of decoder steps and batches per epoch, and the peak memory in GB. The
durations do not include validation and checkpoints. The first epochs take longer, because CUDA
graphs are captured and many batch lengths occur for the first time.
"""

if not __package__:
    raise SystemExit("error: run this program as a module: python -m benchmarks.whole_epochs")


import argparse
import csv
import io
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from audio import frame_count, mel_fingerprint
from benchmarks.timing import run_for
from corpus.filelist import MEL_SETTINGS_FILE, split_filelist_line
from hparams import HParams, create_hparams
from tacotron2_voice.utils.arguments import at_least_one, make_parser, positive
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import (
    METRICS_FILE,
    json_lines,
    numbered_lines,
    write_bytes,
    write_json,
)
from tacotron2_voice.utils.program import run_program

ROOT = Path(__file__).resolve().parents[1]
AUDIO = "win_time=50,hop_time=12.5"  # the audio settings in scripts/table2/settings.sh
WITHOUT_VALIDATION = (
    "validation_files=none,epochs_per_validation=100,text_cleaners=[basic_cleaners]"
)


class Experiment(NamedTuple):
    """An experiment: a script in scripts/table2, and settings that override the settings of the
    script."""

    script: str
    settings: str = ""


COSTS = "row_costs=measure"
EXPERIMENTS = {
    "rand": Experiment("rand"),
    "ssb_dbs_br": Experiment("ssb_dbs_br"),
    "ssb_dbs_br_costs": Experiment("ssb_dbs_br", COSTS),
    "ssb_br": Experiment("ssb_br"),
    "bkt_br": Experiment("bkt_br"),
    "sb_br": Experiment("sb_br"),
    "ats_br": Experiment("ats_br"),
    "ssb_dbs_br_19368": Experiment("ssb_dbs_br", "batch_capacity=19368"),
    "ssb_dbs_br_19368_costs": Experiment("ssb_dbs_br", f"batch_capacity=19368,{COSTS}"),
    "ssb_dbs": Experiment("ssb_dbs"),
    "sb_dbs": Experiment("sb_dbs"),
    "ssb": Experiment("ssb"),
    "sb": Experiment("sb"),
    "ssb_dbs_br_25824": Experiment("ssb_dbs_br", "batch_capacity=25824"),
    "ssb_dbs_br_51648": Experiment("ssb_dbs_br", "batch_capacity=51648"),
    "rand_24": Experiment("rand", "batch_size=24"),
    "rand_32": Experiment("rand", "batch_size=32"),
    "rand_64": Experiment("rand", "batch_size=64"),
}


def write_corpus(filelist: Path, out: Path, hparams: HParams) -> None:
    """Write a mel of noise for each clip in the filelist, and a new filelist that lists these mels.

    Clips of equal length share a mel through hard links, so that a corpus needs little disk space.

    Raises:
        UserError: if a clip has no length in seconds, or if `out` contains the mels of another
            filelist.
    """
    mels = out / "mels"
    frames_of: dict[Path, int] = {}
    lines = []
    for number, line in numbered_lines(
        filelist, "no such file; expected a filelist with the seconds of each clip"
    ):
        clip = split_filelist_line(line)
        if clip.seconds is None:
            raise UserError(f"{filelist}:{number}: no length in seconds")
        path = mels / f"{number:06}.npy"
        frames_of[path] = frame_count(round(clip.seconds * hparams.sampling_rate), hparams)
        lines.append(f"{path}|{clip.text}|{clip.seconds:.6f}\n")
    content = "".join(lines).encode()
    written = out / "filelists" / "train_mel.txt"
    if written.exists():
        if written.read_bytes() != content:
            raise UserError(
                f"{out}: contains the mels of a different filelist. Choose a different folder"
            )
        return
    mels.mkdir(parents=True, exist_ok=True)
    written.parent.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    first_of_length: dict[int, Path] = {}
    for path, frames in frames_of.items():
        path.unlink(missing_ok=True)
        if frames in first_of_length:
            os.link(first_of_length[frames], path)
        else:
            noise = rng.normal(-5, 1.5, (hparams.n_mel_channels, frames))
            np.save(path, noise.astype(np.float32))
            first_of_length[frames] = path
    write_json(mels / MEL_SETTINGS_FILE, mel_fingerprint(hparams))
    write_bytes(written, content)


def run_experiment(
    name: str, out: Path, corpus: Path, extra: str, epochs: int, seconds: float
) -> str:
    """Run the script of an experiment. Return "" if the script succeeded, otherwise the reason for
    the failure."""
    experiment = EXPERIMENTS[name]
    # Create a run folder for each experiment, with a link to the filelists.
    own = out / name
    own.mkdir(exist_ok=True)
    if not (own / "filelists").exists():
        (own / "filelists").symlink_to(out / "filelists")
    # If corpus.txt contains the path of the corpus, the script does not prepare the corpus again.
    write_bytes(own / "corpus.txt", f"{corpus}\n".encode())
    settings = ",".join(filter(None, (WITHOUT_VALIDATION, extra, experiment.settings)))
    environment = {
        "CORPUS": str(corpus),
        "OUT": str(own),
        "EPOCHS": str(epochs),
        "EXTRA": settings,
        "PYTHON": sys.executable,
    }
    command = ["bash", str(ROOT / "scripts" / "table2" / f"{experiment.script}.sh")]
    output = own / "output.txt"
    code = run_for(max(seconds, 1), command, output, env=os.environ | environment)
    if code is None:
        return "out of time"
    lines = output.read_text(errors="replace").splitlines()
    return "" if code == 0 else "\n".join(lines[-5:])


def row_of(name: str, out: Path) -> dict[str, Any]:
    """Return the row for a finished experiment in table2.csv."""
    [metrics_file] = (out / name).glob(f"*/seed_*/{METRICS_FILE}")
    epochs = [line for line in json_lines(metrics_file) if line.get("kind") == "epoch"]
    first, last = epochs[0], epochs[-1]
    return {
        "batching": name,
        "seconds_per_epoch": round(60 * last["minutes"], 2),
        "first_epoch_seconds": round(60 * first["minutes"], 2),
        "decoder_steps": round(last["decoder_steps"]),
        "batches": last["num_batches"],
        "peak_gb": round(last["peak_memory_bytes"] / 1e9, 2),
    }


def table_of(rows: list[dict[str, Any]]) -> str:
    """Return the rows of table2.csv as CSV text."""
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("filelist", type=Path, help="filelist of the training clips with their lengths in seconds")
    add("out", type=Path, help="write mels, runs and table2.csv to this folder")
    add(
        "--only",
        default=",".join(EXPERIMENTS),
        help="run only these experiments, separated by commas (default: all)",
    )
    add(
        "--seconds",
        type=positive,
        default=86400,
        help="stop the benchmark after this time, in seconds (default: 86400)",
    )
    add(
        "--epochs",
        type=at_least_one,
        default=4,
        help="number of epochs per experiment (default: 4)",
    )
    add(
        "--extra",
        default="precision=bf16,num_workers=4",
        help="override these settings in every experiment (default: %(default)s)",
    )
    args = parser.parse_args(arguments)
    unknown = sorted(set(args.only.split(",")) - set(EXPERIMENTS))
    if unknown:
        parser.error(f"--only {','.join(unknown)}: expected {', '.join(EXPERIMENTS)}")
    return args


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)
    end = time.monotonic() + args.seconds
    out = args.out.absolute()
    hparams = create_hparams(AUDIO)
    filelist = Path(os.path.realpath(args.filelist))
    write_corpus(filelist, out, hparams)
    rows = []
    for name in args.only.split(","):
        began = time.monotonic()
        failure = run_experiment(name, out, filelist.parent, args.extra, args.epochs, end - began)
        took = time.monotonic() - began
        if failure:
            print(f"{name}: {failure} ({took:.0f} s)", flush=True)
            continue
        rows.append(row_of(name, out))
        write_bytes(out / "table2.csv", table_of(rows).encode())
        print(f"{', '.join(f'{k} {v}' for k, v in rows[-1].items())} ({took:.0f} s)", flush=True)
    print(f"Wrote {out / 'table2.csv'}")


if __name__ == "__main__":
    run_program(main)
