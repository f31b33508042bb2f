"""Start a run: find the checkpoint, resolve the settings, and check that all processes agree.

    start = find_start(folder, processes, None, resume=True, warm_start=False)
    hparams = resolve_hparams("epochs=100", start.resumed, processes)

If a check fails in any process, all processes stop. The run writes no file before all checks have
passed.
"""

import os
import zlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import torch

from export import checkpoint_file
from export.voice_weights import is_voice, state_of_voice
from hparams import MEASURE, HParams, create_hparams, hparams_from_dict, read_symbols, symbols_path
from machine import fingerprint_of_code, versions
from tacotron2_voice.settings import check_text_settings
from tacotron2_voice.text.lexicon import with_lexicon
from tacotron2_voice.text.rules import rules_version, uses_english_rules
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import read_bytes
from tacotron2_voice.voice import DESCRIPTION_FILE
from training import checkpoint
from training.checkpoint import Checkpoint
from training.clips import Clips, from_weights
from training.decoders import choose_decoder
from training.distributed import Processes
from training.run_folder import RunFolder

# Folders that must contain the same code in every process.
FOLDERS = ("corpus", "export", "fast_decoder", "length_batching", "tacotron2_voice", "training")
CODE = ("*.py", *(f"{folder}/**/*.py" for folder in FOLDERS))


class Start(NamedTuple):
    """The checkpoint, or only the weights, from which a run starts.

    Without a checkpoint, the run starts at optimizer step 0.
    """

    resumed: Checkpoint | None = None
    weights: Checkpoint | None = None  # initial weights from a different model (--warm_start)


# ---------------------------------------------------------------------------- the checkpoint


def find_start(
    folder: RunFolder,
    processes: Processes,
    path: Path | None,
    *,
    resume: bool,
    warm_start: bool,
) -> Start:
    """Read the checkpoint from which the run starts.

    If `resume` is True, the run starts from the newest checkpoint in the folder. If `resume` is
    False, the run starts from the checkpoint at `path`, if `path` is set. The first process chooses
    the checkpoint, and every process reads it.

    Raises:
        UserError: if the checkpoint cannot be used, or if the folder contains a run but no option
            of the command resumes this run.
    """

    def find() -> Checkpoint | None:
        contains_run = folder.contains_run()
        if resume:
            return checkpoint.load_newest(folder.path) if contains_run else None
        source = None if warm_start else path
        if contains_run and not (source and is_inside(source, folder.path)):
            other = f"{os.path.realpath(source)} is not in this folder. " if source else ""
            raise UserError(
                f"{folder.path} contains a run. {other}Add --resume to resume it, or choose a "
                "different -o"
            )
        if source and is_voice(source):
            raise UserError(
                f"{source}: this is an exported voice, so training cannot resume from it (it has "
                "no optimizer state). Add --warm_start to start a new run from its weights"
            )
        return Checkpoint.read(source) if source else None

    resumed = processes.all_or_none(lambda: find() if processes.is_first else None)
    resumed_path = processes.gather(resumed and resumed.path)[0]

    def read() -> Start:
        if resumed_path is not None:
            return Start(resumed=checkpoint.complete(resumed or Checkpoint.read(resumed_path)))
        if path is not None and warm_start:
            return Start(weights=read_weights(path))
        return Start()

    return processes.all_or_none(read)


def read_weights(path: Path) -> Checkpoint:
    """Read the weights of a checkpoint or an exported voice.

    Raises:
        UserError: if `path` is neither a checkpoint nor an exported voice, or if a file is damaged.
    """
    if is_voice(path):
        return Checkpoint(path, state_of_voice(path))
    if path.is_dir():
        raise UserError(
            f"{path}: this folder contains no {DESCRIPTION_FILE} (expected a checkpoint or the "
            "folder of an exported voice)"
        )
    return Checkpoint.read(path)


def is_inside(path: Path, directory: Path) -> bool:
    """Return whether `path` or its link target is a file in `directory`."""
    real = os.path.realpath
    return real(directory) in (os.path.dirname(real(path)), real(path.parent))


def is_finished(
    resumed: Checkpoint | None, hparams: HParams, folder: RunFolder, processes: Processes
) -> bool:
    """Return whether the resumed run has already finished its last epoch.

    If the checkpoint is the best checkpoint of the run, the function also links it as best.pt.

    Raises:
        UserError: if the run is finished in some processes but not in others, because their
            settings differ.
    """
    finished = resumed is not None and resumed.state["loop"]["epoch"] > hparams.epochs
    if resumed is None or not processes.any(finished):
        return False
    processes.check_same(asdict(hparams) | {"whether the run is finished": finished})
    if is_inside(resumed.path, folder.path) and folder.is_used:
        checkpoint.mark_if_best(resumed)
    return True


# ---------------------------------------------------------------------------- settings


