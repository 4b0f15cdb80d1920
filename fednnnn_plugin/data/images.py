"""A data set in memory: inputs, labels, and how images are normalised."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fednnnn_plugin.fingerprint import tensors_digest

IGNORED = -100  # a label of a sequence or an image that counts for nothing
_IMAGES_AT_ONCE = 4_096


class Pixels(NamedTuple):
    """Inputs, uint8 images [n, C, H, W] or what a user's function gives, and labels int64 [n]."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


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


_DEALT = Split()


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
    """Inputs, labels, and the mean and standard deviation of each channel's uint8 values.

    The split is that of data that come divided.
    """

    pixels: Pixels
    class_names: tuple[str, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    split: Split = _DEALT

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


def normalised_by_training_part(
    pixels: Pixels, class_names: tuple[str, ...], split: Split = _DEALT
) -> ImageDataset:
    """Return the data set with the mean and standard deviation of its uint8 training pixels.

    Inputs that are no uint8 images are used as they are. From exact integer sums, so that no
    platform's order of summation shows. A channel that has one value everywhere gets the standard
    deviation 1: it is then 0 when normalised.
    """
    if pixels.train_images.dtype != torch.uint8:
        return ImageDataset(pixels, class_names, split=split)
    means, deviations, values = [], [], torch.arange(256)
    for channel in pixels.train_images.unbind(1):
        parts = channel.split(_IMAGES_AT_ONCE)
        counts = torch.stack([part.flatten().bincount(minlength=256) for part in parts]).sum(0)
        n, total, squares = (int(counts @ values**power) for power in range(3))
        means.append(total / n)
        deviations.append(math.sqrt((n * squares - total**2) / n**2) or 1.0)
    return ImageDataset(pixels, class_names, tuple(means), tuple(deviations), split)
