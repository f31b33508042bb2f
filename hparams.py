"""Every hyper-parameter of the recipe: one line each, saying what it does.

    create_hparams("batch_size=32,text_cleaners=[basic_cleaners],win_time=50,hop_time=12.5")
    create_hparams("@filelists/ljspeech/settings.txt,batch_size=32")  # lines of name=value first

Names are those of NVIDIA's recipe where it has them, and so are defaults, with the exceptions in
docs/migration.md. Values are converted by the
type written here; unknown names, wrong types and values out of range are reported all together.
"""

import difflib
import functools
import importlib.util
import math
import re
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

from tacotron2_voice.utils.errors import UserError, grouped
from tacotron2_voice.utils.files import numbered_lines

if TYPE_CHECKING:
    from tacotron2_voice.text.symbols import SymbolTable

HAS_PYDANTIC = importlib.util.find_spec("pydantic") is not None
HAS_BATCHING = importlib.util.find_spec("length_batching") is not None  # not beside a voice alone
if HAS_PYDANTIC:
    import pydantic


# Bounds of a setting's values, which pydantic checks where it is installed.
limits: Any = pydantic.Field if HAS_PYDANTIC else lambda **bounds: None

# The upper bounds are far above what anyone uses, and below what breaks arrays or the machine.
MAX_DECODER_STEPS = 10**5
Count = Annotated[int, limits(ge=1, le=10**12)]
DecoderSteps = Annotated[int, limits(ge=1, le=MAX_DECODER_STEPS)]
CountOrZero = Annotated[int, limits(ge=0, le=10**12)]
Samples = Annotated[int, limits(ge=1, le=2**14)]
Width = Annotated[int, limits(ge=1, le=2**13)]
WidthOrZero = Annotated[int, limits(ge=0, le=2**13)]
EvenWidth = Annotated[int, limits(ge=2, le=2**13, multiple_of=2)]
Kernel = Annotated[int, limits(ge=1, le=999)]
Positive = Annotated[float, limits(gt=0)]
PositiveOrZero = Annotated[float, limits(ge=0)]
Milliseconds = Annotated[float, limits(gt=0, le=60_000)]
MillisecondsOrZero = Annotated[float, limits(ge=0, le=60_000)]
LossWeight = Annotated[float, limits(ge=0, le=1e6)]
DiagonalWidth = Annotated[float, limits(ge=1e-3, le=1e3)]
Dropout = Annotated[float, limits(ge=0, lt=1)]
Share = Annotated[float, limits(ge=0, le=1)]


