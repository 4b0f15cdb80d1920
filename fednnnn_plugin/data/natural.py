"""The division of a data set by its samples' owners: writers, hospitals, players of a role."""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fednnnn_plugin.data.class_split import places_of_classes
from fednnnn_plugin.data.images import Pixels, Split
from fednnnn_plugin.data.spec import DataSpec
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.fingerprint import tensors_digest
from fednnnn_plugin.seeds import derive_seed

NATURAL = "natural"  # the method of a partition
WITHIN, BETWEEN = "within_clients", "between_clients"

_log = logging.getLogger(__name__)

Names = NDArray[Any]


class Owners(NamedTuple):
    """Whose each sample is, names or numbers [n]; of a test part None where that is not known."""

    train: Names
    test: Names | None = None


def owner_names(value: object, where: str, count: int) -> Names:
    """Check whose each sample is: names or whole numbers, an array or a list [count]."""
    array = np.asarray(value.cpu() if isinstance(value, Tensor) else value)
    if array.dtype.kind in "OT" and all(isinstance(name, str) for name in array.ravel()):
        array = array.astype(np.str_)
    if array.ndim != 1 or array.dtype.kind not in "iuU":
        raise UserError(
            where,
            f"{array.dtype} of {list(array.shape)}",
            "must be names or whole numbers, the owner of each sample",
        )
    if len(array) != count:
        raise UserError(where, f"{len(array)}, for {count} samples")
    return array


def owners_of(split: Split, pixels: Pixels) -> Owners | None:
    """Return the number of the client that has each sample; None where not each is of just one."""
    counts = (len(pixels.train_labels), len(pixels.test_labels))
    parts = []
    for positions, count in zip(split, counts, strict=True):
        held = torch.cat(positions) if positions else torch.empty(0, dtype=torch.int64)
        if positions and not held.bincount(minlength=count).eq(1).all():
            return None
        owners = torch.empty(len(held), dtype=torch.int64)
        owners[held] = torch.arange(len(positions)).repeat_interleave(
            torch.tensor([len(part) for part in positions], dtype=torch.int64)
        )
        parts.append(owners.numpy())
    train, test = parts
    return Owners(train, test if split.test else None) if split.train else None


def owners_digest(owners: Owners) -> str:
    """Return the digest of which samples are of one owner, in the order of their names."""
    test = owners.train[:0] if owners.test is None else owners.test
    _, codes = np.unique(np.concatenate((owners.train, test)), return_inverse=True)
    return tensors_digest([("owners", torch.from_numpy(codes))])


def are_owners(value: object) -> bool:
    """Tell whether a value is an owner for each sample, not a list with each client's positions."""
    if isinstance(value, tuple | list):
        return bool(value) and isinstance(value[0], str | int | np.integer)
    return getattr(value, "ndim", 0) == 1 and getattr(value, "dtype", None) is not None


def divide_by_owner(pixels: Pixels, owners: Owners, spec: DataSpec) -> tuple[Pixels, Split]:
    """Give each owner's samples to a client of its own; clients are in the order of their names.

    Where the specification asks for the natural division, owners of fewer than ``min_samples``
    samples are left out, and of the others ``num_clients`` are drawn by the seed; else all owners
    are clients. The test part is that of the data, or made of all samples:

    - ``within_clients``, also where the data have none: of each client ``test_fraction`` of its
      samples, rounded, but at least one, and not all of them;
    - ``between_clients``: all samples of ``test_fraction`` of the owners, who are then no clients.

    Samples of owners who are left out are in neither part; those of a test part whose owners have
    no training sample stay.

    Raises:
        UserError: the owners are too few.
    """
    kept = len(pixels.test_labels) and spec.test_division is None
    if not kept:
        pixels, owners = _joined(pixels, owners)
    names, owner_of, counts = np.unique(owners.train, return_inverse=True, return_counts=True)
    natural = spec.partition_method == NATURAL
    eligible = np.flatnonzero(counts >= (spec.min_samples if natural else 1))
    if len(eligible) < len(names):
        _log.info(
            "data_args.min_samples: %d: %d of %d owners have fewer samples, and are left out",
            *(spec.min_samples, len(names) - len(eligible), len(names)),
        )
    rng = np.random.default_rng(derive_seed(spec.seed, "natural test"))
    testers = eligible[:0]
    if not kept and spec.test_division == BETWEEN:
        count = max(1, round(spec.test_fraction * len(eligible)))
        testers = np.sort(rng.permutation(eligible)[:count])
    clients = np.setdiff1d(eligible, testers)
    if natural:
        clients = _drawn(clients, spec, len(names))
    rows = _rows_by_owner(owner_of, len(names))
    if kept:
        return _with_own_test(pixels, owners, names, [rows[owner] for owner in clients], clients)
    if len(testers):
        tests = [rows[owner] for owner in testers]
        return _taken(pixels, [rows[owner] for owner in clients], tests, own=False)
    parts = [_parted(rows[owner], spec.test_fraction, rng) for owner in clients]
    return _taken(pixels, [train for train, _ in parts], [test for _, test in parts], own=True)


