"""List every setting of the recipe with its meaning and its default.

    create_hparams("batch_size=32,text_cleaners=[basic_cleaners],win_time=50,hop_time=12.5")
    create_hparams("@filelists/ljspeech/settings.txt,batch_size=32")  # from a file first

A setting of NVIDIA's recipe has the same name and default here. docs/guides/migration.md lists the
exceptions. tacotron2_voice/settings.py parses and checks the values, and converts them to the
annotated types.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from tacotron2_voice.settings import (
    Count,
    CountOrZero,
    DecoderStepLimit,
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
    limits,
    settings_from_dict,
)
from tacotron2_voice.settings import override_lines as lines_of_overrides

NVIDIA_CLEANERS = ("english_cleaners",)
# Settings of NVIDIA's recipe that do not exist here, with advice on their replacements.
NVIDIA_ONLY = {
    "fp16_run": "use precision=fp16 on a GPU",
    "dynamic_loss_scaling": "precision=fp16 always scales the loss dynamically",
    "distributed_run": "start several processes with torchrun --nproc-per-node N train.py ...",
    "dist_backend": "processes communicate with NCCL on GPUs and with Gloo on CPUs",
    "dist_url": "use torchrun --rdzv-endpoint HOST:PORT",
    "cudnn_enabled": "cuDNN is used on every GPU",
    "cudnn_benchmark": "cuDNN uses kernels that give the same result in every run",
    "max_wav_value": "audio samples are read as values in [-1, 1]",
    "use_saved_learning_rate": "learning_rate_schedule sets the rate of every optimizer step",
}

MEASURE = "measure"  # with this value of `row_costs`, train.py measures the costs

Seed = Annotated[int, limits(ge=0, le=2**64 - 1)]
Workers = Annotated[int, limits(ge=0, le=1000)]
Buckets = Annotated[int, limits(ge=1, le=10**6)]
LossWeight = Annotated[float, limits(ge=0, le=1e6)]
DiagonalWidth = Annotated[float, limits(ge=1e-3, le=1e3)]
EncoderLayers = Annotated[int, limits(ge=1, le=100)]


@dataclass(frozen=True, kw_only=True)
class HParams(VoiceSettings):
    """All settings of a run. Objects are immutable.

    Raises:
        UserError: if values are invalid. The message lists all invalid values.
    """

    # fmt: off
    # One line per setting, with its comment.

    # --- the run
    epochs: Count = 500  # number of epochs; an epoch is one pass over the training set
    epochs_per_validation: Count = 2  # number of epochs between two validations; larger: fewer validations
    iters_per_checkpoint: Count = 1000  # number of optimizer steps between two checkpoints; larger: a crash loses more work
    keep_checkpoints: Count = 3  # number of newest checkpoints to keep, in addition to best.pt
    log_interval: Count = 10  # number of optimizer steps between two log entries; larger: slightly faster
    seed: Seed = 1234  # seed for all random numbers in the run
    num_workers: Workers = 2  # number of processes that read clips; 0: the training process reads the clips itself
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"  # numeric precision of the computation; tf32 and fp16 need a GPU, bf16 needs a GPU or a recent CPU
    decoder: Literal["fast", "reference"] = "fast"  # decoder for training; both decoders compute the same results, but `fast` takes less time
    ignore_layers: tuple[str, ...] = ()  # names of the tensors that --warm_start skips

    # --- data
    training_files: str = "filelists/ljspeech/train.txt"  # path of the training filelist
    validation_files: str = "filelists/ljspeech/val.txt"  # path of the validation filelist; empty or none: no validation
    clips_folder: str = ""  # new folder of the clips, if you moved the clips after you ran scripts/prepare.py
    load_mel_from_disk: bool = False  # True: the filelists list cached log-mels (.npy) instead of audio files
    text_cleaners: tuple[str, ...] = ("english_cleaners_corrected",)  # names of the text cleaners, applied in the order of this list
    language: str = ""  # eSpeak language code, such as de; required for phones, and for Turkish and Azerbaijani, whose letter I has the lowercase form ı
    symbols: str = "english"  # symbol table: english (as in NVIDIA's recipe), corpus (all characters in your texts), or the path of a .json file
    symbol_table: tuple[str, ...] = ()  # set by the program: the symbols in the table; empty: the English table
    drop_unknown: bool = False  # True: skip characters that have no symbol; False: reject the clip
    lexicon: str = ""  # path of a lexicon file with one word and its respelling per line
    pronunciations: tuple[str, ...] = ()  # set by the program: the content of the lexicon file
    espeak_version: str = ""  # set by the program: the eSpeak version that produced the phones
    speakers: tuple[str, ...] = ()  # set by the program: the speaker names in the filelists; empty: one speaker

    # --- audio
    sampling_rate: SamplingRate = 22050  # sampling rate of the audio, in Hz; clips with a different rate are rejected
    filter_length: FilterLength = 1024  # length of the Fourier transform, in samples; larger: finer frequency resolution
    hop_length: Samples = 256  # hop between two frames, in samples; larger: fewer frames and faster training
    win_length: Samples = 1024  # length of the Hann window, in samples; at most filter_length
    win_time: Milliseconds | None = None  # length of the window, in ms; if set, this setting determines win_length and filter_length
    hop_time: Milliseconds | None = None  # time between two frames, in ms; if set, this setting determines hop_length
    n_mel_channels: MelChannels = 80  # number of mel bands; larger: finer frequency resolution
    mel_fmin: PositiveOrZero = 0.0  # lower edge of the lowest mel band, in Hz
    mel_fmax: Positive = 8000.0  # upper edge of the highest mel band, in Hz; at most half of sampling_rate

    # --- batching (the arguments of length_batching.plan_epoch)
    batch_size: Count = 64  # number of clips per batch; with dynamic_batch_size, batches of shorter clips contain more clips
    batching_strategy: str = "semi_sorted"  # strategy that decides which clips share a batch
    local_randomization_factor: PositiveOrZero = 0.1  # amount of noise in the semi_sorted strategies, as a fraction of the range of lengths or ranks; larger: more random batches, more padding
    bucket_size: Count = 1024  # number of clips per bucket (bucket strategy); larger: more random batches, more padding
    num_bins: Count = 58  # number of sorted bins per epoch (alternated_sort strategy); larger: more random batches, more padding
    num_buckets: Buckets = 10  # number of length classes (bucket_by_width and bucket_by_quantile strategies); larger: less padding
    dynamic_batch_size: bool = True  # True: batches of short clips contain more clips, up to batch_capacity
    batch_capacity: Count | None = None  # maximum number of frames per batch, including padding; None: batch_size times the length of the longest clip
    size_multiple: Count = 1  # each batch contains a multiple of this number of clips, such as 8; 1: any number of clips
    row_costs: str = ""  # time of a decoder step for each number of clips, in microseconds, such as "16:33 32:48"; batches get the sizes with the lowest time per clip; measure: train.py measures the times; empty: not used
    batch_randomization: bool = True  # True: shuffle the order of the batches, but not the clips within them
    random_epochs: CountOrZero = 2  # number of epochs with random batches at the start of the run; 0: none
    batches_per_update: Count = 1  # number of batches per optimizer step, over all processes; larger: fewer optimizer steps
    speaker_balance: Share = 0.0  # how strongly speakers with few recordings are oversampled; 0: every clip once per epoch; 1: the same amount of speech for every speaker
    prepare_trainset_per_epoch: bool = True  # False: all epochs after the random epochs use the same batches

    # --- optimization
    learning_rate: Positive = 1e-3  # learning rate of the Adam optimizer
    learning_rate_schedule: Literal["constant", "exponential"] = "constant"  # constant learning rate, or exponential decay
    learning_rate_warmup_steps: CountOrZero = 0  # number of optimizer steps over which the learning rate rises from 0; 0: no warm-up
    learning_rate_decay_start: CountOrZero = 50_000  # number of optimizer steps before the exponential decay starts
    learning_rate_half_life: Count = 15_000  # number of optimizer steps over which the exponential decay halves the learning rate
    learning_rate_final: PositiveOrZero = 1e-5  # minimum learning rate of the exponential decay
    weight_decay: PositiveOrZero = 1e-6  # weight of the L2 penalty on all parameters; 0: no penalty
    grad_clip_thresh: Positive = 1.0  # maximum gradient norm; gradients with a larger norm are scaled down
    sync_batch_norm: bool = False  # True: batch norm uses the statistics of the batches on all GPUs
    loss: Literal["padded", "unpadded"] = "padded"  # training loss; padded: mean over all frames including padding, as in NVIDIA's recipe; unpadded: masked loss, whatever mask_padding is
    gate_positive_weight: LossWeight = 5.0  # weight of the stop frame in the stop-token loss; 1: unweighted
    guided_attention_weight: LossWeight = 1.0  # weight of the guided attention loss at the start of the run; 0: off
    guided_attention_sigma: DiagonalWidth = 0.4  # width of the diagonal in the guided attention loss, as a fraction of the text length; larger: softer guidance
    guided_attention_steps: Count = 10_000  # number of optimizer steps over which guided_attention_weight decreases linearly to 0
    mask_padding: bool = True  # True: outputs in the padding after the end of a clip add no error to the loss

    # --- validation
    validation_batch_size: Count = 16  # number of clips per validation batch; these batches are random, but the same in every run

    # --- model
    n_symbols: SymbolCount = 148  # number of symbols in the symbol table; each symbol has an embedding
    symbols_embedding_dim: Width = 512  # width of the symbol embedding
    encoder_kernel_size: Kernel = 5  # kernel size of the encoder convolutions, in symbols; must be odd
    encoder_n_convolutions: EncoderLayers = 3  # number of convolutions in the encoder
    encoder_embedding_dim: EvenWidth = 512  # width of the encoder output; must be even
    speaker_embedding_dim: WidthOrZero = 0  # width of the speaker embedding; 0: one speaker
    n_frames_per_step: Width = 1  # number of frames per decoder step (the reduction factor r); larger: faster, but less detailed speech
    decoder_rnn_dim: Width = 1024  # width of the decoder LSTM
    prenet_dim: Width = 256  # width of the two prenet layers
    p_prenet_dropout: Dropout = 0.5  # dropout rate of the prenet, in training and synthesis
    max_decoder_steps: DecoderStepLimit = 10_000  # maximum number of decoder steps per chunk in synthesis
    gate_threshold: Positive = 0.5  # stop probability at which the speech ends; larger: the speech ends later
    attention_rest_time: MillisecondsOrZero = 800.0  # time that attention must rest on the last symbols before the speech ends, in ms; 0: off
    attention_window: CountOrZero = 0  # maximum number of symbols that attention may advance per decoder step; 0: no limit
    attention_rnn_dim: Width = 1024  # width of the attention LSTM
    attention_dim: Width = 128  # width of the attention's query and key vectors
    attention_location_n_filters: Width = 32  # number of convolution filters that are applied to the previous attention weights
    attention_location_kernel_size: Kernel = 31  # kernel size of the filters for the previous attention weights, in symbols; must be odd
    attention_location_gradient: bool = True  # False: no gradient flows through the previous attention weights, which helps small models
    p_attention_dropout: Dropout = 0.1  # dropout rate of the attention LSTM's hidden state
    p_decoder_dropout: Dropout = 0.1  # dropout rate of the decoder LSTM's hidden state
    postnet_embedding_dim: Width = 512  # number of channels in the postnet
    postnet_kernel_size: Kernel = 5  # kernel size of the postnet convolutions, in frames; must be odd
    postnet_n_convolutions: PostnetLayers = 5  # number of convolutions in the postnet
    # fmt: on

    not_settable: ClassVar[Mapping[str, str]] = {**VoiceSettings.not_settable, **NVIDIA_ONLY}
    path_settings: ClassVar[tuple[str, ...]] = ("training_files", "validation_files", "lexicon")

    @classmethod
    def contradictions(cls, values: Any) -> Iterator[str]:
        """Yield a message for each contradiction between the settings in `values`."""
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

    `@PATH` stands for the overrides in the file at PATH. In this file, the paths of filelists may
    be relative to the folder of the file. The values `win_time=50,hop_time=12.5` are from section 3
    of Ge et al.

    Raises:
        UserError: if overrides are wrong. The message lists every problem with its file and line.
    """
    return change_settings(base or HParams(), overrides or "")