@dataclass(frozen=True)
class HParams:
    """The resolved settings of one run; immutable. UserError lists every bad value."""

    # --- the run
    epochs: Count = 500  # passes over the training set
    epochs_per_validation: Count = 2  # validate after every so many epochs, counted from 1
    iters_per_checkpoint: Count = 1000  # save after every so many training steps
    keep_checkpoints: Count = (
        3  # newest ones kept, at least 2 until there is a best one, and the best
    )
    log_interval: Count = 10  # steps between reads of the losses, of all steps but the newest
    seed: Annotated[int, limits(ge=0, le=2**64 - 1)] = 1234  # decides everything random
    num_workers: Annotated[int, limits(ge=0, le=1000)] = 2  # 0 reads clips in the training process
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"  # others: for GPUs
    decoder: Literal["fast", "reference"] = "fast"  # same results; reference is simple and slower
    ignore_layers: tuple[str, ...] = ()  # tensors that --warm_start does not load

    # --- data
    training_files: str = "filelists/ljspeech/train.txt"  # lines of path|text|seconds or path|text
    validation_files: str = "filelists/ljspeech/val.txt"  # never trained on; empty: no validation
    clips_folder: str = ""  # where the lists' clips lie now, if they were moved; subfolders too
    load_mel_from_disk: bool = False  # filelists name .npy log-mels made by --cache-mels, not audio
    text_cleaners: tuple[str, ...] = ("english_cleaners_corrected",)  # text to symbols, in order
    language: str = ""  # eSpeak's name of it, such as de: for [phones], and tr for Turkish letters
    symbols: str = "english"  # NVIDIA's 148; corpus: what prepare found, as for phones; or a .json
    symbol_table: tuple[str, ...] = ()  # read from that file and saved with the run; (): English
    drop_unknown: bool = False  # drop symbols that the table lacks instead of refusing the clip
    espeak_version: str = ""  # the version that made the phones; detected, not set
    speakers: tuple[str, ...] = ()  # read from the lists and saved with the run; (): one voice

    # --- audio
    sampling_rate: Annotated[int, limits(ge=1, le=10**7)] = 22050  # Hz; other clips are refused
    filter_length: Annotated[int, limits(ge=2, le=2**14)] = 1024  # samples of one Fourier transform
    hop_length: Samples = 256  # samples between frames; larger: fewer frames, faster training
    win_length: Samples = 1024  # samples under the Hann window
    win_time: Milliseconds | None = None  # window in ms; sets win_length and filter_length
    hop_time: Milliseconds | None = None  # hop in ms; sets hop_length
    n_mel_channels: Annotated[int, limits(ge=1, le=10_000)] = 80  # mel bands
    mel_fmin: PositiveOrZero = 0.0  # Hz, lower edge of the lowest band
    mel_fmax: Positive = 8000.0  # Hz, upper edge of the highest band

    # --- batching (the arguments of length_batching.plan_epoch)
    batch_size: Count = 64  # clips a batch; with dynamic sizes, clips a batch of the longest ones
    batching_strategy: str = "semi_sorted"  # which clips share a batch
    local_randomization_factor: PositiveOrZero = 0.1  # semi_sorted*: range of the noise
    bucket_size: Count = 1024  # bucket: clips a bucket; larger is more random and pads more
    num_bins: Count = 58  # alternated_sort: sorted runs an epoch; more are more random and pad more
    num_buckets: Annotated[int, limits(ge=1, le=10**6)] = 10  # bucket_by_*: length classes
    dynamic_batch_size: bool = True  # short clips make larger batches, up to batch_capacity
    batch_capacity: Count | None = None  # padded frames a batch holds; None: batch_size x longest
    batch_randomization: bool = True  # shuffle the finished batches
    random_epochs: CountOrZero = 2  # first epochs with random batches, whatever the strategy
    batches_per_update: Count = 1  # batches of similar length that make one update; see torchrun
    speaker_balance: Share = 0.0  # 1: epochs have equal time of all speakers; 0: every clip once
    prepare_trainset_per_epoch: bool = True  # False repeats the first epoch after random_epochs

    # --- optimization
    learning_rate: Positive = 1e-3  # Adam's step size
    learning_rate_schedule: Literal["constant", "exponential"] = "constant"  # exponential decay
    learning_rate_warmup_steps: CountOrZero = 0  # steps over which the rate climbs from 0
    learning_rate_decay_start: CountOrZero = 50_000  # exponential: steps before the decay begins
    learning_rate_half_life: Count = 15_000  # exponential: steps that halve the rate
    learning_rate_final: PositiveOrZero = 1e-5  # exponential: the rate never falls below
    weight_decay: PositiveOrZero = 1e-6  # L2 penalty inside Adam, on every parameter
    grad_clip_thresh: Positive = 1.0  # gradients are scaled down to this norm
    sync_batch_norm: bool = False  # batch norm over the batches of all GPUs
    loss: Literal["padded", "unpadded"] = "padded"  # padded: the reference's mean, over padding too
    gate_positive_weight: LossWeight = 5.0  # of a clip's one stop in the gate's loss; 1: as a step
    guided_attention_weight: LossWeight = 1.0  # of a loss for diagonal attention; 0: may not align
    guided_attention_sigma: DiagonalWidth = 0.4  # width of the diagonal, as a fraction of the text
    guided_attention_steps: Count = 10_000  # steps over which its weight falls linearly to 0
    mask_padding: bool = True  # outputs beyond a clip's end become their targets: no loss there

    # --- validation
    validation_batch_size: Count = 16  # random batches, the same in every run

    # --- model
    n_symbols: Annotated[int, limits(ge=1, le=10**5)] = 148  # rows of the symbol embedding
    symbols_embedding_dim: Width = 512  # width of a symbol
    encoder_kernel_size: Kernel = 5  # symbols under each encoder convolution
    encoder_n_convolutions: Annotated[int, limits(ge=1, le=100)] = 3  # encoder convolutions
    encoder_embedding_dim: EvenWidth = 512  # width of the encoder's output; even (two directions)
    speaker_embedding_dim: WidthOrZero = 0  # width of a speaker, beside each symbol's; 0: one voice
    n_frames_per_step: Width = 1  # frames a decoder step makes; 2 halves the steps, aligns sooner
    decoder_rnn_dim: Width = 1024  # width of the decoder LSTM
    prenet_dim: Width = 256  # width of the two prenet layers
    p_prenet_dropout: Dropout = 0.5  # prenet dropout, on in synthesis too
    max_decoder_steps: DecoderSteps = 10_000  # of synthesis, any text
    gate_threshold: Positive = 0.5  # synthesis stops when the gate's probability passes this
    attention_rest_time: MillisecondsOrZero = 800.0  # or attention rested so long; 0: gate
    attention_window: CountOrZero = 0  # symbols that attention may move ahead at a step; 0: any
    attention_rnn_dim: Width = 1024  # width of the attention LSTM
    attention_dim: Width = 128  # width in which query and memory are compared
    attention_location_n_filters: Width = 32  # filters over the past alignments
    attention_location_kernel_size: Kernel = 31  # symbols under each of them
    attention_location_gradient: bool = True  # back through past alignments; False is steadier
    p_attention_dropout: Dropout = 0.1  # dropout on the attention LSTM's hidden state
    p_decoder_dropout: Dropout = 0.1  # dropout on the decoder LSTM's hidden state
    postnet_embedding_dim: Width = 512  # channels of the postnet
    postnet_kernel_size: Kernel = 5  # frames under each postnet convolution
    postnet_n_convolutions: Annotated[int, limits(ge=2, le=100)] = 5  # postnet convolutions

    def __post_init__(self) -> None:
        _refuse([*_field_problems(vars(self)).values()] or [*_rule_problems(self)])

    @functools.cached_property
    def table(self) -> "SymbolTable":
        from tacotron2_voice.text.symbols import table_with

        return table_with(self.symbol_table)

    @property
    def labels(self) -> dict[str, tuple[str, ...]]:
        """The names that the model has vectors of, by label of a clip; {} for one voice."""
        names = {"speaker": self.speakers}
        return {label: known for label, known in names.items() if known}

    @property
    def memory_dim(self) -> int:
        """Width of what the decoder attends to: the encoder's output and the speaker."""
        return self.encoder_embedding_dim + self.speaker_embedding_dim


