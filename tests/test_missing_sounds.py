"""missing_sounds.py: what lies there in place of a clip's sound, and commands that mend it."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile
from corpora import make_corpus, prepare_with, refusal

from corpus.metadata import read_metadata
from hparams import HParams

pytestmark = pytest.mark.usefixtures("no_picture")

IDS = [f"c{i:02}" for i in range(5)]


def rename_sounds(corpus: Path, change) -> None:
    for path in sorted((corpus / "wavs").iterdir()):
        target = corpus / change(path.name)
        target.parent.mkdir(exist_ok=True)
        path.rename(target)


def rename_ids(corpus: Path, change) -> None:
    lines = (corpus / "metadata.csv").read_text().splitlines()
    (corpus / "metadata.csv").write_text("".join(f"{change(line)}\n" for line in lines))


def convert_sounds(corpus: Path) -> None:
    for path in sorted((corpus / "wavs").iterdir()):
        samples, _ = soundfile.read(path)
        soundfile.write(path.with_suffix(".mp3"), samples.repeat(2), 44100)
        path.unlink()


CASES = {
    "upper-case suffix": (lambda c: rename_sounds(c, lambda x: f"wavs/{x[:-4]}.WAV"), "for f in"),
    "upper-case name": (
        lambda c: rename_sounds(c, lambda x: f"wavs/{x[:-4].upper()}.wav"),
        "for f in",
    ),
    "another folder": (lambda c: rename_sounds(c, lambda x: f"wavs/{x}/"[:8] + f"/{x}"), "mv "),
    "folder of another name": (lambda c: rename_sounds(c, lambda x: f"wav/{x}"), "mv "),
    "beside metadata.csv": (lambda c: rename_sounds(c, lambda x: x), "mkdir "),
    "ids with a suffix": (lambda c: rename_ids(c, lambda x: x.replace("|", ".wav|", 1)), "cp "),
    "ids with a folder": (lambda c: rename_ids(c, lambda x: f"wavs/{x}"), "cp "),
    "ids of Windows": (
        lambda c: rename_ids(c, lambda x: "C:\\a b\\wavs\\" + x.replace("|", ".WAV|", 1)),
        "cp ",
    ),
    "ids of another format": (
        lambda c: rename_ids(c, lambda x: x.replace("|", ".Mp3|", 1)),
        "cp ",
    ),
    "another format": (convert_sounds, "for f in"),
}
IN_ONE_STEP = ("upper-case name", "ids of another format")


@pytest.mark.parametrize("case", CASES)
def test_advice_makes_the_corpus_usable(tmp_path, case):
    """Each command, one after the other as the messages name them, until nothing is missing."""
    if case == "another format" and not shutil.which("ffmpeg"):
        pytest.skip("no ffmpeg")
    corpus, (break_it, command) = make_corpus(tmp_path / "my corpus", 5), CASES[case]
    (corpus / "wav").mkdir()
    break_it(corpus)
    if "folder of" in case or "beside" in case:
        (corpus / "wavs").rmdir()
    for _ in range(1 if case in IN_ONE_STEP else 5):
        message = refusal(prepare_with, corpus, tmp_path / "lists")
        line = next(line for line in message.splitlines() if f": {command}" in line)
        advice = command + line.partition(f": {command}")[2]
        subprocess.run(advice, shell=True, check=True, capture_output=True)
        if [clip.id for clip in read_metadata(corpus)[0]] == IDS and is_complete(corpus):
            break
    prepare_with(corpus, tmp_path / "lists")


def is_complete(corpus: Path) -> bool:
    return all((corpus / "wavs" / f"{name}.wav").exists() for name in IDS)


def test_other_formats_name_the_conversion(tmp_path):
    corpus = make_corpus(tmp_path / "corpus", 5)
    convert_sounds(corpus)
    message = refusal(prepare_with, corpus, tmp_path / "lists")
    rate = HParams.sampling_rate
    assert f"{corpus}/wavs/c00.mp3 lies there: convert it: for f in {corpus}/wavs/*.mp3" in message
    assert f'; do ffmpeg -nostdin -i "$f" -ac 1 -ar {rate} "${{f%.*}}.wav"; done' in message


def test_lost_zeros_are_written_again(tmp_path):
    """A spreadsheet takes 0001 for the number 1."""
    corpus = make_corpus(tmp_path / "corpus", 11)
    rename_sounds(corpus, lambda name: f"wavs/00{name[1:]}")
    rename_ids(corpus, lambda line: line[2:] if line[1] == "0" else line[1:])
    message = refusal(prepare_with, corpus, tmp_path / "lists")
    line = next(line for line in message.splitlines() if "'0000' lies there" in line)
    subprocess.run(line.partition(" by: ")[2], shell=True, check=True)
    prepare_with(corpus, tmp_path / "lists")


def test_names_in_two_folders_stay_apart(tmp_path):
    """001 of one speaker must not get the text of another's 001."""
    corpus = make_corpus(tmp_path / "corpus", 6)
    rename_sounds(corpus, lambda name: f"wavs/{'ab'[int(name[1:3]) % 2]}/{int(name[1:3]) // 2}.wav")
    rename_ids(corpus, lambda x: f"wavs/{'ab'[int(x[1:3]) % 2]}/{int(x[1:3]) // 2}.wav{x[3:]}")
    message = refusal(prepare_with, corpus, tmp_path / "lists")
    assert "ids 'wavs/a/0.wav' and 'wavs/b/0.wav' are files of the same name" in message
    subprocess.run(message.partition(" by: ")[2].splitlines()[0], shell=True, check=True)
    message = refusal(prepare_with, corpus, tmp_path / "lists")
    command = "cp " + message.splitlines()[1].partition(" by: cp ")[2]
    subprocess.run(command, shell=True, check=True)
    prepare_with(corpus, tmp_path / "lists")
    clips, _ = read_metadata(corpus)
    assert {clip.id: clip.text for clip in clips}["b_2"] == "Number 5."
    assert soundfile.info(corpus / "wavs" / "b_2.wav").frames == 4000 + 137 * 5


