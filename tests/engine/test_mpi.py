"""Several ranks: their sum is the one of a single process, and what they send does not grow.

Here the ranks are threads, and a communicator of our own counts what they say to each other.
"""

import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import mpi4py
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.replica import layout_of, named_tensors
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine.federation import Federation, Schedule
from fednnnn_plugin.engine.ranks import MpiRanks, Ranks
from fednnnn_plugin.engine.records import RoundRecord
from fednnnn_plugin.engine.training import Inputs, cohort_of
from fednnnn_plugin.errors import RunError
from fednnnn_plugin.server.rules import find_rule
from fednnnn_plugin.server.server import Server

mpi4py.rc.initialize = False  # the constants are enough
MPI = import_module("mpi4py.MPI")
CPU = torch.device("cpu")
RULES = {
    "FedNNNN": {"beta": 0.7, "gamma": 0.8},
    "FedExP": {"fedexp_epsilon": 1e-3},
}


@dataclass
class Wire:
    """What the ranks of one job share."""

    size: int
    slots: dict[int, Any] = field(default_factory=dict)
    log: dict[int, list[tuple[str, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size, timeout=60)


class Threads:
    """A rank's side of a communicator between threads; knows the calls that `MpiRanks` makes."""

    def __init__(self, wire: Wire, rank: int) -> None:
        self._wire, self._rank = wire, rank
        wire.log[rank] = []
        self.Get_rank, self.Get_size = lambda: rank, lambda: wire.size
        self.Split_type = lambda kind: Threads(Wire(1), 0)
        self.Free = lambda: None
        self.Ibarrier = lambda: self
        self.Test = lambda: True

    def Ibcast(self, values: np.ndarray) -> "Threads":  # noqa: N802
        values[...] = self._exchange("Ibcast", values)[0]
        return self

    def allgather(self, value: Any) -> list[Any]:
        given = np.frombuffer(pickle.dumps(value), np.uint8)
        return [pickle.loads(content.tobytes()) for content in self._exchange("allgather", given)]

    def bcast(self, value: Any) -> Any:
        return self.allgather(value)[0]

    def Reduce(self, mine: Any, total: np.ndarray | None, operation: Any) -> None:  # noqa: N802
        assert operation == MPI.SUM
        values = self._exchange("Reduce", total if mine is MPI.IN_PLACE else mine)
        if total is not None:
            total[...] = np.add.reduce(np.stack(values))

    def _exchange(self, name: str, values: np.ndarray) -> list[np.ndarray]:
        assert values.flags.c_contiguous
        self._wire.log[self._rank].append((name, values.nbytes))
        self._wire.slots[self._rank] = values.copy()
        self._wire.barrier.wait()
        slots = [self._wire.slots[rank] for rank in range(self._wire.size)]
        self._wire.barrier.wait()
        return slots


class Normalised(nn.Module):
    """With floating and integer buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(1)
        self.conv1 = nn.Conv2d(1, 2, 3)
        self.fc = nn.Linear(72, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.conv1(self.norm(images)).relu().flatten(1))


with torch.random.fork_rng([]):  # built once: ranks that are threads share the generator
    torch.manual_seed(0)
    INITIAL = Normalised()


def federate(
    data: FederatedData,
    ranks: Ranks,
    *,
    rule: str = "FedNNNN",
    rounds: int = 3,
    cohort_size: int = 6,
    **schedule: Any,
) -> tuple[Federation, list[RoundRecord]]:
    """Run a method on one rank."""
    model = deepcopy(INITIAL)
    sgd = LocalSGD(epochs=1, batch_size=5, learning_rate=0.1)
    sizes = tuple(data.client_size(client) for client in range(data.num_clients))
    records = []
    server = Server(find_rule(rule), RULES[rule], layout_of(model))
    with cohort_of(Inputs(model, data, CPU), sgd, seed=0, most=1, workers=1) as cohort:
        federation = Federation(
            Schedule(rounds, sizes, cohort_size, seed=0, **schedule),
            server,
            server.start(named_tensors(model)),
            cohort,
            ranks,
        )
        for number in range(ranks.start(0) + 1, rounds + 1):
            if ranks.rank:
                federation.train(number)
            else:
                records.append(federation.run_round())
    return federation, records


def on_ranks(
    size: int, data: FederatedData, **settings: Any
) -> tuple[Wire, list[tuple[Federation, list[RoundRecord]]]]:
    wire = Wire(size)

    def start(rank: int) -> tuple[Federation, list[RoundRecord]]:
        try:
            return federate(data, MpiRanks(Threads(wire, rank)), **settings)
        except BaseException:
            wire.barrier.abort()  # as `abort` ends the other ranks of a job
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(start, rank) for rank in range(size)]
    for future in futures:
        if not isinstance(future.exception(), threading.BrokenBarrierError | None):
            future.result()
    return wire, [future.result() for future in futures]


@pytest.fixture(scope="module", autouse=True)
def thread_count() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("size", "rule", "weighting"),
    [
        *((size, "FedNNNN", "uniform") for size in (1, 2, 3, 4, 8)),
        (2, "FedNNNN", "samples"),
        (3, "FedExP", "samples"),
    ],
)
def test_any_number_of_ranks_gives_the_same_bits(
    data: FederatedData, size: int, rule: str, weighting: str
) -> None:
    """Six clients: eight ranks are more than there is work for."""
    alone, records = federate(data, Ranks(), rule=rule, weighting=weighting)
    _, results = on_ranks(size, data, rule=rule, weighting=weighting)
    together, same_records = results[0]
    one, other = alone.standing.server, together.standing.server
    layout = alone.server.layout
    for ours, theirs in (
        (alone.server.state_dict(one), together.server.state_dict(other)),
        (layout.state_dict(one.evaluation), layout.state_dict(other.evaluation)),
    ):
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            assert torch.equal(tensor, theirs[name]), name
    for record, same in zip(records, same_records, strict=True):
        assert (
            record.to_json().partition('"seconds"')[0] == same.to_json().partition('"seconds"')[0]
        )


def test_three_collectives_a_round_of_the_models_size_and_a_row_a_client(
    data: FederatedData,
) -> None:
    """Of the sums 8 bytes an element and bin, of which similar clients use one or two."""
    rows = {}
    for cohort_size in (2, 6):
        wire, _ = on_ranks(2, data, rounds=2, cohort_size=cohort_size)
        for log in wire.log.values():
            names = [name for name, _ in log]
            assert names == ["allgather", *["Ibcast", "allgather", "Reduce"] * 2]
        rows[cohort_size] = [size for name, size in wire.log[1] if name == "allgather"][1:]
        state = named_tensors(INITIAL).values()
        (_, served), _, (_, sums) = wire.log[1][1:4]
        assert served == sum(tensor.numel() * tensor.element_size() for tensor in state)
        assert sums <= 8 * sum(tensor.numel() for tensor in state) * 3
    columns = 3 + 3  # weight, norm, square, and the norms of three modules
    assert max(rows[6]) - min(rows[2]) <= 3 * (columns + 2) * 16  # a pickled float is 9 bytes


def test_failures_are_counted_over_all_ranks(data: FederatedData) -> None:
    """Clients 3 and 5, the largest, are dealt to different ranks; their labels are impossible."""
    labels = data.train_labels.clone()
    for client in (3, 5):
        labels[data.client_indices[client]] = 99
    broken = replace(data, train_labels=labels)
    _, results = on_ranks(2, broken, max_client_failures=2)
    assert [record.rejected for record in results[0][1]] == [2, 2, 2]
    with pytest.raises(RunError, match=r"^round 1: .*max_client_failures allows 1$"):
        on_ranks(2, broken, max_client_failures=1)
    with pytest.raises(RunError, match=r"^round 1: client . failed \(IndexError.* allows 0$"):
        on_ranks(2, broken)