LOG_FLOOR = 1e-5  # mel magnitudes below this are raised to it before the logarithm
MEL_SETTINGS = (  # that a log-mel depends on
    "sampling_rate",
    "filter_length",
    "hop_length",
    "win_length",
    "n_mel_channels",
    "mel_fmin",
    "mel_fmax",
)
WINDOW_BACK = 2  # symbols behind the furthest one attended that stay in the attention window
TYPES = get_type_hints(HParams)  # by name, without the limits
BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
FILELISTS = ("training_files", "validation_files")
TIMES = (("win_time", "win_length"), ("hop_time", "hop_length"))

NVIDIA_CLEANERS = ("english_cleaners",)
# NVIDIA's names that mean nothing here, and what replaces them.
NVIDIA_ONLY = {
    "fp16_run": "use precision=fp16, on a GPU",
    "dynamic_loss_scaling": "precision=fp16 scales the loss, always dynamically",
    "distributed_run": "use torchrun: torchrun --nproc-per-node 4 train.py ...",
    "dist_backend": "processes talk by NCCL on GPUs and by Gloo on CPUs",
    "dist_url": "use torchrun --rdzv-endpoint HOST:PORT",
    "cudnn_enabled": "cuDNN is used on every GPU",
    "cudnn_benchmark": "cuDNN takes kernels that give the same result in every run",
    "max_wav_value": "samples are read in [-1, 1]",
    "use_saved_learning_rate": "learning_rate_schedule sets the rate of every step",
}
# Names that other recipes and samplers have for a setting, or for what is none.
OTHER_NAMES = {
    **dict.fromkeys(("lr", "initial_learning_rate"), "it is learning_rate"),
    **dict.fromkeys(("n_fft", "fft_size"), "it is filter_length"),
    **dict.fromkeys(("hop", "hop_size"), "it is hop_length, in samples"),
    **dict.fromkeys(("win_size", "window_size"), "it is win_length, in samples"),
    **dict.fromkeys(("sr", "sample_rate"), "it is sampling_rate"),
    **dict.fromkeys(("n_mels", "num_mels", "mel_channels"), "it is n_mel_channels"),
    **dict.fromkeys(("r", "reduction_factor", "outputs_per_step"), "it is n_frames_per_step"),
    **dict.fromkeys(("batching", "strategy", "sampler"), "it is batching_strategy"),
    **dict.fromkeys(("num_epochs", "max_epochs"), "it is epochs"),
    **dict.fromkeys(
        ("fp16", "bf16", "amp", "use_amp", "mixed_precision"),
        "set precision=bf16 or precision=fp16, on a GPU",
    ),
    **dict.fromkeys(
        ("max_tokens", "max_frames", "max_batch_frames", "frames_per_batch"),
        "set batch_capacity, in padded frames, with dynamic_batch_size=True",
    ),
    **dict.fromkeys(
        ("gradient_accumulation", "gradient_accumulation_steps", "accumulate_grad_batches"),
        "it is batches_per_update",
    ),
    **dict.fromkeys(
        ("gpus", "n_gpus", "num_gpus", "devices", "world_size"),
        "leave it out; use torchrun: torchrun --nproc-per-node 4 train.py ...",
    ),
    **dict.fromkeys(
        ("max_length", "max_seconds", "max_duration", "max_wav_length"),
        "leave it out; prepare with --max-seconds S",
    ),
    **dict.fromkeys(
        ("num_speakers", "n_speakers", "use_speaker_embedding", "multi_speaker"),
        "set speaker_embedding_dim=64; the lists name the speakers",
    ),
    **dict.fromkeys(
        ("use_speaker_weighted_sampler", "speaker_weighted_sampler_alpha", "use_weighted_sampler"),
        "it is speaker_balance, from 0 to 1",
    ),
    **dict.fromkeys(
        ("warm_start", "checkpoint_path", "resume"), "it is an option: train.py --help"
    ),
    "drop_last": "leave it out; every epoch trains every clip",
    "shuffle": "leave it out; batching_strategy and batch_randomization say how clips are mixed",
    "optimizer": "leave it out; it is Adam",
}
MIN_LIKENESS = 0.72  # of a name to the one that was meant


