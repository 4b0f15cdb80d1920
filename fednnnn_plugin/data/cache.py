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

_log = logging.getLogger(__name__)


def cached(data_folder: Path, key: str, count: int, decode: Callable[[], Tensor]) -> Tensor:
    """Return ``count`` images, uint8 [n, C, H, W], stored under a key of their files.

    Of several processes one decodes them, and the others wait. What was used longest ago makes
    room. Where the data folder cannot be written to, every run decodes.
    """
    path = data_folder / OWN_FOLDER / f"{key}.safetensors"
    images = _read(path, count)
    try:
        if images is None:
            with locked(data_folder):
                images = _read(path, count)
                if images is None:
                    images = decode()
                    _write(images, path)
    # No place, lock or room, or a path that is not UTF-8.
    except (OSError, NotImplementedError, SafetensorError, UnicodeError) as error:
        _log.warning("%s: decoded images are not kept: %s", path.parent, reason(error))
    return decode() if images is None else images


def _read(path: Path, count: int) -> Tensor | None:
    try:
        images = load_file(path)["images"] if path.is_file() else None
    except (OSError, SafetensorError, KeyError, UnicodeError) as error:
        _log.info("%s: decoding again: %s", path, reason(error))
        return None
    if images is None or images.dtype != torch.uint8 or images.ndim != 4 or len(images) != count:
        return None
    with suppress(OSError):  # another user's, perhaps
        os.utime(path)
    return images


def _write(images: Tensor, path: Path) -> None:
    """Write to a temporary name and rename: a reader sees all of it or nothing."""
    kept = sorted(path.parent.glob("*.safetensors"), key=lambda file: file.stat().st_mtime)
    total = images.nbytes + sum(file.stat().st_size for file in kept)
    while kept and total > MAX_BYTES:
        oldest = kept.pop(0)
        total -= oldest.stat().st_size
        oldest.unlink()
    # The lock leaves one writer at a time: what a killed one left is written over.
    partial = path.with_name("partial")
    try:
        save_file({"images": images}, partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
