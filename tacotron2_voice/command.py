"""Implement the `speak` command: read its options and texts, write its output, and print its
messages.

synthesize.py uses this module with a checkpoint or an exported voice. `tacotron2-voice speak` uses
this module with an exported voice.
"""

import argparse
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tacotron2_voice.outputs import (
    PLOT_COMMAND,
    AudioFileOutput,
    FolderOutput,
    Output,
    StreamOutput,
    can_plot,
)
from tacotron2_voice.resume_log import hash_of, options_hash
from tacotron2_voice.speakers import chosen_index
from tacotron2_voice.synthesizer import SpeechStream, Synthesizer
from tacotron2_voice.texts import (
    InputText,
    add_text_options,
    read_texts,
    reads_lines,
    speaking_options,
)
from tacotron2_voice.timings import FORMATS as TIMING_FORMATS
from tacotron2_voice.utils.arguments import output_file, thread_count
from tacotron2_voice.utils.audio_files import AUDIO_FORMATS
from tacotron2_voice.utils.console import print_without_failing, progress_bar
from tacotron2_voice.utils.errors import UserError, count_of
from tacotron2_voice.utils.files import check_is_folder
from tacotron2_voice.vocoder import load_vocoder
from tacotron2_voice.voice import DESCRIPTION_FILE

# Reject names with these suffixes, because they look like files in unsupported formats.
OTHER_FORMATS = (".opus", ".m4a", ".aac", ".aif", ".aiff", ".wma")
FILE_NAMES = ", ".join(f"NAME{suffix}" for suffix in AUDIO_FORMATS)
PARAGRAPH_PAUSE = 2.5  # pause between paragraphs, as a multiple of the pause after a sentence
MAX_FILES_SHOWN = 4  # maximum number of files to list in a message
SHOWN_LETTERS = 60  # maximum number of characters of a text that a message shows


def output_path(text: str) -> Path:
    """Convert the argument of -o to the path of an audio file or of a folder."""
    path = Path(text)
    if is_audio_file(path):
        return output_file(text)
    # Reject a name such as ".wav", which consists only of an extension.
    if not text or text.lower().endswith(OTHER_FORMATS) or path.name.lower() in AUDIO_FORMATS:
        raise argparse.ArgumentTypeError(f"{text!r} (expected a folder, or {FILE_NAMES})")
    return path


def is_audio_file(path: Path) -> bool:
    return path.suffix.lower() in AUDIO_FORMATS


def add_options(parser: argparse.ArgumentParser) -> Any:
    """Add the options of `speak_texts`, except the path of the model.

    Returns:
        The argument group of the options that select the texts.
    """
    source = add_text_options(parser)
    target = parser.add_mutually_exclusive_group()
    target.add_argument(
        "-o",
        "--out",
        "--output_directory",
        type=output_path,
        metavar="OUT",
        help="write all speech to this audio file (.wav, .mp3, .flac or .ogg), or one set of files "
        "per text to this folder (default: out)",
    )
    target.add_argument(
        "--stream",
        choices=["wav", "raw"],
        help="write 16-bit samples to standard output; raw: without a header",
    )
    parser.add_argument(
        "--save-mel",
        action="store_true",
        help="also write log-mels as .npy files (only if -o is a folder)",
    )
    parser.add_argument(
        "--timings",
        choices=TIMING_FORMATS,
        help="write the times of the words to a file next to each WAV; json: also the times of the "
        "symbols",
    )
    parser.add_argument(
        "--threads",
        type=thread_count,
        metavar="N",
        help="number of CPU threads (default: 1 for a voice, PyTorch's default for a checkpoint)",
    )
    parser.add_argument(
        "--time",
        action="store_true",
        help="print the time for loading and for synthesis, and the real-time factor (RTF)",
    )
    return source


