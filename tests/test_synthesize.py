"""synthesize.py: what it writes, what it warns of, and that texts do not disturb each other."""

import resource

import numpy as np
import pytest
import soundfile
import torch
from matplotlib.figure import Figure

import synthesize
from audio import SILENCE
from hparams import create_hparams
from model import Tacotron2
from pictures import draw_alignment
from text import symbols, text_to_sequence

TINY = (
    "symbols_embedding_dim=16,encoder_embedding_dim=16,attention_rnn_dim=16,decoder_rnn_dim=16,"
    "prenet_dim=8,attention_dim=8,attention_location_n_filters=4,postnet_embedding_dim=16,"
    "max_decoder_steps=12"
)


@pytest.fixture
def checkpoint_path(tmp_path):
    """A checkpoint as the reference writes it, with our settings in it."""
    torch.manual_seed(0)
    hparams = create_hparams(TINY)
    model = Tacotron2(hparams)
    path = tmp_path / "model.pt"
    settings = {
        "max_decoder_steps": 12,
        **{n: getattr(hparams, n) for n in (p.split("=")[0] for p in TINY.split(","))},
    }
    torch.save({"iteration": 7, "state_dict": model.state_dict(), "hparams": settings}, path)
    return path


def diagonal(steps: int, symbols: int) -> np.ndarray:
    alignment = np.zeros((steps, symbols), dtype=np.float32)
    alignment[np.arange(steps), np.arange(steps) * symbols // steps] = 1
    return alignment


def symbols_of(text: str) -> list[int]:
    return text_to_sequence(text, ["english_cleaners"])


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
    """An alignment as a trained model makes it: some steps a symbol, weight on the neighbours too,
    silent symbols passed over, and the symbols from `end` on never in focus."""
    rng = np.random.default_rng(seed)
    centres = np.repeat(np.arange(end, dtype=float), rng.integers(1, 9, end))
    centres = np.append(centres, np.full(5, end - 1.0))  # it waits there for the gate
    distances = np.arange(len(sequence)) - centres[:, None]
    weights = np.exp(-0.5 * (distances / rng.uniform(0.4, 0.7)) ** 2)
    weights[:, end:] *= 0.3
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def test_a_clear_diagonal_alignment_raises_no_warning():
    assert synthesize.alignment_warnings(diagonal(60, 20), TWENTY) == []


@pytest.mark.parametrize("text", TEXTS)
def test_speech_of_every_word_is_good_though_the_last_signs_are_never_in_focus(text):
    """The last letters of a word may be silent, and what follows it is."""
    sequence = symbols_of(text)
    start, end = synthesize.word_spans(sequence)[-1]
    for seed in range(40):
        for last in range((start + end + 1) // 2, len(sequence) + 1):
            assert synthesize.alignment_warnings(spoken(sequence, last, seed), sequence) == []


@pytest.mark.parametrize("text", [text for text in TEXTS if " " in text])
def test_speech_that_lacks_the_last_word_is_warned_of(text):
    sequence = symbols_of(text)
    words = synthesize.word_spans(sequence)
    for seed in range(40):
        for last in range(1, words[-1][0] + 1):  # ends before the last word's first letter
            warnings = synthesize.alignment_warnings(spoken(sequence, last, seed), sequence)
            assert any("words are missing at the end" in warning for warning in warnings)


def test_words_are_runs_of_letters_and_of_phones():
    sequence = symbols_of("it isn't, {HH AW1 S}. dogs' -")
    text = ["".join(symbols[i] for i in sequence[a:b]) for a, b in synthesize.word_spans(sequence)]
    assert text == ["it", "isn't", "@HH@AW1@S", "dogs'"]


def test_a_blurred_alignment_is_named_with_its_sharpness_and_the_threshold():
    blurred = np.full((30, 20), 0.05, dtype=np.float32)
    warnings = synthesize.alignment_warnings(blurred, TWENTY)
    assert any("0.05" in w and str(synthesize.LEAST_SHARPNESS) in w for w in warnings)


def test_an_alignment_cut_off_says_how_many_words_were_spoken():
    assert synthesize.alignment_warnings(diagonal(60, 20)[:47], TWENTY) == [
        "words are missing at the end: attention got to word 4 of 5 (symbol 16 of 20)"
    ]


def test_a_jump_back_is_named_with_its_step_and_small_steps_back_are_not():
    alignment = diagonal(60, 20)
    alignment[30] = 0
    alignment[30, 5] = 1  # from symbol 9 back to 5: 4 is still allowed
    assert synthesize.alignment_warnings(alignment, TWENTY) == []
    alignment[30] = 0
    alignment[30, 4] = 1
    (warning,) = synthesize.alignment_warnings(alignment, TWENTY)
    assert "jumps back 5 symbols at step 30" in warning


def test_sharpness_is_the_mean_largest_weight():
    assert synthesize.sharpness(np.array([[0.5, 0.5], [0.1, 0.9]])) == pytest.approx(0.7)


def test_a_text_has_bitwise_the_sound_and_mel_alone_that_it_has_in_company(
    checkpoint_path, tmp_path, monkeypatch
):
    monkeypatch.setattr(synthesize, "draw_alignment", lambda _: Figure((1, 1)))
    texts = ["short", "a somewhat longer text, with a comma."]
    arguments = ["--checkpoint", str(checkpoint_path), "--save-mel"]
    arguments += ["--hparams", "gate_threshold=2"]
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    together, alone = tmp_path / "together", tmp_path / "alone"
    synthesize.main([*arguments, "--text-file", str(tmp_path / "texts.txt"), "-o", str(together)])
    for number, text in enumerate(texts, 1):
        synthesize.main([*arguments, "--text", text, "-o", str(alone)])
        for kind in ("wav", "npy"):
            ours, others = alone / f"0001.{kind}", together / f"{number:04d}.{kind}"
            assert ours.read_bytes() == others.read_bytes()


def test_the_seed_decides_the_dropout(checkpoint_path):
    model, *_ = synthesize.load_model(checkpoint_path, "gate_threshold=2", torch.device("cpu"))
    first, again, other = (synthesize.speak(model, [40, 41, 42], seed) for seed in (1, 1, 2))
    assert torch.equal(first.mel, again.mel)
    assert not torch.equal(first.mel, other.mel)


# ---------------------------------------------------------------------------- in parts

LONG_TEXT = "A dog came. It sat down, and it ate."  # at most 16: a sentence, and two clauses


def speak_text(checkpoint_path, out, *more, text=LONG_TEXT):
    arguments = ["--checkpoint", str(checkpoint_path), "--text", text, "-o", str(out)]
    synthesize.main([*arguments, "--save-mel", "--hparams", "gate_threshold=2", *more])
    return np.load(out / "0001.npy")


@pytest.fixture
def empty_pictures(monkeypatch):
    monkeypatch.setattr(synthesize, "draw_alignment", lambda *_: Figure((1, 1)))


@pytest.fixture
def mels_alone(empty_pictures, monkeypatch):
    monkeypatch.setattr(synthesize, "griffin_lim", lambda mel, _: np.zeros(mel.shape[1]))


def test_parts_sound_as_if_alone_with_silence_between_them(
    checkpoint_path, tmp_path, empty_pictures
):
    mel = speak_text(checkpoint_path, tmp_path, "--max-symbols", "16", "--pause", "0.3")
    wav = (tmp_path / "0001.wav").read_bytes()
    # Frames of 11.6 ms: 26 are 0.30 s, 10 are 0.12 s.
    spans = [(0, 12), (12 + 26, 12 + 26 + 12), (50 + 10, 50 + 10 + 12)]
    assert mel.shape == (80, spans[-1][1])
    assert np.all(mel[:, 12:38] == np.float32(SILENCE))
    assert np.all(mel[:, 50:60] == np.float32(SILENCE))
    for text, (start, end) in zip(
        ("a dog came.", "it sat down,", "and it ate."), spans, strict=True
    ):
        assert np.array_equal(speak_text(checkpoint_path, tmp_path, text=text), mel[:, start:end])
    speak_text(checkpoint_path, tmp_path, "--max-symbols", "16")  # the default's pause is 0.3 s
    assert (tmp_path / "0001.wav").read_bytes() == wav


def test_pauses_can_be_left_out_and_there_is_none_inside_a_clause(
    checkpoint_path, tmp_path, mels_alone
):
    limit = ("--max-symbols", "16")
    assert speak_text(checkpoint_path, tmp_path, *limit, "--pause", "0").shape == (80, 36)
    words = speak_text(checkpoint_path, tmp_path, *limit, text="it sat down and ate it")
    assert words.shape == (80, 24)


def test_the_longest_training_text_is_the_limit_unless_another_is_given(
    checkpoint_path, tmp_path, mels_alone, capsys
):
    whole = speak_text(checkpoint_path, tmp_path)  # of a checkpoint that does not say
    assert whole.shape == (80, 12)
    saved = torch.load(checkpoint_path, weights_only=True)
    for longest, parts in ((len(LONG_TEXT), 1), (len(LONG_TEXT) - 1, 2)):
        torch.save(saved | {"longest_text": longest}, checkpoint_path)
        mel = speak_text(checkpoint_path, tmp_path, "--pause", "0")
        assert mel.shape == (80, 12 * parts)
        assert np.array_equal(mel, whole) == (parts == 1)
    assert "in 2 parts of 11 to 24 symbols (longest in training: 35)" in capsys.readouterr().out
    assert np.array_equal(speak_text(checkpoint_path, tmp_path, "--max-symbols", "99"), whole)
    assert " parts of" not in capsys.readouterr().out
    speak_text(checkpoint_path, tmp_path, "--max-symbols", "16")
    assert "  in 3 parts of 11 to 12 symbols (--max-symbols 16)\n" in capsys.readouterr().out


def test_a_text_in_parts_has_bitwise_the_sound_alone_that_it_has_in_company(
    checkpoint_path, tmp_path, empty_pictures
):
    alone, together = tmp_path / "alone", tmp_path / "together"
    speak_text(checkpoint_path, alone, "--max-symbols", "16")
    (tmp_path / "texts.txt").write_text(f"Short.\n{LONG_TEXT}\n", encoding="utf-8")
    arguments = ["--checkpoint", str(checkpoint_path), "-o", str(together), "--save-mel"]
    arguments += ["--text-file", str(tmp_path / "texts.txt"), "--max-symbols", "16"]
    synthesize.main([*arguments, "--hparams", "gate_threshold=2"])
    for kind in ("wav", "npy"):
        ours, others = alone / f"0001.{kind}", together / f"0002.{kind}"
        assert ours.read_bytes() == others.read_bytes()


def test_a_warning_names_the_part_that_it_is_about(checkpoint_path, tmp_path, mels_alone, capsys):
    speak_text(checkpoint_path, tmp_path, "--max-symbols", "16")
    printed = capsys.readouterr().out
    assert "  warning: part 2 of 3 ('it sat down,'): no stop within 12 steps" in printed
    assert printed.count("warning: ") == printed.count("warning: part ")


def test_the_picture_shows_every_part_in_a_box_where_it_belongs():
    parts = [diagonal(6, 3), 0.5 * diagonal(8, 4)]
    axes, _ = draw_alignment(*parts).axes
    assert [tuple(image.get_extent()) for image in axes.images] == [
        (-0.5, 5.5, -0.5, 2.5),
        (5.5, 13.5, 2.5, 6.5),
    ]
    for image, part, box in zip(axes.images, parts, axes.patches, strict=True):
        assert np.array_equal(image.get_array(), part.T)
        assert image.get_clim() == (0, 1)  # one scale for all
        left, right, bottom, top = image.get_extent()
        assert box.get_bbox().extents.tolist() == [left, bottom, right, top]
    assert axes.get_xlim() == (-0.5, 13.5)
    assert axes.get_ylim() == (-0.5, 6.5)
    assert len(draw_alignment(parts[0]).axes[0].patches) == 0


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--max-symbols", "0", "--max-symbols 0: expected a whole number from 1"),
        ("--pause", "-0.1", "--pause -0.1: expected seconds from 0 to 60"),
        ("--pause", "nan", "--pause nan: expected seconds from 0 to 60"),
        ("--pause", "1e9", "--pause 1e+09: expected seconds from 0 to 60"),
    ],
)
def test_a_limit_or_pause_out_of_range_is_refused(flag, value, message, capsys):
    with pytest.raises(SystemExit):
        synthesize.main(["--checkpoint", "none.pt", "--text", "a", f"{flag}={value}"])
    assert message in capsys.readouterr().err


