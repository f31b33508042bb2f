"""Settings that may be changed when a model speaks, and those that it was trained with.

hparams = speaking_hparams("gate_threshold=0.4", kept)  # `kept`: the settings of the training
"""

from collections.abc import Iterable

from hparams import TIMES, HParams, create_hparams
from tacotron2_voice.utils.errors import UserError

# What the frames of a mel mean: other values change pitch and pace, or the pace's limits.
AUDIO = "sampling_rate filter_length hop_length win_length mel_fmin mel_fmax".split()
SPEAKERS = ("speaker_embedding_dim", "speakers")  # what their embedding is, and has the rows of
# What the graphs of a voice have the size of, or know.
SIZES = (
    "n_mel_channels n_symbols symbols_embedding_dim encoder_kernel_size encoder_n_convolutions "
    "encoder_embedding_dim n_frames_per_step decoder_rnn_dim prenet_dim attention_rnn_dim "
    "attention_dim attention_location_n_filters attention_location_kernel_size "
    "postnet_embedding_dim postnet_kernel_size postnet_n_convolutions symbols"
).split()
OPTIONS = {"seed": "--seed", "drop_unknown": "--drop-unknown"}  # of synthesize.py


def speaking_hparams(overrides: str, kept: HParams, sizes: Iterable[str] = ()) -> HParams:
    """The settings of a trained model, with `overrides` as in --hparams. UserError for those of the
    training that cannot change: of the sound and the speakers, and the `sizes` that are named."""
    hparams = create_hparams(overrides, kept)
    times = {length: time for time, length in TIMES if getattr(hparams, time) is not None}
    problems = []
    for name in (*AUDIO, *SPEAKERS, *sizes, *OPTIONS):
        trained, asked = getattr(kept, name), getattr(hparams, name)
        if trained != asked and name in OPTIONS:
            problems.append(f"{name}={asked}: of the training; the option is {OPTIONS[name]}")
        elif trained != asked:
            time = times.get(name)
            by = f" by {time}={getattr(hparams, time)}" if time else ""
            asked, trained = f"{asked!s:.200}", f"{trained!s:.200}"
            problems.append(f"{name}={asked}{by}: it was trained with {trained}; leave it out")
    if problems:
        raise UserError("\n  ".join(["--hparams: a model speaks as it was trained:", *problems]))
    return hparams
