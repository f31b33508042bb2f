"""Load a synthesizer from a checkpoint or an exported voice.

synthesizer = load_synthesizer("runs/ljspeech/best.pt")
synthesizer = load_synthesizer("voices/english")
"""

from pathlib import Path

from export.checkpoint_paths import checkpoints_in, list_others
from tacotron2_voice.synthesizer import Synthesizer
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.voice import DESCRIPTION_FILE, Voice


def load_synthesizer(
    path: str | Path, overrides: str = "", threads: int | None = None
) -> Synthesizer:
    """Load a checkpoint or an exported voice (the folder of the voice, or its voice.json).

    Args:
        overrides: settings in the format of --hparams.
        threads: number of CPU threads (default: 1 for a voice, PyTorch's default for a checkpoint).

    Raises:
        UserError: if `path` cannot be read, or is neither a checkpoint nor a voice.
    """
    path = Path(path)
    if path.name == DESCRIPTION_FILE or (path / DESCRIPTION_FILE).exists():
        return Voice(path, overrides, threads or 1)
    if path.is_dir():
        checkpoints = checkpoints_in(path)
        hint = f"; did you mean {checkpoints[0]}?" if checkpoints else ""
        raise UserError(f"{path}: this folder contains no {DESCRIPTION_FILE}{hint}")
    if not path.exists():
        raise UserError(f"{path}: no such checkpoint or voice folder{list_others(path)}")
    # Import PyTorch only for checkpoints, because exported voices do not need PyTorch.
    import torch

    from export.checkpoint_synthesizer import load_checkpoint_synthesizer

    if threads is not None:
        torch.set_num_threads(threads)
    return load_checkpoint_synthesizer(path, overrides)
