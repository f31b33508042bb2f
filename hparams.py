"""Every hyper-parameter of the recipe: one line each, saying what it does.

    create_hparams("batch_size=32,text_cleaners=[english_cleaners],win_time=50,hop_time=12.5")
    create_hparams("@filelists/ljspeech/settings.txt,batch_size=32")  # lines of name=value first

Names and defaults are those of NVIDIA's recipe where it has them. Values are converted by the
type written here; unknown names, wrong types and values out of range are refused all together.
"""

import difflib
import functools
import math
import re
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from errors import UserError
from files import numbered_lines


@dataclass(frozen=True)
class HParams:
    """The resolved settings of one run; immutable. Raises UserError listing all that is wrong."""

    # --- the run
    epochs: int = 500  # passes over the training set
    epochs_per_validation: int = 2  # validate after every so many epochs, counted from 1
    iters_per_checkpoint: int = 1000  # save after every so many training steps
    keep_checkpoints: int = 3  # newest checkpoints kept; the best one is kept beside them
    log_interval: int = 10  # steps between reads of the losses, of all steps but the newest
    seed: int = 1234  # with the epoch's number it decides everything random
    num_workers: int = 2  # processes that read clips; 0 reads in the training process
    precision: str = "fp32"  # fp32, tf32 (its products rounded, on a GPU), bf16, fp16 with scaling
    decoder: str = "fast"  # fast has the same results sooner, reference is simple
    ignore_layers: tuple[str, ...] = ("embedding.weight",)  # --warm_start leaves these as they are

    # --- data
    training_files: str = "filelists/ljspeech/train.txt"  # lines of path|text|seconds or path|text
    validation_files: str = "filelists/ljspeech/val.txt"  # never trained on
    load_mel_from_disk: bool = False  # filelists name .npy log-mels made by --cache-mels, not audio
    text_cleaners: tuple[str, ...] = ("english_cleaners",)  # how text becomes symbols, in order

    # --- audio
    sampling_rate: int = 22050  # Hz; clips at another rate are refused
    filter_length: int = 1024  # samples of one Fourier transform
    hop_length: int = 256  # samples between frames; larger means fewer frames, faster training
    win_length: int = 1024  # samples under the Hann window
    win_time: float | None = None  # window in ms instead; sets win_length and filter_length
    hop_time: float | None = None  # hop in ms instead; sets hop_length
    n_mel_channels: int = 80  # mel bands
    mel_fmin: float = 0.0  # Hz, lower edge of the lowest band
    mel_fmax: float = 8000.0  # Hz, upper edge of the highest band

    # --- batching (batching.py, the arguments of plan_epoch)
    batch_size: int = 64  # clips a batch; with dynamic sizes, clips a batch of the longest ones
    batching_strategy: str = "semi_sorted"  # which clips share a batch
    local_randomization_factor: float = 0.1  # semi_sorted*: range of the noise; larger pads more
    bucket_size: int = 1024  # bucket: clips a bucket; larger is more random and pads more
    num_bins: int = 58  # alternated_sort: sorted runs an epoch; more are more random and pad more
    num_buckets: int = 10  # bucket_by_width, bucket_by_quantile: length classes
    dynamic_batch_size: bool = True  # short clips make larger batches, up to batch_capacity
    batch_capacity: int | None = None  # padded frames a batch may hold; None: batch_size x longest
    batch_randomization: bool = True  # shuffle the finished batches
    random_epochs: int = 0  # at the start, with random batches of batch_size clips; 2 teach more
    batches_per_update: int = 1  # batches of similar length that make one update; see torchrun
    prepare_trainset_per_epoch: bool = True  # False repeats the first epoch's batches and order

    # --- optimisation
    learning_rate: float = 1e-3  # Adam's step size
    learning_rate_schedule: str = "constant"  # constant, or exponential decay
    learning_rate_warmup_steps: int = 0  # steps over which the rate climbs from 0
    learning_rate_decay_start: int = 50_000  # exponential: steps before the decay begins
    learning_rate_half_life: int = 15_000  # exponential: steps that halve the rate
    learning_rate_final: float = 1e-5  # exponential: the rate never falls below
    weight_decay: float = 1e-6  # L2 penalty inside Adam, on every parameter
    grad_clip_thresh: float = 1.0  # gradients are scaled down to this norm
    sync_batch_norm: bool = False  # batch norm over the GPUs' batches; follows their number
    loss: str = "padded"  # padded: the reference's mean, over padding too; unpadded: without it
    guided_attention_weight: float = 0.0  # of a loss that pulls attention to the diagonal; 5 helps
    guided_attention_sigma: float = 0.2  # how far from the diagonal, in shares of the text, is free
    guided_attention_steps: int = 10_000  # steps over which its weight falls to 0, in a line
    mask_padding: bool = True  # outputs beyond a clip's end become their targets: no loss there

    # --- validation
    validation_batch_size: int = 16  # random batches, the same in every run

    # --- model
    n_symbols: int = 148  # rows of the symbol embedding
    symbols_embedding_dim: int = 512  # width of a symbol
    encoder_kernel_size: int = 5  # symbols under each encoder convolution
    encoder_n_convolutions: int = 3  # encoder convolutions
    encoder_embedding_dim: int = 512  # width of the encoder's output; even (two directions)
    n_frames_per_step: int = 1  # frames a decoder step makes; 2 halves the steps, aligns sooner
    decoder_rnn_dim: int = 1024  # width of the decoder LSTM
    prenet_dim: int = 256  # width of the two prenet layers
    p_prenet_dropout: float = 0.5  # prenet dropout, on at synthesis too
    max_decoder_steps: int = 1000  # synthesis stops here at the latest
    gate_threshold: float = 0.5  # synthesis stops when the gate's probability passes this
    attention_rnn_dim: int = 1024  # width of the attention LSTM
    attention_dim: int = 128  # width in which query and memory are compared
    attention_location_n_filters: int = 32  # filters over the past alignments
    attention_location_kernel_size: int = 31  # symbols under each of them
    attention_location_gradient: bool = True  # back through past alignments; False is steadier
    p_attention_dropout: float = 0.1  # dropout on the attention LSTM's hidden state
    p_decoder_dropout: float = 0.1  # dropout on the decoder LSTM's hidden state
    postnet_embedding_dim: int = 512  # channels of the postnet
    postnet_kernel_size: int = 5  # frames under each postnet convolution
    postnet_n_convolutions: int = 5  # postnet convolutions

    def __post_init__(self) -> None:
        problems = _type_problems(self) or _range_problems(self)
        if problems:
            raise UserError(_listed(problems))