def create_hparams(overrides: str | None = None, base: HParams | None = None) -> HParams:
    """Apply overrides, `name=value,name=[a,b]`, to the defaults or `base`; the last of a name
    counts. `@path` stands for the overrides in that file, one a line; there, `#` at the beginning
    of a line or after a blank begins a comment, and filelists are looked for beside the file first.

    `win_time` and `hop_time` (milliseconds) become lengths of ceil(time x rate) samples, and the
    filter the next power of two: Ge et al., section 3, train with 50 ms / 12.5 ms. One UserError
    lists every fault, with the file and line of overrides from a file.
    """
    base = base or HParams()
    changes: dict[str, Any] = {}
    places: dict[str, str] = {}
    entries, problems = _split_overrides(overrides or "")
    for place, entry in entries:
        try:
            name, value = _parse(entry)
            changes[name], places[name] = value, place
        except ValueError as error:
            problems.append(f"{place}{error}")
    wrong = [
        f"{time} and {length} are both given; keep one"
        for time, length in TIMES
        if changes.get(time) is not None and length in changes
    ]
    values = asdict(base) | changes
    if "phones" in values["text_cleaners"] and "symbols" not in changes:
        values["symbols"] = base.symbols if base.symbols != "english" else "corpus"
    bad = _field_problems(values)
    values = _resolve_times(values | {name: getattr(base, name) for name in bad}, changes)
    wrong += [*bad.values(), *_rule_problems(types.SimpleNamespace(**values))]
    for problem in wrong:  # with the place of the first setting named in it
        named = (places.get(name) for name in re.findall(r"\w+", problem))
        problems.append(next(filter(None, named), "") + problem)
    _refuse(problems)
    return HParams(**values)