# ---------------------------------------------------------------------------- files


@pytest.fixture
def limit_file_size():
    """Files may not grow beyond so many bytes, which stands for a full disk."""
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("size", "written"),
    [(20, []), (3000, []), (6300, ["0001.wav"]), (30_000, ["0001.png", "0001.wav"])],
    ids=["a wav's header", "a wav", "a picture", "a mel"],
)
def test_a_full_disk_is_one_message_and_leaves_whole_files_alone(
    size, written, checkpoint_path, tmp_path, limit_file_size, capsys
):
    out = tmp_path / "out"
    arguments = ["--checkpoint", str(checkpoint_path), "--text", "a", "-o", str(out), "--save-mel"]
    arguments += ["--hparams", "gate_threshold=2"]
    if size == 30_000:  # 320 bytes a frame of the mel, and 128 of the sound
        arguments[-1] += ",max_decoder_steps=100,hop_length=64"
    limit_file_size(size)
    with pytest.raises(SystemExit) as stop:
        synthesize.main(arguments)
    assert str(stop.value).startswith(f"synthesize.py: the files {out / '0001'}.* could not be")
    assert "make room" in str(stop.value)
    assert "\n" not in str(stop.value)
    assert sorted(path.name for path in out.iterdir()) == written
    assert capsys.readouterr().err == ""


