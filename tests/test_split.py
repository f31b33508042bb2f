"""Test how corpus/split.py selects validation clips."""

import hashlib
from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from corpus.clips import Clip
from corpus.split import SPLIT_FILE, choose_split, read_split


def named(ids):
    return [Clip(f"wavs/{name}.wav", "") for name in ids]


def test_validation_split_depends_on_clip_ids_fraction_and_seed():
    """The split of LJSpeech is stored in a file. All other corpora are split by the rule that
    produced this file."""
    pinned = read_split(SPLIT_FILE)
    order = sorted(pinned, key=lambda name: hashlib.sha256(b"0|" + name.encode()).hexdigest())
    validation, origin = choose_split(named(pinned), 0.2, 0)
    assert validation == set(order[:2620]) == {name for name in pinned if pinned[name] == "val"}
    assert "the pinned split" in origin
    fewer, origin = choose_split(named(sorted(pinned)[1:]), 0.2, 0)
    # If the corpus changes, only a few clips move between the training set and the validation set.
    assert len(fewer ^ validation) <= 2
    assert "seed 0" in origin
    of_one = [replace(clip, speaker="linda") for clip in named(pinned)]
    assert choose_split(of_one, 0.2, 0)[0] == validation
    of_two = of_one + [replace(clip, path=f"b-{clip.id}.wav", speaker="b") for clip in of_one]
    linda = {name for name in choose_split(of_two, 0.2, 0)[0] if name[:2] != "b-"}
    assert linda == validation
    other, _ = choose_split(named(pinned), 0.2, 1)
    # Two independent splits have about a fifth of their validation clips in common.
    assert 0.1 < len(other & validation) / 2620 < 0.3
    assert choose_split(named(order[::-1]), 0.1, 0)[0] < validation


@given(st.lists(st.sampled_from("abc"), max_size=60), st.floats(0, 0.9), st.integers(0, 3))
def test_validation_split_of_a_speaker_does_not_depend_on_other_speakers(speakers, fraction, seed):
    """The clips of a speaker are split like a corpus with only this speaker, but at least one clip
    stays in the training set. A corpus with a single speaker is split like a corpus without
    speakers."""
    clips = [Clip(f"wavs/{i}.wav", "", speaker=name) for i, name in enumerate(speakers)]
    validation, origin = choose_split(clips, fraction, seed)
    assert ("of each speaker's clips" in origin) == (len({*speakers}) > 1)
    for name in {*speakers}:
        own = [clip for clip in clips if clip.speaker == name]
        alone, _ = choose_split([replace(clip, speaker="") for clip in own], fraction, seed)
        held_out = validation & {clip.id for clip in own}
        assert held_out <= alone
        most = len(own) if len({*speakers}) == 1 else len(own) - 1
        assert len(held_out) == min(len(alone), most)


def test_clips_with_equal_texts_are_in_the_same_set_when_several_speakers_read_the_text():
    """In some corpora, all speakers read the same sentences. Keeping the clips of a text together
    never reduces a speaker's number of validation clips."""
    clips = [
        Clip(f"wavs/{name}{i}.wav", f"Text {i}.", speaker=name)
        for name, count in (("a", 50), ("b", 20), ("c", 4))
        for i in range(count)
    ]
    validation, _ = choose_split(clips, 0.2, 0, by_text=True)
    held_out = {clip.text for clip in clips if clip.id in validation}
    assert validation == {clip.id for clip in clips if clip.text in held_out}
    counts = Counter(clip.speaker for clip in clips if clip.id in validation)
    assert 10 <= counts["a"] < 15
    assert counts["b"] >= 4
    assert counts["c"] >= 1
    # If a speaker needs no validation clip, clips of other speakers are still held out.
    readers = [("a", i) for i in range(5)] + [
        (f"c{i}", (i + j) % 5) for i in range(5) for j in (0, 1)
    ]
    clips = [Clip(f"wavs/{x}{i}.wav", f"Text {i}.", speaker=x) for x, i in readers]
    validation, _ = choose_split(clips, 0.2, 0, by_text=True)
    assert len(validation & {f"a{i}" for i in range(5)}) == 1


@given(st.lists(st.sampled_from("abcdef"), min_size=2, max_size=40), st.floats(0.05, 0.6))
def test_clips_with_equal_texts_are_in_the_same_set_when_one_speaker_read_the_text_twice(
    letters, fraction
):
    """Texts are compared without case and punctuation. With `by_text`, the validation set can contain
    more clips than `fraction` requires. The number of these additional clips is smaller than the
    number of clips of the most frequent text."""
    texts = [f"{x.upper()} {x}!" if i % 2 else f"{x}, {x}" for i, x in enumerate(letters)]
    clips = [Clip(f"wavs/{i}.wav", text) for i, text in enumerate(texts)]
    validation, _ = choose_split(clips, fraction, 0, by_text=True)
    held_out = {letters[int(name)] for name in validation}
    assert validation == {str(i) for i, x in enumerate(letters) if x in held_out}
    wanted, most = round(fraction * len(letters)), max(map(letters.count, letters))
    assert wanted <= len(validation) < wanted + most or not wanted
