"""Implement the generator of HiFi-GAN, a vocoder, and read its published weights.

    generator = load_generator("LJ_V1/generator_v1", "LJ_V1/config.json")
    audio = generator(mel)  # log-mel [1, num_mels, T] -> [1, 1, T * hop_size] in [-1, 1]

scripts/export_vocoder.py exports the generator for the option --vocoder.

Source: Kong, Kim, Bae, "HiFi-GAN: Generative adversarial networks for efficient and high fidelity
speech synthesis" (NeurIPS 2020), section 2.2 and appendix A. Weights and settings have the same
names as in the files at github.com/jik876/hifi-gan.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
from torch import nn
from torch.nn.functional import leaky_relu

from export.checkpoint_file import checkpoint_error, load_state, read_saved, weight_problems
from tacotron2_voice.settings import limits
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import naming, read_as

SLOPE = 0.1  # slope of the leaky ReLUs
LAST_SLOPE = 0.01  # slope of the last leaky ReLU (PyTorch's default)
CONFIG = "config.json"
# Names of the two tensors of weight normalization: the length and the direction of each kernel.
# The first pair of names is from PyTorch before version 2.0, and the second pair is from later
# versions.
LENGTH_AND_DIRECTION = {
    "weight_g": "weight_v",
    "parametrizations.weight.original0": "parametrizations.weight.original1",
}
USE_ITS_CONFIG = "Pass the config.json that was published with the weights to --config."

Size = Annotated[int, limits(strict=True, ge=1, le=2**16)]


@dataclass(frozen=True)
class GeneratorConfig:
    """The settings in config.json that describe the generator and the log-mels that it converts."""

    resblock: Literal["1", "2"]
    upsample_rates: list[Size]
    upsample_kernel_sizes: list[Size]
    upsample_initial_channel: Size
    resblock_kernel_sizes: list[Size]
    resblock_dilation_sizes: list[list[Size]]
    num_mels: Size
    n_fft: Size
    hop_size: Size
    win_size: Size
    sampling_rate: Annotated[int, limits(strict=True, ge=1)]
    fmin: float
    fmax: float | None  # highest mel frequency in Hz; None: half the sampling rate

    def mel_settings(self) -> dict[str, float]:
        """Return the log-mel settings under the names used in this project (MEL_SETTINGS)."""
        return {
            "sampling_rate": self.sampling_rate,
            "filter_length": self.n_fft,
            "hop_length": self.hop_size,
            "win_length": self.win_size,
            "n_mel_channels": self.num_mels,
            "mel_fmin": self.fmin,
            "mel_fmax": self.sampling_rate / 2 if self.fmax is None else self.fmax,
        }


class ResidualBlock(nn.Module):
    """A residual block with one dilated convolution per dilation. It adds the output of each
    convolution to the input of this convolution.

    In HiFi-GAN's residual blocks of kind "1", each dilated convolution is followed by a convolution
    without dilation.
    """

    def __init__(self, kind: str, channels: int, kernel_size: int, dilations: list[int]):
        super().__init__()
        self.branches: list[tuple[nn.Module, ...]]

        def convolutions(dilations: Iterable[int]) -> nn.ModuleList:
            pad = kernel_size // 2
            return nn.ModuleList(
                nn.Conv1d(channels, channels, kernel_size, dilation=d, padding=d * pad)
                for d in dilations
            )

        if kind == "1":
            self.convs1 = convolutions(dilations)
            self.convs2 = convolutions(1 for _ in dilations)
            self.branches = [*zip(self.convs1, self.convs2, strict=True)]
        else:
            self.convs = convolutions(dilations)
            self.branches = [(convolution,) for convolution in self.convs]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for branch in self.branches:
            added = x
            for convolution in branch:
                added = convolution(leaky_relu(added, SLOPE))
            x = x + added
        return x


class Generator(nn.Module):
    """Upsample log-mels to audio with transposed convolutions.

    The output of each transposed convolution passes through several residual blocks with different
    kernel sizes. The generator averages the outputs of these residual blocks.
    """

    def __init__(self, config: GeneratorConfig):
        super().__init__()
        self.config = config
        channels = config.upsample_initial_channel
        self.conv_pre = nn.Conv1d(config.num_mels, channels, 7, padding=3)
        self.ups = nn.ModuleList()
        self.resblocks = nn.ModuleList()
        for rate, size in zip(config.upsample_rates, config.upsample_kernel_sizes, strict=True):
            pad = (size - rate) // 2
            self.ups.append(nn.ConvTranspose1d(channels, channels // 2, size, rate, padding=pad))
            channels //= 2
            for kernel_size, dilations in zip(
                config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True
            ):
                block = ResidualBlock(config.resblock, channels, kernel_size, dilations)
                self.resblocks.append(block)
        self.conv_post = nn.Conv1d(channels, 1, 7, padding=3)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        x = self.conv_pre(mel)
        # Number of residual blocks after each transposed convolution.
        count = len(self.config.resblock_kernel_sizes)
        for number, up in enumerate(self.ups):
            x = up(leaky_relu(x, SLOPE))
            first, *others = self.resblocks[number * count : (number + 1) * count]
            total = first(x)
            for block in others:
                total = total + block(x)
            x = total / count
        return torch.tanh(self.conv_post(leaky_relu(x, LAST_SLOPE)))


# ---------------------------------------------------------------------------- read


def load_generator(path: str | Path, config_path: str | Path) -> Generator:
    """Return the generator with published weights, on the CPU and without weight normalization.

    Args:
        path: a file that contains the weights as a dictionary with the key `generator`. Code in the
            file is not executed.
        config_path: the config.json that was published with the weights.

    Raises:
        UserError: if a file cannot be read, if a setting or a tensor is invalid, or if the weights
            do not match the config.
    """
    saved = read_saved(path)
    if not isinstance(saved, dict) or not isinstance(saved.get("generator"), dict):
        content = ", ".join(map(str, saved)) if isinstance(saved, dict) else "no dictionary"
        expected = "expected the key `generator`, as in generator_v1 or g_02500000"
        raise UserError(f"{path}: contains {content:.120} ({expected})")
    problems = weight_problems(saved["generator"], "generator")
    if problems:
        raise checkpoint_error(path, problems)
    config = read_config(config_path)
    generator = Generator(config)
    with naming(path):
        weights = without_normalization(saved["generator"])
    load_state(generator, weights, path, f"{config_path}, which belongs to different weights")
    return generator.eval()


def read_config(path: str | Path) -> GeneratorConfig:
    """Read and check a config.json. Raise a UserError if a setting is missing or invalid."""
    config = read_as(path, GeneratorConfig, f"no such file. {USE_ITS_CONFIG}", USE_ITS_CONFIG)
    has_lengths = len(config.upsample_kernel_sizes) == len(config.upsample_rates)
    has_dilations = len(config.resblock_dilation_sizes) == len(config.resblock_kernel_sizes)
    if not has_lengths or not has_dilations:
        problem = "the lists for upsampling or for the residual blocks have different lengths"
        raise UserError(f"{path}: {problem}. {USE_ITS_CONFIG}")
    if math.prod(config.upsample_rates) != config.hop_size:
        rates = f"upsample_rates={config.upsample_rates}"
        problem = f"the product of {rates} must equal hop_size={config.hop_size}"
        raise UserError(f"{path}: {problem}. {USE_ITS_CONFIG}")
    return config


def without_normalization(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights in float32, with weight normalization removed.

    Raises:
        UserError: if the direction of a normalized weight is missing.
    """
    plain = {name: tensor.float() for name, tensor in weights.items()}
    for length_part, direction_part in LENGTH_AND_DIRECTION.items():
        for name in [x for x in plain if x.endswith(f".{length_part}")]:
            layer = name.removesuffix(length_part)
            if layer + direction_part not in plain:
                raise UserError(f"{name}: {layer}{direction_part} is missing")
            length = plain.pop(name)
            direction = plain.pop(layer + direction_part)
            norms = torch.linalg.vector_norm(direction, dim=(1, 2), keepdim=True)
            plain[f"{layer}weight"] = direction * (length / norms)
    return plain
