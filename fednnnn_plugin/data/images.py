"""A decoded image data set: pixels, labels, and how they are normalised."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

_IMAGES_AT_ONCE = 4_096


class Pixels(NamedTuple):
    """Images [n, C, H, W] and labels int64 [n] of the training and the test part.

    Images are uint8; or float32, which a user's own function may give, and then stay as they are.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def fit(self, image_shape: tuple[int, ...], num_classes: int) -> bool:
        """Whether types, shapes and labels are those of such a data set in uint8.

        The test part may be empty: where it is drawn from all images.
        """
        return len(self.train_labels) > 0 and all(
            images.dtype == torch.uint8
            and images.shape == (len(labels), *image_shape)
            and labels.dtype == torch.int64
            and labels.ndim == 1
            and (not len(labels) or 0 <= int(labels.min()) <= int(labels.max()) < num_classes)
            for images, labels in (self[:2], self[2:])
        )


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Pixels with what is needed to train on them.

    ``mean`` and ``std`` are those of the training pixels divided by ``pixel_max``, a channel each.
    """

    pixels: Pixels
    num_classes: int
    pixel_max: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalised(self, images: Tensor) -> Tensor:
        """``(x / pixel_max - mean) / std`` per channel: uint8 [n, C, H, W] to float32, a copy.

        Images that are float32 already are returned as they are.
        """
        if images.dtype != torch.uint8:
            return images
        mean, std = (torch.tensor(v, dtype=torch.float64) for v in (self.mean, self.std))
        scale = (1 / (self.pixel_max * std)).float()[:, None, None]
        shift = (mean / std).float()[:, None, None]
        return images.to(torch.float32).mul_(scale).sub_(shift)


def mean_and_std(images: Tensor, pixel_max: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of uint8 [n, C, H, W], over ``pixel_max``.

    From exact integer sums, so that no platform's order of summation shows. A channel that has one
    value everywhere gets the standard deviation 1: it is then 0 when normalised.
    """
    means, deviations = [], []
    for channel in images.unbind(1):
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
    return tuple(means), tuple(deviations)