def override_lines(overrides: str) -> list[str]:
    """Split overrides into the lines of a settings file.

    `@PATH` is replaced with the lines of the file at PATH.
    """
    return lines_of_overrides(overrides, HParams.path_settings)


def hparams_from_dict(values: Mapping[str, Any]) -> HParams:
    """Restore the settings that were saved with a run.

    Unknown names are ignored. Missing settings get their defaults. If text_cleaners is missing, it
    gets NVIDIA's value, because NVIDIA's checkpoints contain no settings.

    Raises:
        UserError: if a value has the wrong type or is out of range.
    """
    return settings_from_dict(HParams, {"text_cleaners": NVIDIA_CLEANERS, **values})


def batching_options(hparams: Any) -> dict[str, Any]:
    """Return all arguments of `plan_epoch`, except the lengths and the epoch."""
    # Imported here, so that importing this module does not require numpy.
    from length_batching import PARAMETERS

    names = ["batch_size", "seed", "dynamic_batch_size", "batch_capacity", "size_multiple"]
    names += ["batch_randomization", *(parameter.name for parameter in PARAMETERS)]
    options = {name: getattr(hparams, name) for name in names}
    row_costs, _ = parse_row_costs(hparams.row_costs)
    # Ignore row costs if the batch size is fixed, because they would only make batches smaller.
    options["row_costs"] = row_costs if hparams.dynamic_batch_size else None
    return options | {"strategy": hparams.batching_strategy}