def override_lines(overrides: str) -> list[str]:
    """Split overrides into lines of a settings file; an `@path` becomes the lines of its file."""
    return [entry for _, entry in _split_overrides(overrides)[0]]


def hparams_from_dict(values: Mapping[str, Any]) -> HParams:
    """Restore the settings saved with a run. UserError if one has a wrong type or is out of range.
    Missing ones get their defaults, but text_cleaners NVIDIA's, whose checkpoints have no settings.
    Unknown names are ignored."""
    known: dict[str, Any] = {"text_cleaners": NVIDIA_CLEANERS}
    known |= {name: value for name, value in values.items() if name in TYPES}
    tuples = {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
    return HParams(**known | tuples)


def batching_options(hparams: HParams | types.SimpleNamespace) -> dict[str, Any]:
    """The arguments of `plan_epoch` other than the lengths and the epoch."""
    from length_batching import PARAMETERS  # not at the top: settings' names load without numpy

    names = ["batch_size", "seed", "dynamic_batch_size", "batch_capacity", "batch_randomization"]
    names += [parameter.name for parameter in PARAMETERS]
    options = {name: getattr(hparams, name) for name in names}
    return options | {"strategy": hparams.batching_strategy}


def describe(hparams: HParams) -> str:
    """List all settings, a `name = value` a line; `*` marks those that differ from the default."""
    lines = []
    for name, value in asdict(hparams).items():
        star = " " if value == getattr(HParams, name) else "*"  # the class holds the defaults
        if name == "symbol_table" and value:
            value = f"{len(value)} symbols: {''.join(value):.200}"
        lines.append(f"{star} {name} = {list(value) if isinstance(value, tuple) else value}")
    return "\n".join(lines)


def milliseconds_to_samples(milliseconds: float, sampling_rate: int) -> int:
    """ceil(time x rate), ignoring rounding errors of the product."""
    return math.ceil(round(milliseconds * sampling_rate / 1000, 6))


def symbols_path(hparams: HParams) -> Path:
    """The path of the table of symbols, if it is not the English one."""
    from tacotron2_voice.text.symbol_files import SYMBOLS_FILE

    beside = Path(hparams.training_files).parent / SYMBOLS_FILE
    return beside if hparams.symbols == "corpus" else Path(hparams.symbols)


def read_symbols(hparams: HParams) -> HParams:
    """Read the table that `symbols` names and set `symbol_table` and `n_symbols`. Errors as
    `tacotron2_voice.text.symbol_files.read_table`."""
    from tacotron2_voice.text.symbol_files import read_table

    if hparams.symbols == "english":
        return hparams
    return with_table(hparams, read_table(symbols_path(hparams)).symbols)


def with_table(hparams: HParams, table: tuple[str, ...]) -> HParams:
    return replace(hparams, symbol_table=table, n_symbols=len(table))


def check_text_settings(hparams: HParams) -> HParams:
    """Check the settings of text processing. Returns them with `espeak_version` set, if texts
    become phones.

    Raises:
        UserError: for an unknown cleaner or language, a model with fewer symbols than the table,
            and missing packages.
    """
    from tacotron2_voice.text import ENGLISH, text_to_sequence

    text_to_sequence("", hparams.text_cleaners)
    if hparams.symbols == "english" and hparams.n_symbols < len(ENGLISH):
        needed = (
            f"{len(ENGLISH)}, the symbols that texts are made of (tacotron2_voice/text/symbols.py)"
        )
        raise UserError(f"n_symbols={hparams.n_symbols}: must be at least {needed}")
    if "phones" not in hparams.text_cleaners:
        return replace(hparams, espeak_version="")
    from tacotron2_voice.text.phones import check_language, version_of_phones

    check_language(hparams.language)
    return replace(hparams, espeak_version=version_of_phones(hparams.espeak_version))


def _split_overrides(overrides: str) -> tuple[list[tuple[str, str]], list[str]]:
    """(place, `name=value`) of every override, and the files that cannot be read. The place is
    "FILE:LINE: " for an override from a file, else empty."""
    entries, problems = [], []
    for piece in re.split(r",(?![^\[]*\])", overrides):  # commas inside [...] belong to a list
        piece = piece.strip()
        if piece.startswith("@"):
            try:
                lines = numbered_lines(piece[1:], "no such file of settings; check --hparams @...")
            except UserError as error:
                problems.append(str(error))
                continue
            for number, line in lines:
                if entry := re.sub(r"(^|\s)#.*", "", line).strip():
                    entry = _from_folder(entry, Path(piece[1:]).parent)
                    entries.append((f"{piece[1:]}:{number}: ", entry))
        elif piece:
            entries.append(("", piece))
    return entries, problems


def _from_folder(entry: str, folder: Path) -> str:
    """An override from a file in `folder`, which may name a filelist from there."""
    name, _, value = (part.strip() for part in entry.partition("="))
    is_there = name in FILELISTS and value and (folder / value).is_file()
    return f"{name}={folder / value}" if is_there else entry


def _parse(override: str) -> tuple[str, Any]:
    """Parse `name=value` into (name, value), converted to the setting's type."""
    name, equals, text = (part.strip() for part in override.partition("="))
    if not equals:
        raise ValueError(f"{name[:60]!r}: expected name=value, such as batch_size=32")
    if name in NVIDIA_ONLY:
        raise ValueError(f"{name}: leave it out; {NVIDIA_ONLY[name]}")
    if name in ("symbol_table", "espeak_version") and text.strip("[]"):
        raise ValueError(f"{name}: leave it out; a run finds it, for its symbols= and language=")
    if name == "speakers" and text.strip("[]"):
        raise ValueError("speakers: leave it out; a run finds them in its lists (docs/speakers.md)")
    if name not in TYPES:
        raise ValueError(f"{name}: no hyper-parameter has this name; {_what_was_meant(name)}")
    if name == "validation_files" and text.lower() == "none":
        text = ""
    try:
        return name, _convert(text, TYPES[name])
    except ValueError as error:
        raise ValueError(f"{name}={text[:60]}: {error}") from None


def _what_was_meant(name: str) -> str:
    plain = name.lower().strip("-").replace("-", "_")
    if plain in OTHER_NAMES:
        return OTHER_NAMES[plain]
    longer = [known for known in TYPES if plain and known.startswith(plain)]
    near = difflib.get_close_matches(plain, TYPES, n=1, cutoff=MIN_LIKENESS)
    meant = [*([plain] if plain in TYPES else []), *longer, *near]
    return f"did you mean {meant[0]}?" if meant else "all names are in hparams.py"


def _convert(text: str, kind: Any) -> Any:
    """Convert `text` to the annotated type: int, float, bool, str, `X | None`, tuple[str, ...]."""
    if types.NoneType in get_args(kind):
        if text.lower() in ("none", ""):
            return None
        kind = get_args(kind)[0]
    if get_origin(kind) is tuple:
        inside = text[1:-1] if text.startswith("[") and text.endswith("]") else text
        return tuple(item.strip().strip("'\"") for item in inside.split(",") if item.strip())
    if kind is bool:
        if text.lower() not in BOOLS:
            raise ValueError("expected True or False")
        return BOOLS[text.lower()]
    if kind not in (int, float):
        return text
    try:
        whole = kind is int and not re.fullmatch(r"[+-]?\d+", text) and float(text).is_integer()
        return int(float(text)) if whole else kind(text)  # 1e6 is a whole number too
    except ValueError:
        raise ValueError(f"expected {'a whole' if kind is int else 'a'} number") from None


def _resolve_times(values: dict[str, Any], changes: Mapping[str, object]) -> dict[str, Any]:
    """Convert times in ms to lengths in samples; a length in `changes` replaces a saved time."""
    for time, length in TIMES:
        if length in changes:
            values[time] = None
        elif values[time] is not None:
            values[length] = milliseconds_to_samples(values[time], values["sampling_rate"])
    window_changed = "win_time" in changes or "sampling_rate" in changes
    if values["win_time"] is not None and window_changed and "filter_length" not in changes:
        values["filter_length"] = 1 << (values["win_length"] - 1).bit_length()
    return values


def _refuse(problems: list[str]) -> None:
    if problems:
        raise UserError("\n  ".join(["hyper-parameters refused:", *grouped(problems)]))


def _field_problems(values: Mapping[str, Any]) -> dict[str, str]:
    """Problems, by name, of values with a wrong type or out of range."""
    schema = _schema()
    problems: dict[str, str] = {}
    try:
        if schema is not None:
            schema.model_validate(values)
    except pydantic.ValidationError as error:
        for each in error.errors():
            name = str(each["loc"][0])
            value = display = values[name]
            if isinstance(value, int) and abs(value) >= 10**30:
                display = f"(a number of some {value.bit_length() * 0.30103:.0f} digits)"
            problems[name] = f"{name}={display!s:.200}: {each['msg']}"
    return problems


@functools.cache
def _schema() -> "type[pydantic.BaseModel] | None":
    """HParams as a pydantic model. None, with a notice, if pydantic is not installed."""
    if not HAS_PYDANTIC:
        print("pydantic is not installed: ranges of settings are not checked", file=sys.stderr)
        return None
    hints = get_type_hints(HParams, include_extras=True)
    annotated: dict[str, Any] = {name: (hint, ...) for name, hint in hints.items()}
    config = pydantic.ConfigDict(strict=True, allow_inf_nan=False)
    return pydantic.create_model("HParams", __config__=config, **annotated)


def _table_problems(h: HParams | types.SimpleNamespace) -> Iterator[str]:
    from tacotron2_voice.text.symbols import table_with

    try:
        table = table_with(h.symbol_table)
    except UserError as error:
        yield f"symbol_table: {error}"
        return
    if h.n_symbols != len(table):
        yield f"n_symbols={h.n_symbols}: symbol_table has {len(table)}; leave n_symbols out"


def _rule_problems(h: HParams | types.SimpleNamespace) -> Iterator[str]:
    """Contradictions between settings."""
    if h.win_length > h.filter_length:
        yield f"win_length={h.win_length}: must not exceed filter_length={h.filter_length}"
    if not h.mel_fmin < h.mel_fmax <= h.sampling_rate / 2:
        allowed = f"mel_fmin < mel_fmax <= {h.sampling_rate / 2:g}, half of sampling_rate"
        yield f"mel_fmin={h.mel_fmin}, mel_fmax={h.mel_fmax}: expected {allowed}"
    if not h.text_cleaners:
        yield "text_cleaners=[]: name at least one, such as [english_cleaners_corrected]"
    if "phones" in h.text_cleaners and h.symbols == "english":
        yield "symbols=english: lacks most phones; leave it out with text_cleaners=[phones]"
    if "phones" in h.text_cleaners and not h.language:
        yield "language: missing; text_cleaners=[phones] needs one of eSpeak's, such as language=de"
    if h.symbol_table and h.symbols == "english":
        yield "symbols=english: but there is a symbol_table, which symbols=corpus or a file reads"
    elif h.symbol_table:
        yield from _table_problems(h)
    if h.speaker_balance and not h.speaker_embedding_dim:
        fix = "add speaker_embedding_dim=64, or leave speaker_balance out"
        yield f"speaker_balance={h.speaker_balance}: this model has no speakers; {fix}"
    for name in ("encoder_kernel_size", "attention_location_kernel_size", "postnet_kernel_size"):
        if getattr(h, name) % 2 == 0:
            yield f"{name}={getattr(h, name)}: must be odd, so that it has a center"
    for name, length in TIMES:
        time, samples = getattr(h, name), getattr(h, length)
        if time is not None and milliseconds_to_samples(time, h.sampling_rate) != samples:
            yield f"{name}={time}: not {length}={samples}; use create_hparams"
    if HAS_BATCHING:
        yield from _batching_problems(h)


def _batching_problems(h: HParams | types.SimpleNamespace) -> Iterator[str]:
    from length_batching import BatchingError, check_options

    try:
        check_options(batching_options(h))
    except BatchingError as error:
        yield from re.sub("(?m)^strategy=", "batching_strategy=", str(error)).splitlines()
