"""Clients whose samples are a random draw from all classes."""

import numpy as np
from numpy.typing import NDArray

from fednnnn_plugin.errors import UserError

Ints = NDArray[np.int64]


def iid_shares(
    classes: Ints, class_sizes: Ints, client_sizes: Ints, rng: np.random.Generator
) -> Ints:
    """Samples of each class that every client holds, [num_clients, num_classes] int64.

    Clients with at least as many samples as there are classes first get one sample of every class;
    all other samples are dealt at random.

    Raises:
        UserError: a class has fewer samples than there are such clients.
    """
    num_clients, num_classes = len(client_sizes), len(class_sizes)
    complete = client_sizes >= num_classes
    left = class_sizes - complete.sum()
    if left.min() < 0:
        rarest = left.argmin()
        raise UserError(
            f"num_clients: {num_clients}: class {classes[rarest]} has {class_sizes[rarest]} "
            f"samples, too few for the {complete.sum()} clients that should hold every class"
        )
    shares = np.repeat(complete.astype(np.int64)[:, None], num_classes, axis=1)
    owners = np.repeat(np.arange(num_clients), client_sizes - shares.sum(axis=1))
    drawn = rng.permutation(np.repeat(np.arange(num_classes), left))
    np.add.at(shares, (owners, drawn), 1)
    return shares
