"""The cohort: who trains, and that how they are trained leaves no trace in the bits."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fednnnn_plugin.client.groups import Group
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.replica import Replica, layout_of, named_tensors
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine.batches import TensorBatches
from fednnnn_plugin.engine.cohort import Cohort, Outcome, SGDTraining, draw_cohort
from fednnnn_plugin.engine.evaluation import Evaluation
from fednnnn_plugin.errors import RunError
from fednnnn_plugin.models import create_model
from fednnnn_plugin.server.layout import ModelState

SGD = LocalSGD(epochs=2, batch_size=5, learning_rate=0.05)
Outcomes = dict[int, Tensor | Exception]  # the trained vector of each client
MODEL = create_model("nnnn_digits", 0)
LAYOUT = layout_of(MODEL)


def test_these_cohorts_are_drawn_on_every_platform() -> None:
    assert draw_cohort(0, 1, 10, 4) == [1, 5, 6, 8]
    assert draw_cohort(0, 2, 10, 4) == [0, 1, 4, 5]
    assert draw_cohort(1, 1, 10, 4) == [1, 4, 6, 7]
    assert draw_cohort(0, 1, 100, 7) == [6, 8, 25, 48, 51, 69, 88]


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    round_number=st.integers(1, 10**6),
    clients=st.integers(1, 60),
    share=st.floats(0, 1),
)
def test_a_cohort_is_a_subset_without_repetition(
    seed: int, round_number: int, clients: int, share: float
) -> None:
    size = max(1, round(share * clients))
    cohort = draw_cohort(seed, round_number, clients, size)
    assert len(cohort) == len(set(cohort)) == size
    assert set(cohort) <= set(range(clients))
    assert cohort == draw_cohort(seed, round_number, clients, size)


def test_every_subset_is_as_likely() -> None:
    """All 10 pairs of 5 clients over 4,000 rounds: χ² with 9 degrees of freedom."""
    rounds = 4_000
    drawn = Counter(tuple(draw_cohort(3, number, 5, 2)) for number in range(1, rounds + 1))
    expected = rounds / math.comb(5, 2)
    assert len(drawn) == math.comb(5, 2)
    assert sum((count - expected) ** 2 / expected for count in drawn.values()) < 27.9  # p = 0.001


def test_cohorts_differ_by_seed_and_by_round() -> None:
    by_round = {tuple(draw_cohort(0, number, 100, 10)) for number in range(1, 201)}
    by_seed = {tuple(draw_cohort(seed, 1, 100, 10)) for seed in range(200)}
    assert len(by_round) == len(by_seed) == 200


def cohort_of(data: FederatedData, *, workers: int = 1, seed: int | None = None) -> Cohort:
    batches = TensorBatches(data, SGD, 0, torch.device("cpu"))
    return Cohort(
        MODEL,
        LAYOUT,
        SGDTraining(SGD, batches),
        batches,
        workers=workers,
        seed=seed,
    )


def trained(cohort: Cohort, served: ModelState, clients: Sequence[int]) -> Outcomes:
    outcomes: Outcomes = {}

    def consume(group: Group, outcome: Outcome) -> None:
        assert isinstance(outcome, ModelState | Exception)
        (client,) = group
        outcomes[client] = outcome if isinstance(outcome, Exception) else outcome.vector[0].clone()

    cohort.train(served, 1, [(client,) for client in clients], consume)
    return outcomes


@pytest.fixture
def served() -> ModelState:
    return LAYOUT.gather(named_tensors(create_model("nnnn_digits", 7)))


def test_workers_and_order_change_no_bit(data: FederatedData, served: ModelState) -> None:
    results: list[tuple[Outcomes, Evaluation]] = []
    for workers, clients in ((1, range(6)), (2, range(6)), (3, (4, 1, 5, 0, 3, 2))):
        with cohort_of(data, workers=workers) as cohort:
            results.append((trained(cohort, served, clients), cohort.test(served)))
    for outcomes, evaluation in results[1:]:
        assert evaluation == results[0][1]
        assert outcomes.keys() == results[0][0].keys()
        for client, vector in outcomes.items():
            assert torch.equal(vector, results[0][0][client])


def test_each_client_starts_from_the_served_model(data: FederatedData, served: ModelState) -> None:
    before = served.vector.clone()
    with cohort_of(data) as cohort:
        alone, among_others = trained(cohort, served, [3]), trained(cohort, served, range(6))
    assert torch.equal(served.vector, before)
    assert torch.equal(alone[3], among_others[3])
    assert not torch.equal(among_others[3], among_others[4])


def test_clients_train_on_one_thread_and_the_count_is_restored(
    data: FederatedData, served: ModelState
) -> None:
    inside: list[int] = []

    def training(
        replica: Replica, round_number: int, client: int, stopping: threading.Event
    ) -> ModelState:
        inside.append(torch.get_num_threads())
        return replica.state.as_group()

    def count_later() -> int:
        seen: list[int] = []
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        return seen[0]

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        batches = TensorBatches(data, SGD, 0, torch.device("cpu"))
        with Cohort(MODEL, LAYOUT, training, batches, workers=2) as cohort:
            trained(cohort, served, range(6))
            assert torch.get_num_threads() == 3
        assert inside == [1] * 6
        assert torch.get_num_threads() == 3
        assert count_later() == 3
    finally:
        torch.set_num_threads(before)


class _Drawing(nn.Module):
    """A user's model that draws from every global generator."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self._draw = draw

    def forward(self, inputs: Tensor) -> Tensor:
        dropped = nn.functional.dropout(inputs.flatten(1), 0.5, self.training)
        return self.layer(dropped) * self._draw()


