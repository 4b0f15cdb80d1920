"""A tree of images with a folder for each class: where its parts and its classes are."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from fednnnn_plugin.data.image_files import decoded
from fednnnn_plugin.data.images import Parts, Samples
from fednnnn_plugin.errors import UserError, printable

SUFFIXES = (".jpg", ".jpeg", ".png")

_LAYOUTS = "<class>/*, or train/<class>/* and test/<class>/*"
_NO_CLASS = "__MACOSX"  # what an archive's tool leaves beside the folders

_log = logging.getLogger(__name__)


def read_tree(
    folder: Path, cache_dir: Path, where: str, image_size: tuple[int, int] | None = None
) -> tuple[Parts, tuple[str, ...]]:
    """Read the JPEG and PNG images of a tree; see `scan_tree`."""
    classes, listed = scan_tree(folder, where)
    files = [Path(path) for images in listed for path, _ in images]
    images = decoded(files, image_size, cache_dir, f"{folder.resolve()}\0")
    labels = torch.tensor([label for images in listed for _, label in images], dtype=torch.int64)
    every, first = Samples(images, labels), len(listed[0])
    return Parts(every.at(slice(first)), every.at(slice(first, None))), classes


def scan_tree(folder: Path, where: str) -> tuple[tuple[str, ...], list[list[tuple[str, int]]]]:
    """Return the classes, and of each part, the training part first, its images and labels.

    They are those of ``train/<class>/*`` and ``test/<class>/*``, or of ``<class>/*``.

    It has the first layout where it has a folder ``train``, and a folder ``test`` beside or any
    folder in it; in the second all are training images. The sorted names of the class folders are
    the labels 0, 1, ...
    """
    train, test = folder / "train", folder / "test"
    has_parts = train.is_dir() and (test.is_dir() or _folders(train))
    parts = [train, test] if has_parts else [folder]
    classes, beside = _folders(parts[0]), _folders(folder)
    hint = _renaming(folder, beside)
    if len(classes) < 2:
        if classes and _folders(inner := parts[0] / classes[0]):
            hint = f": give {printable(inner)}, if that is it"
            if has_parts:
                hint = f": move what is in {printable(inner)} up into {printable(train)}"
        raise UserError(
            where,
            f"{len(classes)} folders in {printable(parts[0])}; expected at least 2 classes as "
            f"{_LAYOUTS}{hint}",
        )
    if not parts[-1].is_dir():
        raise UserError(
            where, f"has a folder train, but no test beside it; expected {_LAYOUTS}{hint}"
        )
    in_test = _folders(parts[-1])
    if differing := set(classes).symmetric_difference(in_test):
        names = printable(", ".join(sorted(differing)))
        lacks = f"one lacks {names}" if in_test else "test has no folder, so no class"
        raise UserError(where, f"train and test must have the same classes; {lacks}")
    if has_parts and (unread := sorted({*beside} - {"train", "test"})):
        _log.warning(
            "%s: left out beside train and test: %s",
            *(printable(folder), printable(", ".join(unread))),
        )
    why = "" if has_parts else f"the folders {printable(', '.join(classes))} were read as classes; "
    listed = [_images(part, classes, f"{why}expected {_LAYOUTS}{hint}") for part in parts]
    return tuple(classes), listed


def _folders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        names = [e.name for e in entries if e.is_dir() and not e.name.startswith(".")]
    return sorted(name for name in names if name != _NO_CLASS)


def _renaming(folder: Path, names: Sequence[str]) -> str:
    """Say which folders look like a part by another name: Training, seg_train/seg_train, val."""
    renamed: list[str] = []
    for part, like in (("train", ("train",)), ("test", ("test", "val"))):
        if part in names:
            continue
        near = [name for word in like for name in names if word in name.lower() and name != "train"]
        if near:
            copy = near[0] if (folder / near[0] / near[0]).is_dir() else ""
            renamed.append(f"{printable(near[0])}{f'/{printable(copy)}' if copy else ''} to {part}")
    return f": rename {' and '.join(renamed)}" if renamed else ""


def _images(folder: Path, classes: Sequence[str], expected: str) -> list[tuple[str, int]]:
    """Paths and labels of the images in a folder's class folders, by class and by name."""
    images, left_out = [], 0
    for label, name in enumerate(classes):
        with os.scandir(folder / name) as entries:
            seen = [entry for entry in entries if not entry.name.startswith(".")]
        ours = [e.path for e in seen if e.name.lower().endswith(SUFFIXES) and not e.is_dir()]
        if not ours:
            other = "; convert other formats" * any(entry.is_file() for entry in seen)
            raise UserError(
                printable(folder / name), f"no {', '.join(SUFFIXES)} files{other}; {expected}"
            )
        images += [(path, label) for path in sorted(ours)]
        left_out += len(seen) - len(ours)
    if left_out:
        what = f"are not {', '.join(SUFFIXES)} files, or lie deeper"
        _log.warning("%s: %d entries %s: left out", printable(folder), left_out, what)
    return images
