"""Custom data: arrays, or what a function returns; with a split of its own or without."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fednnnn_plugin.data.arrays import checked_inputs, is_array, is_integral, kind_of
from fednnnn_plugin.data.images import ImageDataset, Pixels, Split, normalised_by_training_part
from fednnnn_plugin.data.labels import check_classes, checked_labels, count_classes
from fednnnn_plugin.data.tables import with_arrays
from fednnnn_plugin.errors import UserError, printable, reason
from fednnnn_plugin.fingerprint import Fingerprint, code_digests, tensors_digest
from fednnnn_plugin.seeds import generators_state, isolated_generators
from fednnnn_plugin.user_code import call_code, check_arguments, find_code

DATA = "data_args.dataset"
_FOUR = "(train_inputs, train_labels, test_inputs, test_labels)"
_FORMS = (
    f"must be tensors or arrays {_FOUR}, and fifth, if you like, a list with each client's "
    "positions; or (a list with each client's (inputs, labels), (test_inputs, test_labels))"
)


#: Why a client cannot be in a split.
NO_SAMPLE = "has no sample: leave it out of the list of clients"


class UserData(NamedTuple):
    """What a user brought: data, or what their function returned; of one that drew, its code."""

    value: Any
    drawn_by: Mapping[str, str]

    def fingerprint(self, tensors: str, positions: str | None) -> Fingerprint:
        """Return the fingerprint of these digests: of all tensors, and of a split."""
        drawn = "drawn_" if self.drawn_by else ""
        of_data = {**self.drawn_by, f"{drawn}tensors": tensors}
        if positions is None:
            return {"data": of_data}
        return {"data": of_data, "split": {**self.drawn_by, f"{drawn}positions": positions}}


class OwnData(NamedTuple):
    """A user's data, and what they are of."""

    dataset: ImageDataset
    fingerprint: Fingerprint


class _Part(NamedTuple):
    inputs: Tensor
    labels: Tensor


def bring_data(
    name: str,
    *,
    seed: int,
    given: object = None,
    arguments: Mapping[str, object] | None = None,
    allow_code: bool = False,
) -> UserData:
    """Return the data that were ``given``, or what a function returns for its ``arguments``.

    The function is ``given``, or imported as ``module:name``.
    """
    where, arguments = f"{DATA}: {printable(name)}", arguments or {}
    found = find_code(DATA, name, given, allow_code=allow_code)
    check_arguments(found, "data_args", arguments)
    if given is not None and not callable(given):
        return UserData(with_arrays(given, where), {})
    with isolated_generators(seed, "data"):
        before = generators_state()
        returned = call_code(found, where, lambda load: load(**arguments))
        drew = generators_state() != before
    return UserData(returned, code_digests(found) if drew else {})


def load_own_data(name: str, brought: UserData, loss: str = "") -> OwnData:
    """Check the data that a user brought, for a loss of this name; see `checked_labels`.

    The data are inputs and labels to train on, then to test on. Inputs are images, uint8
    [n, C, H, W], normalised by the training pixels; or of any shape [n, …], floating and finite,
    used as float32, or int64, such as tokens. Labels are classes, integers [n, …] from 0 on, of
    which -100 counts for nothing in a sequence; or numbers, floating [n, …], used as float32. A
    fifth value has the positions of each client in the training part. Or they are two: the inputs
    and labels of each client, and those to test on.
    """
    where, returned = f"{DATA}: {printable(name)}", brought.value
    *train, test = parts = _checked(_parts(returned, where), where, loss)
    num_classes = count_classes([part.labels for part in parts], where)
    counts = [len(part.labels) for part in train]
    merged = train[0] if len(train) == 1 else map(torch.cat, zip(*train, strict=True))
    pixels = Pixels._make((*merged, *test))
    clients: tuple[Tensor, ...] = ()
    if len(returned) == 2:
        clients = torch.arange(sum(counts)).split(counts)
    elif len(returned) == 5 and returned[4] is not None:
        clients = _positions(returned[4], where, counts[0])
    split = tensors_digest((str(client), held) for client, held in enumerate(clients))
    fingerprint = brought.fingerprint(
        tensors_digest(pixels._asdict().items()), split if clients else None
    )
    names = tuple(map(str, range(num_classes)))
    if pixels.train_images.dtype == torch.uint8:
        return OwnData(normalised_by_training_part(pixels, names, Split(clients)), fingerprint)
    return OwnData(ImageDataset(pixels, names, split=Split(clients)), fingerprint)


def inputs_and_labels(part: object) -> tuple[Any, Any] | None:
    """Return the two of a pair of arrays, or of a ``TensorDataset``; None of anything else."""
    pair = part.tensors if isinstance(part, TensorDataset) else part
    if isinstance(pair, tuple | list) and len(pair) == 2:
        inputs, labels = pair
        if is_array(inputs) and is_array(labels):
            return inputs, labels
    return None


