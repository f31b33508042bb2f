"""What synthesize.py and `python -m synthesis` do: options, texts, output, messages."""

import argparse
import importlib.util
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

from export.loading import load_synthesizer
from hparams import HParams
from tacotron2_voice.outputs import FileFolder, GrowingWav, Output, Stream
from tacotron2_voice.resume_log import key_of, settings_key
from tacotron2_voice.speakers import chosen_index
from tacotron2_voice.speech_end import End
from tacotron2_voice.synthesizer import Synthesizer
from tacotron2_voice.texts import Text, add_text_options, read_texts, speaking_options
from tacotron2_voice.utils.arguments import checked, output_file, thread_count
from tacotron2_voice.utils.console import print_without_failing, progress_bar
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import refuse_no_folder
from tacotron2_voice.vocoder import load_vocoder
from tacotron2_voice.voice import SETTINGS

MAX_UNENDED = 20  # texts in a row that run to their limit
# What is not written, but would be taken for the name of a folder.
SOUNDS = set(
    ".mp3 .flac .ogg .oga .opus .m4a .m4b .aac .wma .aif .aiff .aifc .au .caf .amr .mp2 .mp4 .mka "
    ".webm .wave .w64 .raw .pcm .gz .zip .npy .png".split()
)


def output_path(text: str) -> Path:
    """The type of a WAV or folder to write."""
    if Path(text).suffix.lower() == ".wav":
        return output_file(text)
    if text == "-":
        raise argparse.ArgumentTypeError("'-': standard output is --stream wav; leave -o out")
    convert = "other formats can be made of a WAV: ffmpeg -i out.wav out.mp3"
    expected = f"a folder, or a name that ends in .wav; {convert}"
    return checked(Path, expected, lambda x: bool(text) and x.suffix.lower() not in SOUNDS)(text)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `speak_texts`, all but the speaker's path."""
    add_text_options(parser)
    target = parser.add_mutually_exclusive_group()
    out_help = "a WAV for all texts (NAME.wav), or a folder with files for each (out)"
    target.add_argument(
        "-o", "--out", "--output_directory", type=output_path, metavar="OUT", help=out_help
    )
    stream_help = "write 16-bit samples to standard output; raw: without a header"
    target.add_argument("--stream", choices=["wav", "raw"], help=stream_help)
    mel_help = "write the log-mel as .npy too, in a folder"
    parser.add_argument("--save-mel", action="store_true", help=mel_help)
    threads_help = "of the computing; default: 1 for a voice, PyTorch's for a checkpoint"
    parser.add_argument("--threads", type=thread_count, metavar="N", help=threads_help)
    parser.add_argument("--time", action="store_true", help="print how long it took")


def speak_texts(path: Path, args: argparse.Namespace) -> None:
    """Speak the texts with a checkpoint or a voice folder, and say what was made of them.

    Texts that are complete from an earlier time are not spoken again. What is wrong is printed on
    standard error, a line for each warning; standard output has what was written, or the sound.
    """
    if args.list_speakers:
        print(list_speakers(load_synthesizer(path, args.hparams)))
        return
    if not args.stream:
        print_without_failing()  # `| head` must not keep files from being written
    _refuse_unusable(args)
    timer = Timer()
    speaker = load_synthesizer(path, args.hparams, args.threads)
    h = speaker.hparams
    index = chosen_index(args.speaker, h.speakers, str(path))
    args.speaker = None if index is None else h.speakers[index]  # as it is spelled there
    texts, num_skipped = read_texts(args, h)
    if args.vocoder:
        speaker.vocoder = load_vocoder(args.vocoder, h, args.threads or 1)
    output = _open_output(path, texts, args, h)
    timer.is_loaded()
    num_before = sum(output.has(text.name) for text in texts)
    if num_before:
        print(f"{num_before:,} of {len(texts):,} texts were spoken before", flush=True)
    one_bar = args.stream or len(texts) == 1 or num_before == len(texts)
    bar = progress_bar("Speaking", len(texts), " texts", initial=num_before, disable=one_bar)
    speaker.shows_progress = not args.stream and len(texts) == 1
    unended = list[Text]()
    try:
        with output, bar:
            for text in texts:
                if not output.has(text.name):
                    for num_samples in output.add(speaker, text, speaking_options(args)):
                        timer.count(num_samples / h.sampling_rate)
                    report(text, output.made, speaker, bar.write, numbered=args.text is None)
                    bar.update()
                    has_ended = any(x.end is not End.LIMIT for x in speaker.attempts)
                    unended = [] if has_ended else [*unended, text]
                    if len(unended) == MAX_UNENDED:
                        raise _unended(path, unended)
    except KeyboardInterrupt:
        if kept := output.kept(len(texts)):
            raise KeyboardInterrupt(f"interrupted: {kept}; the same command resumes") from None
        raise
    if description := output.describe(len(texts), num_before):
        print(description + summary(num_before, num_skipped, output.num_warnings))
    if args.time and timer.seconds:
        print(timer, file=sys.stderr)