def test_a_model_that_draws_repeats_its_bits_and_leaves_no_trace(
    data: FederatedData,
    draw: Callable[[], float],
    global_state: Callable[[], tuple[object, ...]],
) -> None:
    batches = TensorBatches(data, SGD, 0, torch.device("cpu"))
    model = _Drawing(draw)
    layout = layout_of(model)
    served, training = layout.gather(named_tensors(model)), SGDTraining(SGD, batches)
    results = []
    for workers, clients in ((1, range(6)), (4, range(5, -1, -1))):
        draw()
        before = global_state()
        with Cohort(model, layout, training, batches, workers=workers, seed=5) as cohort:
            results.append((trained(cohort, served, clients), cohort.test(served)))
            assert global_state() == before
    (first, tested), (second, tested_again) = results
    assert tested == tested_again
    for client in range(6):
        assert torch.equal(first[client], second[client])


def test_an_exception_in_training_goes_to_the_consumer(
    data: FederatedData, served: ModelState
) -> None:
    def training(
        replica: Replica, round_number: int, client: int, stopping: threading.Event
    ) -> ModelState:
        if client % 2:
            raise ZeroDivisionError(f"client {client}")
        return replica.state.as_group()

    batches = TensorBatches(data, SGD, 0, torch.device("cpu"))
    with Cohort(MODEL, LAYOUT, training, batches, workers=2) as cohort:
        outcomes = trained(cohort, served, range(6))
        assert {k for k, v in outcomes.items() if isinstance(v, ZeroDivisionError)} == {1, 3, 5}
        # Replicas of failed clients serve again.
        assert len(trained(cohort, served, range(6))) == 6


def test_an_exception_of_the_consumer_abandons_the_round(
    data: FederatedData, served: ModelState
) -> None:
    began: list[int] = []

    class Endless:
        def epochs(
            self, client: int, round_number: int
        ) -> Iterator[Iterator[tuple[Tensor, Tensor]]]:
            began.append(client)
            while client:  # client 0 has no epoch at all
                yield iter([(data.train_images[:2], data.train_labels[:2])])

        def test(self) -> list[tuple[Tensor, Tensor]]:
            return []

    def refuse(group: Group, outcome: Outcome) -> None:
        while len(began) < 2:
            time.sleep(0.001)
        raise RunError(f"client {group[0]}")

    batches = Endless()
    with (
        Cohort(MODEL, LAYOUT, SGDTraining(SGD, batches), batches, workers=2) as cohort,
        pytest.raises(RunError, match="client 0"),
    ):
        cohort.train(served, 1, [(client,) for client in range(6)], refuse)
    assert set(began) <= {0, 1, 2}  # the endless ones stopped, the others never began


def test_an_empty_test_set_has_no_accuracy_to_speak_of(served: ModelState) -> None:
    class Empty:
        def epochs(
            self, client: int, round_number: int
        ) -> Iterator[Iterator[tuple[Tensor, Tensor]]]:
            yield from ()

        def test(self) -> list[tuple[Tensor, Tensor]]:
            return []

    batches = Empty()
    with Cohort(MODEL, LAYOUT, SGDTraining(SGD, batches), batches, workers=2) as cohort:
        assert cohort.test(served) == Evaluation(0.0, None)
