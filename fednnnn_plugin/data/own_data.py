"""Custom data: arrays, or what a function returns; with a split of its own or without."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fednnnn_plugin.data.images import IGNORED, ImageDataset, Pixels, normalised_by_training_part
from fednnnn_plugin.errors import UserError, printable, reason
from fednnnn_plugin.fingerprint import Fingerprint, code_digest, tensors_digest
from fednnnn_plugin.seeds import generators_state, isolated_generators
from fednnnn_plugin.user_code import call_code, check_arguments, find_code

MAX_CLASSES = 100_000

DATA = "data_args.dataset"
_FOUR = "(train_inputs, train_labels, test_inputs, test_labels)"
_FORMS = (
    f"must be tensors or arrays {_FOUR}, and fifth, if you like, a list with each client's "
    "positions; or (a list with each client's (inputs, labels), (test_inputs, test_labels))"
)


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
    """A user's data; ``clients`` are the positions of each, where it has a split of its own."""

    dataset: ImageDataset
    clients: tuple[Tensor, ...]
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
        return UserData(given, {})
    with isolated_generators(seed, "data"):
        before = generators_state()
        returned = call_code(found, where, lambda load: load(**arguments))
        drew = generators_state() != before
    return UserData(returned, {"code": code_digest(found)} if drew else {})


def load_own_data(name: str, brought: UserData) -> OwnData:
    """Check the data that a user brought.

    The data are inputs and labels to train on, then to test on. Inputs are images, uint8
    [n, C, H, W], normalised by the training pixels; or of any shape [n, …], floating and finite,
    used as float32, or int64, such as tokens. Labels are classes, integers [n, …] from 0 on, of
    which -100 counts for nothing in a sequence; or numbers, floating [n, …], used as float32. A
    fifth value has the positions of each client in the training part. Or they are two: the inputs
    and labels of each client, and those to test on.
    """
    where, returned = f"{DATA}: {printable(name)}", brought.value
    *train, test = parts = _checked(_parts(returned, where), where)
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
    dataset = ImageDataset(pixels, tuple(map(str, range(num_classes))))
    if pixels.train_images.dtype == torch.uint8:
        dataset = normalised_by_training_part(pixels, dataset.class_names)
    return OwnData(dataset, clients, fingerprint)


def inputs_and_labels(part: object) -> tuple[Any, Any] | None:
    """Return the two of a pair of arrays, or of a ``TensorDataset``; None of anything else."""
    pair = part.tensors if isinstance(part, TensorDataset) else part
    if isinstance(pair, tuple | list) and len(pair) == 2:
        inputs, labels = pair
        if isinstance(inputs, Tensor | np.ndarray) and isinstance(labels, Tensor | np.ndarray):
            return inputs, labels
    return None


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
        if positions.ndim != 1 or not len(positions) or not _is_integral(positions):
            raise UserError(
                f"{where} {client}: positions: {_kind(positions)}; must be integers [n], not empty"
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


def _checked(parts: Mapping[str, tuple[Any, Any]], where: str) -> list[_Part]:
    """Check each part, and that all have inputs of one kind."""
    checked: list[_Part] = []
    for name, pair in parts.items():
        checked.append(checked_part(pair, where, name))
        x, first = checked[-1].inputs, checked[0].inputs
        if (x.dtype, x.shape[1:]) != (first.dtype, first.shape[1:]):
            theirs = f"{next(iter(parts))}inputs are {_kind(first)}"
            raise UserError(f"{where}: {name}inputs: {_kind(x)}; {theirs}")
    return checked


def checked_part(pair: tuple[Any, Any], where: str, name: str = "") -> _Part:
    """Check the inputs and labels of one part, and bring them to the CPU and to their dtypes."""
    x = _inputs(pair[0], f"{where}: {name}inputs")
    y = checked_labels(pair[1], f"{where}: {name}labels")
    if len(x) != len(y):
        order = f"; the order is {_FOUR}" if name == "train_" else ""
        raise UserError(f"{where}: {name}labels: {len(y)}, for {len(x)} {name}inputs{order}")
    return _Part(x, y)


def _inputs(value: object, where: str) -> Tensor:
    tensor = _tensor(value, where)
    if not tensor.ndim or not tensor.numel():
        raise UserError(f"{where}: {_kind(tensor)}; must be [n, ...], not empty")
    if tensor.is_floating_point():
        return _finite(tensor, where)
    if tensor.dtype != torch.int64 and (tensor.dtype != torch.uint8 or tensor.ndim != 4):
        raise UserError(
            f"{where}: {_kind(tensor)}; must be floating, int64, or images: uint8 [n, C, H, W]"
        )
    return tensor


def checked_labels(value: object, where: str) -> Tensor:
    """Check labels, and bring them to the CPU and to their dtype."""
    labels = _tensor(value, where)
    _check_labels(labels, where)
    return labels.float() if labels.is_floating_point() else labels.to(torch.int64)


def _finite(tensor: Tensor, where: str) -> Tensor:
    """Return numbers as float32."""
    tensor = tensor.float()
    if not tensor.isfinite().all():
        raise UserError(f"{where}: has NaN or infinite values (in float32)")
    return tensor


def _check_labels(labels: Tensor, where: str) -> None:
    """Refuse what are no labels: classes from 0 on, -100 where one of several is left out."""
    are_numbers = labels.is_floating_point() or _is_integral(labels)
    if not are_numbers or not labels.ndim or not labels.numel():
        raise UserError(
            f"{where}: {_kind(labels)}; must be integers or floating [n, ...], not empty"
        )
    if labels.is_floating_point():
        _finite(labels, where)
        return
    counted = labels.to(torch.int64)
    if labels.ndim > 1:
        counted = counted[counted != IGNORED]
    if counted.numel() and int(counted.min()) < 0:
        raise UserError(f"{where}: has {int(counted.min())}; labels go from 0 on")


def count_classes(labels: Sequence[Tensor], where: str) -> int:
    """Return the number of classes in all labels; of floating ones, of numbers for a sample."""
    first, *others = labels
    for other in others:
        if other.shape[1:] != first.shape[1:] or other.dtype != first.dtype:
            raise UserError(f"{where}: labels: {_kind(other)}; others are {_kind(first)}")
    if first.is_floating_point():
        return first[:1].numel()
    classes = 1 + max(int(part.max()) for part in labels)
    if not 2 <= classes <= MAX_CLASSES:
        raise UserError(
            f"{where}: labels up to {classes - 1}: there must be 2 to {MAX_CLASSES} classes"
        )
    return classes


def _tensor(value: object, where: str) -> Tensor:
    """Bring a tensor or an array to the CPU."""
    if not isinstance(value, Tensor | np.ndarray):
        raise UserError(f"{where}: a {type(value).__name__}; must be a tensor or a NumPy array")
    try:
        if isinstance(value, Tensor):
            if value.is_nested or value.is_quantized:
                raise TypeError("must be neither nested nor quantised")
            return value.detach().to("cpu").contiguous()
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError("must not be masked")
        return torch.from_numpy(np.require(value, value.dtype.newbyteorder("="), ["C", "W"]))
    except (RuntimeError, NotImplementedError, TypeError) as error:  # one without data, for example
        raise UserError(f"{where}: cannot be used: {reason(error)}") from error


def _is_integral(tensor: Tensor) -> bool:
    return torch.can_cast(tensor.dtype, torch.int64) and tensor.dtype != torch.bool


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype} of {list(tensor.shape)}"
