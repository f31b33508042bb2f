"""Define the settings for synthesis, and parse, check and describe settings.

    trained = settings_from_dict(VoiceSettings, saved)      # the settings that a voice stores
    settings = change_settings(trained, "gate_threshold=0.4")
    settings = change_settings(trained, "@settings.txt,attention_window=6")  # from a file first
    print(describe(settings))

`VoiceSettings` contains the settings of synthesis: text, audio, and the sizes of the model's layers.
`HParams` extends this class with the settings of a training run, and gives every setting a default.

An override has the form `name=value` or `name=[a,b]`. If a name occurs twice, the last value is
used. `@PATH` stands for the overrides in a file, one per line; `#` at the start of a line or after
a space begins a comment. All problems in overrides are reported together, with the file and the
line.
"""

import difflib
import functools
import importlib.util
import math
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from tacotron2_voice.text import ENGLISH, SymbolTable, text_to_sequence
from tacotron2_voice.text.symbols import table_with
from tacotron2_voice.utils.errors import UserError, grouped
from tacotron2_voice.utils.files import numbered_lines

HAS_PYDANTIC = importlib.util.find_spec("pydantic") is not None
if HAS_PYDANTIC:
    import pydantic

# Limits of a setting's values. The limits are checked only if pydantic is installed.
limits: Any = pydantic.Field if HAS_PYDANTIC else lambda **bounds: None

# The upper limits are far above useful values, but low enough to prevent values that would exhaust
# the memory.
MAX_DECODER_STEPS = 10**5
Count = Annotated[int, limits(ge=1, le=10**12)]
CountOrZero = Annotated[int, limits(ge=0, le=10**12)]
DecoderStepLimit = Annotated[int, limits(ge=1, le=MAX_DECODER_STEPS)]
SamplingRate = Annotated[int, limits(ge=1, le=10**7)]
Samples = Annotated[int, limits(ge=1, le=2**14)]
FilterLength = Annotated[int, limits(ge=2, le=2**14)]
MelChannels = Annotated[int, limits(ge=1, le=10_000)]
SymbolCount = Annotated[int, limits(ge=1, le=10**5)]
Width = Annotated[int, limits(ge=1, le=2**13)]
WidthOrZero = Annotated[int, limits(ge=0, le=2**13)]
EvenWidth = Annotated[int, limits(ge=2, le=2**13, multiple_of=2)]
Kernel = Annotated[int, limits(ge=1, le=999)]
PostnetLayers = Annotated[int, limits(ge=2, le=100)]
Positive = Annotated[float, limits(gt=0)]
PositiveOrZero = Annotated[float, limits(ge=0)]
Milliseconds = Annotated[float, limits(gt=0, le=60_000)]
MillisecondsOrZero = Annotated[float, limits(ge=0, le=60_000)]
Dropout = Annotated[float, limits(ge=0, lt=1)]
Share = Annotated[float, limits(ge=0, le=1)]