def resolve_hparams(overrides: str, resumed: Checkpoint | None, processes: Processes) -> HParams:
    """Apply the overrides of the command to the settings of the checkpoint or, in a new run, to the
    defaults.

    Print every setting that changes.

    Raises:
        UserError: if a setting is invalid, if an override changes a setting that a resumed run
            cannot change, or if the checkpoint was trained with a different version of the rules
            for English text.
    """

    def resolve() -> HParams:
        if resumed is None:
            hparams = with_lexicon(check_text_settings(create_hparams(overrides)))
            hparams = read_symbols(hparams)
        else:
            base = hparams_from_dict(resumed.state["hparams"])
            hparams = create_hparams(overrides, base)
            if hparams.row_costs == MEASURE:  # only new runs measure the costs of decoder steps
                hparams = replace(hparams, row_costs=base.row_costs)
                print(
                    f"note: only a new run measures row_costs, so this run keeps row_costs={base.row_costs or '(empty)'}"
                )
            for name, value in asdict(hparams).items():
                if value != getattr(base, name):
                    old = getattr(base, name)
                    print(f"changed since the checkpoint: {name} = {value} (was {old})")
            hparams = resolve_symbols(check_text_settings(hparams), base)
            check_lexicon(hparams, base)
            check_text_rules(resumed, hparams)
        if hparams.batches_per_update == 1 and processes.world_size > 1:
            hparams = replace(hparams, batches_per_update=processes.world_size)
            print(
                f"note: batches_per_update was changed to {hparams.batches_per_update}, because each "
                "process needs at least one batch per optimizer step. Compared with a run with one process, "
                "there are fewer optimizer steps with more clips per step, so the results differ"
            )
        if hparams.sync_batch_norm and processes.device == torch.device("cpu"):
            raise UserError(
                "sync_batch_norm=True: PyTorch supports this only on GPUs, but these processes "
                "train on CPUs. Set sync_batch_norm=False"
            )
        return hparams

    return processes.all_or_none(resolve)


def resolve_symbols(hparams: HParams, base: HParams) -> HParams:
    """Return the settings of a resumed run, which use the checkpoint's symbol table.

    If the clips have changed, the symbol table of the corpus may also have changed. Symbols that
    are missing from the checkpoint are reported later, together with the filelist lines that
    contain these symbols.

    Raises:
        UserError: if the setting `symbols` is the path of a file, and the table in this file
            differs from the checkpoint's symbol table.
    """
    if hparams.symbols == base.symbols == "corpus":
        return hparams
    path = symbols_path(hparams)
    changed = hparams.symbols != base.symbols or (hparams.symbol_table and path.exists())
    if changed and read_symbols(hparams).symbol_table != base.symbol_table:
        raise UserError(
            f"symbols={hparams.symbols}: {path} differs from the checkpoint's table of "
            f"{len(base.table)} symbols. Restore the original symbol table, or start a "
            "new run from the checkpoint's weights with -c and --warm_start"
        )
    return hparams


def check_lexicon(hparams: HParams, base: HParams) -> None:
    """Raise UserError if the lexicon differs from the pronunciations in the checkpoint.

    If the lexicon file is missing, the run uses the pronunciations in the checkpoint.
    """
    if hparams.lexicon == base.lexicon and not Path(hparams.lexicon).is_file():
        return
    current = set(with_lexicon(hparams).pronunciations)
    num_changed = len(current.symmetric_difference(base.pronunciations))
    if num_changed:
        raise UserError(
            f"lexicon={hparams.lexicon}: {num_changed:,} pronunciations differ from the "
            f"checkpoint, which has {len(base.pronunciations):,} pronunciations. Restore the "
            "original lexicon file, or start a new run from the checkpoint's weights with -c and "
            "--warm_start"
        )


def check_text_rules(resumed: Checkpoint, hparams: HParams) -> None:
    """Raise UserError if the rules for English text have changed since the checkpoint was written.

    Checkpoints from version 0.4.0 do not contain the version of the rules, so this function accepts
    these checkpoints.
    """
    saved = resumed.state.get("text_rules")
    current = rules_version(hparams.pronunciations)
    if saved in (None, current) or not uses_english_rules(hparams.text_cleaners):
        return
    raise UserError(
        f"{resumed.path}: trained with version {saved} of the text normalization rules for English "
        f"(expected {current}). Resume with version {resumed.state['version']} of this project, or start a "
        f"new run with {from_weights(resumed)}"
    )


# ---------------------------------------------------------------------------- processes


def check_processes_agree(
    hparams: HParams, clips: Clips, start: Start, device: torch.device, processes: Processes
) -> None:
    """Raise UserError in all processes if their settings, corpus, checkpoint or code differ."""
    checksum = None
    if start.resumed is not None:
        content = read_bytes(start.resumed.path, checkpoint_file.MAX_BYTES)
        checksum = f"CRC-32 {zlib.crc32(content):08x}"
    processes.check_same(
        asdict(hparams)
        | {
            "the corpus": clips.fingerprint,
            "the checkpoint": checksum,
            "the use of --warm_start": start.weights is not None,
            "the decoder": choose_decoder(hparams.decoder, device).description,
            "the device type": device.type,
            "torch": versions()["torch"],
            "the project's code": fingerprint_of_code(*CODE),
        }
    )