def parse_row_costs(text: str) -> tuple[dict[int, float] | None, float]:
    """Parse `row_costs`, and return {batch size: cost} and the cost that each clip adds.

        parse_row_costs("16:33 32:48 clip:0.7")  # ({16: 33.0, 32: 48.0}, 0.7)
        parse_row_costs("measure")               # (None, 0.0), because nothing is measured yet

    Raises:
        ValueError: if `text` is not a valid value of `row_costs`.
    """
    if text in ("", MEASURE):
        return None, 0.0
    costs = {}
    clip_cost = 0.0
    for pair in text.split():
        size, _, value = pair.partition(":")
        if size == "clip":
            clip_cost = float(value)
        elif int(size) in costs:
            raise ValueError(f"{size} occurs twice")
        else:
            costs[int(size)] = float(value)
    if not 0 <= clip_cost < math.inf:
        raise ValueError(f"clip:{clip_cost}")
    return costs, clip_cost


def symbols_path(hparams: HParams) -> Path:
    """Return the path of the symbol table. The built-in English table has no path."""
    from tacotron2_voice.text.symbols import SYMBOLS_FILE

    if hparams.symbols == "corpus":
        return Path(hparams.training_files).parent / SYMBOLS_FILE
    return Path(hparams.symbols)


def read_symbols(hparams: HParams) -> HParams:
    """Return settings with the symbol table from the file in `symbols`.

    Raises:
        UserError: if the file cannot be read or contains no symbol table.
    """
    from tacotron2_voice.text.symbols import read_table

    if hparams.symbols == "english":
        return hparams
    return with_table(hparams, read_table(symbols_path(hparams)).symbols)


def with_table(hparams: HParams, table: tuple[str, ...]) -> HParams:
    return replace(hparams, symbol_table=table, n_symbols=len(table))


def _batching_problems(values: Any) -> Iterator[str]:
    from length_batching import BatchingError, check_options

    try:
        parse_row_costs(values.row_costs)
    except ValueError:
        yield (
            f"row_costs={values.row_costs}: expected measure, or numbers of clips with their costs, "
            "such as 16:33 32:48"
        )
        return
    try:
        check_options(batching_options(values))
    except BatchingError as error:
        yield from re.sub("(?m)^strategy=", "batching_strategy=", str(error)).splitlines()