@dataclass(frozen=True, kw_only=True)
class VoiceSettings:
    """The settings that synthesis needs. Objects are immutable.

    Raises:
        UserError: if a value has the wrong type or is out of range, or if two values contradict
            each other.
    """

    # text
    text_cleaners: tuple[str, ...]  # cleaners that convert a text to symbols, in order
    language: str  # eSpeak's code for the language, such as de
    symbols: str  # english, corpus, or the path of a file that contains the symbol table
    # all symbols, in the order of their ids; empty: the English table
    symbol_table: tuple[str, ...]
    espeak_version: str  # version of eSpeak that produced the phones of the training texts
    lexicon: str = ""  # path of the lexicon file
    pronunciations: tuple[str, ...] = ()  # content of the lexicon file
    speakers: tuple[str, ...]  # names of the speakers; empty: one speaker without a name

    # audio
    sampling_rate: SamplingRate  # sampling rate, in Hz
    filter_length: FilterLength  # length of the Fourier transform, in samples
    hop_length: Samples  # hop between two frames, in samples
    win_length: Samples  # length of the Hann window, in samples
    win_time: Milliseconds | None  # length of the Hann window in ms; None: use win_length
    hop_time: Milliseconds | None  # hop between two frames in ms; None: use hop_length
    n_mel_channels: MelChannels  # number of mel bands
    mel_fmin: PositiveOrZero  # lower edge of the lowest mel band, in Hz
    mel_fmax: Positive  # upper edge of the highest mel band, in Hz

    # sizes of the model's layers
    n_symbols: SymbolCount  # number of rows in the symbol embedding
    encoder_embedding_dim: EvenWidth  # width of the encoder output
    speaker_embedding_dim: WidthOrZero  # width of the speaker embedding; 0: one speaker
    n_frames_per_step: Width  # number of frames per decoder step (the reduction factor r)
    decoder_rnn_dim: Width  # width of the decoder LSTM
    prenet_dim: Width  # width of the two prenet layers
    attention_rnn_dim: Width  # width of the attention LSTM
    attention_dim: Width  # width of the attention's query and key vectors
    postnet_kernel_size: Kernel  # kernel size of the postnet convolutions, in frames
    postnet_n_convolutions: PostnetLayers  # number of convolutions in the postnet

    # synthesis
    p_prenet_dropout: Dropout  # prenet dropout rate, also used in synthesis
    max_decoder_steps: DecoderStepLimit  # maximum number of decoder steps per chunk
    gate_threshold: Positive  # the speech ends when the stop probability exceeds this value
    # the speech ends when attention has rested on the last symbols for this time, in ms; 0: off
    attention_rest_time: MillisecondsOrZero
    # maximum number of symbols that attention may advance per decoder step; 0: no limit
    attention_window: CountOrZero

    # Maps each setting that users cannot set to the reason.
    not_settable: ClassVar[Mapping[str, str]] = {
        "symbol_table": "training reads the symbol table from the file that symbols=PATH selects",
        "espeak_version": "training detects the version of eSpeak",
        "pronunciations": "training reads the pronunciations from the file that lexicon=PATH selects",
        "speakers": "training reads the speakers from the filelists",
    }
    # Settings that contain paths. In a settings file, these paths may be relative to the folder of
    # the settings file.
    path_settings: ClassVar[tuple[str, ...]] = ("lexicon",)

    def __post_init__(self) -> None:
        values = values_of(self)
        problems = [*_field_problems(type(self), values).values()]
        _raise_problems(problems or [*self.contradictions(self)])

    @classmethod
    def contradictions(cls, values: Any) -> Iterator[str]:
        """Yield a message for each contradiction between settings. `values` has one attribute per
        setting."""
        if values.win_length > values.filter_length:
            expected = f"at most filter_length={values.filter_length}"
            yield f"win_length={values.win_length}: expected {expected}"
        if not values.mel_fmin < values.mel_fmax <= values.sampling_rate / 2:
            expected = f"mel_fmin < mel_fmax <= {values.sampling_rate / 2:g}, half of sampling_rate"
            yield f"mel_fmin={values.mel_fmin}, mel_fmax={values.mel_fmax}: expected {expected}"
        if not values.text_cleaners:
            yield "text_cleaners=[]: expected at least one, such as [english_cleaners_corrected]"
        if "phones" in values.text_cleaners:
            if values.symbols == "english":
                yield "symbols=english: lacks most phones (expected symbols=corpus)"
            if not values.language:
                yield "language: missing; text_cleaners=[phones] needs a language, such as language=de"
        if values.symbol_table:
            yield from _table_problems(values)
        if values.postnet_kernel_size % 2 == 0:
            yield f"postnet_kernel_size={values.postnet_kernel_size}: expected an odd number"
        for name, length in TIMES:
            time = getattr(values, name)
            if time is None:
                continue
            samples = getattr(values, length)
            expected_samples = milliseconds_to_samples(time, values.sampling_rate)
            if samples != expected_samples:
                yield f"{name}={time}: {length}={samples}, expected {expected_samples} samples"

    @functools.cached_property
    def table(self) -> SymbolTable:
        """Return the symbol table of the model."""
        return table_with(self.symbol_table)

    @property
    def labels(self) -> dict[str, tuple[str, ...]]:
        """Return {"speaker": names of the speakers}, or {} for a model with one unnamed speaker."""
        names = {"speaker": self.speakers}
        return {label: known for label, known in names.items() if known}

    @property
    def memory_dim(self) -> int:
        """Return the width of the decoder's memory, which contains the encoder's output and the
        speaker embedding."""
        return self.encoder_embedding_dim + self.speaker_embedding_dim


Settings = TypeVar("Settings", bound=VoiceSettings)

