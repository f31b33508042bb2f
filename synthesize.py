"""Synthesize speech with a trained checkpoint, this recipe's or NVIDIA's.

    python synthesize.py --checkpoint runs/ljspeech/best.pt --text "Printing, in the only sense."
    python synthesize.py --checkpoint runs/ljspeech/best.pt --text-file texts.txt -o out --save-mel

Writes a wav by Griffin-Lim (or --vocoder, docs/voices.md) and a picture of the alignment for each
text, named by its line: out/0012.wav; with --save-mel the log-mel too, float32 [n_mels, frames] as
HiFi-GAN and WaveGlow read it. The same command goes on where it was stopped: what is in the folder
already, of the same text with the same settings, is not made again (out/spoken.jsonl). A text
longer than the longest training text is split into parts, which end after sentences where possible,
and joined with pauses. --max-symbols sets another limit.
"""

import common.environment

import argparse
import textwrap
from collections.abc import Callable
from pathlib import Path

from analysis.arguments import (
    Text,
    add_text_options,
    checked,
    in_utf8,
    make_parser,
    read_texts,
    spoken_as,
)
from common.console import print_without_failing, progress_bar
from common.files import refuse_no_folder, remove_leftovers
from corpus.faults import left_out
from synthesis.speaker import Speaker
from synthesis.speaking import load_speaker, load_vocoder
from synthesis.spoken import Log, key_of, settings_key, summary, sums_of

SOUNDS = set(".wav .mp3 .flac .ogg .opus .m4a".split())


def output_folder(text: str) -> Path:
    """The type of a folder to write to."""
    in_utf8("a name in UTF-8; choose another")(text)
    expected = "a folder, for each text gets files of its own there; name it without the suffix"
    return checked(Path, expected, lambda path: path.suffix.lower() not in SOUNDS)(text)


def speak(
    speaker: Speaker, text: Text, args: argparse.Namespace, say: Callable[[str], None]
) -> list[str]:
    """Write the files of a text and say what they are; returns the warnings."""
    speech = speaker.speak_text(text.utterance, **spoken_as(args))
    base = args.output_directory / text.name
    seconds = speaker.write_speech(base, speech, save_mel=args.save_mel)
    say(f"{base.name}.wav  {seconds:5.2f} s  {textwrap.shorten(text.text, 60, placeholder='...')}")
    for note in speech.notes:
        say(f"  {note}")
    warnings = left_out(text.text, speaker.hparams) + speech.warnings
    for warning in warnings:
        say(f"  warning: {warning}")
    return warnings


def main(arguments: list[str] | None = None) -> None:
    print_without_failing()  # `| head` must not keep files from being written
    parser = make_parser(__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    add_text_options(parser)
    parser.add_argument("-o", "--output_directory", type=output_folder, default=Path("out"))
    parser.add_argument("--save-mel", action="store_true", help="write the log-mel as .npy too")
    args = parser.parse_args(arguments)
    folder = args.output_directory
    refuse_no_folder(folder, "-o")
    speaker = load_speaker(args.checkpoint, args.hparams)
    texts, num_skipped = read_texts(args, speaker.hparams)
    if args.vocoder:
        speaker.vocoder = load_vocoder(args.vocoder, speaker.hparams)
    settings = settings_key(args, speaker.hparams, [args.checkpoint, args.vocoder])
    kinds, one = ["wav", "png", "npy"][: 3 if args.save_mel else 2], len(texts) == 1
    speaker.shows_progress = one
    folder.mkdir(parents=True, exist_ok=True)
    with Log(folder / "spoken.jsonl") as log:
        remove_leftovers(folder, ".[0-9]*.tmp")  # nobody else writes here now
        to_speak, num_warnings = [], 0
        for text in texts:
            key, paths = key_of(settings, *text), [folder / f"{text.name}.{x}" for x in kinds]
            if spoken := log.find(key, paths):
                num_warnings += len(spoken.warnings)
            else:
                to_speak.append((text, key, paths))
        done = there = len(texts) - len(to_speak)
        if there:
            print(f"{there:,} of {len(texts):,} texts were spoken before", flush=True)
        bar = progress_bar(
            "Speaking", len(texts), " texts", initial=there, disable=one or not to_speak
        )
        try:
            with bar:
                for text, key, paths in to_speak:
                    warnings = speak(speaker, text, args, bar.write)
                    log.add(key, sums_of(paths), warnings)
                    num_warnings += len(warnings)
                    done += 1
                    bar.update()
        except KeyboardInterrupt:
            kept = f"the files of {done:,} of {len(texts):,} texts are in {folder}"
            raise KeyboardInterrupt(f"interrupted: {kept}; the same command goes on") from None
    made = f"{len(to_speak):,} text{'s' * (len(to_speak) != 1)}"
    print(f"wrote the files of {made} to {folder}{summary(there, num_skipped, num_warnings)}")


if __name__ == "__main__":
    main()