def test_ids_with_and_without_folder_stay_apart(tmp_path):
    (tmp_path / "metadata.csv").write_text("1|One.\n2|Two.\nb/1|Other.\n")
    assert "ids '1' and 'b/1' are files of the same name" in refusal(read_metadata, tmp_path)
    (tmp_path / "metadata.csv").write_text("1|One.\n1|Two.\nb/3|Other.\n")
    assert len(read_metadata(tmp_path)[1]) == 2  # the same id is said of the line


def test_sounds_of_one_name_are_all_named(tmp_path):
    corpus = make_corpus(tmp_path / "corpus", 2)
    for folder in "ab":
        (corpus / folder).mkdir()
        shutil.copy(corpus / "wavs" / "c00.wav", corpus / folder)
    (corpus / "wavs" / "c00.wav").unlink()
    message = refusal(prepare_with, corpus, tmp_path / "lists")
    both = f"{corpus}/a/c00.wav and {corpus}/b/c00.wav"
    assert f"{both} lie there: copy the one that speaks the text" in message


def test_names_of_other_clips_are_not_changed(tmp_path):
    """Where only some ids differ in their case, a loop over all files would break the others."""
    corpus = make_corpus(tmp_path / "corpus", 3)
    (corpus / "wavs" / "c00.wav").rename(corpus / "wavs" / "C00.wav")
    message = refusal(prepare_with, corpus, tmp_path / "lists")
    assert f"rename it: mv -n {corpus}/wavs/C00.wav {corpus}/wavs/c00.wav\n" in message


@pytest.mark.skipif(not shutil.which("ffmpeg"), reason="no ffmpeg")
def test_one_command_converts_all_clips(tmp_path):
    corpus = make_corpus(tmp_path / "my corpus", 5)
    for path in (corpus / "wavs").iterdir():
        samples, _ = soundfile.read(path)
        soundfile.write(path, np.stack([samples, samples], 1), 44100)
    message = refusal(prepare_with, corpus, tmp_path / "lists")
    command = message.splitlines()[1].partition(": mkdir ")[2]
    for _ in range(2):  # twice, by mistake
        subprocess.run(f"mkdir {command}", shell=True, capture_output=True)
        assert len(list((corpus / "wavs").iterdir())) == 5
    prepare_with(corpus, tmp_path / "lists")
    assert soundfile.info(corpus / "wavs.old" / "c00.wav").channels == 2


def test_conversion_names_the_folder_of_the_clips(tmp_path):
    """And leaves flac files alone, which may be good."""
    corpus = make_corpus(tmp_path / "corpus", 2)
    soundfile.write(corpus / "wavs" / "c00.wav", np.zeros((4000, 2)), 22050)
    message, wavs = refusal(prepare_with, corpus, tmp_path / "lists"), f"{corpus}/wavs"
    assert (
        f"keep these in {wavs}.old: mkdir -p {wavs}.new {wavs}.old; for f in {wavs}/*.wav"
        in message
    )
