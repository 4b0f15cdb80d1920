"""torchvision's labelled image sets, by the names of its classes.

All are normalised by mean and standard deviation of their training pixels, which are computed.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fednnnn_plugin.data.cifar_files import CifarFiles
from fednnnn_plugin.data.idx_files import idx_names, missing_files, read_pixels
from fednnnn_plugin.data.images import ImageDataset, Pixels, normalised_by_training_part
from fednnnn_plugin.data.sets import named_dataset
from fednnnn_plugin.data.sources import (
    check_file,
    data_folder,
    download_missing,
    torchvision_datasets,
)
from fednnnn_plugin.data.spec import DataSpec
from fednnnn_plugin.errors import UserError, did_you_mean, printable, shown
from fednnnn_plugin.fingerprint import Fingerprint

Arguments = Mapping[str, object]

_EMNIST_SPLITS = ("balanced", "byclass", "bymerge", "letters", "digits", "mnist")
_CIFAR100 = CifarFiles("CIFAR100", "cifar-100-python", ("train", "test"), "cifar-100-python.tar.gz")
_SVHN = ("train_32x32.mat", "test_32x32.mat")
_IDX_BYTES, _SVHN_BYTES = 600_000_000, 250_000_000  # of a file; EMNIST's largest has 547 million


@dataclass(frozen=True)
class _Set(ABC):
    """One of torchvision's classes: its files, how they are read, and what it is called with.

    ``allowed`` are the values of each argument of its own, the first of which is the default.
    """

    name: str
    allowed: Mapping[str, tuple[str, ...]]

    @abstractmethod
    def missing(self, folder: Path, given: Arguments) -> list[str]:
        """Return which files a data folder lacks."""

    @abstractmethod
    def read(self, folder: Path, given: Arguments) -> Pixels:
        """Read the files, which are there."""

    def classes(self, of: Any, given: Arguments) -> list[str]:
        """Return the names of the classes."""
        return list(of.classes)

    def downloads(self, given: Arguments) -> list[dict[str, object]]:
        """Return the arguments of each call of the class that downloads a part."""
        return [dict(given)]


class _Idx(_Set):
    def _names(self, given: Arguments) -> tuple[str, ...]:
        of = f"emnist-{given['split']}" if given else ""
        return idx_names(f"{of}-train", f"{of}-test") if of else idx_names()

    def missing(self, folder: Path, given: Arguments) -> list[str]:
        raw = f"{self.name}/raw"
        return [f"{raw}/{name}" for name in missing_files(folder / raw, self._names(given))]

    def read(self, folder: Path, given: Arguments) -> Pixels:
        many = len(self.classes(getattr(torchvision_datasets(), self.name), given))
        return read_pixels(folder / self.name / "raw", self._names(given), many, _IDX_BYTES)

    def classes(self, of: Any, given: Arguments) -> list[str]:
        return list(of.classes_split_dict[given["split"]] if given else of.classes)


class _Cifar100(_Set):
    def missing(self, folder: Path, given: Arguments) -> list[str]:
        return [] if _CIFAR100.source(folder) else [f"{_CIFAR100.folder}/", _CIFAR100.archive]

    def read(self, folder: Path, given: Arguments) -> Pixels:
        source = _CIFAR100.source(folder)
        assert source is not None
        return _CIFAR100.read(source)

    def classes(self, of: Any, given: Arguments) -> list[str]:
        return list(map(str, range(100)))


class _Svhn(_Set):
    def missing(self, folder: Path, given: Arguments) -> list[str]:
        return [name for name in _SVHN if not (folder / name).is_file()]

    def read(self, folder: Path, given: Arguments) -> Pixels:
        svhn, parts = torchvision_datasets().SVHN, []
        for split in ("train", "test"):
            check_file(folder / svhn.split_list[split][1], _SVHN_BYTES, svhn.split_list[split][2])
            part = svhn(str(folder), split=split)
            parts += [torch.from_numpy(part.data).contiguous(), torch.from_numpy(part.labels)]
        return Pixels(*parts)

    def classes(self, of: Any, given: Arguments) -> list[str]:
        return list("0123456789")

    def downloads(self, given: Arguments) -> list[dict[str, object]]:
        return [{"split": "train"}, {"split": "test"}]


_SETS = (
    _Idx("FashionMNIST", {}),
    _Idx("KMNIST", {}),
    _Idx("EMNIST", {"split": _EMNIST_SPLITS}),
    _Cifar100("CIFAR100", {}),
    _Svhn("SVHN", {}),
)


def _load(of: _Set, spec: DataSpec) -> tuple[ImageDataset, Fingerprint]:
    """Read the files, after downloading them where some are missing and that is allowed."""
    given, folder = _arguments(of, spec.arguments), spec.data_cache_dir
    with data_folder(folder):
        if spec.download:
            download_missing(
                of.name, folder, lambda place: not of.missing(place, given), of.downloads(given)
            )
        if missing := of.missing(folder, given):
            raise UserError(
                f"data_cache_dir: {printable(folder)}: no {of.name} here: looked for "
                f"{', '.join(missing)}; set download: true, or put torchvision's files there"
            )
        pixels = of.read(folder, given)
    classes = of.classes(getattr(torchvision_datasets(), of.name), given)
    return normalised_by_training_part(pixels, tuple(classes)), {}


def _arguments(of: _Set, given: Arguments) -> Arguments:
    found = {}
    for name, allowed in of.allowed.items():
        value = found[name] = given.get(name, allowed[0])
        if value not in allowed:
            hint = did_you_mean(value, allowed)
            must = f"must be one of {', '.join(allowed)}{hint}"
            raise UserError(f"data_args.{name}: {shown(value)}: {must}")
    return found


def _has_files(of: _Set, folder: Path) -> bool:
    return not of.missing(folder, _arguments(of, {}))


for _set in _SETS:
    named_dataset(_set.name, has_files=partial(_has_files, _set), arguments=tuple(_set.allowed))(
        partial(_load, _set)
    )
