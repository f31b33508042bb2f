"""Loads what speaks.

speaker = load_synthesizer("runs/ljspeech/best.pt")  # or "voice/"
"""

from pathlib import Path

from tacotron2_voice.bounds import refuse_threads
from tacotron2_voice.synthesizer import Synthesizer
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.voice import SETTINGS, Voice

CHECKPOINTS = "export.checkpoint_synthesizer"  # which the wheel tacotron2-voice leaves out


def load_synthesizer(
    path: str | Path, overrides: str = "", threads: int | None = None
) -> Synthesizer:
    """Load a Synthesizer from a checkpoint or a voice folder.

    Args:
        path: a checkpoint, the folder of a voice, or the voice.json in it. A voice is loaded
            without torch.
        overrides: settings as in --hparams.
        threads: of the computing; by default one for a voice, and torch's own number for a
            checkpoint.

    Raises:
        UserError: if there is neither, or if it cannot be read, and for more threads than there are
            processors.
    """
    path = Path(path)
    folder = path.parent if path.name == SETTINGS else path
    if (folder / SETTINGS).exists():
        return Voice(folder, overrides, threads or 1)
    if path.is_dir():
        fix = "name the folder of a voice (scripts/export_voice.py makes one), or a checkpoint"
        if (path / "best.pt").exists():  # a run's folder
            fix = f"name a checkpoint in it, as {path / 'best.pt'}"
        raise UserError(f"{path}: no {SETTINGS} in it; {fix}")
    try:
        from export.checkpoint_synthesizer import load_checkpoint_synthesizer
    except ModuleNotFoundError as error:
        if error.name != CHECKPOINTS:
            raise
        fix = "name the folder of one; checkpoints need the whole recipe (synthesize.py)"
        raise UserError(f"{path}: no voice; {fix}") from None
    if threads is not None:
        import torch

        refuse_threads(threads)
        torch.set_num_threads(threads)
    return load_checkpoint_synthesizer(path, overrides)
