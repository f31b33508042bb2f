"""Write teacher-forced log-mels of recordings to fine-tune a vocoder on a model's output.

    synthesizer = load_checkpoint_synthesizer("runs/mine/best.pt")
    paths = write_teacher_forced_mels(synthesizer, Path("filelists/mine/train.txt"), Path("forced"))

The model predicts the frames from the previous frames of the recording. Each predicted log-mel has
one frame per hop of the recording. This is the number of frames that HiFi-GAN computes itself.
"""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from batch import collate
from corpus.filelist import read_filelist
from data_utils import TextMelDataset
from export.checkpoint_synthesizer import CheckpointSynthesizer
from tacotron2_voice.utils.console import progress_bar
from tacotron2_voice.utils.files import write_bytes


def write_teacher_forced_mels(
    synthesizer: CheckpointSynthesizer, filelist: Path, folder: Path
) -> list[Path]:
    """Write FOLDER/ID.npy, float32 [n_mels, frames], for each clip in a filelist.

    The fine-tuning program of HiFi-GAN reads these files from the folder `--input_mels_dir`.
    Existing files are not written again.

    Raises:
        UserError: if the filelist cannot be read or contains a bad line.
    """
    with open(filelist, encoding="utf-8") as file:
        load_mel = file.readline().partition("|")[0].endswith(".npy")
    hparams = replace(synthesizer.settings, load_mel_from_disk=load_mel, clips_folder="")
    clips = read_filelist(filelist, hparams)
    dataset = TextMelDataset(clips, hparams)
    ids = clips.ids()
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.npy" for name in ids]
    for i in progress_bar("Teacher forcing", len(paths), " clips", iterable=range(len(paths))):
        # Earlier versions wrote one additional frame. Write such files again.
        if paths[i].exists() and np.load(paths[i]).shape[1] == clips.num_frames[i] - 1:
            continue
        mel = _teacher_forced(synthesizer, dataset[i])
        content = io.BytesIO()
        np.save(content, mel)
        write_bytes(paths[i], content.getvalue())
    return paths


@torch.no_grad()
def _teacher_forced(synthesizer: CheckpointSynthesizer, item: tuple) -> np.ndarray:
    """Return the log-mel [n_mels, num_samples // hop_length] of one clip, predicted from the frames
    of its recording.

    The recording's own mel has one more frame, because its first frame is centered at 0. HiFi-GAN
    computes mels without this frame, and its validation fails if the numbers of frames differ.
    """
    model = synthesizer.model
    device = model.embedding.weight.device
    batch = collate([item], model.n_frames_per_step)
    num_frames = int(batch.mel_lengths[0])
    num_steps = batch.mel.shape[2] // model.n_frames_per_step
    masks = model.decoder.draw_masks(num_steps, 1, torch.Generator().manual_seed(0))
    outputs = model(batch.to(device), masks)
    return outputs.mel_postnet[0, :, : num_frames - 1].float().cpu().numpy()
