"""How many iterations Griffin-Lim needs: what a recogniser transcribes, and how near the mels are.

    python scripts/make_demo_corpus.py unseen --clips 50 --skip 1000
    python benchmarks/griffin_lim.py unseen

The recordings become mels, and sound again in pieces as speak.py streams it. Convergence is the
distance of the mels from the recordings' over the size of these (in the manner of Sturmel and
Daudet 2011, who take linear spectra), the mean over the recordings.
"""

import project_root

from pathlib import Path

import numpy as np
import torch

from analysis.arguments import list_of, make_parser, whole_number
from analysis.transcription import NumberRecogniser, read_recordings, word_error_rate
from audio import log_mel_spectrogram, mel_filters, read_audio
from hparams import HParams
from progress import progress_bar
from tables import markdown_table
from voice import LARGEST_PIECE
from waveform import GriffinLim


def measure(clips: list[tuple[Path, str]], iterations: int) -> tuple[float, float]:
    """Word error rate and convergence of recordings after mel and Griffin-Lim."""
    h, recogniser, heard, distances = HParams(), NumberRecogniser(), [], []
    vocoder = GriffinLim(h, mel_filters(h).numpy(), iterations)
    bar = progress_bar(f"{iterations} iterations", len(clips), " texts", iterable=clips)
    for path, text in bar:
        mel = log_mel_spectrogram(read_audio(path, h), h).numpy()
        pieces = np.split(mel, range(LARGEST_PIECE, mel.shape[1], LARGEST_PIECE), axis=1)
        sound = np.concatenate([*vocoder.stream(pieces)])
        heard.append(recogniser.transcribe(text, sound, h.sampling_rate))
        again = log_mel_spectrogram(torch.from_numpy(sound), h).numpy()[:, : mel.shape[1]]
        wanted = np.exp(mel[:, : again.shape[1]])
        distances.append(np.linalg.norm(np.exp(again) - wanted) / np.linalg.norm(wanted))
    return word_error_rate(heard), float(np.mean(distances))


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("recordings", type=Path, metavar="FOLDER", help="of spoken numbers")
    shown = "default: %(default)s"
    numbers = list_of(whole_number(0))
    parser.add_argument("--iterations", type=numbers, default="0,2,5,10,20,30,60", help=shown)
    args = parser.parse_args(arguments)
    clips = read_recordings(args.recordings)
    rows = []
    for count in args.iterations:
        rate, convergence = measure(clips, count)
        rows.append([count, f"{rate:.3f}", f"{convergence:.3f}"])
    print(markdown_table(["iterations", "word error rate", "convergence"], rows))


if __name__ == "__main__":
    main()