def _joined(pixels: Pixels, owners: Owners) -> tuple[Pixels, Owners]:
    """Return all samples as the training part."""
    if not len(pixels.test_labels):
        return pixels, owners
    if owners.test is None:
        raise UserError(
            "data_args.test_division",
            "the data have a test part, of whose samples no owner is known",
            "leave it out, to test on that part",
        )
    images = torch.cat((pixels.train_images, pixels.test_images))
    labels = torch.cat((pixels.train_labels, pixels.test_labels))
    whole = Pixels(images, labels, images[:0], labels[:0])
    return whole, Owners(np.concatenate((owners.train, owners.test)))


def _drawn(owners: NDArray[np.intp], spec: DataSpec, total: int) -> NDArray[np.intp]:
    most = spec.num_clients
    if most == len(owners):
        return owners
    if most > len(owners):
        raise UserError(
            "train_args.client_num_in_total",
            most,
            f"must be at most {len(owners)}: so many of {total} owners can be clients, of at "
            f"least data_args.min_samples: {spec.min_samples} samples",
        )
    rng = np.random.default_rng(derive_seed(spec.seed, "natural clients"))
    return np.sort(rng.permutation(owners)[:most])


def _rows_by_owner(owner_of: NDArray[np.intp], count: int) -> list[Tensor]:
    """Return the places of each owner's samples, int64, ascending."""
    return [*map(torch.from_numpy, places_of_classes(owner_of, count))]


def _parted(rows: Tensor, fraction: float, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    count = min(max(1, round(fraction * len(rows))), len(rows) - 1)
    drawn = torch.zeros(len(rows), dtype=torch.bool)
    drawn[rng.permutation(len(rows))[:count]] = True
    return rows[~drawn], rows[drawn]


def _taken(
    pixels: Pixels, train: Sequence[Tensor], test: Sequence[Tensor], *, own: bool
) -> tuple[Pixels, Split]:
    """Take both parts out of the training part; each of ``test`` is a client's, or nobody's."""
    (train_rows, clients), (test_rows, tests) = (
        (rows, _places(rows, parts))
        for parts in (train, test)
        for rows in [torch.cat(tuple(parts)).sort().values]
    )
    if not len(test_rows):
        raise UserError(
            "data_args.test_fraction", "leaves no sample to test on: no client has two samples"
        )
    images, labels = pixels[:2]
    divided = Pixels(images[train_rows], labels[train_rows], images[test_rows], labels[test_rows])
    return divided, Split(clients, tests if own else ())


def _with_own_test(
    pixels: Pixels,
    owners: Owners,
    names: Names,
    train: Sequence[Tensor],
    clients: NDArray[np.intp],
) -> tuple[Pixels, Split]:
    """Keep the test part, without the samples of owners who have training samples but no part."""
    rows = torch.cat(tuple(train)).sort().values
    images, labels = pixels[:2]
    pixels = pixels._replace(train_images=images[rows], train_labels=labels[rows])
    if owners.test is None:
        return pixels, Split(_places(rows, train))
    places = np.searchsorted(names, owners.test).clip(max=len(names) - 1)
    owner_of = np.where(names[places] == owners.test, places, len(names))  # the last is of others
    test = torch.from_numpy(np.flatnonzero(np.isin(owner_of, [*clients, len(names)])))
    if not len(test):
        raise UserError("data_args.dataset", "none of its test samples is a client's, or nobody's")
    images, labels = pixels[2:]
    pixels = pixels._replace(test_images=images[test], test_labels=labels[test])
    rows_of = _rows_by_owner(owner_of, len(names) + 1)
    tests = [rows_of[client] for client in clients]
    return pixels, Split(_places(rows, train), _places(test, tests) if any(map(len, tests)) else ())


def _places(rows: Tensor, parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return where each part's rows are among ``rows``, which ascend."""
    return tuple(torch.searchsorted(rows, part) for part in parts)
