"""Test pause tags ([pause 0.5]), speaker tags, unknown tags, and --speed."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_retries import GOOD, TEXT, H, Scripted

from tacotron2_voice.griffin_lim import SILENCE
from tacotron2_voice.synthesizer import stretched
from tacotron2_voice.text.tags import Pause, SpeakerTag, split_tags
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utterance import Segment, Utterance, prepare_utterance, split_into_chunks

SECOND = 22050 / 256  # frames per second


def test_pause_tags_split_a_text():
    assert split_tags("Wait. [pause 0.5] Now [PAUSE 2s][pause .25]") == [
        "Wait.",
        Pause(0.5),
        "Now",
        Pause(2),
        Pause(0.25),
    ]
    for plain in (
        "[T]he colo[u]r work[ing] [1] (sic) 1 < 2 > 0, a<b [], a <b and b> c.",
        "【新闻】今天 R&amp;B",
    ):
        assert split_tags(plain) == [plain]
    assert split_tags("[speaker  anna b.] One. [Speaker C] Two.") == [
        SpeakerTag("anna b."),
        "One.",
        SpeakerTag("C"),
        "Two.",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[pause]", r"\[pause \]: invalid value, expected seconds from 0 to 60"),
        ("[pause 61]", r"\[pause 61\]: invalid value, expected seconds from 0 to 60"),
        ("a [pause 0.5 b", r"'\[pause 0.5 b'"),
        ("Ha[laughs] yes", r"laughs"),
        ("[laughs]ha", r"laughs"),
        ("[ZH]hello[ZH] you", r"'\[ZH\]'"),
        ("hello[ZH] you", r"'\[ZH\]'"),
        ("[b]bold[/b] text", r"'\[/b\]'"),
        ("Paris[1] is big.", r"'\[1\]'"),
        ("［laughs］ ok", r"laughs"),
        ("【laughs】 ok", r"laughs"),
        ("Yes [laughs", r"'\[laughs'"),
        ("[speaker linda] a [/speaker] b", r"'\[/speaker'"),
        ("a &lt;break&gt; b", r"'&lt;break&gt;'"),
        ("a (PAUSE 0.5s) b", r"PAUSE 0.5s"),
        ("He [laughs] sat.", r"'\[laughs\]'.*\[pause SECONDS\] or \[speaker NAME\]"),
        ("He said [sic] so.", r"'\[sic\]'.*write \(sic\)"),
        ("[speakers x]", r"'\[speakers x\]'"),
        ("[sigh, softly] a", r"'\[sigh, softly\]'"),
        ("[speaker ]", r"\[speaker\]: no name"),
        ("a [speaker x", r"'\[speaker x'"),
        ('Wait <break time="1s"/> now', r"<break time=\"1s\"/>': an unknown tag"),
    ],
)
def test_error_names_the_tag_when_a_text_has_an_unknown_tag(text, message):
    with pytest.raises(UserError, match=message):
        split_tags(text)


def test_tag_suggested_by_the_error_is_accepted():
    assert split_tags("Wait [pause 0.5] now")[1] == Pause(0.5)
    assert split_tags("He stopped (pause). (Silence)") == ["He stopped (pause). (Silence)"]


def test_pause_of_a_pause_tag_has_the_requested_length():
    text = prepare_utterance("[pause 0.2] One two three. [pause 1] One two three. [pause 0.4]", H)
    assert len(text) == 2 * len(TEXT)
    mel = Scripted(GOOD).synthesize(text, speed=1.25).mel
    silent = (mel == np.float32(SILENCE)).all(axis=0)
    edges = np.flatnonzero(np.diff(silent, prepend=False, append=False))
    lengths = (edges[1::2] - edges[::2]).tolist()
    assert lengths == [round(0.2 * SECOND), round(SECOND), round(0.4 * SECOND)]
    assert len(silent) - silent.sum() == 2 * 120 / 1.25


def test_text_between_pause_tags_is_dropped_when_it_has_no_words():
    text = "One two three. [pause 1] ... [pause 1]"
    assert prepare_utterance(text, H) == Utterance([Segment(TEXT, 2.0)], text)
    with pytest.raises(UserError, match="contains no words"):
        prepare_utterance("[pause 1] ...", H)


def test_stretched_ramp_keeps_its_end_values_and_is_steeper_at_a_higher_speed():
    ramp = np.arange(100, dtype=np.float32)[None]
    fast = np.concatenate([*stretched([ramp], 1.5)], axis=1)[0]
    assert len(fast) == 67
    np.testing.assert_allclose(fast, np.minimum(1.5 * np.arange(67), 99), atol=1e-4)
    assert next(iter(stretched([ramp], 1))) is ramp


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=8),
    st.floats(0.7, 1.5),
    st.integers(0, 2**32 - 1),
)
def test_stretched_frames_stay_the_same_when_the_mel_arrives_in_pieces(sizes, speed, seed):
    mel = np.random.default_rng(seed).standard_normal((3, sum(sizes))).astype(np.float32)
    pieces = np.split(mel, np.cumsum(sizes)[:-1], axis=1)
    whole, joined = (np.concatenate([*stretched(x, speed)], axis=1) for x in ([mel], pieces))
    assert whole.tobytes() == joined.tobytes()
    assert whole.shape[1] == max(round(sum(sizes) / speed), 1) or sum(sizes) < 2


TWO = replace(H, speakers=("anna", "bert"), speaker_embedding_dim=2)


def test_speaker_tags_set_the_speaker_of_segments_and_chunks():
    text = prepare_utterance("One. [speaker bert] Two. [pause 1] Three. [speaker anna] Four.", TWO)
    assert [segment.speaker for segment in text.segments] == [None, 1, 1, 0]
    chunks = split_into_chunks(text, 188, TWO.table, 0.3)
    assert [(chunk.speaker, chunk.pause) for chunk in chunks] == [
        (None, 0.3),
        (1, 1),
        (1, 0.3),
        (0, 0),
    ]


def test_each_chunk_is_decoded_with_the_speaker_of_its_tag():
    synthesizer = Scripted(GOOD, settings=TWO)
    speakers = []
    decode = synthesizer.decode

    def recorded(ids, seed, max_steps, speaker=None):
        speakers.append(speaker)
        return decode(ids, seed, max_steps, speaker)

    synthesizer.decode = recorded
    words = "One two three."
    synthesizer.synthesize(f"{words} [speaker bert] {words} [speaker anna] {words}", speaker="bert")
    assert speakers == [1, 1, 0]


@pytest.mark.parametrize(
    ("settings", "parts"),
    [(TWO, ["'carla'", "'anna', 'bert'"]), (H, ["[speaker carla]", "one speaker"])],
)
def test_error_lists_the_speakers_when_a_tag_contains_an_unknown_speaker(settings, parts):
    with pytest.raises(UserError) as error:
        prepare_utterance("One. [speaker carla] Two.", settings)
    assert all(part in str(error.value) for part in parts)


def test_error_reports_the_total_pause_when_the_pauses_in_a_text_are_too_long():
    assert prepare_utterance("One." + "[pause 60]" * 20, H).pause_seconds == 1200
    with pytest.raises(UserError, match="1,260 s"):
        prepare_utterance("One." + "[pause 60]" * 21, H)


def test_long_pause_is_streamed_in_small_pieces():
    stream = Scripted(GOOD).stream(f"One two three. {10 * '[pause 60]'} One two three.")
    lengths = [len(piece) for piece in stream]
    assert sum(lengths) > 600 * 22050
    assert max(lengths) < 10 * 22050
