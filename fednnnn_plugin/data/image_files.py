"""Image files of unknown origin: JPEG and PNG, decoded within Pillow's bounds."""

import hashlib
import os
import stat
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from fednnnn_plugin.data.cache import cached
from fednnnn_plugin.errors import UserError, printable, reason

VERSION = 2  # of the pixels that `decode` gives: no others are taken from the cache
MAX_DECODED_BYTES = 4 << 30  # staged as float32 they are four times that

_THREADS = 4
GREY = ("1", "L", "LA")  # Pillow's modes
COLOUR = ("P", "RGB", "RGBA", "CMYK")


class Encoded(NamedTuple):
    """The content of an image file, and what it is called in messages."""

    name: str
    content: bytes

    def __str__(self) -> str:
        return self.name


def decoded(
    files: Sequence[Path | Encoded],
    image_size: tuple[int, int] | None,
    data_folder: Path,
    of: str = "",
) -> Tensor:
    """Decode images as `decode`, or take those that an earlier run has stored in a data folder.

    They are stored by the digest of ``of``, the size of the images, and of each file's content, or
    its name, size and time of last change.
    """
    digest = hashlib.sha256(os.fsencode(f"{VERSION}\0{of}{image_size}"))
    for file in files:
        digest.update(_mark(file))
    return cached(data_folder, digest.hexdigest(), len(files), lambda: decode(files, image_size))


def check_no_size(image_size: tuple[int, int] | None, where: str) -> None:
    """Refuse a size for images where the data are no image files."""
    if image_size is not None:
        what = f"{where}: has no image files, which it would resize"
        raise UserError("data_args.image_size", what, "leave it out")


def _mark(file: Path | Encoded) -> bytes:
    if isinstance(file, Encoded):
        return hashlib.sha256(file.content).digest()
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise UserError(printable(file), "not a regular file")
    return os.fsencode(f"\n{file}\0{status.st_size}\0{status.st_mtime_ns}")


def decode(
    paths: Sequence[Path | Encoded], image_size: tuple[int, int] | None, *, colour: bool = False
) -> Tensor:
    """Decode images to uint8 [n, C, H, W]: one channel if all are stored as grey, else three.

    They are turned as their EXIF says, and resized to ``image_size`` (height, width); without it
    all must have one size.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with _opened(paths[0]) as first:
            width, height = image_size[::-1] if image_size else first.size
            channels = 1 if first.mode in GREY and not colour else 3
        decoded_bytes = len(paths) * channels * height * width
        if decoded_bytes > MAX_DECODED_BYTES:
            raise UserError(
                "data_args.image_size",
                f"{len(paths)} images of {height} x {width} pixels are {decoded_bytes / 2**30:.1f}"
                f" GiB when decoded, more than the {MAX_DECODED_BYTES >> 30} that they may be",
                "give a smaller one",
            )
        images = np.empty((len(paths), channels, height, width), dtype=np.uint8)

        def fill(index: int) -> bool:
            with _opened(paths[index]) as image:
                if channels == 1 and image.mode not in GREY:
                    return False
                if image_size is None and image.size != (width, height):
                    raise ValueError(
                        f"{image.height} x {image.width} pixels (height x width), where "
                        f"{printable(paths[0])} has {height} x {width}: give data_args.image_size "
                        "to resize all images"
                    )
                picture: Image.Image = image.convert("L" if channels == 1 else "RGB")
                if picture.size != (width, height):
                    picture = picture.resize((width, height), Image.Resampling.BILINEAR)
                shape = (height, width, channels)
                images[index] = np.asarray(picture).reshape(shape).transpose(2, 0, 1)
                return True

        with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as threads:
            fits = all(list(threads.map(fill, range(len(paths)))))  # an error cancels the others
    return torch.from_numpy(images) if fits else decode(paths, image_size, colour=True)


@contextmanager
def _opened(path: Path | Encoded) -> Iterator[Image.Image]:
    """Open an image, upright; what goes wrong until it is closed is said in one line."""
    try:
        with (
            path.open("rb") if isinstance(path, Path) else BytesIO(path.content) as file,
            Image.open(file, formats=("JPEG", "PNG")) as image,
        ):
            if image.mode not in GREY + COLOUR:
                raise ValueError(
                    f"more than 8 bits a channel (Pillow's mode {image.mode}): convert it to 8 "
                    "bits, as by Image.fromarray((np.asarray(image) / 256).astype(np.uint8))"
                )
            image.load()
            with suppress(Exception):  # EXIF that is damaged: the image as it is stored
                ImageOps.exif_transpose(image, in_place=True)
            yield image
    except Exception as error:  # Pillow raises nearly anything on a damaged file
        why = "neither format" if isinstance(error, UnidentifiedImageError) else reason(error)
        raise UserError(
            printable(path), f"not a JPEG or PNG image that can be used: {why}"
        ) from error
