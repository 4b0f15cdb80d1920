"""A decoded image data set: pixels, labels, and how they are normalised."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Pixels(NamedTuple):
    """Images uint8 [n, C, H, W] and labels int64 [n] of the training and the test part."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def fit(self, image_shape: tuple[int, int, int], num_classes: int) -> bool:
        """Whether types, shapes and labels are those of such a data set."""
        return all(
            images.dtype == torch.uint8
            and images.shape == (len(labels), *image_shape)
            and labels.dtype == torch.int64
            and labels.ndim == 1
            and len(labels) > 0
            and 0 <= int(labels.min()) <= int(labels.max()) < num_classes
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
        """``(x / pixel_max - mean) / std`` per channel: uint8 [n, C, H, W] to float32, a copy."""
        mean, std = (torch.tensor(v, dtype=torch.float64) for v in (self.mean, self.std))
        scale = (1 / (self.pixel_max * std)).float()[:, None, None]
        shift = (mean / std).float()[:, None, None]
        return images.to(torch.float32).mul_(scale).sub_(shift)
