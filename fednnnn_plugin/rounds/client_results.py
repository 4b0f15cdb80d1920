"""From the tallies of a test to the results of each client and of each class."""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter

import torch

from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.rounds.evaluation import PER_CLASS, Tested, evaluation
from fednnnn_plugin.rounds.loaders import LoaderData
from fednnnn_plugin.run_folder.results import ClassResult, ClientResult


def classes_of(data: FederatedData | LoaderData, weighting: str) -> list[ClassResult]:
    """Return a federation's classes, of which nothing is tested yet."""
    count = data.num_classes
    if isinstance(data, LoaderData):
        return [ClassResult(number, str(number)) for number in range(count)]
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
    names = data.class_names or map(str, range(count))
    rows = zip(names, samples.tolist(), clients.tolist(), (weights / total).tolist(), strict=True)
    return [ClassResult(number, name, 0, math.nan, *of) for number, (name, *of) in enumerate(rows)]


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
    counts: Sequence[tuple[int, int]], classes: Sequence[ClassResult]
) -> list[ClassResult]:
    """Return the result of each class of which the test has a sample."""
    return [
        of._replace(samples=samples, accuracy=correct / samples)
        for (samples, correct), of in zip(counts, classes, strict=True)
        if samples
    ]
