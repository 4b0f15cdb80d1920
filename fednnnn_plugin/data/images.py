"""A data set in memory: inputs, labels, and how images are normalised."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

_IMAGES_AT_ONCE = 4_096


class Pixels(NamedTuple):
    """Inputs, uint8 images [n, C, H, W] or what a user's function gives, and labels int64 [n]."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Inputs and labels; ``mean`` and ``std`` are a channel's, of pixels over ``pixel_max``."""

    pixels: Pixels
    class_names: tuple[str, ...]
    pixel_max: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalised(self, images: Tensor) -> Tensor:
        """``(x / pixel_max - mean) / std`` per channel, float32; inputs not uint8 as they are."""
        if images.dtype != torch.uint8:
            return images
        mean, std = (torch.tensor(v, dtype=torch.float64) for v in (self.mean, self.std))
        scale = (1 / (self.pixel_max * std)).float()[:, None, None]
        shift = (mean / std).float()[:, None, None]
        return images.to(torch.float32).mul_(scale).sub_(shift)


def normalised_by_training_part(
    pixels: Pixels, class_names: tuple[str, ...], pixel_max: int = 255
) -> ImageDataset:
    """Return the data set with the mean and standard deviation of its uint8 training pixels.

    From exact integer sums, so that no platform's order of summation shows. A channel that has one
    value everywhere gets the standard deviation 1: it is then 0 when normalised.
    """
    means, deviations = [], []
    for channel in pixels.train_images.unbind(1):
        histogram = sum(
            part.flatten().bincount(minlength=256) for part in channel.split(_IMAGES_AT_ONCE)
        )
        counts = torch.as_tensor(histogram).tolist()
        count = channel.numel()
        total = sum(value * times for value, times in enumerate(counts))
        squares = sum(value**2 * times for value, times in enumerate(counts))
        variance = (count * squares - total**2) / (count * pixel_max) ** 2
        means.append(total / (count * pixel_max))
        deviations.append(math.sqrt(variance) or 1.0)
    return ImageDataset(pixels, class_names, pixel_max, tuple(means), tuple(deviations))
