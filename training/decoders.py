"""Choose the functions that compute the recurrent layers in training: the reference decoder or the
fast decoder.

functions = checked_decoder("fast", hparams, attention, device, processes)
"""

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from hparams import HParams
from layers import LocationSensitiveAttention
from model import packed_lstm, teacher_forced
from training.distributed import Processes
from training.precision import AUTOCAST_DTYPES

DECODERS = ("reference", "fast")


class TrainingFunctions(NamedTuple):
    """The functions that compute the recurrent layers in training."""

    decoder: Callable[..., Any]  # same signature as `model.teacher_forced`
    encoder_lstm: Callable[..., torch.Tensor]  # same signature as `model.packed_lstm`
    description: str  # description of the decoder for messages


def reference(reason: str = "") -> TrainingFunctions:
    """Return the reference functions from model.py, with a description that contains `reason`."""
    description = "reference, step by step" + (f": {reason}" if reason else "")
    return TrainingFunctions(teacher_forced, packed_lstm, description)


def choose_decoder(
    name: str, device: torch.device, attention: torch.nn.Module | None = None
) -> TrainingFunctions:
    """Return the functions of the decoder `name` (one of DECODERS) for this device.

    Return the reference functions if the folder fast_decoder/ is missing, or if the fast decoder
    does not support the model's attention.

    Args:
        attention: the model's attention module; None: any attention that the fast decoder supports.
    """
    if name == "reference":
        return reference()
    spec = importlib.util.find_spec("fast_decoder")
    # If fast_decoder/ has no __init__.py, Python finds a namespace package without an origin.
    if spec is None or spec.origin is None:
        return reference("the folder fast_decoder/ is missing")
    # Reject subclasses, because they may compute attention differently.
    if attention is not None and type(attention) is not LocationSensitiveAttention:
        return reference(
            "the fast decoder supports only LocationSensitiveAttention, not "
            f"{type(attention).__name__}"
        )
    # Import these modules here, because training also works without the folder fast_decoder/.
    import fast_decoder
    from fast_decoder.encoder import bidirectional_lstm

    description = f"fast ({fast_decoder.describe(device)})"
    return TrainingFunctions(fast_decoder.teacher_forced, bidirectional_lstm, description)


def checked_decoder(
    name: str,
    hparams: HParams,
    attention: torch.nn.Module,
    device: torch.device,
    processes: Processes,
) -> TrainingFunctions:
    """Return the functions from `choose_decoder` if they pass a check on this machine's GPU.

    The first process on each machine checks the GPU kernels. If the check fails on any machine, all
    processes use plain PyTorch operations.
    """
    chosen = choose_decoder(name, device, attention)
    if chosen.decoder is teacher_forced:
        return chosen
    from fast_decoder import graphs, self_check

    if graphs.problem(device, torch.float32) is not None:
        return chosen
    autocast = AUTOCAST_DTYPES[hparams.precision]
    checks_here = processes.local_rank == 0
    mine = processes.all_or_none_with_heartbeat(
        lambda: self_check.check(hparams, device, autocast) if checks_here else None,
        "check the decoder kernels",
    )
    answers = [answer for answer in processes.gather(mine) if answer is not None]
    worst = min(answers, key=lambda answer: answer.is_right)
    decoder, description = self_check.resolve(worst, warn=processes.is_first)
    encoder_lstm = chosen.encoder_lstm if worst.is_right else packed_lstm
    return TrainingFunctions(decoder, encoder_lstm, f"fast ({description})")
