"""Test synthesis with several speakers: checkpoints, voices, programs, and speaking rates."""

import contextlib
import importlib
import io
import json
import shutil
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch
from corpora import refusal, write_tone
from helpers import (
    HOP,
    SAMPLING_RATE,
    SMALL_MODEL,
    flags,
    load,
    metrics,
    newest,
    save_small_model,
    tiny,
)
from test_retries import GOOD, TEXT, H, Scripted
from test_voice import about, described, settings

import synthesize
import train
from export import voice_export as export
from export.checkpoint_file import read_checkpoint
from export.checkpoint_synthesizer import load_checkpoint_synthesizer
from export.loading import load_synthesizer
from hparams import create_hparams
from tacotron2_voice import __main__ as wheel_program
from tacotron2_voice.speech_statistics import (
    LJSPEECH,
    MIN_CLIPS,
    SpeakerStatistics,
    measure,
    measure_speakers,
)
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.voice import Voice
from training.checkpoint import load_checkpoint

export_voice = importlib.import_module("scripts.export_voice")
NAMES = ("anna", "bert", "carl")
SENTENCE = "A dog came."
SLOW = replace(LJSPEECH, seconds_per_symbol=3 * LJSPEECH.seconds_per_symbol)
STATISTICS = [
    SpeakerStatistics("anna", 93.25, LJSPEECH),
    SpeakerStatistics("bert", 4.0, SLOW),
    SpeakerStatistics("carl", 1200.5, LJSPEECH),
]


def several(names=NAMES, **changes):
    sizes = "decoder_rnn_dim=128,n_frames_per_step=2,max_decoder_steps=40,speaker_embedding_dim=6"
    return replace(create_hparams(f"{SMALL_MODEL},{sizes}"), speakers=names, **changes)