LOG_FLOOR = 1e-5  # minimum mel magnitude, which replaces smaller magnitudes before the logarithm
# Settings that affect the values of a log-mel.
MEL_SETTINGS = (
    "sampling_rate",
    "filter_length",
    "hop_length",
    "win_length",
    "n_mel_channels",
    "mel_fmin",
    "mel_fmax",
)
# The attention window includes this many symbols before the furthest symbol that attention has
# reached.
WINDOW_BACK = 2
BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
TIMES = (("win_time", "win_length"), ("hop_time", "hop_length"))
MIN_SIMILARITY = 0.72  # minimum similarity (0 to 1) between an unknown name and a suggested name

# Settings that cannot be changed after training, because the model would not speak correctly.
FIXED_SETTINGS = (*MEL_SETTINGS, "speaker_embedding_dim", "speakers", "lexicon")
# Sizes that are fixed in the graphs of an exported voice.
GRAPH_SETTINGS = (
    "n_symbols",
    "encoder_embedding_dim",
    "n_frames_per_step",
    "decoder_rnn_dim",
    "prenet_dim",
    "attention_rnn_dim",
    "attention_dim",
    "postnet_kernel_size",
    "postnet_n_convolutions",
    "symbols",
)


# ---------------------------------------------------------------------------- create and change


def settings_from_dict(kind: type[Settings], values: Mapping[str, Any]) -> Settings:
    """Restore the settings that were saved with a checkpoint or a voice. Unknown settings are
    ignored.

    Raises:
        UserError: if a setting without a default is missing, or if a value is invalid.
    """
    known: dict[str, Any] = {}
    for name in types_of(kind):
        if name in values:
            value = values[name]
            known[name] = tuple(value) if isinstance(value, list) else value
        elif not hasattr(kind, name):  # a dataclass stores defaults as attributes of the class
            raise UserError(f"{name}: this setting is missing")
    return kind(**known)


def change_settings(base: Settings, overrides: str) -> Settings:
    """Return the settings `base` with overrides, such as "gate_threshold=0.4,attention_window=6".

    `win_time` and `hop_time` (in ms) are converted to ceil(time x rate) samples, and the filter
    length becomes the next power of two.

    Raises:
        UserError: if an override is wrong. The error message lists every wrong override with its
            file and line.
    """
    kind = type(base)
    changes: dict[str, Any] = {}
    places: dict[str, str] = {}
    entries, problems = _split_overrides(overrides, kind.path_settings)
    for place, entry in entries:
        try:
            name, value = _parse(entry, kind)
        except ValueError as error:
            problems.append(f"{place}{error}")
            continue
        changes[name] = value
        places[name] = place
    wrong = []
    for time, length in TIMES:
        if changes.get(time) is not None and length in changes:
            wrong.append(f"{time} and {length} are both given (expected only one of them)")
    values = values_of(base) | changes
    if "phones" in values["text_cleaners"] and "symbols" not in changes:
        values["symbols"] = "corpus" if base.symbols == "english" else base.symbols
    field_problems = _field_problems(kind, values)
    valid = values | {name: getattr(base, name) for name in field_problems}
    valid = _resolve_times(valid, changes)
    wrong += field_problems.values()
    wrong += kind.contradictions(types.SimpleNamespace(**valid))
    for problem in wrong:
        problems.append(_place_of(problem, places) + problem)
    _raise_problems(problems)
    return kind(**valid)


def change_speaking_settings(
    trained: Settings, overrides: str, fixed: Iterable[str] = ()
) -> Settings:
    """Return the settings of a trained model, with overrides for synthesis.

    Args:
        fixed: names of settings that cannot change, in addition to FIXED_SETTINGS.

    Raises:
        UserError: if an override is invalid, or if it changes a setting that must be the same as in
            training.
    """
    settings = change_settings(trained, overrides)
    problems = []
    for name in (*FIXED_SETTINGS, *fixed):
        value = getattr(settings, name)
        trained_value = getattr(trained, name)
        if value != trained_value:
            problems.append(f"{name}={value!s:.200}: expected {trained_value!s:.200}")
    if problems:
        title = "these settings must be the same as in training:"
        raise UserError("\n  ".join([title, *problems]))
    return settings


def override_lines(overrides: str, path_settings: tuple[str, ...] = ()) -> list[str]:
    """Split overrides into the lines of a settings file. `@PATH` becomes the lines of the file at
    PATH."""
    return [entry for _, entry in _split_overrides(overrides, path_settings)[0]]


