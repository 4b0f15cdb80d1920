"""Image files of unknown origin: JPEG and PNG, within Pillow's bounds."""

import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from fednnnn_plugin.errors import UserError, printable, reason

_THREADS = 4
_GREY = ("1", "L", "LA")
_COLOUR = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")


class Header(NamedTuple):
    """What an image's header says."""

    height: int
    width: int
    grey: bool


def read_headers(paths: Sequence[Path]) -> list[Header]:
    """Read the headers of images.

    Raises:
        UserError: one is no image, has more than 8 bits a channel, or is larger than what Pillow
            takes for a decompression bomb; names it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        return [_header(path) for path in paths]


def decode(paths: Sequence[Path], channels: int, size: tuple[int, int]) -> Tensor:
    """Decode images to uint8 [n, channels, *size], resized where they are of another size.

    Args:
        paths: the files; their headers have been read.
        channels: 1 or 3.
        size: height and width, in pixels.

    Raises:
        UserError: an image is damaged; names it.
    """
    images = np.empty((len(paths), channels, *size), dtype=np.uint8)

    def fill(index: int) -> None:
        with _opened(paths[index]) as image:
            picture: Image.Image = image.convert("L" if channels == 1 else "RGB")
            if picture.size != size[::-1]:
                picture = picture.resize(size[::-1], Image.Resampling.BILINEAR)
            images[index] = np.asarray(picture).reshape(*size, channels).transpose(2, 0, 1)

    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as threads:
        list(threads.map(fill, range(len(paths))))  # at the first error the others are cancelled
    return torch.from_numpy(images)


def _header(path: Path) -> Header:
    with _opened(path) as image:
        if image.mode not in _GREY + _COLOUR:
            raise ValueError(f"more than 8 bits a channel (Pillow's mode {image.mode})")
        return Header(image.height, image.width, image.mode in _GREY)


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """Open an image; what goes wrong until it is closed is said in one line."""
    try:
        with path.open("rb") as file, Image.open(file, formats=("JPEG", "PNG")) as image:
            yield image
    except Exception as error:  # Pillow raises nearly anything on a damaged file
        why = "neither format" if isinstance(error, UnidentifiedImageError) else reason(error)
        raise UserError(
            f"{printable(path)}: not a JPEG or PNG image that can be used: {why}"
        ) from error