# Names of the reference that this recipe has no use for, and what to write instead.
RETIRED = {
    "fp16_run": "use precision=fp16",
    "dynamic_loss_scaling": "precision=fp16 always scales dynamically",
    "distributed_run": "torchrun starts the processes: torchrun --nproc-per-node 4 train.py ...",
    "dist_backend": "NCCL on GPUs, gloo on CPUs; leave it out",
    "dist_url": "torchrun --rdzv-endpoint HOST:PORT says where processes meet; leave it out",
    "cudnn_enabled": "leave it out",
    "cudnn_benchmark": "batches vary in length, so it only costs time; leave it out",
    "max_wav_value": "samples are read in [-1, 1]; leave it out",
    "use_saved_learning_rate": "learning_rate_schedule sets the rate of every step; leave it out",
    "learning_rate_batch_exponent": "it did not help (docs/paper.md); leave it out",
}
# Of those that this recipe once had: the value at which training is what it is without them.
_WITHOUT_EFFECT = {"learning_rate_batch_exponent": 0.0}

_CHOICES = {  # and batching_strategy: one of batching.STRATEGIES
    "precision": ("fp32", "tf32", "bf16", "fp16"),
    "decoder": ("fast", "reference"),
    "learning_rate_schedule": ("constant", "exponential"),
    "loss": ("padded", "unpadded"),
}
_NOT_NEGATIVE = {
    "seed",
    "num_workers",
    "mel_fmin",
    "local_randomization_factor",
    "random_epochs",
    "learning_rate_warmup_steps",
    "learning_rate_decay_start",
    "learning_rate_final",
    "weight_decay",
    "guided_attention_weight",
}  # every other number must be positive, and a p_*_dropout lies in [0, 1)
# Far above what anyone uses, and below what breaks arrays, libraries or the machine.
_AT_MOST = {
    "seed": 2**64 - 1,  # torch's limit
    "num_workers": 1000,
    "sampling_rate": 10**7,
    "filter_length": 2**24,
    "hop_length": 2**24,
    "win_length": 2**24,
    "win_time": 60_000,
    "hop_time": 60_000,
    "n_mel_channels": 10_000,
    "num_buckets": 10**6,
}
_MOST_OF_A_COUNT = 10**12  # of every other whole number
_MOST_WEIGHTS = 10**10  # of the model: 160 GB with their gradients and Adam's state
_BYTES_PER_WEIGHT = 16  # in training: the weight, its gradient and Adam's two means, all float32


