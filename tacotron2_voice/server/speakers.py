"""Find the voice and the speaker for a request, and check the text of the request.

voices = Voices({"english": Voice("voices/english")}, speaker="linda")
synthesizer, speaker = voices.find("english", "kathleen")
utterance = voices.prepare(synthesizer, "Good morning.", limits)
"""

from tacotron2_voice.server.limits import Limits
from tacotron2_voice.speakers import chosen_index, listed
from tacotron2_voice.synthesizer import Synthesizer
from tacotron2_voice.text.spoken_numbers import sentence_of
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utterance import Utterance, prepare_utterance

# Many clients can send only the names of OpenAI's models and voices. The name of an OpenAI model
# selects the first voice, and the name of an OpenAI voice selects the default speaker.
OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
OPENAI_VOICES = "alloy ash ballad cedar coral echo fable marin nova onyx sage shimmer verse".split()
ONE_SPEAKER = "default"  # speaker name for voices without named speakers


class UnknownModel(UserError):
    """Raised when the server has no model with the requested name."""


class UnknownVoice(UserError):
    """Raised when the model has no speaker with the requested name."""


class Voices:
    """The voices of a server.

    Args:
        synthesizers: {name: voice}; the first voice is the default.
        speaker: default speaker; "": the first speaker of each voice.
        numbers: language of the number words; only for voices that speak nothing but numbers.

    Raises:
        UserError: if no voice has the default speaker.
    """

    def __init__(
        self, synthesizers: dict[str, Synthesizer], speaker: str = "", numbers: str | None = None
    ):
        self.synthesizers = synthesizers
        self.numbers = numbers
        self.default_speakers: dict[str, str | None] = {}
        known: list[str] = []
        for name, synthesizer in synthesizers.items():
            speakers = synthesizer.settings.speakers
            known += speakers
            self.default_speakers[name] = speakers[0] if speakers else None
            if speaker in speakers:
                self.default_speakers[name] = speaker
        if speaker and speaker not in known:
            chosen_index(speaker, known, ", ".join(synthesizers))

    def find(self, model: str, voice: str) -> tuple[Synthesizer, str | None]:
        """Return the synthesizer and the speaker with these names.

        Raises:
            UnknownModel: if no voice has the name `model`.
            UnknownVoice: if the model has no speaker with the name `voice`.
        """
        name = next(iter(self.synthesizers)) if model in OPENAI_MODELS else model
        synthesizer = self.synthesizers.get(name)
        if synthesizer is None:
            expected = f"expected {listed([*self.synthesizers])}"
            raise UnknownModel(f"model {model[:60]!r}: not served ({expected})")
        speakers = synthesizer.settings.speakers
        if voice in speakers:
            return synthesizer, voice
        if voice in ("", ONE_SPEAKER, *OPENAI_VOICES):
            return synthesizer, self.default_speakers[name]
        expected = f"expected {listed(speakers or [ONE_SPEAKER])}"
        raise UnknownVoice(f"voice {voice[:60]!r}: the model {name} has no such voice ({expected})")

    def model_of(self, speaker: str) -> str:
        """Return the name of the first voice that has this speaker.

        If no voice has this speaker, return the name of the first voice.
        """
        for name, synthesizer in self.synthesizers.items():
            if speaker in synthesizer.settings.speakers:
                return name
        return next(iter(self.synthesizers))

    def described(self) -> list[dict[str, str]]:
        """Return a list of {"id": speaker, "name": speaker, "model": voice}, with the default
        speaker of each voice first."""
        found = []
        for name, synthesizer in self.synthesizers.items():
            default = self.default_speakers[name]
            speakers = synthesizer.settings.speakers or (ONE_SPEAKER,)
            ordered = sorted(speakers, key=lambda speaker: speaker != default)
            found += [{"id": speaker, "name": speaker, "model": name} for speaker in ordered]
        return found

    def prepare(self, synthesizer: Synthesizer, text: str, limits: Limits) -> Utterance:
        """Check a text, and prepare it for synthesis.

        Raises:
            UserError: if the text is empty, too long, or cannot be spoken.
        """
        # Check the length before cleaning, because cleaning long texts is slow.
        if len(text) > limits.characters:
            expected = f"expected at most {limits.characters:,}"
            raise UserError(f"input: {len(text):,} characters ({expected})")
        text = " ".join(text.split())
        if not text:
            raise UserError("input: the text is empty")
        if self.numbers:
            text = sentence_of(text, self.numbers)
        utterance = prepare_utterance(text, synthesizer.settings)
        if utterance.pause_seconds > limits.pause_seconds:
            expected = f"expected at most {limits.pause_seconds:g} s"
            raise UserError(f"input: {utterance.pause_seconds:g} s of pauses ({expected})")
        return utterance
