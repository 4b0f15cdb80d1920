"""The forms in which a user gives data: whole, with a split of their own, or by client."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fednnnn_plugin.data.arrays import is_array, is_integral, kind_of
from fednnnn_plugin.data.natural import are_owners, count_owners
from fednnnn_plugin.errors import UserError, printable, reason

#: Why a client cannot be in a split.
NO_SAMPLE = "has no sample: leave it out of the list of clients"
FOUR = "(train_inputs, train_labels, test_inputs, test_labels)"
_FORMS = (
    f"must be tensors or arrays {FOUR}, and fifth, if you like, a list with each client's "
    "positions, or the owner of each sample; or (inputs, labels, owners); or (a list with each "
    "client's (inputs, labels), (test_inputs, test_labels))"
)
_PART = "must be (inputs, labels), tensors or arrays; only a run takes Datasets and DataLoaders"

Pair = tuple[Any, Any]
TRAIN, TEST = "train_", "test_"


class Given(NamedTuple):
    """A user's data, taken apart: pairs of inputs and labels, by what messages call them.

    Those to train on are all in one, or each client's. Those to test on too, where a client may
    have none; or there are none at all.
    """

    train: Mapping[str, Pair]
    test: Mapping[str, Pair | None]
    positions: object = None  #: of each client, in the training part
    owners: Sequence[object] = ()  #: whose each sample is, of the training and of the test part


def take_apart(given: object, where: str) -> Given:
    """Return the parts of data in any of the forms."""
    match given if isinstance(given, tuple | list) else None:
        case (x, y, owners) if are_owners(owners):
            return Given({TRAIN: (x, y)}, {}, owners=[owners])
        case (x, y, x_test, y_test, owners, *of_test) if are_owners(owners) and len(of_test) < 2:
            return Given({TRAIN: (x, y)}, {TEST: (x_test, y_test)}, owners=[owners, *of_test])
        case (x, y, x_test, y_test) | (x, y, x_test, y_test, None):
            return Given({TRAIN: (x, y)}, {TEST: (x_test, y_test)})
        case (x, y, x_test, y_test, positions):
            return Given({TRAIN: (x, y)}, {TEST: (x_test, y_test)}, positions)
        case (clients, test) if parts := members(clients):
            train = {
                f"client {k}: ": _pair(part, f"{where}: client {k}") for k, part in enumerate(parts)
            }
            if pair := inputs_and_labels(test):
                return Given(train, {TEST: pair})
            if len(own := client_tests(clients, test, where)) == len(train):
                tests = {
                    f"{TEST}client {k}: ": None
                    if part is None
                    else _pair(part, f"{where}: {TEST}client {k}")
                    for k, part in enumerate(own)
                }
                if not any(tests.values()):
                    raise UserError(where, "no client has a test part", "at least one must have")
                return Given(train, tests)
    many = f" of {len(given)}" if isinstance(given, tuple | list) else ""
    raise UserError(where, f"a {printable(type(given).__name__)}{many}; {_FORMS}")


def _pair(part: object, where: str) -> Pair:
    """Return the inputs and labels of a client."""
    if pair := inputs_and_labels(part):
        return pair
    kind = type(part).__name__
    if isinstance(part, tuple | list) and len(part) == 2:
        kind += " of " + " and ".join(type(each).__name__ for each in part)
    raise UserError(where, f"a {printable(kind)}", _PART)


def inputs_and_labels(part: object) -> Pair | None:
    """Return the two of a pair of arrays, or of a ``TensorDataset``; None of anything else."""
    pair = part.tensors if isinstance(part, TensorDataset) else part
    if isinstance(pair, tuple | list) and len(pair) == 2:
        inputs, labels = pair
        if is_array(inputs) and is_array(labels):
            return inputs, labels
    return None


def clients_of(given: object) -> int:
    """Count the clients of the split that data have, without a look at them; 0 where none."""
    match given if isinstance(given, tuple | list) else None:
        case (_, _, owners) | (_, _, _, _, owners) | (_, _, _, _, owners, _) if are_owners(owners):
            return count_owners(owners)
        case (clients, _) | (_, _, _, _, clients):
            return len(members(clients))
    return 0


def check_clients(found: int, asked: int) -> None:
    """Refuse a recipe of another number of clients than the data have."""
    if found != asked:
        raise UserError(
            "train_args.client_num_in_total",
            asked,
            f"must be {found}: so many clients are in the split that the data have",
        )


def members(clients: object) -> Sequence[object]:
    """Return the clients of a list, or of a mapping from their names, in its order."""
    listed = [*clients.values()] if isinstance(clients, Mapping) else clients
    return listed if isinstance(listed, tuple | list) else ()


def client_tests(clients: object, test: object, where: str) -> Sequence[object]:
    """Return the clients' test parts in the order of the clients: by name where both have names."""
    if not (isinstance(clients, Mapping) and isinstance(test, Mapping)):
        return members(test)
    if others := sorted(map(repr, clients.keys() ^ test.keys())):
        raise UserError(
            where,
            f"{printable(others[0])}: is in the clients' parts or in the tests, not in both",
            "both must have the same names; a test part may be None",
        )
    return [test[name] for name in clients]


def client_positions(split: object, where: str, total: int) -> tuple[Tensor, ...]:
    """Check each client's positions: int64 [n_k], n_k > 0, in the training part."""
    checked = []
    for client, given in enumerate(members(split)):
        of = f"{where}: client {client}"
        try:
            positions = torch.as_tensor(given).to("cpu")
        except (RuntimeError, TypeError, ValueError) as error:
            raise UserError(of, f"positions: {reason(error)}") from error
        if not positions.numel():
            raise UserError(of, NO_SAMPLE)
        if positions.ndim != 1 or not is_integral(positions):
            raise UserError(of, f"positions: {kind_of(positions)}", "must be integers [n]")
        checked.append(positions.to(torch.int64))
        low, high = int(checked[-1].min()), int(checked[-1].max())
        if low < 0 or high >= total:
            wrong = low if low < 0 else high
            raise UserError(of, f"position {wrong}", f"must be 0 to {total - 1}, of train_inputs")
    if not checked:
        must = "must be a list with each client's positions"
        raise UserError(f"{where}: clients", f"a {printable(type(split).__name__)}", must)
    return tuple(checked)
