"""Decoded images on disk, so that only the first run decodes."""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fednnnn_plugin.data.sources import OWN_FOLDER, locked
from fednnnn_plugin.errors import reason

MAX_BYTES = 16 << 30  # of all that is kept below one data folder

_logger = logging.getLogger(__name__)


def cached(data_folder: Path, fingerprint: str, count: int, decode: Callable[[], Tensor]) -> Tensor:
    """Return the images stored under this fingerprint of their files, or decode and store them.

    Of several processes that ask at once one decodes, and the others wait for it. What was used
    longest ago makes room. Where the data folder cannot be written to, every run decodes.

    Args:
        data_folder: the images are in ``fednnnn-decoded/<fingerprint>.safetensors`` below it.
        fingerprint: of the files and of what is made of them.
        count: n, images that there are.
        decode: makes them, uint8 [n, C, H, W].
    """
    path = data_folder / OWN_FOLDER / f"{fingerprint}.safetensors"
    images = _read(path, count)
    if images is not None:
        return images
    try:
        with locked(data_folder):
            images = _read(path, count)
            if images is None:
                images = decode()
                _write(images, path)
            return images
    except OSError as error:
        _logger.warning("%s: decoded images are not kept: %s", path.parent, reason(error))
        return decode() if images is None else images


def _read(path: Path, count: int) -> Tensor | None:
    try:
        if not path.is_file():
            return None
        images = load_file(path)["images"]
        if images.dtype != torch.uint8 or images.ndim != 4 or len(images) != count:
            raise ValueError("not images of this folder")
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        _logger.info("%s: decoding again: %s", path, reason(error))
        return None
    with suppress(OSError):  # another user's, perhaps
        os.utime(path)
    return images


def _write(images: Tensor, path: Path) -> None:
    """Write to a temporary name and rename: a reader sees all of it or nothing."""
    partial = path.with_suffix(".partial")  # the lock leaves one writer at a time
    try:
        _make_room(path.parent, MAX_BYTES - images.nbytes)
        save_file({"images": images}, partial)
        partial.replace(path)
    except SafetensorError as error:  # which is how it says that the disk is full
        raise OSError(str(error)) from error
    finally:
        partial.unlink(missing_ok=True)


def _make_room(folder: Path, most: int) -> None:
    """Delete what was used longest ago, until the rest has at most so many bytes."""
    kept = sorted(folder.glob("*.safetensors"), key=lambda file: file.stat().st_mtime)
    total = sum(file.stat().st_size for file in kept)
    for file in kept:
        if total <= most:
            break
        total -= file.stat().st_size
        file.unlink()