def speak_texts(args: argparse.Namespace, path: Path, load: Callable[[], Synthesizer]) -> None:
    """Speak the texts that the command line selects.

    With --stream, the audio is written to standard output. Without --stream, the file names are
    written to standard output. Warnings are written to standard error.
    """
    if args.list_speakers:
        print(list_speakers(load()))
        return
    if not args.stream:
        # Continue the synthesis even if another program, such as `| head`, closes the pipe.
        print_without_failing()
    _check_output_options(args)
    timer = Timer()
    synthesizer = load()
    settings = synthesizer.settings
    try:
        index = chosen_index(args.speaker, settings.speakers, str(path))
    except UserError as error:
        raise UserError(f"--speaker: {error}") from None
    if index is not None:
        args.speaker = settings.speakers[index]  # use the name as it is written in the model
    if args.lexicon:
        note = synthesizer.use_lexicon(args.lexicon)
        settings = synthesizer.settings
        if note:
            print(note, file=sys.stderr, flush=True)
    texts, num_skipped = read_texts(args, settings)
    if args.vocoder:
        synthesizer.vocoder = load_vocoder(args.vocoder, settings, args.threads or 1)
    if synthesizer.rules_note():
        print(synthesizer.rules_note(), file=sys.stderr, flush=True)
    output = _open_output(args, path, texts, synthesizer)
    output.pause = args.pause if reads_lines(args) else PARAGRAPH_PAUSE * args.pause
    timer.loaded = time.perf_counter()
    num_before = sum(text.name in output.complete for text in texts)
    if num_before:
        print(f"{num_before:,} of {len(texts):,} texts are already complete", flush=True)
    try:
        with output:
            _speak_rest(output, texts, args, timer)
    except KeyboardInterrupt:
        kept = output.describe_stop(len(texts))
        if not kept:
            raise
        raise KeyboardInterrupt(
            f"interrupted: {kept}; run the same command again to resume"
        ) from None
    description = output.describe(len(texts), num_before)
    if description:
        print(description + summary(num_before, num_skipped, output.num_warnings))
    old_files = output.files_of_earlier_runs()
    if old_files:
        listed = ", ".join(map(str, old_files[:MAX_FILES_SHOWN]))
        more = len(old_files) - MAX_FILES_SHOWN
        rest = f" and {more:,} more" if more > 0 else ""
        reason = "this run did not write these files, which may be from an earlier run"
        print(f"note: {reason}: {listed}{rest}", file=sys.stderr)
    if args.time and timer.seconds:
        print(timer, file=sys.stderr)


def _speak_rest(
    output: Output, texts: list[InputText], args: argparse.Namespace, timer: "Timer"
) -> None:
    """Speak the texts that earlier runs have not completed. The progress bar counts texts. For a
    single text, the progress bar counts chunks."""
    rest = [text for text in texts if text.name not in output.complete]
    has_one_text = len(texts) == 1
    bar = progress_bar(
        "Speaking",
        len(texts),
        " chunks" if has_one_text else " texts",
        initial=len(texts) - len(rest),
        disable=bool(args.stream) or not rest,
    )
    rate = output.sampling_rate
    with bar:
        for text in rest:
            stream = output.start(text)
            if has_one_text:
                bar.total = stream.report.num_chunks
            for num_samples in output.write(text, stream):
                timer.add(num_samples / rate)
                if has_one_text:
                    bar.update(len(stream.chunks) - bar.n)
            print_report(text, output.written, stream, bar.write, numbered=args.text is None)
            if not has_one_text:
                bar.update()


def list_speakers(synthesizer: Synthesizer) -> str:
    """Return one line per speaker: the name and, if known, the minutes of training speech."""
    names = synthesizer.settings.speakers
    statistics = synthesizer.training.speaker_statistics
    if not names:
        return f"{synthesizer.source} has one speaker without a name"
    if not statistics:
        return "\n".join(names)
    width = max(map(len, names))
    lines = []
    for one in statistics:
        remark = "" if one.minutes else " in the latest filelists"
        lines.append(f"{one.name:{width}}  {one.minutes:8,.1f} min{remark}")
    return "\n".join(lines)