def check_text_settings(settings: Settings) -> Settings:
    """Check the settings of text processing, and return the settings. If texts become phones, the
    returned settings contain the version of eSpeak.

    Raises:
        UserError: if a cleaner or the language is unknown, if the model has fewer symbols than the
            symbol table, or if packages are missing.
    """
    text_to_sequence("", settings.text_cleaners)
    if settings.symbols == "english" and settings.n_symbols < len(ENGLISH):
        least = f"at least {len(ENGLISH)}, the number of English symbols"
        raise UserError(f"n_symbols={settings.n_symbols}: expected {least}")
    if "phones" not in settings.text_cleaners:
        return replace(settings, espeak_version="")
    from tacotron2_voice.text.phones import check_language, version_of_phones

    check_language(settings.language)
    return replace(settings, espeak_version=version_of_phones(settings.espeak_version))


# ---------------------------------------------------------------------------- describe


def values_of(settings: VoiceSettings) -> dict[str, Any]:
    return {field.name: getattr(settings, field.name) for field in fields(settings)}


def types_of(kind: type[VoiceSettings]) -> dict[str, Any]:
    """Return {setting name: type}, without the value limits in `Annotated`. The dict lists the
    settings of the class itself first, and then the inherited settings."""
    hints = get_type_hints(kind)
    own = [name for name in kind.__annotations__ if get_origin(hints[name]) is not ClassVar]
    inherited = [field.name for field in fields(kind) if field.name not in own]
    return {name: hints[name] for name in (*own, *inherited)}


def describe(settings: VoiceSettings) -> str:
    """List all settings, one `name = value` per line. A `*` marks each value that differs from the
    default."""
    lines = []
    for name in types_of(type(settings)):
        value = getattr(settings, name)
        is_default = value == getattr(type(settings), name, value)
        if name == "symbol_table" and value:
            value = f"{len(value)} symbols: {''.join(value):.200}"
        if isinstance(value, tuple):
            value = list(value)
        lines.append(f"{' ' if is_default else '*'} {name} = {value}")
    return "\n".join(lines)


def milliseconds_to_samples(milliseconds: float, sampling_rate: int) -> int:
    """Convert a time to a number of samples, ceil(time x rate), without rounding errors."""
    return math.ceil(round(milliseconds * sampling_rate / 1000, 6))


# ---------------------------------------------------------------------------- parse


def _split_overrides(
    overrides: str, path_settings: tuple[str, ...]
) -> tuple[list[tuple[str, str]], list[str]]:
    """Return a list of (location, `name=value`) for all overrides, and a list of problems with
    files. If an override is from a file, its location is "FILE:LINE: ", otherwise ""."""
    entries = []
    problems = []
    # Do not split at a comma inside [...], because such a comma separates the items of a list.
    for piece in re.split(r",(?![^\[]*\])", overrides):
        piece = piece.strip()
        if not piece.startswith("@"):
            if piece:
                entries.append(("", piece))
            continue
        path = Path(piece[1:])
        try:
            lines = numbered_lines(path, "no such settings file")
        except UserError as error:
            problems.append(str(error))
            continue
        for number, line in lines:
            entry = re.sub(r"(^|\s)#.*", "", line).strip()
            if entry:
                entry = _relative_to(entry, path.parent, path_settings)
                entries.append((f"{path}:{number}: ", entry))
    return entries, problems


def _relative_to(entry: str, folder: Path, path_settings: tuple[str, ...]) -> str:
    """Return an override from a settings file in `folder`. If the value of the override is a path
    relative to `folder`, prepend `folder` to the value.
    """
    name, _, value = (part.strip() for part in entry.partition("="))
    if name in path_settings and value and (folder / value).is_file():
        return f"{name}={folder / value}"
    return entry


def _parse(override: str, kind: type[VoiceSettings]) -> tuple[str, Any]:
    """Return the name and the converted value of `name=value`.

    Raises:
        ValueError: if the name is unknown or the value is not valid.
    """
    name, equals, text = (part.strip() for part in override.partition("="))
    known = types_of(kind)
    if not equals:
        raise ValueError(f"{name[:60]!r}: expected name=value, such as gate_threshold=0.4")
    is_empty_list = name in known and not text.strip("[]")
    if name in kind.not_settable and not is_empty_list:
        raise ValueError(f"{name}: cannot be set; {kind.not_settable[name]}")
    if name not in known:
        raise ValueError(f"{name}: unknown setting{_suggestion(name, known)}")
    if name in kind.path_settings and text.lower() == "none":
        text = ""
    try:
        return name, _convert(text, known[name])
    except ValueError as error:
        raise ValueError(f"{name}={text[:60]}: {error}") from None


