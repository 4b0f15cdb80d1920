"""Parts of a labelled set with the classes in its proportions; and a validation part of one."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fednnnn_plugin.data.class_split import apportion, places_of_classes
from fednnnn_plugin.data.images import ImageDataset, Parts, Samples, Split, are_classes, packed
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.seeds import derive_seed


def drawn_apart(samples: Samples, num_drawn: int, rng: np.random.Generator) -> Parts:
    """Draw so many of the samples to test on; the others are the training part.

    Of each class its share, rounded by largest remainder.
    """
    drawn = _drawn(samples.labels, num_drawn, rng)
    return Parts(samples.at(~drawn), samples.at(drawn))


def _drawn(labels: Tensor, num_drawn: int, rng: np.random.Generator) -> Tensor:
    drawn = torch.zeros(len(labels), dtype=torch.bool)
    strata = labels.numpy() if are_classes(labels) else np.zeros(len(labels), dtype=np.int64)
    strata = np.unique(strata, return_inverse=True)[1]  # of many classes a client has few
    quotas = apportion(num_drawn, np.bincount(strata))
    for places, quota in zip(places_of_classes(strata, len(quotas)), quotas, strict=True):
        drawn[rng.permutation(places)[:quota]] = True
    return drawn


def hold_out_of_each(
    labels: Tensor, clients: Sequence[Tensor], fraction: float, seed: int
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Divide each client's positions into those it trains on, and those it is tested on.

    Of a client's n samples it is tested on ``fraction * n``, rounded, at least 1 and at most n - 1,
    with the classes in its proportions; of a single sample on none. Both keep the client's order. A
    sample that a client has several times counts once. What is drawn of any client is trained on
    by none; a client of which all would be drawn keeps its first.
    """
    held, drawn = list[Tensor](), torch.zeros(len(labels), dtype=torch.bool)
    for client, positions in enumerate(clients):
        own = torch.tensor([*dict.fromkeys(positions.tolist())], dtype=torch.int64)
        free = own[~drawn[own]]  # what clients before it have drawn of its samples counts
        count = min(max(round(fraction * len(own)), 1), len(own) - 1) - len(own) + len(free)
        rng = np.random.default_rng(derive_seed(seed, "client holdout", client))
        if count > 0:
            drawn[free[_drawn(labels[free], count, rng)]] = True
        held.append(own)
    for positions in clients:
        drawn[positions[:1]] &= not drawn[positions].all()
    left = (positions[~drawn[positions]] for positions in clients)
    return tuple(left), tuple(positions[drawn[positions]] for positions in held)


def hold_out(dataset: ImageDataset, fraction: float, seed: int) -> ImageDataset:
    """Split the training set into a training and a validation set (paper, appendix, Step 1).

    The validation set replaces the test set, so that a run on it never sees a test sample. Where
    the data have a split of their own, it is drawn from each client, as
    :func:`hold_out_of_each` does; a sample of no client is in neither set.
    """
    train, split = dataset.parts.train, Split()
    if clients := dataset.split.train:
        left, held = hold_out_of_each(train.labels, clients, fraction, seed)
        (kept, left), (drawn, held) = packed(train, left), packed(train, held)
        parts, split = Parts(kept, drawn), Split(left, held)
    else:
        rng = np.random.default_rng(derive_seed(seed, "validation"))
        parts = drawn_apart(train, round(fraction * len(train.labels)), rng)
    num_kept, num_drawn = (len(part.labels) for part in parts)
    if not num_kept or not num_drawn:
        raise UserError(
            "data_args.validation_fraction",
            f"{fraction}: leaves {num_kept} of {num_kept + num_drawn} training samples to train on "
            f"and {num_drawn} to validate on; both need at least one",
        )
    return replace(dataset, parts=parts, split=split)
