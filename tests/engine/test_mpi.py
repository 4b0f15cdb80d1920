"""Several ranks: their sum is the one of a single process.

Here the ranks are threads, with a communicator of our own.
"""

import json
import logging
import pickle
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib import import_module
from logging.handlers import MemoryHandler
from pathlib import Path
from queue import Queue
from typing import Any

import mpi4py
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fednnnn_plugin.client.group_sgd import GroupSGD
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine import training
from fednnnn_plugin.engine.ranks import MpiRanks, Ranks
from fednnnn_plugin.errors import RunError
from fednnnn_plugin.models import create_model
from fednnnn_plugin.server.average import UpdateAccumulator

mpi4py.rc.initialize = False  # the constants are enough
MPI = import_module("mpi4py.MPI")


@dataclass
class Wire:
    """What the ranks of one job share."""

    size: int
    slots: dict[int, Any] = field(default_factory=dict)
    told: dict[int, Queue[Any]] = field(default_factory=lambda: defaultdict(Queue))

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size, timeout=60)


class Threads:
    """A rank's side of a communicator between threads; knows the calls that `MpiRanks` makes."""

    def __init__(self, wire: Wire, rank: int) -> None:
        self._wire, self._rank = wire, rank
        self.Get_rank, self.Get_size = lambda: rank, lambda: wire.size
        self.Split_type = lambda kind: Threads(Wire(1), 0)
        self.Free = lambda: None
        self.Dup = lambda: self
        self.Ibarrier = lambda: self
        self.Test = lambda: True
        self.wait = lambda: None

    def Ibcast(self, values: np.ndarray) -> "Threads":  # noqa: N802
        values[...] = self._exchange(values)[0]
        return self

    def allgather(self, value: Any) -> list[Any]:
        given = np.frombuffer(pickle.dumps(value), np.uint8)
        return [pickle.loads(content.tobytes()) for content in self._exchange(given)]

    def gather(self, value: Any) -> list[Any] | None:
        given = self.allgather(value)
        return None if self._rank else given

    def scatter(self, values: Any) -> Any:
        return self.allgather(values)[0][self._rank]

    def allreduce(self, value: int, operation: Any) -> int:
        assert operation == MPI.MIN
        return min(self.allgather(value))

    def bcast(self, value: Any) -> Any:
        return self.allgather(value)[0]

    def isend(self, value: Any, rank: int) -> "Threads":
        self._wire.told[rank].put(value)
        return self

    def Iprobe(self, source: int) -> bool:  # noqa: N802
        return not self._wire.told[self._rank].empty()

    def recv(self, source: int) -> Any:
        return self._wire.told[self._rank].get_nowait()

    def Reduce(self, mine: Any, total: np.ndarray | None, operation: Any) -> None:  # noqa: N802
        assert operation == MPI.SUM
        values = self._exchange(total if mine is MPI.IN_PLACE else mine)
        if total is not None:
            total[...] = np.add.reduce(np.stack(values))

    def _exchange(self, values: np.ndarray) -> list[np.ndarray]:
        assert values.flags.c_contiguous
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


with torch.random.fork_rng([]):
    torch.manual_seed(0)
    INITIAL = Normalised()

Job = Callable[..., None]
Run = Callable[..., Any]
SETTINGS = {"epochs": 1, "client_num_per_round": 6}