def _suggestion(name: str, known: Iterable[str]) -> str:
    """Return a suggestion for the end of a message: a known name similar to `name`, or ""."""
    plain = name.lower().strip("-").replace("-", "_")
    similar = difflib.get_close_matches(plain, known, n=1, cutoff=MIN_SIMILARITY)
    return f" (did you mean {similar[0]}?)" if similar else ""


def _convert(text: str, kind: Any) -> Any:
    """Convert `text` to a setting's type: int, float, bool, str, `X | None`, tuple[str, ...]."""
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
    if kind is int:
        return _convert_integer(text)
    if kind is float:
        try:
            return float(text)
        except ValueError:
            raise ValueError("expected a number") from None
    return text


def _convert_integer(text: str) -> int:
    try:
        if re.fullmatch(r"[+-]?\d+", text):
            return int(text)
        number = float(text)  # also accept an integer such as 1e6
        if number.is_integer():  # is_integer() returns False for infinity
            return int(number)
    except ValueError:  # the text is not a number, or has more digits than Python allows
        pass
    raise ValueError("expected an integer")


def _resolve_times(values: dict[str, Any], changes: Mapping[str, object]) -> dict[str, Any]:
    """Convert times in ms to lengths in samples. If `changes` contains a length, such as
    win_length, the corresponding time, such as win_time, becomes None."""
    values = dict(values)
    for time, length in TIMES:
        if length in changes:
            values[time] = None
        elif values[time] is not None:
            values[length] = milliseconds_to_samples(values[time], values["sampling_rate"])
    window_changed = "win_time" in changes or "sampling_rate" in changes
    if values["win_time"] is not None and window_changed and "filter_length" not in changes:
        values["filter_length"] = 1 << (values["win_length"] - 1).bit_length()
    return values


# ---------------------------------------------------------------------------- check


def _place_of(problem: str, places: Mapping[str, str]) -> str:
    """Return "FILE:LINE: " for the first setting in the error message that has a value from a file.
    If no setting in the message has a value from a file, return ""."""
    for name in re.findall(r"\w+", problem):
        if places.get(name):
            return places[name]
    return ""


def _raise_problems(problems: list[str]) -> None:
    if problems:
        raise UserError("\n  ".join(["settings that are not valid:", *grouped(problems)]))


def _field_problems(kind: type[VoiceSettings], values: Mapping[str, Any]) -> dict[str, str]:
    """Return {setting name: message} for values that have the wrong type or are out of range."""
    schema = _schema(kind)  # type: ignore[arg-type]  # mypy treats classes as unhashable
    if schema is None:
        return {}
    problems: dict[str, str] = {}
    try:
        schema.model_validate(values)
    except pydantic.ValidationError as error:
        for each in error.errors():
            name = str(each["loc"][0])
            problems[name] = f"{name}={values[name]!s:.200}: {each['msg']}"
    return problems


@functools.cache
def _schema(kind: type[VoiceSettings]) -> "type[pydantic.BaseModel] | None":
    """Return a pydantic model of the settings, or None if pydantic is not installed."""
    if not HAS_PYDANTIC:
        message = "note: pydantic is not installed, so the ranges of settings are not checked"
        print(message, file=sys.stderr)
        return None
    hints = get_type_hints(kind, include_extras=True)
    annotated: dict[str, Any] = {name: (hints[name], ...) for name in types_of(kind)}
    config = pydantic.ConfigDict(strict=True, allow_inf_nan=False)
    return pydantic.create_model(kind.__name__, __config__=config, **annotated)


def _table_problems(values: Any) -> Iterator[str]:
    if values.symbols == "english":
        yield "symbols=english: cannot be combined with a symbol_table"
        return
    try:
        table = table_with(values.symbol_table)
    except UserError as error:
        yield f"symbol_table: {error}"
        return
    if values.n_symbols != len(table):
        yield f"n_symbols={values.n_symbols}: expected {len(table)}, the size of symbol_table"
