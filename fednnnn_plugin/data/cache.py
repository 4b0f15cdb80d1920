"""Decoded images on disk, so that only the first run decodes; a wrong cache is just rebuilt."""

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fednnnn_plugin.data.images import Pixels
from fednnnn_plugin.data.sources import open_regular

FOLDER = "fednnnn-decoded"

_logger = logging.getLogger(__name__)
_FORMAT = "1"
_LOCK_SECONDS = 3600.0


@dataclass(frozen=True)
class DecodedCache:
    """``<data folder>/fednnnn-decoded/<name>.safetensors`` and the lock beside it.

    Where the data folder cannot be written to there is no cache, and every run decodes. An
    ``image_shape`` of None is any: what the fingerprint stands for decides.
    """

    data_folder: Path
    name: str
    image_shape: tuple[int, int, int] | None
    num_classes: int
    max_bytes: int = 1 << 30

    def get(self, fingerprint: str, decode: Callable[[], Pixels]) -> Pixels:
        """Return the pixels stored under this fingerprint of the sources, or decode and store.

        Of several processes that ask at once one decodes, and the others wait for it.
        """
        pixels = self._read(fingerprint)
        if pixels is not None:
            return pixels
        with self.locked() as writable:
            pixels = self._read(fingerprint) if writable else None
            if pixels is None:
                pixels = decode()
                if writable:
                    self._write(pixels, fingerprint)
        return pixels

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Hold the lock of this data set; yields False where none can be had."""
        lock = FileLock(self._path.with_suffix(".lock"), timeout=_LOCK_SECONDS)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except (OSError, NotImplementedError) as error:  # also filelock's own Timeout
            _logger.info("%s: not used: %s", self._path.parent, error)
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    @property
    def _path(self) -> Path:
        return self.data_folder / FOLDER / f"{self.name}.safetensors"

    def _read(self, fingerprint: str) -> Pixels | None:
        try:
            with (
                open_regular(self._path, self.max_bytes),
                safe_open(self._path, framework="pt") as file,
            ):
                stored = file.metadata() or {}
                if (stored.get("format"), stored.get("fingerprint")) != (_FORMAT, fingerprint):
                    raise OSError("of other source files")
                pixels = Pixels(*(file.get_tensor(name) for name in Pixels._fields))
            image_shape = self.image_shape or tuple(pixels.train_images.shape[1:])
            if not pixels.fit(image_shape, self.num_classes):
                raise OSError("not of this data set")
            if stored.get("digest") != _digest(pixels):
                raise OSError("damaged")
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError) as error:
            _logger.info("%s: decoding again: %s", self._path, error)
            return None
        return pixels

    def _write(self, pixels: Pixels, fingerprint: str) -> None:
        """Write to a temporary name and rename: a reader sees all of it or nothing."""
        partial = self._path.with_suffix(".partial")  # the lock leaves one writer at a time
        metadata = {"format": _FORMAT, "fingerprint": fingerprint, "digest": _digest(pixels)}
        try:
            save_file(pixels._asdict(), partial, metadata=metadata)
            replace_durably(partial, self._path)
        except (OSError, SafetensorError) as error:
            partial.unlink(missing_ok=True)
            _logger.warning("%s: decoded images are not kept: %s", self._path, error)


def replace_durably(source: Path, target: Path) -> None:
    """Rename within a file system once the content is on disk, replacing the target at once."""
    with source.open("rb") as file:
        os.fsync(file.fileno())
    source.replace(target)


def _digest(pixels: Pixels) -> str:
    digest = hashlib.sha256()
    for tensor in pixels:
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()