@pytest.fixture
def job(run: Run, recipe: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """Run the tiny federation on some ranks, in ``tmp_path / "job"``.

    None forks: a fork would find locks that the other ranks held. And none sets how many threads an
    operator has while another trains: MKL's number is the process's, and the bits depend on it.
    """
    monkeypatch.setattr(training, "why_not_forked", lambda _: "the ranks are threads")
    lock, probe = threading.Lock(), training._takes_any_order

    def one_at_a_time(*given: Any) -> Any:
        with lock:  # torch's generator, which is the process's, waits for ever where two seed it
            return probe(*given)

    monkeypatch.setattr(training, "_takes_any_order", one_at_a_time)

    def start(size: int, data: FederatedData, **settings: Any) -> None:
        model = settings.pop("model", INITIAL)
        wire, given = Wire(size), recipe(**SETTINGS | settings)

        def rank(number: int) -> None:
            try:
                ranks = MpiRanks(Threads(wire, number))
                folder = tmp_path / "job"
                run(given, folder, model=model, data=data, ranks=ranks, mode="overwrite")
            except BaseException:
                wire.barrier.abort()  # as `abort` ends the other ranks of a job
                raise

        with ThreadPoolExecutor(size) as pool:
            futures = [pool.submit(rank, number) for number in range(size)]
        for future in futures:
            if not isinstance(future.exception(), threading.BrokenBarrierError | None):
                future.result()

    before = torch.get_num_threads(), logging.getLogger().level
    torch.set_num_threads(1)
    yield start
    torch.set_num_threads(before[0])
    logging.getLogger().setLevel(before[1])


@pytest.mark.parametrize(
    ("size", "settings"),
    [
        *((size, {}) for size in (1, 3, 8)),
        (2, {"client_weighting": "samples"}),
        (4, {"federated_optimizer": "FedExP", "beta": None, "gamma": None}),
    ],
)
def test_ranks_of_any_number_give_the_same_bits(
    run: Run,
    recipe: Run,
    job: Job,
    content: Run,
    data: FederatedData,
    tmp_path: Path,
    size: int,
    settings: dict[str, Any],
) -> None:
    """Six clients: eight ranks are more than there is work for."""
    run(recipe(**SETTINGS | settings), tmp_path / "alone", model=INITIAL)
    job(size, data, **settings)
    assert content(tmp_path / "job") == content(tmp_path / "alone")


def test_ranks_halve_groups_where_one_lacks_memory(
    run: Run,
    recipe: Run,
    job: Job,
    content: Run,
    data: FederatedData,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    ended: list[int] = []

    def ends_once(self: GroupSGD, start: Any, clients: int) -> Any:
        if clients == 4 and not ended:
            ended.append(4)
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return all_at(self, start, clients)

    all_at = GroupSGD._all_at
    monkeypatch.setattr(GroupSGD, "_all_at", ends_once)
    settings = {"client_batching": 4, "comm_round": 2}
    job(2, data, model=create_model("nnnn_digits", 0), **settings)
    assert ended.pop() == 4
    run(recipe(**SETTINGS | settings), tmp_path / "alone")
    assert content(tmp_path / "job") == content(tmp_path / "alone")
    kept = [(tmp_path / name / "client_batching.json").read_text() for name in ("job", "alone")]
    assert [json.loads(text) for text in kept] == [{"0": 4, "1": 2}] * 2


def test_rank_without_a_log_keeps_no_records(run: Run, recipe: Run, tmp_path: Path) -> None:
    """Those of failures kept the models that had failed, to the end of the run."""

    class Second(Ranks):
        rank, size = 1, 2

        def start(self, _round_number: int | None) -> int:
            return 0

        def reduce(self, _part: UpdateAccumulator) -> None:
            logging.getLogger("anybody").warning("said")
            held = [h.buffer for h in logging.getLogger().handlers if isinstance(h, MemoryHandler)]
            assert held == [[]]

    assert run(recipe(), tmp_path / "run", ranks=Second()) is None
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("allowed", "reason"), [(1, "max_client_failures allows 1"), (0, r"client . failed \(IndexErr")]
)
def test_failures_are_counted_over_all_ranks(
    job: Job, records: Run, data: FederatedData, tmp_path: Path, allowed: int, reason: str
) -> None:
    """Clients 3 and 5, the largest, are dealt to different ranks; their labels are impossible."""
    labels = data.train_labels.clone()
    for client in (3, 5):
        labels[data.client_indices[client]] = 99
    broken = replace(data, train_labels=labels)
    with pytest.raises(RunError, match=f"^round 1: .*{reason}"):
        job(2, broken, max_client_failures=allowed)
    job(2, broken, max_client_failures=2)
    assert [record["rejected"] for record in records(tmp_path / "job")] == [2, 2, 2]