def create_hparams(overrides: str | None = None, base: HParams | None = None) -> HParams:
    """Defaults (or `base`) with `name=value,name=[a,b]` overrides applied, the last of a name.

    `@path` stands for the overrides in that file, one a line; lines may be empty, and `#` at the
    beginning of a line or after a blank begins a comment.

    `win_time` and `hop_time` (milliseconds) become lengths of ceil(time x rate) samples, and the
    filter the next power of two, as Ge et al. Section 3 trains with 50 ms / 12.5 ms.

    Raises:
        UserError: one message naming every file that cannot be read, every unknown name (with the
            nearest known one), every value that is not of its type or range, and a time given
            beside its length; with file and line where they stand in a file.
    """
    base = base or HParams()
    given: dict[str, typing.Any] = {}
    places: dict[str, str] = {}
    entries, problems = _split_overrides(overrides or "")
    hints = _types()
    for place, entry in entries:
        name, equals, text = (part.strip() for part in entry.partition("="))
        if not equals:
            problems.append(
                f"{place}{name!r} is not name=value; write for example "
                "batch_size=32,text_cleaners=[english_cleaners]"
            )
        elif name in RETIRED:
            problems.append(f"{place}{name}: this recipe has no such setting: {RETIRED[name]}")
        elif name not in hints:
            near = difflib.get_close_matches(name, hints, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else "; all names are in hparams.py"
            problems.append(f"{place}{name}: no hyper-parameter has this name{hint}")
        else:
            places[name] = place
            try:
                given[name] = _convert(text, hints[name])
            except ValueError as error:
                problems.append(f"{place}{name}={text}: {error}")
    wrong = []
    for time, length in (("win_time", "win_length"), ("hop_time", "hop_length")):
        if given.get(time) is not None and length in given:
            wrong.append(f"{time} and {length} are both given; keep one")
    values = _resolve_times(asdict(base) | given, given)
    draft = types.SimpleNamespace(**values)  # a range is refused beside a name, in one message
    wrong += _type_problems(draft) or _range_problems(draft)
    for problem in wrong:
        named = (places.get(name) for name in re.findall(r"\w+", problem))
        problems.append(next(filter(None, named), "") + problem)
    if problems:
        raise UserError(_listed(problems))
    return HParams(**values)


def override_lines(overrides: str) -> list[str]:
    """Every override as a line of a settings file; an `@path` becomes the lines of its file."""
    return [entry for _, entry in _split_overrides(overrides)[0]]


def hparams_from_dict(values: Mapping[str, typing.Any]) -> HParams:
    """The settings saved with a run (a checkpoint, `metrics.jsonl`).

    A name the file lacks, because the recipe learnt it later, takes its default; one that this
    recipe no longer knows is dropped. Lists become tuples.

    Raises:
        UserError: if a value cannot be, or changed a training in a way that is no more.
    """
    gone = [
        f"{name}={values[name]}: this recipe has no such setting any more; use the version that "
        "wrote it"
        for name, neutral in _WITHOUT_EFFECT.items()
        if values.get(name, neutral) != neutral
    ]
    if gone:
        raise UserError(_listed(gone))
    known = {field.name for field in fields(HParams)}
    return HParams(
        **{
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
            if name in known
        }
    )


def batching_options(hparams: HParams) -> dict[str, typing.Any]:
    """What `batching.plan_epoch` takes beside the lengths and the epoch."""
    from batching import REGISTRY

    parameters = {s.parameter.name for s in REGISTRY.values() if s.parameter}
    names = ("batch_size", "seed", "dynamic_batch_size", "batch_capacity", "batch_randomization")
    return {"strategy": hparams.batching_strategy} | {
        name: getattr(hparams, name) for name in (*names, *sorted(parameters))
    }


def describe(hparams: HParams) -> str:
    """All settings, a `name = value` line each; those that differ from the default are starred."""
    default = HParams()
    lines = []
    for name, value in asdict(hparams).items():
        star = " " if value == getattr(default, name) else "*"
        lines.append(f"{star} {name} = {list(value) if isinstance(value, tuple) else value}")
    return "\n".join(lines)


def _split_overrides(overrides: str) -> tuple[list[tuple[str, str]], list[str]]:
    """(place, `name=value`) of every override, and the files that cannot be read.

    The place is "FILE:LINE: " for an override from a file, else empty.
    """
    entries, problems = [], []
    for piece in re.split(r",(?![^\[]*\])", overrides):  # commas inside [...] belong to a list
        piece = piece.strip()
        if piece.startswith("@"):
            try:
                lines = numbered_lines(piece[1:], "no such file of settings; check --hparams @...")
            except UserError as error:
                problems.append(str(error))
                continue
            except ValueError:  # a zero byte, say
                problems.append(f"@{piece[1:]!r}: cannot be the name of a file")
                continue
            for number, line in lines:
                if entry := re.sub(r"(^|\s)#.*", "", line).strip():
                    entries.append((f"{piece[1:]}:{number}: ", entry))
        elif piece:
            entries.append(("", piece))
    return entries, problems


def _convert(text: str, kind: typing.Any) -> typing.Any:
    """`text` as the annotated type: int, float, bool, str, `X | None` or tuple[str, ...]."""
    if isinstance(kind, types.UnionType):
        if text.lower() in ("none", ""):
            return None
        kind = next(k for k in typing.get_args(kind) if k is not types.NoneType)
    if typing.get_origin(kind) is tuple:
        inside = text[1:-1] if text.startswith("[") and text.endswith("]") else text
        return tuple(item.strip().strip("'\"") for item in inside.split(",") if item.strip())
    if kind is bool:
        if text.lower() in ("true", "1", "yes"):
            return True
        if text.lower() in ("false", "0", "no"):
            return False
        raise ValueError("expected True or False")
    if kind is str:
        return text
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"expected {'a whole number' if kind is int else 'a number'}") from None
    if kind is int:
        if not number.is_integer():
            raise ValueError("expected a whole number")
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else int(number)  # 1e6 is fine too
    return number