def test_files_of_each_text_are_written_and_the_step_limit_is_named(
    checkpoint_path, tmp_path, capsys
):
    texts = tmp_path / "texts.txt"
    texts.write_text("Hello there.\n\nGeneral remarks.\n", encoding="utf-8")
    out = tmp_path / "spoken words"
    arguments = ["--checkpoint", str(checkpoint_path), "--text-file", str(texts), "-o", str(out)]
    # A threshold no probability passes: the limit ends every text.
    synthesize.main([*arguments, "--save-mel", "--hparams", "gate_threshold=2"])
    assert sorted(path.name for path in out.iterdir()) == [
        f"{n}.{kind}" for n in ("0001", "0002") for kind in ("npy", "png", "wav")
    ]
    mel = np.load(out / "0001.npy")
    assert mel.dtype == np.float32
    assert mel.shape == (80, 12)
    info = soundfile.info(str(out / "0002.wav"))
    assert (info.samplerate, info.channels, info.subtype) == (22050, 1, "PCM_16")
    assert info.frames == 12 * 256 - 1  # the most samples that make 12 frames, 1 + N // 256
    printed = capsys.readouterr().out
    assert printed.count("no stop within 12 steps") == 2
    assert str(out) in printed


def test_a_gate_that_fires_at_once_makes_a_sound_of_one_frame(checkpoint_path, tmp_path):
    saved = torch.load(checkpoint_path, weights_only=True)
    saved["state_dict"]["decoder.gate_layer.linear_layer.bias"] += 100
    torch.save(saved, checkpoint_path)
    out = tmp_path / "out"
    synthesize.main(
        ["--checkpoint", str(checkpoint_path), "--text", "a", "-o", str(out), "--save-mel"]
    )
    assert np.load(out / "0001.npy").shape == (80, 1)
    assert soundfile.info(str(out / "0001.wav")).samplerate == 22050


