"""Test synthesis with a checkpoint, and its warnings."""

import numpy as np
import pytest
import torch
from helpers import SMALL_MODEL

from export.checkpoint_synthesizer import load_checkpoint_synthesizer
from hparams import create_hparams
from model import Tacotron2, free_running
from tacotron2_voice.alignment_failures import find_failures
from tacotron2_voice.speech_end import FORMED, StopReason
from tacotron2_voice.speech_statistics import LJSPEECH
from tacotron2_voice.text import symbols, text_to_sequence
from tacotron2_voice.text.words import word_spans
from tacotron2_voice.utils.errors import UserError


def diagonal(steps: int, symbols: int) -> np.ndarray:
    alignment = np.zeros((steps, symbols), dtype=np.float32)
    alignment[np.arange(steps), np.arange(steps) * symbols // steps] = 1
    return alignment


def symbols_of(text: str) -> list[int]:
    return text_to_sequence(text, ["english_cleaners"])


def warnings_of(
    alignment: np.ndarray, sequence: list[int], end: StopReason = StopReason.GATE
) -> list[str]:
    failures = find_failures(alignment, sequence, end, create_hparams())
    return [failure.message for failure in failures]


TWENTY = symbols_of("she was the last one")
TEXTS = (
    "Printing, in the only sense with which we are at present concerned.",
    "Go on!",
    "It was the dogs'.",
    "A man, a plan (and more) ...",
    "Turn left on {HH AW1 S S T AH0 N}.",
    'He said: "no?"',
    "a",
)


def spoken(sequence: list[int], end: int, seed: int) -> np.ndarray:
    """Return an alignment like those of a trained model.

    Attention stays on each symbol for several decoder steps, with some weight on the neighbors, and
    never reaches symbol `end`.
    """
    rng = np.random.default_rng(seed)
    centers = np.repeat(np.arange(end, dtype=float), rng.integers(1, 9, end))
    # Attention stays on the last symbols until the stop token.
    centers = np.append(centers, np.full(5, end - 1.0))
    distances = np.arange(len(sequence)) - centers[:, None]
    weights = np.exp(-0.5 * (distances / rng.uniform(0.4, 0.7)) ** 2)
    weights[:, end:] *= 0.3
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("text", TEXTS)
def test_no_warning_is_issued_when_the_last_letters_are_silent(text):
    """The last letters of a word can be silent. Punctuation is always silent."""
    sequence = symbols_of(text)
    start, end = word_spans(sequence)[-1]
    for seed in range(40):
        for last in range((start + end + 1) // 2, len(sequence) + 1):
            assert warnings_of(spoken(sequence, last, seed), sequence) == []


@pytest.mark.parametrize("text", [text for text in TEXTS if " " in text])
def test_warning_is_issued_when_the_last_word_is_missing(text):
    sequence = symbols_of(text)
    words = word_spans(sequence)
    for seed in range(40):
        # Speech ends before the first letter of the last word.
        for last in range(1, words[-1][0] + 1):
            warnings = warnings_of(spoken(sequence, last, seed), sequence)
            assert any("words are missing at the end" in warning for warning in warnings)


def test_word_spans_are_runs_of_letters_and_phones():
    sequence = symbols_of("it isn't, {HH AW1 S}. dogs' -")
    text = ["".join(symbols[i] for i in sequence[a:b]) for a, b in word_spans(sequence)]
    assert text == ["it", "isn't", "@HH@AW1@S", "dogs'"]


def test_warning_is_issued_when_attention_is_blurred_ends_early_or_jumps_back():
    assert warnings_of(diagonal(60, 20), TWENTY) == []
    blurred = warnings_of(np.full((30, 20), 0.05, dtype=np.float32), TWENTY)
    assert any("0.05" in w and str(FORMED) in w for w in blurred)
    (cut,) = warnings_of(diagonal(60, 20)[:47], TWENTY)
    where = "attention only reached word 4 of 5 (symbol 16 of 20)"
    assert cut.startswith(f"words are missing at the end: {where}")
    alignment = diagonal(60, 20)
    alignment[30] = 0
    # A jump of 4 symbols, from symbol 9 to symbol 5, is still allowed.
    alignment[30, 5] = 1
    assert warnings_of(alignment, TWENTY) == []
    alignment[30] = 0
    alignment[30, 4] = 1
    (warning,) = warnings_of(alignment, TWENTY)
    assert "jumps back 5 symbols at decoder step 30" in warning


def test_dropout_changes_when_the_seed_changes(checkpoint_path):
    speaker = load_checkpoint_synthesizer(checkpoint_path, "gate_threshold=2", torch.device("cpu"))
    first, again, other = (speaker.synthesize([40, 41, 42], seed=seed).mel for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_overrides_set_the_model_sizes_when_the_checkpoint_is_from_nvidia(tmp_path):
    torch.manual_seed(0)
    weights = Tacotron2(create_hparams(SMALL_MODEL)).state_dict()
    path = tmp_path / "reference.pt"
    wrapped = {f"module.{name}": tensor for name, tensor in weights.items()}
    torch.save({"state_dict": wrapped}, path)
    model = load_checkpoint_synthesizer(path, SMALL_MODEL, torch.device("cpu")).model
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights[name])
    assert not model.training


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("sampling_rate=44100", "sampling_rate=44100: expected 22050"),
        ("win_time=20", "win_length=441: expected 1024"),
        ("seed=5", "seed=5: use --seed instead"),
        ("drop_unknown=True", "drop_unknown=True: use --drop-unknown instead"),
    ],
)
def test_overrides_are_rejected_when_they_change_training_settings(
    overrides, message, checkpoint_path
):
    with pytest.raises(UserError, match=message):
        load_checkpoint_synthesizer(checkpoint_path, overrides)
    same = "sampling_rate=22050,max_decoder_steps=5,attention_window=3,batch_size=2"
    assert load_checkpoint_synthesizer(checkpoint_path, same).settings.max_decoder_steps == 5


def test_synthesizer_uses_captured_decoder_steps_except_when_the_decoder_is_reference(
    checkpoint_path,
):
    captured_steps = pytest.importorskip("fast_decoder.captured_steps")
    cpu = torch.device("cpu")
    model = load_checkpoint_synthesizer(checkpoint_path, device=cpu).model
    assert model.speaking_decoder is captured_steps.free_running
    model = load_checkpoint_synthesizer(checkpoint_path, "decoder=reference", cpu).model
    assert model.speaking_decoder is free_running


def test_ljspeech_statistics_are_used_when_the_checkpoint_is_from_nvidia(tmp_path):
    """A checkpoint from NVIDIA contains no settings, text lengths or speaking rate."""
    torch.manual_seed(0)
    torch.save({"state_dict": Tacotron2(create_hparams()).state_dict()}, tmp_path / "nvidia.pt")
    speaker = load_checkpoint_synthesizer(tmp_path / "nvidia.pt", "", torch.device("cpu"))
    assert speaker.training.statistics is LJSPEECH
    assert speaker.training.longest_text == 188
    assert speaker.settings.text_cleaners == ("english_cleaners",)
    speech = speaker.synthesize(symbols_of("Hello there."))
    seconds = speech.mel.shape[1] * 256 / 22050
    # The statistics of LJSpeech limit the duration of this untrained model's speech. Otherwise, the
    # speech would last 11.6 s (1,000 decoder steps).
    assert seconds < LJSPEECH.longest_time(12) + 1
    assert "blurred" in [failure.kind for failure in speech.failures]
