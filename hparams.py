"""List every setting of the recipe: one line each, with its meaning and its default.

    create_hparams("batch_size=32,text_cleaners=[basic_cleaners],win_time=50,hop_time=12.5")
    create_hparams("@filelists/ljspeech/settings.txt,batch_size=32")  # from a file first

Names and defaults are those of NVIDIA's recipe where it has the same setting; docs/guides/migration.md
lists the exceptions. Values are converted to the annotated type. tacotron2_voice/settings.py parses
and checks them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from tacotron2_voice.settings import (
    Count,
    CountOrZero,
    DecoderSteps,
    Dropout,
    EvenWidth,
    FilterLength,
    Kernel,
    MelChannels,
    Milliseconds,
    MillisecondsOrZero,
    Positive,
    PositiveOrZero,
    PostnetLayers,
    Samples,
    SamplingRate,
    Share,
    SymbolCount,
    VoiceSettings,
    Width,
    WidthOrZero,
    change_settings,
    check_text_settings,
    describe,
    limits,
    settings_from_dict,
)
from tacotron2_voice.settings import override_lines as lines_of_overrides

__all__ = [
    "HParams",
    "batching_options",
    "check_text_settings",
    "create_hparams",
    "describe",
    "hparams_from_dict",
    "override_lines",
    "read_symbols",
    "symbols_path",
    "with_table",
]

NVIDIA_CLEANERS = ("english_cleaners",)
# NVIDIA's names that have no meaning here, and what replaces them.
NVIDIA_ONLY = {
    "fp16_run": "use precision=fp16 on a GPU",
    "dynamic_loss_scaling": "precision=fp16 always scales the loss dynamically",
    "distributed_run": "start several processes with torchrun --nproc-per-node N train.py ...",
    "dist_backend": "processes communicate with NCCL on GPUs and with Gloo on CPUs",
    "dist_url": "use torchrun --rdzv-endpoint HOST:PORT",
    "cudnn_enabled": "cuDNN is used on every GPU",
    "cudnn_benchmark": "cuDNN uses kernels that give the same result in every run",
    "max_wav_value": "samples are read as values in [-1, 1]",
    "use_saved_learning_rate": "learning_rate_schedule sets the rate of every optimizer step",
}

Seed = Annotated[int, limits(ge=0, le=2**64 - 1)]
Workers = Annotated[int, limits(ge=0, le=1000)]
Buckets = Annotated[int, limits(ge=1, le=10**6)]
LossWeight = Annotated[float, limits(ge=0, le=1e6)]
DiagonalWidth = Annotated[float, limits(ge=1e-3, le=1e3)]
EncoderLayers = Annotated[int, limits(ge=1, le=100)]


@dataclass(frozen=True, kw_only=True)
class HParams(VoiceSettings):
    """Contain all settings of a run. Objects are immutable.

    Raises:
        UserError: listing every value that is not valid.
    """

    # --- the run
    epochs: Count = 500  # passes over the training set
    epochs_per_validation: Count = 2  # epochs from one validation to the next; larger: fewer
    iters_per_checkpoint: Count = 1000  # optimizer steps from one checkpoint to the next
    keep_checkpoints: Count = 3  # newest checkpoints to keep, in addition to the best
    log_interval: Count = 10  # optimizer steps between two reads of the losses; larger: faster
    seed: Seed = 1234  # seed of everything random
    num_workers: Workers = 2  # processes that read clips; 0: the training process reads them
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"  # others than fp32 need a GPU
    decoder: Literal["fast", "reference"] = "fast"  # same results; reference: simple and slower
    ignore_layers: tuple[str, ...] = ()  # tensors that --warm_start does not load

    # --- data
    training_files: str = "filelists/ljspeech/train.txt"  # filelist of the training clips
    validation_files: str = "filelists/ljspeech/val.txt"  # of other clips; empty: no validation
    clips_folder: str = ""  # folder of the clips, if they were moved after prepare
    load_mel_from_disk: bool = False  # True: the filelists contain .npy log-mels, not audio
    text_cleaners: tuple[str, ...] = ("english_cleaners_corrected",)  # text to symbols, in order
    language: str = ""  # eSpeak's name such as de; needed for phones and for Turkish letters
    symbols: str = (
        "english"  # NVIDIA's 148; corpus: the symbols that prepare found; or a .json file
    )
    symbol_table: tuple[str, ...] = ()  # detected: the symbols of that file; (): English
    drop_unknown: bool = False  # True: drop symbols outside the table; False: reject the clip
    espeak_version: str = ""  # detected: the version of eSpeak that produced the phones
    speakers: tuple[str, ...] = ()  # detected: the names in the filelists; (): one speaker

    # --- audio
    sampling_rate: SamplingRate = 22050  # Hz; clips of another rate are rejected
    filter_length: FilterLength = 1024  # samples per Fourier transform; larger: finer in frequency
    hop_length: Samples = 256  # samples between two frames; larger: fewer frames, faster training
    win_length: Samples = 1024  # samples under the Hann window; at most filter_length
    win_time: Milliseconds | None = None  # window in ms; sets win_length and filter_length
    hop_time: Milliseconds | None = None  # hop in ms; sets hop_length
    n_mel_channels: MelChannels = 80  # mel bands; larger: finer in frequency
    mel_fmin: PositiveOrZero = 0.0  # Hz, lower edge of the lowest band
    mel_fmax: Positive = 8000.0  # Hz, upper edge of the highest band; at most half the rate

    # --- batching (the arguments of length_batching.plan_epoch)
    batch_size: Count = 64  # clips per batch; of the longest clips, if dynamic_batch_size
    batching_strategy: str = "semi_sorted"  # decides which clips share a batch
    local_randomization_factor: PositiveOrZero = 0.1  # semi_sorted*: noise; larger: more random
    bucket_size: Count = 1024  # bucket: clips per bucket; larger: more random, more padding
    num_bins: Count = 58  # alternated_sort: sorted runs per epoch; larger: more random and padded
    num_buckets: Buckets = 10  # bucket_by_*: length classes; larger: less padding
    dynamic_batch_size: bool = True  # short clips form larger batches, up to batch_capacity
    batch_capacity: Count | None = None  # padded frames per batch; None: batch_size x longest clip
    batch_randomization: bool = True  # shuffle the finished batches
    random_epochs: CountOrZero = 2  # number of first epochs with random batches
    batches_per_update: Count = 1  # batches of similar length per optimizer step
    speaker_balance: Share = 0.0  # 0: every clip once per epoch; 1: equal time for all speakers
    prepare_trainset_per_epoch: bool = True  # False: repeat the first epoch after random_epochs

    # --- optimization
    learning_rate: Positive = 1e-3  # Adam's step size
    learning_rate_schedule: Literal["constant", "exponential"] = "constant"  # decay of the rate
    learning_rate_warmup_steps: CountOrZero = 0  # optimizer steps of a linear rise from 0
    learning_rate_decay_start: CountOrZero = 50_000  # exponential: step at which the decay begins
    learning_rate_half_life: Count = 15_000  # exponential: optimizer steps that halve the rate
    learning_rate_final: PositiveOrZero = 1e-5  # exponential: lower bound of the rate
    weight_decay: PositiveOrZero = 1e-6  # L2 penalty on every parameter, inside Adam
    grad_clip_thresh: Positive = 1.0  # largest norm of the gradient; smaller: clips more often
    sync_batch_norm: bool = False  # True: batch norm uses the batches of all GPUs together
    loss: Literal["padded", "unpadded"] = "padded"  # padded: NVIDIA's mean; unpadded: masked loss
    gate_positive_weight: LossWeight = 5.0  # weight of the stop frame in the gate loss; 1: none
    guided_attention_weight: LossWeight = 1.0  # weight of the guided attention loss; 0: off
    guided_attention_sigma: DiagonalWidth = 0.4  # width of the diagonal, as a share of the text
    guided_attention_steps: Count = 10_000  # optimizer steps in which that weight falls to 0
    mask_padding: bool = True  # outputs after a clip's end become the targets, without loss

    # --- validation
    validation_batch_size: Count = 16  # clips per random batch, which are the same in every run

    # --- model
    n_symbols: SymbolCount = 148  # rows of the symbol embedding
    symbols_embedding_dim: Width = 512  # width of the symbol embedding
    encoder_kernel_size: Kernel = 5  # symbols per encoder kernel; odd
    encoder_n_convolutions: EncoderLayers = 3  # encoder convolutions
    encoder_embedding_dim: EvenWidth = 512  # width of the encoder's output; even (two directions)
    speaker_embedding_dim: WidthOrZero = 0  # width of the speaker embedding; 0: one speaker
    n_frames_per_step: Width = 1  # frames per decoder step (reduction factor); larger: faster
    decoder_rnn_dim: Width = 1024  # width of the decoder LSTM
    prenet_dim: Width = 256  # width of the two prenet layers
    p_prenet_dropout: Dropout = 0.5  # prenet dropout, which is active in synthesis too
    max_decoder_steps: DecoderSteps = 10_000  # most decoder steps per chunk in synthesis
    gate_threshold: Positive = 0.5  # speech ends above this stop probability; larger: later
    attention_rest_time: MillisecondsOrZero = (
        800.0  # ms of resting attention that end speech; 0: off
    )
    attention_window: CountOrZero = 0  # symbols that attention may move ahead per step; 0: any
    attention_rnn_dim: Width = 1024  # width of the attention LSTM
    attention_dim: Width = 128  # width in which query and memory are compared
    attention_location_n_filters: Width = 32  # filters over the past alignments
    attention_location_kernel_size: Kernel = 31  # symbols per such filter; odd
    attention_location_gradient: bool = True  # gradient through past alignments; False: steadier
    p_attention_dropout: Dropout = 0.1  # dropout on the attention LSTM's hidden state
    p_decoder_dropout: Dropout = 0.1  # dropout on the decoder LSTM's hidden state
    postnet_embedding_dim: Width = 512  # channels of the postnet
    postnet_kernel_size: Kernel = 5  # frames per postnet kernel; odd
    postnet_n_convolutions: PostnetLayers = 5  # postnet convolutions

    not_settable: ClassVar[Mapping[str, str]] = {**VoiceSettings.not_settable, **NVIDIA_ONLY}
    path_settings: ClassVar[tuple[str, ...]] = ("training_files", "validation_files")

    @classmethod
    def contradictions(cls, values: Any) -> Iterator[str]:
        """Yield the contradictions between settings. `values` has them as attributes."""
        yield from VoiceSettings.contradictions(values)
        if values.speaker_balance and not values.speaker_embedding_dim:
            expected = "expected 0, because speaker_embedding_dim=0"
            yield f"speaker_balance={values.speaker_balance}: {expected}"
        for name in ("encoder_kernel_size", "attention_location_kernel_size"):
            size = getattr(values, name)
            if size % 2 == 0:
                yield f"{name}={size}: expected an odd number"
        yield from _batching_problems(values)


def create_hparams(overrides: str | None = None, base: HParams | None = None) -> HParams:
    """Return the defaults, or `base`, with overrides such as "batch_size=32,win_time=50".

    `@PATH` stands for the overrides in a file; a filelist in it may be relative to that file.
    `win_time=50,hop_time=12.5` are the lengths of Ge et al., section 3.

    Raises:
        UserError: listing every problem, with the file and line of overrides from a file.
    """
    return change_settings(base or HParams(), overrides or "")


def override_lines(overrides: str) -> list[str]:
    """Split overrides into the lines of a settings file. `@PATH` becomes the lines of that file."""
    return lines_of_overrides(overrides, HParams.path_settings)


def hparams_from_dict(values: Mapping[str, Any]) -> HParams:
    """Restore the settings that were saved with a run.

    Unknown names are ignored. Missing settings get their defaults, except text_cleaners, which get
    NVIDIA's: its checkpoints contain no settings.

    Raises:
        UserError: if a value has a wrong type or is out of range.
    """
    return settings_from_dict(HParams, {"text_cleaners": NVIDIA_CLEANERS, **values})


def batching_options(hparams: Any) -> dict[str, Any]:
    """Return the arguments of `plan_epoch` except the lengths and the epoch."""
    # Imported here, so that the names of settings load without numpy.
    from length_batching import PARAMETERS

    names = ["batch_size", "seed", "dynamic_batch_size", "batch_capacity", "batch_randomization"]
    names += [parameter.name for parameter in PARAMETERS]
    options = {name: getattr(hparams, name) for name in names}
    return options | {"strategy": hparams.batching_strategy}


def symbols_path(hparams: HParams) -> Path:
    """Return the path of the symbol table, if it is not the English table."""
    from tacotron2_voice.text.symbol_files import SYMBOLS_FILE

    if hparams.symbols == "corpus":
        return Path(hparams.training_files).parent / SYMBOLS_FILE
    return Path(hparams.symbols)


def read_symbols(hparams: HParams) -> HParams:
    """Read the file that `symbols` names, and return settings with its `symbol_table`.

    Raises:
        UserError: if the file cannot be read or contains no symbol table.
    """
    from tacotron2_voice.text.symbol_files import read_table

    if hparams.symbols == "english":
        return hparams
    return with_table(hparams, read_table(symbols_path(hparams)).symbols)


def with_table(hparams: HParams, table: tuple[str, ...]) -> HParams:
    """Return settings with this symbol table."""
    return replace(hparams, symbol_table=table, n_symbols=len(table))


def _batching_problems(values: Any) -> Iterator[str]:
    from length_batching import BatchingError, check_options

    try:
        check_options(batching_options(values))
    except BatchingError as error:
        yield from re.sub("(?m)^strategy=", "batching_strategy=", str(error)).splitlines()
