"""CIFAR-10's Python batches where they lie: in their folder, or still in the official archive."""

import gzip
import io
import tarfile
import zlib
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from fednnnn_plugin.data.cifar10_batches import MAX_BATCH_BYTES, read_batch
from fednnnn_plugin.data.images import Pixels
from fednnnn_plugin.data.sources import open_regular, reason
from fednnnn_plugin.errors import UserError

FOLDER = "cifar-10-batches-py"
TRAIN_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST_BATCH = "test_batch"
BATCHES = (*TRAIN_BATCHES, TEST_BATCH)

_MAX_UNPACKED_BYTES = 256_000_000  # the official archive holds 186 million

_Parts = dict[str, tuple[Tensor, Tensor]]


def read_folder(folder: Path) -> Pixels:
    """Read the six batches of ``cifar-10-batches-py``.

    Raises:
        UserError: a file is missing or not a batch; names it.
    """
    parts: _Parts = {}
    for name in BATCHES:
        try:
            with open_regular(folder / name, MAX_BATCH_BYTES) as file:
                parts[name] = read_batch(file)
        except (OSError, ValueError) as error:
            raise UserError(f"{folder / name}: {reason(error)}") from error
    return _joined(parts)


def read_archive(path: Path) -> Pixels:
    """Read the six batches from ``cifar-10-python.tar.gz``, unpacking nothing to disk.

    Raises:
        UserError: the archive or a batch in it is damaged; names the archive.
    """
    try:
        with open_regular(path, _MAX_UNPACKED_BYTES) as file:
            return _joined(_parts_of(_Unpacked(file)))
    except (OSError, EOFError, ValueError, zlib.error, tarfile.TarError) as error:
        raise UserError(f"{path}: not CIFAR-10's archive: {reason(error)}") from error


class _Unpacked(io.RawIOBase):
    """What a gzip file unpacks to, up to a limit: a small file could unpack to terabytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._gzip = gzip.GzipFile(fileobj=file)
        self._left = _MAX_UNPACKED_BYTES

    def read(self, size: int = -1, /) -> bytes:
        data = self._gzip.read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(f"unpacks to more than {_MAX_UNPACKED_BYTES} bytes")
        return data


def _parts_of(unpacked: _Unpacked) -> _Parts:
    parts: _Parts = {}
    with tarfile.open(fileobj=unpacked, mode="r|") as archive:
        for member in archive:
            folder, _, name = member.name.removeprefix("./").partition("/")
            if folder == FOLDER and name in BATCHES and member.isreg():
                content = archive.extractfile(member)
                assert content is not None  # a regular member has one
                try:
                    parts[name] = read_batch(content)
                except ValueError as error:
                    raise ValueError(f"{member.name}: {error}") from error
    while unpacked.read(1 << 20):  # to the end, where gzip's checksum is
        pass
    missing = [name for name in BATCHES if name not in parts]
    if missing:
        raise ValueError(f"it lacks {', '.join(missing)}")
    return parts


def _joined(parts: _Parts) -> Pixels:
    images, labels = zip(*(parts[name] for name in TRAIN_BATCHES), strict=True)
    return Pixels(torch.cat(images), torch.cat(labels), *parts[TEST_BATCH])
