"""The split that a user's data have: how many clients, and which samples are whose."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fednnnn_plugin.data.arrays import is_integral, kind_of
from fednnnn_plugin.data.natural import are_owners
from fednnnn_plugin.errors import UserError, printable, reason

#: Why a client cannot be in a split.
NO_SAMPLE = "has no sample: leave it out of the list of clients"


def clients_of(given: object) -> int:
    """Count the clients of the split that data have, without a look at them; 0 where none."""
    length = len(given) if isinstance(given, tuple | list) else 0
    if not isinstance(given, tuple | list) or length not in (2, 3, 5, 6):
        return 0
    split = given[{2: 0, 3: 2}.get(length, 4)]
    if length > 2 and are_owners(split):
        return len(np.unique(np.asarray(split)))
    return len(members(split)) if length in (2, 5) else 0


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


def client_positions(split: object, where: str, total: int) -> tuple[Tensor, ...]:
    """Check each client's positions: int64 [n_k], n_k > 0, in the training part."""
    where = f"{where}: client"
    checked = []
    for client, given in enumerate(members(split)):
        try:
            positions = torch.as_tensor(given).to("cpu")
        except (RuntimeError, TypeError, ValueError) as error:
            raise UserError(f"{where} {client}", f"positions: {reason(error)}") from error
        if not positions.numel():
            raise UserError(f"{where} {client}", NO_SAMPLE)
        if positions.ndim != 1 or not is_integral(positions):
            raise UserError(
                f"{where} {client}", f"positions: {kind_of(positions)}", "must be integers [n]"
            )
        checked.append(positions.to(torch.int64))
        low, high = int(checked[-1].min()), int(checked[-1].max())
        if low < 0 or high >= total:
            wrong = low if low < 0 else high
            raise UserError(
                f"{where} {client}",
                f"position {wrong}",
                f"must be 0 to {total - 1}, of train_inputs",
            )
    if not checked:
        kind = printable(type(split).__name__)
        raise UserError(f"{where}s", f"a {kind}", "must be a list with each client's positions")
    return tuple(checked)
