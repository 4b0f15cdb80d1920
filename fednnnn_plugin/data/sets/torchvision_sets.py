"""torchvision's labelled image sets, by the names of its classes; and MNIST."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fednnnn_plugin.data.cifar_files import CifarFiles
from fednnnn_plugin.data.idx_files import idx_names, missing_files, read_parts
from fednnnn_plugin.data.images import Parts, Samples
from fednnnn_plugin.data.sources import check_file, torchvision_datasets
from fednnnn_plugin.data.torchvision_files import torchvision_set

_DIGITS = tuple("0123456789")
_EMNIST_SPLITS = ("balanced", "byclass", "bymerge", "letters", "digits", "mnist")
_CIFAR100 = CifarFiles("CIFAR100", "cifar-100-python", ("train", "test"), "cifar-100-python.tar.gz")
_SVHN = ("train_32x32.mat", "test_32x32.mat")
_SVHN_BYTES = 250_000_000  # of a file
# Of MNIST's 60,000 training images; a test holds them against the files.
_MNIST_MOMENTS = ((0.13066 * 255,), (0.30811 * 255,))


def _idx(name: str, splits: tuple[str, ...] = ("",), **more: Any) -> None:
    def missing(folder: Path, split: str) -> list[str]:
        return missing_files(folder, idx_names(name, split))

    def read(folder: Path, split: str) -> tuple[Parts, Sequence[str]]:
        classes: Sequence[str] = _DIGITS
        if name != "MNIST":  # whose classes torchvision calls "0 - zero"
            of = getattr(torchvision_datasets(), name)
            classes = of.classes_split_dict[split] if split else of.classes
        return read_parts(folder, idx_names(name, split), len(classes)), classes

    torchvision_set(name, missing, read, splits=splits, **more)


def _read_cifar100(folder: Path, _: str) -> tuple[Parts, Sequence[str]]:
    return _CIFAR100.read(folder), [*map(str, range(100))]


def _missing_svhn(folder: Path, _: str) -> list[str]:
    return [name for name in _SVHN if not (folder / name).is_file()]


def _read_svhn(folder: Path, _: str) -> tuple[Parts, Sequence[str]]:
    svhn, parts = torchvision_datasets().SVHN, []
    for split in ("train", "test"):
        check_file(folder / svhn.split_list[split][1], _SVHN_BYTES, svhn.split_list[split][2])
        part = svhn(str(folder), split=split)
        images = torch.from_numpy(part.data).contiguous()
        parts.append(Samples(images, torch.from_numpy(part.labels)))
    return Parts(*parts), _DIGITS


_idx("MNIST", called="mnist", moments=_MNIST_MOMENTS)
_idx("FashionMNIST")
_idx("KMNIST")
_idx("EMNIST", _EMNIST_SPLITS)
torchvision_set("CIFAR100", _CIFAR100.missing, _read_cifar100)
_SVHN_DOWNLOADS = ({"split": "train"}, {"split": "test"})
torchvision_set("SVHN", _missing_svhn, _read_svhn, downloads=_SVHN_DOWNLOADS)