def test_a_reference_checkpoint_without_settings_takes_them_from_the_command(tmp_path):
    torch.manual_seed(0)
    weights = Tacotron2(create_hparams(TINY)).state_dict()
    path = tmp_path / "reference.pt"
    wrapped = {f"module.{name}": tensor for name, tensor in weights.items()}
    torch.save({"state_dict": wrapped}, path)
    model, *_ = synthesize.load_model(path, TINY, torch.device("cpu"))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights[name])
    assert not model.training


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", ""], "leaves nothing to speak"),
        (["--text", "..."], "'...' leaves nothing to speak"),
        (["--text", "—"], "leaves nothing to speak"),
        (["--text-file", "nowhere.txt"], "nowhere.txt"),
        (["--text", "a", "--hparams", "gate_treshold=0.1"], "gate_threshold"),
        (["--text", "a", "--hparams", "prenet_dim=9"], "does not fit"),
    ],
)
def test_bad_input_is_refused_in_one_message(checkpoint_path, arguments, message, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as stop:
        synthesize.main(["--checkpoint", str(checkpoint_path), "-o", str(out), *arguments])
    assert message in str(stop.value)
    assert not out.exists()


def test_all_texts_that_leave_nothing_are_listed_with_their_lines(checkpoint_path, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("fine\n[]\nfine\n%%\n", encoding="utf-8")
    with pytest.raises(SystemExit) as stop:
        synthesize.main(["--checkpoint", str(checkpoint_path), "--text-file", str(texts)])
    assert "texts.txt:2" in str(stop.value)
    assert "texts.txt:4" in str(stop.value)


def test_a_missing_or_damaged_checkpoint_is_named(tmp_path):
    damaged = tmp_path / "damaged.pt"
    damaged.write_bytes(b"PK\x03\x04 not a checkpoint")
    for path in (tmp_path / "missing.pt", damaged):
        with pytest.raises(SystemExit) as stop:
            synthesize.main(["--checkpoint", str(path), "--text", "a"])
        assert path.name in str(stop.value)