def list_speakers(speaker: Synthesizer) -> str:
    """A line for each speaker that a model knows: the name and, where they are known, the minutes
    of its training speech."""
    names = speaker.hparams.speakers
    if not names:
        return f"{speaker.source} has one voice, without a name"
    if not speaker.speaker_statistics:
        return "\n".join(names)
    width = max(map(len, names))
    return "\n".join(
        f"{x.name:{width}}  {x.minutes:8,.1f} min" + " in the last lists" * (not x.minutes)
        for x in speaker.speaker_statistics
    )


def _unended(path: Path, texts: list[Text]) -> UserError:
    lines = f"lines {int(texts[0].name)} to {int(texts[-1].name)}"
    what = f"{len(texts)} texts in a row ran to their limit without an end ({lines})"
    fix = "train it longer, or lower gate_threshold by --hparams"
    return UserError(f"{path}: {what}: the voice does not know when to stop; {fix}")


def _refuse_unusable(args: argparse.Namespace) -> None:
    """Settle where the output goes; UserError before anything is loaded."""
    if not args.stream and args.out is None:
        args.out = Path("out")
    writes_folder = args.out is not None and args.out.suffix.lower() != ".wav"
    if args.save_mel and not writes_folder:
        raise UserError("--save-mel: needs a folder for the files of each text, such as -o out")
    if writes_folder:
        refuse_no_folder(args.out, "-o")
        if importlib.util.find_spec("matplotlib") is None:
            fix = "pip install matplotlib, or name a WAV, such as -o out.wav"
            raise UserError(f"-o {args.out}: matplotlib is missing, which draws alignments; {fix}")


def _open_output(path: Path, texts: list[Text], args: argparse.Namespace, h: HParams) -> Output:
    if args.stream:
        return Stream(args.stream, h.sampling_rate)
    content = path / SETTINGS if path.is_dir() else path
    settings = settings_key(args, h, [content, args.vocoder])
    keys = {text.name: key_of(settings, *text) for text in texts}
    if args.out.suffix.lower() == ".wav":
        return GrowingWav(args.out, h.sampling_rate, keys)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"the folder cannot be made ({error.strerror}); choose another -o"
        raise UserError(f"-o {args.out}: {problem}") from None
    return FileFolder(args.out, keys, save_mel=args.save_mel)


def report(
    text: Text, made: str, speaker: Synthesizer, write: Callable[..., object], *, numbered: bool
) -> None:
    """Print what was made of a text, how it was spoken, and what is wrong with it."""
    if made:
        # A text from elsewhere may hold what a terminal takes for commands.
        line = "".join(x if x.isprintable() else " " for x in text.text)
        write(f"{made}  {textwrap.shorten(line, 60, placeholder='...')}")
    where = f"line {int(text.name)}, " if numbered else ""
    for note in speaker.notes:
        write(f"{where}{text.text[:60]!r}: {note}", sys.stderr)
    for warning in speaker.warnings:
        write(f"warning: {where}{text.text[:60]!r}: {warning}", sys.stderr)


def summary(num_before: int, num_skipped: int, num_warnings: int) -> str:
    """What the last line adds to what was written."""
    counts = {
        f"{num_before:,} spoken before": num_before,
        f"{num_skipped:,} line{'s' * (num_skipped > 1)} skipped": num_skipped,
        f"{num_warnings:,} warning{'s' * (num_warnings > 1)}": num_warnings,
    }
    phrases = [words for words, count in counts.items() if count]
    return f"; {', '.join(phrases)}" if phrases else ""


class Timer:
    """Measures how long loading and speaking take."""

    def __init__(self) -> None:
        self.began = self.loaded = time.perf_counter()
        self.first: float | None = None  # when the first sound was there
        self.seconds = 0.0  # of sound

    def is_loaded(self) -> None:
        self.loaded = time.perf_counter()

    def count(self, seconds: float) -> None:
        self.first = self.first or time.perf_counter()
        self.seconds += seconds

    def __str__(self) -> str:
        assert self.first is not None
        took = time.perf_counter() - self.loaded
        return (
            f"loaded in {self.loaded - self.began:.2f} s, "
            f"first sound after {self.first - self.loaded:.2f} s, "
            f"{self.seconds:.2f} s of sound in {took:.2f} s: "
            f"real-time factor {took / self.seconds:.3f}"
        )
