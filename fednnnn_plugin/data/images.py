"""A data set in memory: inputs, labels, and how images are normalised."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from fednnnn_plugin.fingerprint import Fingerprint, tensors_digest

IGNORED = -100  # a label of a sequence or an image that counts for nothing
_IMAGES_AT_ONCE = 4_096
_CHANNELS = (1, 3, 4)


class Samples(NamedTuple):
    """Inputs, uint8 images [n, C, H, W] or what a user's function gives, and labels int64 [n]."""

    inputs: Tensor
    labels: Tensor

    def at(self, rows: Tensor | slice) -> "Samples":
        """Return the samples in these places, or where a mask is true."""
        return Samples(self.inputs[rows], self.labels[rows])


def joined(parts: Sequence[Samples]) -> Samples:
    """Return the samples of all parts, one after another."""
    return parts[0] if len(parts) == 1 else Samples(*map(torch.cat, zip(*parts, strict=True)))


def packed(samples: Samples, positions: Sequence[Tensor]) -> tuple[Samples, tuple[Tensor, ...]]:
    """Leave out the samples in none of the positions; return these positions among the others."""
    rows = torch.cat(tuple(positions)).unique()
    if len(rows) == len(samples.labels):
        return samples, tuple(positions)
    return samples.at(rows), tuple(
        torch.searchsorted(rows, part.contiguous()) for part in positions
    )


class Parts(NamedTuple):
    """The samples to train on, and those to test on, which may be none."""

    train: Samples
    test: Samples

    def digest(self) -> str:
        """Return the digest of all samples."""
        names = ("train_images", "train_labels", "test_images", "test_labels")
        return tensors_digest(zip(names, (*self.train, *self.test), strict=True))


class Split(NamedTuple):
    """Each client's positions in the training part, and those of its own test samples in the other.

    They are int64 [n_k]. A client without test samples of its own has none there, and where no
    client has any, ``test`` is empty; so is all where the recipe divides the data.
    """

    train: tuple[Tensor, ...] = ()
    test: tuple[Tensor, ...] = ()

    def digest(self) -> str:
        """Return the digest of the positions."""
        parts = [(str(client), held) for client, held in enumerate(self.train)]
        parts += [(f"test {client}", held) for client, held in enumerate(self.test)]
        return tensors_digest(parts)


def are_classes(labels: Tensor) -> bool:
    """Tell whether labels are a class for each sample: neither numbers nor several."""
    return labels.ndim == 1 and not labels.is_floating_point()


@dataclass(frozen=True, eq=False)
class Normalisation:
    """``(x - mean) / std`` per channel of uint8 images ``[…, C, H, W]``; the result is float32.

    Images are kept as uint8, in a quarter of the memory, and normalised a batch at a time: each
    value by itself, so that the bits are those of the whole set normalised at once. ``factor`` is
    ``1 / std`` and ``shift`` is ``mean / std``, float32 ``[C, 1, 1]``.
    """

    factor: Tensor
    shift: Tensor

    def __call__(self, images: Tensor) -> Tensor:
        return images.to(torch.float32).mul_(self.factor).sub_(self.shift)

    def to(self, device: torch.device) -> "Normalisation":
        """Return the same for images on a device."""
        return Normalisation(self.factor.to(device), self.shift.to(device))


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Samples; of uint8 images the mean and standard deviation of each channel.

    The split is that of data that come divided; the fingerprint is of what is the user's.
    """

    parts: Parts
    class_names: tuple[str, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    split: Split = field(default_factory=Split)
    fingerprint: Fingerprint = field(default_factory=dict)

    @property
    def normalisation(self) -> Normalisation | None:
        """How its uint8 images are normalised; None where inputs are used as they are."""
        if not self.std:
            return None
        mean, std = (
            torch.tensor(values, dtype=torch.float64)[:, None, None]
            for values in (self.mean, self.std)
        )
        return Normalisation((1 / std).float(), (mean / std).float())


def channel_moments(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation of each channel of uint8 images; none of others.

    From exact integer sums, so that no platform's order of summation shows. A channel that has one
    value everywhere gets the standard deviation 1: it is then 0 when normalised.
    """
    if images.dtype != torch.uint8:
        return (), ()
    means, deviations, values = [], [], torch.arange(256)
    for channel in images.unbind(1):
        parts = channel.split(_IMAGES_AT_ONCE)
        counts = torch.stack([part.flatten().bincount(minlength=256) for part in parts]).sum(0)
        n, total, squares = (int(counts @ values**power) for power in range(3))
        means.append(total / n)
        deviations.append(math.sqrt((n * squares - total**2) / n**2) or 1.0)
    return tuple(means), tuple(deviations)


def has_channels_last(shape: Sequence[int]) -> bool:
    """Tell whether images ``[n, a, b, c]`` look like ``[n, H, W, C]``, as most libraries have."""
    return len(shape) == 4 and shape[3] in _CHANNELS and shape[1] not in _CHANNELS