def _resolve_times(values: dict[str, typing.Any], given: Mapping[str, object]) -> dict:
    """Turn times given in ms into lengths; a length given later takes the place of a time."""
    rate = values["sampling_rate"]
    for time, length in (("win_time", "win_length"), ("hop_time", "hop_length")):
        if length in given:
            values[time] = None
        elif rate <= _AT_MOST["sampling_rate"] and 0 < (values[time] or 0) <= _AT_MOST[time]:
            values[length] = milliseconds_to_samples(values[time], rate)
    window_changed = "win_time" in given or "sampling_rate" in given
    if values["win_time"] is not None and window_changed and "filter_length" not in given:
        values["filter_length"] = 1 << (values["win_length"] - 1).bit_length()
    return values


def milliseconds_to_samples(milliseconds: float, sampling_rate: int) -> int:
    """ceil(time x rate), tolerant of the last bits of a float product."""
    return math.ceil(round(milliseconds * sampling_rate / 1000, 6))


def _type_problems(hparams: HParams | types.SimpleNamespace) -> list[str]:
    problems = []
    for name, kind in _types().items():
        value = getattr(hparams, name)
        if typing.get_origin(kind) is tuple:
            good = isinstance(value, tuple) and all(isinstance(item, str) for item in value)
        elif kind is bool:
            good = isinstance(value, bool)
        else:  # an int is a fine float
            kinds = typing.get_args(kind) or (kind,)
            kinds = (*kinds, int) if float in kinds else kinds
            good = isinstance(value, kinds) and not isinstance(value, bool)
        if not good:
            expected = getattr(kind, "__name__", str(kind))
            problems.append(f"{name}={value!r}: expected {expected}")
    return problems


