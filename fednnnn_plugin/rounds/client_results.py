"""From the tallies of a test to the results of each client and of each class."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import torch

from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.rounds.evaluation import PER_CLASS, Tested, evaluation
from fednnnn_plugin.rounds.loaders import LoaderData
from fednnnn_plugin.run_folder.results import ClassResult, ClientResult


class TrainedClass(NamedTuple):
    """A class that a test counts, and what clients train on of it, as far as that is known.

    That is how many samples all have and how many clients have one, and the ``weight``: its share
    in each client's samples, averaged as the round averages its clients' models.
    """

    name: str
    train_samples: int | None = None
    train_clients: int | None = None
    weight: float | None = None


def classes_of(data: FederatedData | LoaderData, weighting: str) -> list[TrainedClass]:
    """Return a federation's classes."""
    count = data.num_classes
    numbers = map(str, range(count))
    if isinstance(data, LoaderData):
        return [*map(TrainedClass, numbers)]
    if data.train_labels.is_floating_point():
        raise UserError(PER_CLASS, "true: the labels are numbers", "must be false")
    samples, clients = torch.zeros(2, count, dtype=torch.int64)
    weights, total = torch.zeros(count, dtype=torch.float64), 0
    for positions in data.client_indices:
        labels = data.train_labels[positions].flatten()
        own = labels[labels >= 0].bincount(minlength=count)
        samples += own
        clients += own > 0
        weight = 1 if weighting == "uniform" else len(positions)
        weights += weight * own / own.sum().clamp(min=1)
        total += weight
    known = samples.tolist(), clients.tolist(), (weights / total).tolist()
    return [*map(TrainedClass, data.class_names or numbers, *known)]


def client_results(tallied: Iterable[Tested]) -> list[ClientResult]:
    """Return each client's result, by its number, from all ranks' parts of a test by client."""
    found = []
    in_turn = sorted(tallied, key=itemgetter(0))
    for client, tested in groupby(in_turn, key=lambda each: each[0][0]):
        tallies = [each for _, each in tested]
        result = evaluation(tallies)
        samples = sum(each.samples for each in tallies)
        if samples:  # a sequence may have no label that counts
            found.append(ClientResult(client, samples, result.accuracy, result.loss))
    return found


def class_results(
    counts: Sequence[tuple[int, int]], classes: Sequence[TrainedClass]
) -> list[ClassResult]:
    """Return the result of each class of which the test has a sample."""
    pairs = enumerate(zip(counts, classes, strict=True))
    return [
        ClassResult(label, of.name, samples, correct / samples, *of[1:])
        for label, ((samples, correct), of) in pairs
        if samples
    ]
