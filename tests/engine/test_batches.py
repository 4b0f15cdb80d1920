"""Mini-batches: their order, those of a user's loaders, what a test of them finds."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.loss import Loss
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine.batches import LoaderBatches, LoaderData, TensorBatches
from fednnnn_plugin.engine.evaluation import Evaluation, Tally, evaluation, tally
from fednnnn_plugin.errors import UserError

CPU = torch.device("cpu")


def test_shuffles_differ_by_seed_round_client_and_epoch(data: FederatedData) -> None:
    """Each is a permutation of the client's 30 images."""
    held = data.client_indices[3]
    twins = replace(data, client_indices=(held, held))
    drawn = [
        order.tolist()
        for seed, client, number in ((0, 0, 1), (0, 1, 1), (0, 0, 2), (1, 0, 1))
        for order in TensorBatches(twins, LocalSGD(2, 8, 0.1), seed, CPU).orders(client, number)
    ]
    assert len({str(order) for order in drawn}) == 8
    assert all(sorted(order) == sorted(held.tolist()) for order in drawn)


class Counting:
    """A loader that tells how often it was passed through."""

    passes = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.passes += 1
        yield torch.full((2, 3), self.passes, dtype=torch.float64), torch.tensor([0, 1]).int()
        yield torch.arange(3), torch.tensor([2, 0, 1])


def test_loader_is_passed_through_once_an_epoch() -> None:
    loader = Counting()
    data = LoaderData({0: [], 1: loader}, {0: 0, 1: 5}, loader, num_classes=3)
    batches = LoaderBatches(data, LocalSGD(3, 2, 0.1), CPU)
    seen = [list(epoch) for epoch in batches.epochs(1, round_number=1)]
    assert loader.passes == 3
    assert [epoch[0][0].tolist() for epoch in seen] == [[[e] * 3] * 2 for e in (1.0, 2.0, 3.0)]
    (inputs, labels), (tokens, _) = seen[0]
    assert (inputs.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert tokens.dtype == torch.int64  # indices of words stay what they are


def test_loader_that_is_an_iterator_is_refused() -> None:
    batches = [(torch.zeros(1, 2), torch.zeros(1))]
    for train, test, whose in ((iter(batches), batches, "client 0"), (batches, iter([]), "test")):
        with pytest.raises(UserError, match=f"dataset: .*{whose}.*once"):
            LoaderData({0: train}, {0: 1}, test, 2)


def test_tallies_are_weighed_by_their_samples() -> None:
    """Errors of 1 in three samples, of 3 in one: (3 · 1 + 9) / 4."""
    model, mse = nn.PReLU(), Loss("mse", nn.functional.mse_loss)  # on these an identity
    batches = [(torch.ones(3), torch.zeros(3)), (torch.full((1,), 3.0), torch.zeros(1))]
    assert evaluation([tally(model, batch, mse) for batch in batches]).loss == 3.0
    assert evaluation([Tally(1, 2.0, 2, 2), Tally(2, 4.0, 4, 4)]) == Evaluation(0.5, 1.0)
    assert evaluation([Tally(1, float("inf"), 2, 2)]) == Evaluation(0.5, None)
    assert evaluation([]) == Evaluation()