def save(path, names=NAMES, **more):
    statistics = [asdict(one) for one in STATISTICS if one.name in names]
    known = {"speech_statistics": asdict(LJSPEECH), "speaker_statistics": statistics}
    return save_small_model(path, several(names), **known | more)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Make two checkpoints (with three speakers and with one speaker) and two exported voices with
    three speakers. Return their paths, and the text that each export printed."""
    folder = tmp_path_factory.mktemp("speakers")
    (folder / "texts.txt").write_text("A dog came.\nIt sat down, and it ate.\n" * 2)
    found = {"checkpoint": save(folder / "best.pt"), "alone": save(folder / "one.pt", ("anna",))}
    arguments = ["--checkpoint", folder / "best.pt", "--text-file", folder / "texts.txt", "-o"]
    for name in ("fp32", "int8"):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            export_voice.main([*map(str, arguments), str(folder / name), f"--{name}"])
        found[name], found[f"{name}_printed"] = folder / name, printed.getvalue()
    return SimpleNamespace(**found)


# ---------------------------------------------------------------------------- speakers


@pytest.mark.parametrize("kind", ["checkpoint", "fp32"])
def test_audio_differs_between_speakers(kind, made):
    """The audio of a speaker is the same in every call. A space before the name of a speaker has no
    effect."""
    speaker = load_synthesizer(getattr(made, kind))
    sounds = [np.concatenate([*speaker.stream(SENTENCE, speaker=name)]).tobytes() for name in NAMES]
    assert len(set(sounds)) == 3
    streamed = np.concatenate([*speaker.stream(SENTENCE, speaker=" bert")])
    assert streamed.tobytes() == sounds[1]


def test_voice_has_the_same_outputs_as_its_checkpoint_for_every_speaker(made):
    """The test compares every decoder step without dropout. For int8, the tolerance is the same as
    in the test with one speaker."""
    exact = load_checkpoint_synthesizer(made.checkpoint, "p_prenet_dropout=0", torch.device("cpu"))
    words = [5, 6, 7, 20, 31, 40]
    for kind, tolerance in (("fp32", 1e-4), ("int8", 0.1)):
        voice = Voice(getattr(made, kind), "p_prenet_dropout=0")
        for index in range(len(NAMES)):
            pairs = [[*one.decode(words, 0, 20, index)] for one in (exact, voice)]
            for ours, theirs in zip(*pairs, strict=True):
                for a, b in zip(ours, theirs, strict=True):
                    np.testing.assert_allclose(a, b, atol=tolerance)


def test_texts_for_the_export_comparison_alternate_between_speakers(made):
    texts = export_voice.read_texts_to_compare(several(), made.fp32.parent / "texts.txt")
    assert [text.speaker for text in texts] == ["anna", "bert", "carl", "anna"]
    assert "int8 compared with fp32 on 4 texts" in made.int8_printed
    assert f"--voice {made.int8} --speaker NAME --text" in made.int8_printed


def test_export_is_rejected_when_the_onnx_graph_ignores_the_chosen_speaker(
    made, tmp_path, monkeypatch
):
    """In this test, the ONNX graph uses the vector of one speaker for all speakers."""
    last, write = torch.tensor([[0.0, 0.0, 1.0]]), export.write_graphs

    def write_wrongly(speaker, folder):
        with monkeypatch.context() as patch:
            always = lambda model, text, chosen: export.encode(model, text, 0 * chosen + last)  # noqa: E731
            patch.setitem(export.FUNCTIONS, "encoder", always)
            write(speaker, folder)

    monkeypatch.setattr(export, "write_graphs", write_wrongly)
    arguments = ["--checkpoint", str(made.checkpoint), "-o", str(tmp_path / "voice"), "--fp32"]
    with pytest.raises(
        UserError, match="the outputs of the graphs differ from PyTorch's outputs by"
    ):
        export_voice.main(arguments)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (None, " has 3 speakers (expected one of 'anna', 'bert', 'carl')"),
        ("Karl", "did you mean 'carl'? It has 'anna', 'bert', 'carl'"),
        ("", "speaker '': "),
        ("\x1b[2J", r"speaker '\x1b[2J': "),
    ],
)
def test_error_lists_speakers_when_the_speaker_name_is_missing_or_unknown(name, message, made):
    voice = Voice(made.fp32)
    refused = refusal(lambda: voice.synthesize(SENTENCE, speaker=name))
    assert message in refused
    assert str(made.fp32) in refused


def test_speaker_name_is_optional_when_there_is_one_speaker(made, checkpoint_path):
    alone = load_synthesizer(made.alone)
    assert (
        alone.synthesize(SENTENCE).audio.tobytes()
        == alone.synthesize(SENTENCE, speaker="anna").audio.tobytes()
    )
    message = refusal(
        lambda: load_synthesizer(checkpoint_path).synthesize(SENTENCE, speaker="anna")
    )
    assert message.startswith(f"speaker 'anna': {checkpoint_path} has one speaker")


# ---------------------------------------------------------------------------- programs


def test_programs_use_the_chosen_speaker(made, tmp_path, capsysbinary):
    """synthesize.py, the command in the wheel, and streams return the same bytes."""
    expected = (
        (32767 * np.concatenate([*Voice(made.fp32).stream(SENTENCE, speaker="bert")]))
        .round()
        .astype("<i2")
    )
    options = ["--text", SENTENCE, "--speaker", "bert"]
    synthesize.main(["--voice", str(made.fp32), *options, "-o", str(tmp_path / "a.wav")])
    np.testing.assert_array_equal(soundfile.read(tmp_path / "a.wav", dtype="int16")[0], expected)
    capsysbinary.readouterr()
    wheel_program.main(["speak", str(made.fp32), *options, "--stream", "raw"])
    np.testing.assert_array_equal(np.frombuffer(capsysbinary.readouterr().out, "<i2"), expected)


def test_texts_are_synthesized_again_when_the_speaker_changes(made, tmp_path, capsys):
    """A different Unicode form of the same name does not count as a change."""
    out = ["--text", SENTENCE, "-o", str(tmp_path / "out")]
    sounds = {}
    for name in ("anna", " anna", "bert"):
        synthesize.main(["--voice", str(made.fp32), *out, "--speaker", name])
        sounds[name] = (tmp_path / "out" / "0001.wav").read_bytes()
    assert sounds["anna"] == sounds[" anna"] != sounds["bert"]
    assert capsys.readouterr().out.count("1 of 1 texts are already complete") == 1


def test_programs_report_a_missing_speaker_before_they_read_or_write_files(made, tmp_path):
    arguments = ["--text-file", str(tmp_path / "none.txt"), "-o", str(tmp_path / "out")]
    message = refusal(synthesize.main, ["--checkpoint", str(made.checkpoint), *arguments])
    assert message.startswith("--speaker: ")
    assert not (tmp_path / "out").exists()


def test_speakers_are_listed_with_their_minutes_of_audio(made, checkpoint_path, tmp_path, capsys):
    for path in (made.checkpoint, made.int8):
        synthesize.main(["--checkpoint", str(path), "--list-speakers"])
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert lines == [
            ["anna", "93.2", "min"],
            ["bert", "4.0", "min"],
            ["carl", "1,200.5", "min"],
        ]
    older = save_small_model(tmp_path / "older.pt", several())
    for path, printed in ((older, "anna\nbert\ncarl\n"), (checkpoint_path, "has one speaker ")):
        synthesize.main(["--checkpoint", str(path), "--list-speakers"])
        assert printed in capsys.readouterr().out


@pytest.mark.parametrize("setting", ["speakers=", "speaker_embedding_dim=0"])
def test_speakers_cannot_be_overridden_in_synthesis(setting, made, checkpoint_path, tmp_path):
    for path in (made.checkpoint, made.fp32):
        assert "expected " in refusal(load_synthesizer, path, setting)
    other = {"state_dict": load(checkpoint_path)["state_dict"]}
    torch.save(other, tmp_path / "nvidia.pt")
    message = refusal(
        load_synthesizer, tmp_path / "nvidia.pt", f"{SMALL_MODEL},speaker_embedding_dim=4"
    )
    assert "speaker_embedding_dim=4: " in message


# ---------------------------------------------------------------------------- damaged files


def names(folder, *changed: object) -> None:
    statistics = [asdict(replace(STATISTICS[0], name=str(name))) for name in changed]
    about(folder, speaker_statistics=statistics)
    settings(folder, speakers=changed)


def one_statistic(folder, **changes) -> None:
    statistics = json.loads((folder / "voice.json").read_text())["speaker_statistics"]
    about(folder, speaker_statistics=[statistics[0] | changes, *statistics[1:]])


VOICES = {
    "fewer names": (lambda f: names(f, "anna", "bert"), "encoder.onnx: a graph from .*1, 3.*1, 2"),
    "no names": (lambda f: names(f), "speakers: 0 names, but speaker_embedding_dim=6"),
    "no width": (lambda f: settings(f, speaker_embedding_dim=0), "3 names, but .*dim=0"),
    "width": (lambda f: settings(f, speaker_embedding_dim=7), "encoder.onnx: |decoder.onnx: "),
    "twice": (lambda f: names(f, "anna", "bert", "anna"), "speakers: 'anna' occurs twice"),
    "text": (lambda f: settings(f, speakers="abc"), "(?s)voice.json: .*speakers"),
    "escape": (lambda f: names(f, "anna", "\x1b[2J", "carl"), r"speakers: '\\x1b\[2J': expected 1"),
    "long": (lambda f: names(f, "anna", "b" * 129, "carl"), "name"),
    "others": (lambda f: settings(f, speakers=["a", "b", "c"]), "speaker_statistics: "),
    "negative": (lambda f: one_statistic(f, minutes=-1), "speaker_statistics.0.minutes"),
    "unknown": (lambda f: one_statistic(f, odd=1), "speaker_statistics.0.odd"),
}


@pytest.mark.parametrize("fault", VOICES)
def test_voice_is_rejected_when_its_speakers_are_damaged(fault, made, tmp_path):
    folder, (spoil, message) = shutil.copytree(made.fp32, tmp_path / "voice"), VOICES[fault]
    spoil(folder)
    with pytest.raises(UserError, match=message) as stop:
        Voice(folder)
    assert len(str(stop.value)) < 900


def test_voice_is_rejected_when_its_encoder_has_one_speaker(made, voices, tmp_path):
    folder = shutil.copytree(made.fp32, tmp_path / "voice")
    described(folder, "encoder.onnx", (voices.fp32[0] / "encoder.onnx").read_bytes())
    with pytest.raises(UserError, match=r"encoder.onnx: a graph from .*expected .*speaker"):
        Voice(folder)


@pytest.mark.parametrize("changed", [{"name": 7}, {"minutes": float("inf")}, {"odd": 1}], ids=str)
def test_checkpoint_is_rejected_when_its_speakers_are_damaged(changed, tmp_path):
    statistics = [asdict(STATISTICS[0]) | changed] * 3
    path = save(tmp_path / "model.pt", speaker_statistics=statistics)
    [name] = changed
    for read in (load_checkpoint_synthesizer, read_checkpoint):
        with pytest.raises(UserError, match=rf"(?s)model\.pt.*speaker_statistics: 0: {name}"):
            read(path)


# ---------------------------------------------------------------------------- speaking rates


def corpus(*paces: float, clips: int = 200, few: int = 0):
    """Return clips of speakers with these speaking rates in seconds per symbol.

    The speaking rate varies by up to 10% between clips. The last speaker has only `few` clips.
    """
    rng, rows = np.random.default_rng(0), list[tuple[float, ...]]()
    for index, pace in enumerate(paces):
        count = few if few and index == len(paces) - 1 else clips
        symbols = rng.integers(10, 150, count)
        seconds = (0.3 + pace * symbols) * rng.uniform(0.9, 1.1, count)
        rows += zip(np.rint(seconds / 0.02), symbols, [index] * count, strict=True)
    frames, symbols, indices = np.array(rng.permutation(rows)).T
    return frames, symbols, indices.astype(np.int64)


SETTINGS = create_hparams("hop_length=441")  # one frame is 20 ms


def measured(*paces: float, **sizes):
    frames, symbols, indices = corpus(*paces, **sizes)
    whole = measure(frames, symbols, ["."] * len(frames), SETTINGS)
    known = NAMES[: len(paces)]
    return whole, measure_speakers(frames, symbols, indices, known, whole, SETTINGS)


def test_speech_statistics_contain_the_speaking_rate_of_each_speaker():
    """In the statistics of a speaker, the fastest and slowest rates are relative to the rate of
    this speaker. In the statistics of the corpus, the fastest and slowest rates are relative to the
    rate of all speakers."""
    whole, (slow, fast) = measured(0.12, 0.05)
    for one, pace in ((slow, 0.12), (fast, 0.05)):
        assert one.statistics.seconds_per_symbol == pytest.approx(pace, rel=0.03)
        assert one.statistics.offset == pytest.approx(0.3, abs=0.1)
        assert (one.statistics.fastest, one.statistics.slowest) == pytest.approx(
            (0.9, 1.1), abs=0.05
        )
        assert one.statistics.final_mark == whole.final_mark == "."
    assert (slow.name, fast.name) == ("anna", "bert")
    assert whole.slowest > 1.3
    assert whole.fastest < 0.8
    frames, _, indices = corpus(0.12, 0.05)
    assert slow.minutes == pytest.approx(frames[indices == 0].sum() * 0.02 / 60)


def test_speaker_has_the_speaking_rate_of_the_corpus_when_the_speaker_has_few_clips():
    """If a speaker has few clips, these clips do not change the range of rates for other
    speakers."""
    whole, speakers = measured(0.12, 0.05, 0.3, few=MIN_CLIPS - 1)
    assert speakers[2].statistics == whole
    assert speakers[0].statistics.slowest < 1.2
    enough = measured(0.12, 0.05, 0.3, few=MIN_CLIPS)[1]
    assert enough[2].statistics.seconds_per_symbol == pytest.approx(0.3, rel=0.1)


def test_duration_of_long_texts_is_predicted_when_clips_have_similar_lengths():
    """A line fitted to clips of similar lengths could have any slope. If the slope were too small,
    long texts would be cut off."""
    frames, symbols, indices = corpus(0.06)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        narrow = rng.integers(30, 35, 25)
        seconds = (0.3 + 0.09 * narrow) * rng.uniform(0.8, 1.2, 25)
        for own in (narrow, np.full(25, 32)):
            lengths = np.concatenate([symbols, own])
            all_frames = np.concatenate([frames, np.rint(seconds / 0.02)])
            numbers = np.concatenate([indices, np.ones(25, np.int64)])
            whole = measure(all_frames, lengths, ["."] * len(lengths), SETTINGS)
            known = all_frames, lengths, numbers, NAMES[:2]
            _, slow = measure_speakers(*known, whole, SETTINGS)
            assert slow.statistics.seconds(150) == pytest.approx(0.3 + 0.09 * 150, rel=0.2)


def test_speaker_has_the_statistics_of_the_corpus_when_the_speaker_has_no_clips():
    """The filelists of a resumed run can lack clips of a speaker."""
    frames, symbols, indices = corpus(0.1)
    whole = measure(frames, symbols, ["."] * len(frames), SETTINGS)
    nobody, one = measure_speakers(frames, symbols, indices + 1, NAMES[:2], whole, SETTINGS)
    assert (nobody.minutes, nobody.statistics) == (0, whole)
    assert one.minutes > 0


def test_speaking_rate_check_and_length_limit_depend_on_the_speaker():
    """The same speaking rate can be normal for one speaker and too fast for another speaker."""
    speaker = Scripted(GOOD, settings=replace(H, speakers=NAMES))
    speaker.training = replace(speaker.training, speaker_statistics=STATISTICS)
    assert speaker.synthesize(TEXT, speaker="anna").warnings == []
    assert speaker.max_steps(len(TEXT), 1) > 2 * speaker.max_steps(len(TEXT), 0)
    speech = speaker.synthesize(TEXT, speaker="bert", retries=0)
    assert [failure.kind for failure in speech.failures] == ["fast"]
    assert speech.warnings[0].startswith("too fast: ")
    assert "too fast" in speech.warnings[0]


@pytest.mark.thorough
def test_checkpoints_contain_speech_statistics_of_their_speakers(tmp_path):
    """Every checkpoint with several speakers contains speech statistics. If a run resumes from an
    older checkpoint without these statistics, its new checkpoints contain them."""
    lines = []
    for i in range(9):
        write_tone(tmp_path / f"{i}.wav", 4000 + 500 * i)
        lines.append(f"{tmp_path}/{i}.wav|Clip number {i}.||{('bert', 'anna', 'carl')[i % 3]}\n")
    (tmp_path / "train.txt").write_text("".join(lines))
    lists = {"training_files": tmp_path / "train.txt", "validation_files": tmp_path / "train.txt"}
    out = tmp_path / "run"
    often = {"epochs": 1, "epochs_per_validation": 1}
    train.main(flags(out, tiny(**lists, **often, speaker_embedding_dim=4)))
    saved = load_checkpoint(newest(out))
    assert [one["name"] for one in saved["speaker_statistics"]] == list(NAMES)
    for one, places in zip(saved["speaker_statistics"], ((1, 4, 7), (0, 3, 6)), strict=False):
        frames = sum(1 + (4000 + 500 * i) // HOP for i in places)
        assert one["minutes"] == pytest.approx(frames * HOP / SAMPLING_RATE / 60)
    assert "spoken_stopped" in metrics(out, "validation")[-1]
    assert saved["speaker_statistics"][0]["statistics"] == saved["speech_statistics"]
    assert len(load_synthesizer(newest(out)).synthesize("A clip.", speaker="carl").audio) > 0
    statistics = saved.pop("speaker_statistics")
    torch.save(saved, newest(out))
    train.main(flags(out, "epochs=2", "--resume"))
    assert load(newest(out))["speaker_statistics"] == statistics
    train.main(flags(tmp_path / "one", tiny(**lists, epochs=1)))
    assert "speaker_statistics" not in load(newest(tmp_path / "one"))
