"""The cohort: who trains, and that how they are trained leaves no trace in the bits."""

import time
from collections.abc import Callable, Sequence
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
Outcomes = dict[int, Tensor | Exception]  # the trained vector of each client
BeforeStep = Callable[[], None]
MODEL = create_model("nnnn_digits", 0)


@pytest.fixture
def batches(data: FederatedData) -> TensorBatches:
    return TensorBatches(data, SGD, 0, torch.device("cpu"))


def trained(cohort: Cohort, served: ModelState, clients: Sequence[int]) -> Outcomes:
    outcomes: Outcomes = {}

    def consume(group: Group, outcome: ModelState | Exception) -> None:
        assert isinstance(outcome, ModelState | Exception)
        (client,) = group
        outcomes[client] = outcome if isinstance(outcome, Exception) else outcome.vector[0].clone()

    cohort.train(served, 1, [(client,) for client in clients], consume)
    return outcomes


@pytest.fixture
def served() -> ModelState:
    return layout_of(MODEL).gather(named_tensors(create_model("nnnn_digits", 7)))


def test_clients_train_on_one_thread(batches: TensorBatches, served: ModelState) -> None:
    inside: list[int] = []

    def training(replica: Replica, *_: Any) -> ModelState:
        inside.append(torch.get_num_threads())
        return replica.state.as_group()

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with Cohort(MODEL, training, batches, workers=Threads(2)) as cohort:
            trained(cohort, served, range(3))
        assert inside == [1, 1, 1]
        with ThreadPoolExecutor() as later:  # what is started later begins with a worker's count
            assert torch.get_num_threads() == later.submit(torch.get_num_threads).result() == 2
    finally:
        torch.set_num_threads(before)


def test_cohort_is_abandoned_when_its_consumer_raises(
    batches: TensorBatches, served: ModelState
) -> None:
    began: list[int] = []

    def training(
        replica: Replica, number: int, group: Group, _: Tensor | None, before_step: BeforeStep
    ) -> ModelState:
        began.append(group[0])
        while group[0]:  # client 0 has no step at all
            before_step()
        return replica.state.as_group()

    def refuse(group: Group, outcome: ModelState | Exception) -> None:
        while len(began) < 2:
            time.sleep(0.001)
        raise RunError(f"client {group[0]}")

    with (
        Cohort(MODEL, training, batches, workers=Threads(2)) as cohort,
        pytest.raises(RunError, match="client 0"),
    ):
        cohort.train(served, 1, [(client,) for client in range(6)], refuse)
    assert set(began) <= {0, 1, 2}  # the endless ones stopped, the others never began


@pytest.mark.parametrize("workers", ["threads", "forks"])
def test_cohort_trains_after_an_abandoned_round(
    batches: TensorBatches, served: ModelState, workers: str
) -> None:
    def refuse(group: Group, _: object) -> None:
        raise RunError(f"client {group[0]}")

    def training(
        replica: Replica, number: int, group: Group, _: Tensor | None, before_step: BeforeStep
    ) -> ModelState:
        SGD.train(replica, batches.epochs(group[0], number), before_step)
        return replica.state.as_group()

    def two() -> Workers:
        return Threads(2) if workers == "threads" else Forks(2, served, anew=False)

    with Cohort(MODEL, training, batches, workers=two()) as whole:
        expected = trained(whole, served, range(6))
    with Cohort(MODEL, training, batches, workers=two()) as cohort:
        for _ in range(2):
            with pytest.raises(RunError, match="client"):
                cohort.train(served, 1, [(client,) for client in range(6)], refuse)
        outcomes = trained(cohort, served, range(6))
    assert outcomes.keys() == expected.keys()
    for client, vector in outcomes.items():
        assert torch.equal(vector, expected[client])