def _range_problems(hparams: HParams | types.SimpleNamespace) -> list[str]:
    from batching import REGISTRY  # not at the top: the names of settings load without torch

    h = hparams
    problems = []
    choices = _CHOICES | {"batching_strategy": tuple(REGISTRY)}
    for name, value in vars(h).items():
        if name in choices:
            if value not in choices[name]:
                near = difflib.get_close_matches(value, choices[name], n=1, cutoff=0.3)
                hint = f"; did you mean {near[0]}?" if near else ""
                problems.append(f"{name}={value}: one of {', '.join(choices[name])}{hint}")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            if isinstance(value, float) and not math.isfinite(value):
                problems.append(f"{name}={value}: must be finite")
            elif abs(value) > (most := _largest(name)):
                problems.append(f"{name}={_number_text(value)}: must be at most {most:,}")
            elif name.endswith("_dropout"):
                if not 0 <= value < 1:
                    problems.append(f"{name}={value}: a dropout probability lies in [0, 1)")
            elif value < 0 or (value == 0 and name not in _NOT_NEGATIVE):
                bound = "at least 0" if name in _NOT_NEGATIVE else "greater than 0"
                problems.append(f"{name}={value}: must be {bound}")
    if problems:
        return problems
    for time, length in (("win_time", h.win_length), ("hop_time", h.hop_length)):
        milliseconds = getattr(h, time)
        if milliseconds is not None:
            expected = milliseconds_to_samples(milliseconds, h.sampling_rate)
            if expected != length:
                problems.append(
                    f"{time}={milliseconds} is {expected} samples, not {length}; "
                    "set it through create_hparams"
                )
    if h.win_length > h.filter_length:
        problems.append(
            f"win_length={h.win_length}: must not exceed filter_length={h.filter_length}"
        )
    if not h.mel_fmin < h.mel_fmax <= h.sampling_rate / 2:
        problems.append(
            f"mel_fmin={h.mel_fmin}, mel_fmax={h.mel_fmax}: expected "
            f"mel_fmin < mel_fmax <= {h.sampling_rate / 2:g}, half of sampling_rate"
        )
    if h.encoder_embedding_dim % 2:
        problems.append(f"encoder_embedding_dim={h.encoder_embedding_dim}: must be even")
    for name in ("encoder_kernel_size", "attention_location_kernel_size", "postnet_kernel_size"):
        if getattr(h, name) % 2 == 0:
            problems.append(f"{name}={getattr(h, name)}: must be odd, so that it has a centre")
    if h.postnet_n_convolutions < 2:
        problems.append(f"postnet_n_convolutions={h.postnet_n_convolutions}: must be at least 2")
    if h.batch_capacity is not None and not h.dynamic_batch_size:
        problems.append("batch_capacity is given but dynamic_batch_size is False; change one")
    if h.random_epochs and not h.prepare_trainset_per_epoch:
        problems.append(
            f"random_epochs={h.random_epochs}: prepare_trainset_per_epoch=False repeats the first "
            "epoch for ever; change one"
        )
    if h.random_epochs and h.batch_capacity is not None:
        problems.append(
            f"random_epochs={h.random_epochs}: random batches hold batch_size clips, whatever "
            "batch_capacity allows; leave one of them out"
        )
    parameter = REGISTRY[h.batching_strategy].parameter
    if parameter and parameter.holds_batches and getattr(h, parameter.name) < h.batch_size:
        problems.append(
            f"{parameter.name}={getattr(h, parameter.name)}: must be at least "
            f"batch_size={h.batch_size}, or a bucket cannot fill a batch"
        )
    problems += _size_problems(h)
    if not h.text_cleaners:
        problems.append("text_cleaners=[]: name at least one, for example [english_cleaners]")
    return problems