def clients_of(given: object) -> int:
    """Count the clients of the split that data have, without a look at them; 0 where none."""
    length = len(given) if isinstance(given, tuple | list) else 0
    if not isinstance(given, tuple | list) or length not in (2, 5):
        return 0
    return len(members(given[0 if length == 2 else 4]))


def check_clients(found: int, asked: int) -> None:
    """Refuse a recipe of another number of clients than the data have."""
    if found != asked:
        raise UserError(
            f"train_args.client_num_in_total: {asked}: must be {found}: so many clients are in the "
            "split that the data have"
        )


def members(clients: object) -> Sequence[object]:
    """Return the clients of a list, or of a mapping from their names, in its order."""
    listed = [*clients.values()] if isinstance(clients, Mapping) else clients
    return listed if isinstance(listed, tuple | list) else ()


def _parts(returned: Any, where: str) -> dict[str, tuple[Any, Any]]:
    """Return the inputs and labels of each part by what it is called; those to test on are last."""
    length = len(returned) if isinstance(returned, tuple | list) else 0
    if length in (4, 5):
        return {"train_": tuple(returned[:2]), "test_": tuple(returned[2:4])}
    parts = {}
    for client, part in enumerate(members(returned[0]) if length == 2 else ()):
        if part is None:
            raise UserError(f"{where}: client {client}: {NO_SAMPLE}")
        if pair := inputs_and_labels(part):
            parts[f"client {client}: "] = pair
        else:
            kind = printable(type(part).__name__)
            only = isinstance(part, Dataset | DataLoader)
            why = "; only a run takes Datasets and DataLoaders" * only
            raise UserError(f"{where}: client {client}: a {kind}; must be (inputs, labels){why}")
    test = inputs_and_labels(returned[1]) if parts else None
    if test is None:
        many = f" of {length}" if isinstance(returned, tuple | list) else ""
        raise UserError(f"{where}: a {printable(type(returned).__name__)}{many}; {_FORMS}")
    return {**parts, "test_": test}


def _positions(split: object, where: str, total: int) -> tuple[Tensor, ...]:
    """Check each client's positions: int64 [n_k], n_k > 0, in the training part."""
    where = f"{where}: client"
    checked = []
    for client, given in enumerate(members(split)):
        try:
            positions = torch.as_tensor(given).to("cpu")
        except (RuntimeError, TypeError, ValueError) as error:
            raise UserError(f"{where} {client}: positions: {reason(error)}") from error
        if not positions.numel():
            raise UserError(f"{where} {client}: {NO_SAMPLE}")
        if positions.ndim != 1 or not is_integral(positions):
            raise UserError(
                f"{where} {client}: positions: {kind_of(positions)}; must be integers [n]"
            )
        checked.append(positions.to(torch.int64))
        low, high = int(checked[-1].min()), int(checked[-1].max())
        if low < 0 or high >= total:
            wrong = low if low < 0 else high
            raise UserError(
                f"{where} {client}: position {wrong}: must be 0 to {total - 1}, of train_inputs"
            )
    if not checked:
        kind = printable(type(split).__name__)
        raise UserError(f"{where}s: a {kind}; must be a list with each client's positions")
    return tuple(checked)


def _checked(parts: Mapping[str, tuple[Any, Any]], where: str, loss: str) -> list[_Part]:
    """Check each part, and that all have inputs of one kind."""
    checked: list[_Part] = []
    for name, pair in parts.items():
        checked.append(checked_part(pair, where, name, loss))
        x, first = checked[-1].inputs, checked[0].inputs
        if (x.dtype, x.shape[1:]) != (first.dtype, first.shape[1:]):
            theirs = f"{next(iter(parts))}inputs are {kind_of(first)}"
            raise UserError(f"{where}: {name}inputs: {kind_of(x)}; {theirs}")
    return checked


def checked_part(pair: tuple[Any, Any], where: str, name: str = "", loss: str = "") -> _Part:
    """Check the inputs and labels of one part, and bring them to the CPU and to their dtypes."""
    inputs, labels = pair
    if name.startswith("client") and not any(map(_length, pair)):
        raise UserError(f"{where}: {name}{NO_SAMPLE}")
    x = checked_inputs(inputs, f"{where}: {name}inputs")
    y = checked_labels(labels, f"{where}: {name}labels", loss)
    if len(x) != len(y):
        order = f"; the order is {_FOUR}" if name == "train_" else ""
        raise UserError(f"{where}: {name}labels: {len(y)}, for {len(x)} {name}inputs{order}")
    check_classes(y, x, f"{where}: {name}labels", loss)
    return _Part(x, y)


def _length(array: Any) -> int:
    return len(array) if getattr(array, "ndim", 1) else 1
