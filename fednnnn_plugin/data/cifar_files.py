"""CIFAR's batches as torchvision has them: pickles, read only where their sums are the official."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

from fednnnn_plugin.data.images import Parts, Samples
from fednnnn_plugin.data.sources import arriving, check_file, torchvision_datasets

_MAX_BYTES = 200_000_000  # of the archive, and of each batch


class CifarFiles(NamedTuple):
    """What torchvision's class ``name`` reads: batches in a folder, and the archive of that."""

    name: str
    folder: str
    batches: tuple[str, ...]
    archive: str

    def missing(self, cache_dir: Path, _: str = "") -> list[str]:
        """Return what was looked for, unless a data folder has the batches or the archive."""
        found = self._has_batches(cache_dir) or (cache_dir / self.archive).is_file()
        batches = f"{self.folder}/ (with its {len(self.batches)} batches)"
        return [] if found else [f"{batches} or {self.archive}"]

    def read(self, cache_dir: Path) -> Parts:
        """Read the batches; an archive is unpacked where it lies, for later starts too."""
        if self._has_batches(cache_dir):
            return self._read_batches(cache_dir)
        archive = cache_dir / self.archive
        check_file(archive, _MAX_BYTES, getattr(torchvision_datasets(), self.name).tgz_md5)
        extract = torchvision_datasets().utils.extract_archive
        try:
            with arriving(cache_dir) as place:
                if not self._has_batches(cache_dir):  # still, as the lock is ours
                    extract(str(archive), place)
        except (OSError, NotImplementedError):  # no place, lock or room: for this start alone
            with TemporaryDirectory() as place:
                extract(str(archive), place)
                return self._read_batches(Path(place))
        return self._read_batches(cache_dir)

    def _has_batches(self, cache_dir: Path) -> bool:
        return all((cache_dir / self.folder / name).is_file() for name in self.batches)

    def _read_batches(self, cache_dir: Path) -> Parts:
        cifar = getattr(torchvision_datasets(), self.name)
        meta = (cifar.meta["filename"], cifar.meta["md5"])
        for name, md5 in (*cifar.train_list, *cifar.test_list, meta):
            check_file(cache_dir / self.folder / name, _MAX_BYTES, md5)
        parts = []
        for train in (True, False):
            part = cifar(str(cache_dir), train=train)
            images = torch.from_numpy(part.data.transpose(0, 3, 1, 2)).contiguous()
            parts.append(Samples(images, torch.tensor(part.targets, dtype=torch.int64)))
        return Parts(*parts)