@functools.cache
def _types() -> dict[str, typing.Any]:
    """The type of every hyper-parameter by its name."""
    return typing.get_type_hints(HParams)


def _largest(name: str) -> float:
    if name in _AT_MOST:
        return _AT_MOST[name]
    kind = _types()[name]
    return sys.float_info.max if float in (kind, *typing.get_args(kind)) else _MOST_OF_A_COUNT


def _number_text(value: float) -> str:
    """A number as it is, or how long it is."""
    if isinstance(value, float) or abs(value) < 10**30:
        return str(value)
    return f"(a number of some {value.bit_length() * 0.30103:.0f} digits)"


def check_symbols(hparams: HParams) -> None:
    """Raise UserError if the model has fewer symbols than texts are made of."""
    from text.symbols import symbols

    if hparams.n_symbols < len(symbols):
        raise UserError(
            f"n_symbols={hparams.n_symbols}: must be at least {len(symbols)}, the symbols that "
            "texts are made of (text/symbols.py)"
        )


def _size_problems(h: HParams | types.SimpleNamespace) -> list[str]:
    """What is wrong with the model's size: too many weights."""
    problems = []
    parts = _weights(h)
    if sum(parts.values()) > _MOST_WEIGHTS:
        largest = max(parts, key=parts.get)
        named = ", ".join(f"{name}={getattr(h, name)}" for name in largest.split())
        gigabytes = sum(parts.values()) * _BYTES_PER_WEIGHT / 10**9
        problems.append(
            f"{named}: a model of {sum(parts.values()):.2g} weights would take {gigabytes:,.0f} GB "
            f"in training; at most {_MOST_WEIGHTS:.0e} weights are allowed, so choose smaller ones"
        )
    return problems


def _weights(h: HParams | types.SimpleNamespace) -> dict[str, int]:
    """Weights of the model's parts, biases left out, by the names of the settings that decide."""
    width, out = h.encoder_embedding_dim, h.n_mel_channels * h.n_frames_per_step
    attention, decoder, post = h.attention_rnn_dim, h.decoder_rnn_dim, h.postnet_embedding_dim
    located = 2 * h.attention_location_kernel_size + h.attention_dim
    post_layers = 2 * h.n_mel_channels * post + (h.postnet_n_convolutions - 2) * post**2
    return {
        "n_symbols symbols_embedding_dim": h.n_symbols * h.symbols_embedding_dim,
        "encoder_embedding_dim encoder_n_convolutions encoder_kernel_size": width**2
        * (h.encoder_n_convolutions * h.encoder_kernel_size + 6),
        "prenet_dim n_mel_channels n_frames_per_step": h.prenet_dim * (out + h.prenet_dim),
        "attention_rnn_dim prenet_dim": 4 * attention * (h.prenet_dim + width + attention),
        "decoder_rnn_dim attention_rnn_dim": 4 * decoder * (attention + width + decoder)
        + (decoder + width) * out,
        "attention_dim attention_rnn_dim": h.attention_dim * (attention + width),
        "attention_location_n_filters attention_location_kernel_size attention_dim": (
            h.attention_location_n_filters * located
        ),
        "postnet_embedding_dim postnet_n_convolutions postnet_kernel_size": (
            post_layers * h.postnet_kernel_size
        ),
    }


def __getattr__(name: str) -> typing.Any:
    """`hparams.STRATEGIES`, as it was when this file had a list of its own."""
    if name != "STRATEGIES":
        raise AttributeError(f"module 'hparams' has no attribute {name!r}")
    from batching import STRATEGIES

    return STRATEGIES


def _listed(problems: list[str]) -> str:
    return "hyper-parameters refused:\n" + "\n".join(f"  {problem}" for problem in problems)
