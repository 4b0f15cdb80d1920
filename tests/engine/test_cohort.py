"""The cohort: who trains, and that how they are trained leaves no trace in the bits."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from fednnnn_plugin.client.groups import Group
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.replica import Replica, layout_of, named_tensors
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine.batches import TensorBatches
from fednnnn_plugin.engine.cohort import Cohort
from fednnnn_plugin.engine.forks import Forks
from fednnnn_plugin.engine.workers import Threads, Workers
from fednnnn_plugin.errors import RunError
from fednnnn_plugin.models import create_model
from fednnnn_plugin.server.layout import ModelState

SGD = LocalSGD(epochs=2, batch_size=5, learning_rate=0.05)
MODEL = create_model("nnnn_digits", 0)
SERVED = layout_of(MODEL).gather(named_tensors(create_model("nnnn_digits", 7)))
SIX = [(client,) for client in range(6)]


@pytest.fixture
def batches(data: FederatedData) -> TensorBatches:
    return TensorBatches(data, SGD, 0, torch.device("cpu"))


def test_clients_train_on_one_thread(batches: TensorBatches) -> None:
    inside: list[int] = []

    def training(replica: Replica, *_: Any) -> ModelState:
        inside.append(torch.get_num_threads())
        return replica.state.as_group()

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with Cohort(MODEL, training, batches, workers=Threads(2)) as cohort:
            cohort.train(SERVED, 1, SIX, lambda *_: None)
        assert set(inside) == {1}
        with ThreadPoolExecutor() as later:  # what is started later begins with a worker's count
            assert torch.get_num_threads() == later.submit(torch.get_num_threads).result() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("workers", [lambda: Threads(2), lambda: Forks(2, SERVED, anew=False)])
def test_cohort_trains_after_an_abandoned_round(
    batches: TensorBatches, workers: Callable[[], Workers]
) -> None:
    """In round 1 client 0 alone ever ends its training."""

    def training(
        replica: Replica, number: int, group: Group, _: Any, before_step: Callable[[], None]
    ) -> ModelState:
        while number == 1 and group[0]:
            before_step()
        SGD.train(replica, batches.epochs(group[0], number), before_step)
        return replica.state.as_group()

    def trained(cohort: Cohort) -> dict[Group, Tensor]:
        found: dict[Group, Tensor] = {}

        def consume(group: Group, outcome: ModelState | Exception) -> None:
            assert isinstance(outcome, ModelState)
            found[group] = outcome.vector[0].clone()

        cohort.train(SERVED, 2, SIX, consume)
        return found

    def refuse(group: Group, _: object) -> None:
        raise RunError(f"client {group[0]}")

    with Cohort(MODEL, training, batches, workers=workers()) as undisturbed:
        expected = trained(undisturbed)
    with Cohort(MODEL, training, batches, workers=workers()) as cohort:
        for _ in range(2):
            with pytest.raises(RunError, match="client 0"):
                cohort.train(SERVED, 1, SIX, refuse)
        found = trained(cohort)
    assert found.keys() == expected.keys() == set(SIX)
    assert all(torch.equal(found[group], vector) for group, vector in expected.items())
