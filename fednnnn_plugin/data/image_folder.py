"""A user's own images, a folder for each class."""

import hashlib
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fednnnn_plugin.data.cache import DecodedCache
from fednnnn_plugin.data.image_files import SUFFIXES, Header, decode, read_headers, visible
from fednnnn_plugin.data.images import ImageDataset, Pixels, mean_and_std
from fednnnn_plugin.data.sources import data_folder, fingerprint, printable
from fednnnn_plugin.data.stratified import draw_stratified
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.seeds import derive_seed

MAX_DECODED_BYTES = 4 << 30  # staged as float32 they are four times that

_KEY = "data_args.data_dir"
_NAMED = 5  # names that a message lists

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ImageFolder:
    """``<folder>/{train,test}/<class>/*``, or ``<folder>/<class>/*``: JPEG and PNG.

    The sorted names of the class folders are the labels 0, 1, ... Files in other places or of other
    kinds are left out.

    Args:
        folder: it has the first layout where it has a folder ``train`` that holds folders.
        cache_dir: where the decoded images are kept, for the next run.
        image_size: height and width in pixels to resize to; without it all images must have one.
        test_fraction: share of every class's images that are drawn for the test, in (0, 1); only
            the second layout needs it.
        seed: draws them.
    """

    folder: Path
    cache_dir: Path
    image_size: tuple[int, int] | None
    test_fraction: float
    seed: int

    def load(self) -> ImageDataset:
        """Load the images; grey ones get one channel if all are grey, else all three.

        Normalised by mean and standard deviation of the training pixels.

        Raises:
            UserError: there are no images, classes or sizes as expected, or an image is damaged.
        """
        where = f"{_KEY}: {printable(self.folder)}"
        if not self.folder.is_dir():
            raise UserError(f"{where}: no such folder")
        with data_folder(self.folder):
            listing = _listed(self.folder)
            stamp = fingerprint(self.folder, listing.train + listing.test)
            pixels = self._cache(len(listing.classes)).get(stamp, partial(self._decoded, listing))
        if not listing.test:
            pixels = self._split(pixels, listing.classes)
        mean, std = mean_and_std(pixels.train_images, 255)
        return ImageDataset(pixels, len(listing.classes), pixel_max=255, mean=mean, std=std)

    def _cache(self, num_classes: int) -> DecodedCache:
        what = f"{self.folder.resolve()}\0{self.image_size}"
        key = hashlib.sha256(what.encode(errors="surrogateescape")).hexdigest()[:16]
        most = MAX_DECODED_BYTES + (1 << 28)  # with the labels
        return DecodedCache(self.cache_dir, f"image_folder-{key}", None, num_classes, most)

    def _decoded(self, listing: "_Listing") -> Pixels:
        files = listing.train + listing.test
        headers = read_headers(files)
        size = self.image_size or _one_size(files, headers)
        channels = 1 if all(header.grey for header in headers) else 3
        decoded_bytes = len(files) * channels * math.prod(size)
        if decoded_bytes > MAX_DECODED_BYTES:
            raise UserError(
                f"{_KEY}: {printable(self.folder)}: {len(files)} images of {size[0]} x {size[1]} "
                f"pixels are {decoded_bytes / 2**30:.1f} GiB when decoded, more than the "
                f"{MAX_DECODED_BYTES >> 30} that they may be: give a smaller data_args.image_size"
            )
        parts = []
        count = len(listing.train)
        for part, part_headers in (listing.train, headers[:count]), (listing.test, headers[count:]):
            parts.append(decode(part, part_headers, channels, size))
            parts.append(listing.labels(part))
        return Pixels(*parts)

    def _split(self, pixels: Pixels, classes: Sequence[str]) -> Pixels:
        images, labels = pixels[:2]
        num_test = round(self.test_fraction * len(labels))
        rng = np.random.default_rng(derive_seed(self.seed, "image folder split"))
        test = torch.from_numpy(draw_stratified(labels.numpy(), num_test, rng))
        left = torch.bincount(labels[~test], minlength=len(classes))
        if not num_test or not left.all():
            what = f"class {printable(classes[int(left.argmin())])}" if num_test else "the test"
            raise UserError(
                f"data_args.test_fraction: {self.test_fraction}: leaves {what} without an image, "
                f"of {len(labels)} in {printable(self.folder)}"
            )
        return Pixels(images[~test], labels[~test], images[test], labels[test])


@dataclass(frozen=True)
class _Listing:
    """The images of each part; all are in ``train`` where the folder has no parts."""

    classes: list[str]
    train: list[Path]
    test: list[Path]

    def labels(self, part: list[Path]) -> Tensor:
        label_of = {name: label for label, name in enumerate(self.classes)}
        return torch.tensor([label_of[file.parent.name] for file in part], dtype=torch.int64)


def _listed(folder: Path) -> _Listing:
    """List the images, parts, classes and names in order."""
    parts = [folder / "train", folder / "test"]
    if not (parts[0].is_dir() and _folders(parts[0])):
        classes = _folders(folder)
        _check_classes(folder, classes)
        return _Listing(classes, _images(folder, classes), [])
    if not parts[1].is_dir():
        raise UserError(f"{_KEY}: {printable(parts[1])}: missing; {printable(parts[0])} is there")
    classes, others = (_folders(part) for part in parts)
    _check_classes(parts[0], classes)
    if classes != others:
        only = [
            f"only {part.name} has {_some(sorted(set(own) - set(other)))}"
            for part, own, other in ((parts[0], classes, others), (parts[1], others, classes))
            if set(own) - set(other)
        ]
        raise UserError(
            f"{_KEY}: {printable(folder)}: train and test must have the same classes; "
            + "; ".join(only)
        )
    return _Listing(classes, *(_images(part, classes) for part in parts))


def _check_classes(folder: Path, classes: Sequence[str]) -> None:
    where = f"{_KEY}: {printable(folder)}"
    if not classes:
        raise UserError(
            f"{where}: no folders in it; expected <class>/*, or train/<class>/* and test/<class>/*"
        )
    if len(classes) == 1:
        raise UserError(f"{where}: one class, {printable(classes[0])}; at least 2 are needed")


def _folders(folder: Path) -> list[str]:
    return [name for name in visible(folder) if (folder / name).is_dir()]


def _images(part: Path, classes: Sequence[str]) -> list[Path]:
    images: list[Path] = []
    others = 0
    for name in classes:
        names = visible(part / name)
        own = [part / name / file for file in names if file.lower().endswith(SUFFIXES)]
        if not own:
            raise UserError(f"{printable(part / name)}: no {', '.join(SUFFIXES)} files")
        images += own
        others += len(names) - len(own)
    if others:
        _log.warning("%s: %d entries are not %s files: left out", part, others, SUFFIXES)
    return images


def _one_size(files: Sequence[Path], headers: Sequence[Header]) -> tuple[int, int]:
    """The size of all images."""
    first = headers[0]
    for file, header in zip(files, headers, strict=True):
        if header[:2] != first[:2]:
            raise UserError(
                f"{printable(file)}: {header.height} x {header.width} pixels (height x width), "
                f"where {printable(files[0])} has {first.height} x {first.width}: give "
                "data_args.image_size to resize all images"
            )
    return first.height, first.width


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(printable, names[:_NAMED])) + more
