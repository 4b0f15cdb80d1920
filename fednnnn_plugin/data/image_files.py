"""Image files of unknown origin: JPEG and PNG, opened and decoded within bounds."""

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from fednnnn_plugin.data.sources import open_regular, printable, reason
from fednnnn_plugin.errors import UserError

SUFFIXES = (".jpg", ".jpeg", ".png")
MAX_FILE_BYTES = 1 << 26
MAX_PIXELS = 1 << 25  # of one image: 100 MB while it is decoded
_THREADS = 4

_GREY = ("1", "L", "LA")
_COLOUR = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")


class Header(NamedTuple):
    """What an image's header says."""

    height: int
    width: int
    grey: bool


def visible(folder: Path) -> list[str]:
    """Names in a folder, sorted, but for hidden ones.

    Raises:
        OSError: it cannot be read.
    """
    return sorted(entry.name for entry in os.scandir(folder) if not entry.name.startswith("."))


@contextmanager
def opened(path: Path, max_bytes: int) -> Iterator[Image.Image]:
    """Open an image; nothing of it is decoded yet.

    Raises:
        Exception: nearly any, which is what Pillow raises on a damaged file.
    """
    with (
        open_regular(path, max_bytes) as file,
        Image.open(file, formats=("JPEG", "PNG")) as image,
    ):
        yield image


def read_headers(paths: Iterable[Path]) -> list[Header]:
    """Read the headers of images.

    Raises:
        UserError: one is no image, or of a kind or size that is not taken; names it.
    """
    with warnings.catch_warnings():
        # Pillow warns of large images, of which ours are refused below.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return [_header(path) for path in paths]


def decode(
    paths: Sequence[Path], headers: Sequence[Header], channels: int, size: tuple[int, int]
) -> Tensor:
    """Decode images of these headers to uint8 [n, channels, *size], resized where they differ.

    Args:
        paths: the files.
        headers: of the same files: an image whose size has changed since is an error.
        channels: 1 or 3.
        size: height and width, in pixels.

    Raises:
        UserError: an image is damaged; names it.
    """
    images = np.empty((len(paths), channels, *size), dtype=np.uint8)

    def fill(index: int) -> None:
        images[index] = _decoded(paths[index], headers[index], channels, size)

    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as threads:
        futures = [threads.submit(fill, index) for index in range(len(paths))]
        try:
            for future in futures:
                future.result()
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise
    return torch.from_numpy(images)


def _header(path: Path) -> Header:
    try:
        with opened(path, MAX_FILE_BYTES) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise ValueError(
                    f"{width} x {height} pixels, more than the {MAX_PIXELS} that it may have"
                )
            if image.mode not in _GREY + _COLOUR:
                raise ValueError(f"more than 8 bits a channel (Pillow's mode {image.mode})")
            return Header(height, width, image.mode in _GREY)
    except Exception as error:
        raise _unusable(path, error) from error


def _decoded(
    path: Path, header: Header, channels: int, size: tuple[int, int]
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    height, width = size
    try:
        with opened(path, MAX_FILE_BYTES) as image:
            if image.size != (header.width, header.height):
                raise ValueError("has changed while it was read")
            picture: Image.Image = image.convert("L" if channels == 1 else "RGB")
            if picture.size != (width, height):
                picture = picture.resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(picture, dtype=np.uint8)
    except Exception as error:
        raise _unusable(path, error) from error
    return pixels.reshape(height, width, channels).transpose(2, 0, 1)


def _unusable(path: Path, error: Exception) -> UserError:
    neither = isinstance(error, UnidentifiedImageError)
    why = "neither format" if neither else reason(error)
    return UserError(f"{printable(path)}: not a JPEG or PNG image that can be used: {why}")
