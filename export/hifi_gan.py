"""Implement HiFi-GAN's generator, a vocoder, and read its published weights.

    generator = load_generator("LJ_V1/generator_v1", "LJ_V1/config.json")
    audio = generator(mel)  # log-mel [1, num_mels, T] to [1, 1, T * hop_size] in [-1, 1]

scripts/export_vocoder.py exports it for --vocoder.

Source: Kong, Kim, Bae, "HiFi-GAN: Generative adversarial networks for efficient and high fidelity
speech synthesis" (NeurIPS 2020), section 2.2 and appendix A. The names of weights and settings are
those of the files at github.com/jik876/hifi-gan.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import nn
from torch.nn.functional import leaky_relu

from export.checkpoint_file import checkpoint_error, read_saved, weight_problems
from tacotron2_voice.settings import limits
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import naming, read_json

SLOPE = 0.1  # of leaky ReLUs
LAST_SLOPE = 0.01  # of the last leaky ReLU, which is torch's default
CONFIG = "config.json"
# Weight normalization stores lengths and directions, by these names before and since torch 2.0.
LENGTH_AND_DIRECTION = {
    "weight_g": "weight_v",
    "parametrizations.weight.original0": "parametrizations.weight.original1",
}
USE_ITS_CONFIG = "Use the config.json that was published with the weights, with --config."

Size = Annotated[int, limits(strict=True, ge=1, le=2**16)]


@dataclass(frozen=True)
class GeneratorConfig:
    """Contain the settings of config.json about the generator and the log-mels of its training."""

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
    fmax: float | None  # None: half of the sampling rate

    def mel_settings(self) -> dict[str, float]:
        """Return the settings of the log-mels by this recipe's names (MEL_SETTINGS)."""
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
    """Add the outputs of dilated convolutions to the input, one dilation after another.

    In blocks of kind "1", a convolution without dilation follows each dilated convolution.
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
    """Upsample log-mels to audio by transposed convolutions.

    After each convolution follows the mean of several residual blocks with different kernel sizes.
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
        count = len(self.config.resblock_kernel_sizes)  # blocks per transposed convolution
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
    """Return the generator of published weights, on the CPU, without weight normalization.

    Args:
        path: a file that contains `generator`, the weights by name. No code in it is run.
        config_path: the config.json that was published with the weights.

    Raises:
        UserError: if a file cannot be read, a setting or a tensor is not valid, or weights and
            config do not fit each other.
    """
    saved = read_saved(path)
    if not isinstance(saved, dict) or not isinstance(saved.get("generator"), dict):
        raise UserError(f"{path}: {_other_kind(path, saved)}")
    if problems := weight_problems(saved["generator"], "generator"):
        raise checkpoint_error(path, problems)
    with naming(path):
        weights = without_normalization(saved["generator"])
    if problems := weight_problems(weights, "generator without weight normalization"):
        raise checkpoint_error(path, problems)
    config = read_config(config_path)
    unfit = f" does not fit {config_path}"
    if differing := _differences(config, weights):
        raise UserError(f"{checkpoint_error(path, differing, unfit)}\n  {USE_ITS_CONFIG}")
    with torch.device("meta"):  # without memory, because load_state_dict assigns the weights
        generator = Generator(config)
    own = generator.state_dict()
    problems = [f"{name} is missing" for name in own if name not in weights]
    problems += [f"{name} is unknown to this generator" for name in weights if name not in own]
    problems += [
        f"{name} is {[*weights[name].shape]} (expected {[*own[name].shape]})"
        for name in own
        if name in weights and weights[name].shape != own[name].shape
    ]
    if problems:
        raise checkpoint_error(path, problems, unfit)
    generator.load_state_dict(weights, assign=True)
    return generator.eval()


def read_config(path: str | Path) -> GeneratorConfig:
    """Read and check a config.json. UserError lists the settings that are missing or wrong."""
    from pydantic import TypeAdapter, ValidationError

    config = read_json(path, f"no such file. {USE_ITS_CONFIG}")
    names = [field.name for field in fields(GeneratorConfig)]
    if not isinstance(config, dict):
        raise UserError(f"{path}: no settings by name. {USE_ITS_CONFIG}")
    if missing := [name for name in names if name not in config]:
        raise UserError(f"{path}: {', '.join(missing)} missing. {USE_ITS_CONFIG}")
    try:
        values = {name: config[name] for name in names}
        checked = TypeAdapter(GeneratorConfig).validate_python(values)
        problems = _rule_problems(checked)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, x['loc']))}={x['input']!r:.60}: {x['msg']}" for x in error.errors()
        ]
    if problems:
        raise checkpoint_error(path, problems)
    return checked


