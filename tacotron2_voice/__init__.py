"""Synthesize speech with exported Tacotron 2 voices, without PyTorch.

    from tacotron2_voice import Voice

    voice = Voice("voices/english")
    speech = voice.synthesize("It was a quiet evening.", speaker="linda")
    speech.audio, speech.sampling_rate    # float32 [N] in [-1, 1], Hz

`import tacotron2_voice` imports no other modules. Each public name is imported from its module when
the name is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tacotron2_voice.version import __version__

if TYPE_CHECKING:
    from tacotron2_voice.outputs import write_speech
    from tacotron2_voice.synthesizer import Speech, SpeechStream, Synthesizer
    from tacotron2_voice.timings import Timings, timings_of
    from tacotron2_voice.utils.errors import UserError
    from tacotron2_voice.vocoder import load_vocoder
    from tacotron2_voice.voice import Voice

__all__ = [
    "Speech",
    "SpeechStream",
    "Synthesizer",
    "Timings",
    "UserError",
    "Voice",
    "__version__",
    "load_vocoder",
    "timings_of",
    "write_speech",
]

MODULES = {
    "Speech": "tacotron2_voice.synthesizer",
    "SpeechStream": "tacotron2_voice.synthesizer",
    "Synthesizer": "tacotron2_voice.synthesizer",
    "Timings": "tacotron2_voice.timings",
    "UserError": "tacotron2_voice.utils.errors",
    "Voice": "tacotron2_voice.voice",
    "load_vocoder": "tacotron2_voice.vocoder",
    "timings_of": "tacotron2_voice.timings",
    "write_speech": "tacotron2_voice.outputs",
}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(MODULES[name]), name)