def print_report(
    text: InputText,
    written: str,
    stream: SpeechStream,
    write: Callable[..., object],
    *,
    numbered: bool,
) -> None:
    """Print the notes and warnings about a text, and the files that were written for it.

    Args:
        written: a phrase that lists the written files. The phrase may be empty.
        write: a function that prints a line to a file, by default to standard output.
        numbered: whether messages contain the line number of the text.
    """
    if written:
        # Replace control characters, which a terminal would execute.
        line = "".join(x if x.isprintable() else " " for x in text.text)
        write(f"{written}  {textwrap.shorten(line, SHOWN_LETTERS, placeholder='...')}")
    line_number = f"line {int(text.name)}, " if numbered else ""
    place = f"{line_number}{text.text[:SHOWN_LETTERS]!r}"
    for note in stream.notes:
        write(f"note: {place}: {note}", sys.stderr)
    for warning in stream.warnings:
        write(f"warning: {place}: {warning}", sys.stderr)


def summary(num_before: int, num_skipped: int, num_warnings: int) -> str:
    """Return the end of the final message: the number of texts that were already complete, the
    number of skipped lines, and the number of warnings."""
    phrases = []
    if num_before:
        phrases.append(f"{num_before:,} already complete")
    if num_skipped:
        phrases.append(f"{count_of(num_skipped, 'line')} skipped")
    if num_warnings:
        phrases.append(count_of(num_warnings, "warning"))
    return f"; {', '.join(phrases)}" if phrases else ""


def _check_output_options(args: argparse.Namespace) -> None:
    """Set the default output, and raise UserError if the output options contradict each other."""
    if not args.stream and args.out is None:
        args.out = Path("out")
    writes_folder = args.out is not None and not is_audio_file(args.out)
    if args.save_mel and not writes_folder:
        raise UserError("--save-mel: needs a folder as the output, such as -o out")
    if args.timings and args.stream:
        raise UserError(
            "--timings: cannot be combined with --stream. Write a file instead, for example with -o NAME.wav"
        )
    if writes_folder:
        check_is_folder(args.out, "-o")
        if not can_plot():
            reason = "matplotlib is not installed, so no plots of the alignments are written"
            print(f"note: {reason}. To get plots, run {PLOT_COMMAND}", file=sys.stderr, flush=True)


def _open_output(
    args: argparse.Namespace, path: Path, texts: list[InputText], synthesizer: Synthesizer
) -> Output:
    options = speaking_options(args)
    if args.stream:
        return StreamOutput(args.stream, synthesizer, options)
    content = path / DESCRIPTION_FILE if path.is_dir() else path
    key = options_hash(args, synthesizer.settings, [content, args.vocoder])
    keys = {text.name: hash_of(key, text.name, text.text) for text in texts}
    if is_audio_file(args.out):
        return AudioFileOutput(args.out, synthesizer, options, keys, timings=args.timings)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"the folder cannot be created ({error.strerror})"
        raise UserError(f"-o {args.out}: {problem}") from None
    return FolderOutput(
        args.out,
        synthesizer,
        options,
        keys,
        save_plot=can_plot(),
        save_mel=args.save_mel,
        timings=args.timings,
    )


class Timer:
    """Measure the time of loading the model and the time of synthesis."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.loaded = self.began  # time at which synthesis was ready to start
        self.first = 0.0  # time at which the first audio was ready
        self.seconds = 0.0  # total seconds of audio

    def add(self, seconds: float) -> None:
        if not self.seconds:
            self.first = time.perf_counter()
        self.seconds += seconds

    def __str__(self) -> str:
        elapsed = time.perf_counter() - self.loaded
        return (
            f"loaded in {self.loaded - self.began:.2f} s, "
            f"first audio after {self.first - self.loaded:.2f} s, "
            f"{self.seconds:.2f} s of audio in {elapsed:.2f} s: "
            f"real-time factor {elapsed / self.seconds:.3f}"
        )