def _rule_problems(config: GeneratorConfig) -> list[str]:
    """Return the contradictions between settings, one line each."""
    rates = config.upsample_rates
    sizes = config.upsample_kernel_sizes
    kernels = config.resblock_kernel_sizes
    dilations = config.resblock_dilation_sizes
    channels = config.upsample_initial_channel
    problems = []
    if math.prod(rates) != config.hop_size:
        product = f"the product is {math.prod(rates)} (expected hop_size={config.hop_size})"
        problems.append(f"upsample_rates={rates}: {product}")
    pads = [size - rate for size, rate in zip(sizes, rates, strict=False)]
    if len(sizes) != len(rates) or any(pad < 0 or pad % 2 for pad in pads):
        expected = f"one per value of upsample_rates={rates}, larger by an even number"
        problems.append(f"upsample_kernel_sizes={sizes}: expected {expected}")
    if channels % 2 ** len(rates):
        expected = f"a multiple of {2 ** len(rates)}, because it is halved {len(rates)} times"
        problems.append(f"upsample_initial_channel={channels}: expected {expected}")
    if not kernels or not all(kernel % 2 for kernel in kernels):
        problems.append(f"resblock_kernel_sizes={kernels}: expected odd numbers")
    if len(dilations) != len(kernels) or not all(dilations):
        expected = f"a list per value of resblock_kernel_sizes={kernels}"
        problems.append(f"resblock_dilation_sizes={dilations}: expected {expected}")
    return problems


def _other_kind(path: str | Path, saved: Any) -> str:
    """Return what a file contains instead of a generator."""
    name = Path(path).name
    keys = [*saved] if isinstance(saved, dict) else []
    expected = "expected `generator`, as in generator_v1 or g_02500000"
    if "mpd" in keys:
        if "do_" in name:
            expected = f"expected the generator, {name.replace('do_', 'g_', 1)}"
        return f"discriminators, which only the training needs ({expected})"
    content = ", ".join(map(str, keys)) if keys else "no values by name"
    return f"contains {content:.120} ({expected})"


def without_normalization(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return weights in float32 without weight normalization.

    Weight normalization stores the length and the direction of each kernel.

    Raises:
        UserError: if lengths and directions do not fit each other.
    """
    plain = {name: tensor.float() for name, tensor in weights.items()}
    for length_part, direction_part in LENGTH_AND_DIRECTION.items():
        for name in [x for x in plain if x.endswith(f".{length_part}")]:
            layer = name.removesuffix(length_part)
            length, direction = plain.pop(name), plain.pop(layer + direction_part, None)
            if direction is None or direction.dim() != 3:
                expected = f"expected {layer}{direction_part} of three dimensions"
                raise UserError(f"{name}: its direction is missing ({expected})")
            if length.shape != (len(direction), 1, 1):
                shape = [len(direction), 1, 1]
                raise UserError(f"{name} is {[*length.shape]} (expected {shape})")
            norms = torch.linalg.vector_norm(direction, dim=(1, 2), keepdim=True)
            plain[f"{layer}weight"] = direction * (length / norms)
    return plain


def _differences(config: GeneratorConfig, weights: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the settings that differ from the shapes of the weights, one line each."""
    first = weights.get("conv_pre.weight")
    sizes: dict[str, Any] = {}
    if first is not None and first.dim() == 3:
        sizes["upsample_initial_channel"], sizes["num_mels"], _ = first.shape
    ups = _kernel_sizes(weights, r"ups\.(\d+)\.weight")
    blocks = _kernel_sizes(weights, r"resblocks\.(\d+)\.convs1?\.0\.weight")
    if ups and blocks:
        sizes["upsample_kernel_sizes"] = ups
        sizes["resblock_kernel_sizes"] = blocks[: len(blocks) // len(ups)]
        sizes["resblock"] = "1" if any(".convs1." in name for name in weights) else "2"
    return [
        f"{name}={getattr(config, name)!r} in the config, {size!r} in the weights"
        for name, size in sizes.items()
        if getattr(config, name) != size
    ]


def _kernel_sizes(weights: Mapping[str, torch.Tensor], pattern: str) -> list[int]:
    """Return the last dimension of the tensors whose names match `pattern`, by their number."""
    matches = {name: re.fullmatch(pattern, name) for name in weights}
    sizes = {int(m[1]): weights[x].shape[-1] for x, m in matches.items() if m and weights[x].dim()}
    return [sizes[number] for number in sorted(sizes)]
