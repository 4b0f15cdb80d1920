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
        count = min(max(round(fraction * len(own)), 1), len(own) - 1)
        rng = np.random.default_rng(derive_seed(seed, "client holdout", client))
        held.append(own[_drawn(labels[own], count, rng)])
        drawn[held[-1]] = True
    _keep_one(drawn, clients)
    left = (positions[~drawn[positions]] for positions in clients)
    return tuple(left), tuple(positions[drawn[positions]] for positions in held)


def _keep_one(drawn: Tensor, clients: Sequence[Tensor]) -> None:
    """Leave each client its first sample, of which all are drawn."""
    for positions in clients:
        drawn[positions[:1]] &= not drawn[positions].all()


def hold_out(dataset: ImageDataset, fraction: float, seed: int) -> ImageDataset:
    """Split the training images into a training and a validation part (paper, appendix, Step 1).

    The validation part stands in the place of the test part, which a run on it never sees. The
    clients of a split that the data has keep what is left of theirs, and test on what is held out
    of it; one of which all would be held out keeps its first, and what no client has is in neither
    part.
    """
    clients: Sequence[Tensor] = dataset.split.train
    train, clients = packed(dataset.parts.train, clients) if clients else (dataset.parts.train, ())
    total = len(train.labels)
    rng = np.random.default_rng(derive_seed(seed, "validation"))
    drawn = _drawn(train.labels, round(fraction * total), rng)
    _keep_one(drawn, clients)
    held = int(drawn.sum())
    if not 0 < held < total:
        raise UserError(
            "data_args.validation_fraction",
            f"{fraction}: leaves {total - held} of {total} training samples to train on and {held}"
            " to validate on; both need at least one",
        )
    parts = Parts(train.at(~drawn), train.at(drawn))
    split = Split(_those(~drawn, clients), _those(drawn, clients))
    return replace(dataset, parts=parts, split=split)


def _those(kept: Tensor, clients: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return each client's positions among the samples that are kept."""
    places = kept.cumsum(0) - 1
    return tuple(places[positions[kept[positions]]] for positions in clients)
