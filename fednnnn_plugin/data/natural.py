"""The division of a data set by its samples' owners: writers, hospitals, players of a role."""

import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fednnnn_plugin.data.arrays import is_array
from fednnnn_plugin.data.class_split import places_of_classes
from fednnnn_plugin.data.holdout import hold_out_of_each
from fednnnn_plugin.data.images import Parts, Samples, Split, joined, packed
from fednnnn_plugin.data.spec import DataSpec
from fednnnn_plugin.data.tables import is_column, whole_column
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.fingerprint import tensors_digest
from fednnnn_plugin.seeds import derive_seed

NATURAL = "natural"  # the method of a partition
_BETWEEN = "between_clients"

_log = logging.getLogger(__name__)

Names = NDArray[Any]


class Owners(NamedTuple):
    """Whose each sample is, names or numbers [n]; of a test part None where that is not known."""

    train: Names
    test: Names | None = None


def checked_owners(given: Iterable[object], where: str, parts: Parts) -> Owners | None:
    """Check whose each sample of the parts is, where the data say it.

    ``given`` are names or whole numbers, an array or a list [n], of the first part or of both.
    """
    of_parts = zip(given, ("owners", "owners of the test"), parts, strict=False)
    found = [
        _names(names, f"{where}: {what}", len(samples.labels)) for names, what, samples in of_parts
    ]
    if len({names.dtype.kind == "U" for names in found}) > 1:
        kinds = ", and ".join(str(names.dtype) for names in found)
        raise UserError(where, f"owners: {kinds} of the test part")
    return Owners(*found) if found else None


def _names(value: object, where: str, count: int) -> Names:
    array = _as_array(value)
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


def count_owners(value: object) -> int:
    """Count the owners of samples; 0 where they cannot be compared, which loading refuses."""
    try:
        return len(np.unique(_as_array(value)))
    except (TypeError, ValueError):
        return 0


def _as_array(owners: object) -> Names:
    return np.asarray(owners.cpu() if isinstance(owners, Tensor) else whole_column(owners))


def owners_of(split: Split, parts: Parts) -> Owners | None:
    """Return the number of the client that has each sample; None where not each is of just one."""
    found = []
    for positions, samples in zip(split, parts, strict=True):
        count = len(samples.labels)
        held = torch.cat(positions) if positions else torch.empty(0, dtype=torch.int64)
        if positions and not held.bincount(minlength=count).eq(1).all():
            return None
        owners = torch.empty(len(held), dtype=torch.int64)
        owners[held] = torch.arange(len(positions)).repeat_interleave(
            torch.tensor([len(part) for part in positions], dtype=torch.int64)
        )
        found.append(owners.numpy())
    train, test = found
    return Owners(train, test if split.test else None) if split.train else None


def owners_digest(owners: Owners) -> str:
    """Return the digest of which samples are of one owner, in the order of their names."""
    test = owners.train[:0] if owners.test is None else owners.test
    _, codes = np.unique(np.concatenate((owners.train, test)), return_inverse=True)
    return tensors_digest([("owners", torch.from_numpy(codes))])


def are_owners(value: Any) -> bool:
    """Tell whether a value is an owner for each sample, not a list with each client's positions."""
    if is_column(value):
        return True
    if isinstance(value, tuple | list):
        return bool(value) and isinstance(value[0], str | int | np.integer)
    if not is_array(value):
        return False
    array = _as_array(value)
    return array.ndim == 1 and not any(isinstance(each, np.ndarray) for each in array[:1])


def divide_by_owner(parts: Parts, owners: Owners, spec: DataSpec) -> tuple[Parts, Split]:
    """Give each owner's samples to a client of its own; clients are in the order of their names.

    Where the specification asks for the natural division, owners of fewer than ``min_samples``
    samples are left out, and of the others ``num_clients`` are drawn by the seed; else all owners
    are clients. The test part is that of the data, or made of all samples:

    - ``within_clients``, also where the data have none: of each client ``test_fraction`` of its
      samples, rounded, but at least one, and not all of them, with the classes in its proportions;
    - ``between_clients``: all samples of ``test_fraction`` of the owners, who are then no clients.

    Samples of owners who are left out are in neither part; those of a test part whose owners have
    no training sample stay.

    Raises:
        UserError: the owners are too few.
    """
    kept = len(parts.test.labels) and spec.test_division is None
    if not kept:
        parts, owners = _joined(parts, owners)
    names, owner_of, counts = np.unique(owners.train, return_inverse=True, return_counts=True)
    natural = spec.partition_method == NATURAL
    eligible = np.flatnonzero(counts >= (spec.min_samples if natural else 1))
    if len(eligible) < len(names):
        _log.info(
            "data_args.min_samples: %d: %d of %d owners have fewer samples, and are left out",
            *(spec.min_samples, len(names) - len(eligible), len(names)),
        )
    testers = eligible[:0]
    if not kept and spec.test_division == _BETWEEN:
        count = max(1, round(spec.test_fraction * len(eligible)))
        rng = np.random.default_rng(derive_seed(spec.seed, "natural test"))
        testers = np.sort(rng.permutation(eligible)[:count])
    clients = np.setdiff1d(eligible, testers)
    if natural:
        clients = _drawn(clients, spec, len(names))
    rows = _rows_by_owner(owner_of, len(names))
    train, tests = tuple(rows[owner] for owner in clients), tuple[Tensor, ...]()
    if kept:
        test, tests = _own_test(parts.test, owners.test, names, clients)
    elif len(testers):
        test, _ = packed(parts.train, [rows[owner] for owner in testers])
    else:
        train, held = hold_out_of_each(parts.train.labels, train, spec.test_fraction, spec.seed)
        test, tests = packed(parts.train, held)
    if not len(test.labels):
        raise UserError(
            "data_args.test_fraction", "leaves no sample to test on: no client has two samples"
        )
    samples, positions = packed(parts.train, train)
    return Parts(samples, test), Split(positions, tests)


def _joined(parts: Parts, owners: Owners) -> tuple[Parts, Owners]:
    """Return all samples as the training part."""
    if not len(parts.test.labels):
        return parts, owners
    if owners.test is None:
        raise UserError(
            "data_args.test_division",
            "the data have a test part, of whose samples no owner is known",
            "leave it out, to test on that part",
        )
    whole = joined(parts)
    return Parts(whole, whole.at(slice(0))), Owners(np.concatenate((owners.train, owners.test)))


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


def _own_test(
    test: Samples, owners: Names | None, names: Names, clients: NDArray[np.intp]
) -> tuple[Samples, tuple[Tensor, ...]]:
    """Return the test part without the samples of those who train on some, but are no clients.

    And each client's positions in it, where one has any.
    """
    if owners is None:
        return test, ()
    places = np.searchsorted(names, owners).clip(max=len(names) - 1)
    owner_of = np.where(names[places] == owners, places, len(names))  # the last is of others
    rows = _rows_by_owner(owner_of, len(names) + 1)
    test, (*held, _) = packed(test, [rows[owner] for owner in (*clients, len(names))])
    if not len(test.labels):
        raise UserError("data_args.dataset", "none of its test samples is a client's, or nobody's")
    return test, tuple(held) if any(map(len, held)) else ()
