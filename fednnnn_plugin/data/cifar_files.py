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

    def source(self, cache_dir: Path) -> Path | None:
        """Return the folder, or else the archive, in a data folder; None where neither is."""
        if all((cache_dir / self.folder / name).is_file() for name in self.batches):
            return cache_dir / self.folder
        return cache_dir / self.archive if (cache_dir / self.archive).is_file() else None

    def read(self, source: Path) -> Parts:
        """Read what `source` found; an archive is unpacked where it lies, for later starts too."""
        if source.name != self.archive:
            return self._read_batches(source)
        check_file(source, _MAX_BYTES, getattr(torchvision_datasets(), self.name).tgz_md5)
        extract = torchvision_datasets().utils.extract_archive
        try:
            with arriving(source.parent) as place:
                if self.source(source.parent) == source:  # still, as the lock is ours
                    extract(str(source), place)
        except (OSError, NotImplementedError):  # no place, lock or room: for this start alone
            with TemporaryDirectory() as place:
                extract(str(source), place)
                return self._read_batches(Path(place) / self.folder)
        return self._read_batches(source.parent / self.folder)

    def _read_batches(self, folder: Path) -> Parts:
        cifar = getattr(torchvision_datasets(), self.name)
        meta = (cifar.meta["filename"], cifar.meta["md5"])
        for name, md5 in (*cifar.train_list, *cifar.test_list, meta):
            check_file(folder / name, _MAX_BYTES, md5)
        parts = []
        for train in (True, False):
            part = cifar(str(folder.parent), train=train)
            images = torch.from_numpy(part.data.transpose(0, 3, 1, 2)).contiguous()
            parts.append(Samples(images, torch.tensor(part.targets, dtype=torch.int64)))
        return Parts(*parts)
