"""Training a round's clients, and testing a model, in one process."""

from __future__ import annotations

import copy
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import TracebackType
from typing import Protocol, TypeVar

import torch
from torch import nn

from fednnnn_plugin.client.group_sgd import GroupSGD
from fednnnn_plugin.client.groups import Group
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.replica import Replica
from fednnnn_plugin.engine.batches import Batch, ClientBatches, TensorBatches
from fednnnn_plugin.engine.evaluation import Evaluation, Tally, evaluation, tally
from fednnnn_plugin.seeds import isolated_generators, torch_generator
from fednnnn_plugin.server.layout import Layout, ModelState, State

_log = logging.getLogger(__name__)
T = TypeVar("T")

#: A group's models ``[m, d]`` in the order of the group; one by names that a user's trainer gave;
#: or why there are none.
Outcome = ModelState | State | Exception
#: Takes a group's outcome as soon as its training ends. One call at a time; the tensors are
#: overwritten after it returns.
Consume = Callable[[Group, Outcome], None]


class ClientTraining(Protocol):
    """How one client trains."""

    def __call__(
        self, replica: Replica, round_number: int, client: int, stopping: threading.Event
    ) -> ModelState | State:
        """Return the client's model, trained from the replica's, which it may change."""


class Stopped(Exception):
    """The round is being abandoned."""


def draw_cohort(seed: int, round_number: int, num_clients: int, cohort_size: int) -> list[int]:
    """Draw m of K clients uniformly without replacement, in increasing order."""
    generator = torch_generator(seed, "cohort", round_number)
    return sorted(torch.randperm(num_clients, generator=generator)[:cohort_size].tolist())


class SGDTraining:
    """Trains the replica with :class:`LocalSGD` on the client's batches."""

    def __init__(self, sgd: LocalSGD, batches: ClientBatches) -> None:
        self._sgd = sgd
        self._batches = batches

    def __call__(
        self, replica: Replica, round_number: int, client: int, stopping: threading.Event
    ) -> ModelState:
        """Return the replica's tensors, trained, as a group of one."""
        epochs = self._batches.epochs(client, round_number)
        self._sgd.train(replica, (_until(stopping, batches) for batches in epochs))
        return replica.state.as_group()


class GroupTraining:
    """Trains a group in one set of kernels, each client in the order that it has alone."""

    def __init__(self, sgd: GroupSGD, batches: TensorBatches) -> None:
        self._sgd = sgd
        self._batches = batches

    def __call__(
        self, served: ModelState, round_number: int, group: Group, stopping: threading.Event
    ) -> ModelState:
        """Return the models in the order of the group."""
        orders = [self._batches.orders(client, round_number) for client in group]
        return self._sgd.train(served, orders, partial(_raise_if, stopping))


class Cohort:
    """Trains clients ``workers`` at a time; a client trains on one thread.

    So its bits depend neither on how many train beside it nor on the number of cores. Memory: one
    model a worker, whatever the size of the cohort.

    Args:
        model: copied for every worker; in the dtype and on the device of the batches.
        layout: of its state.
        training: how one client trains.
        batches: for the test set.
        group_training: how a group of several clients trains, if there are such.
        workers: clients side by side.
        channels_last: see :class:`~fednnnn_plugin.client.replica.Replica`.
        seed: for a model, data or training that may draw from the global generators: each client
            then trains alone, with the generators seeded for it and restored after.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        training: ClientTraining,
        batches: ClientBatches,
        *,
        group_training: GroupTraining | None = None,
        workers: int = 1,
        channels_last: bool = False,
        seed: int | None = None,
    ) -> None:
        self._training = training
        self._group_training = group_training
        self._batches = batches
        self._seed = seed
        self._workers = workers if seed is None else 1
        self._replicas: queue.SimpleQueue[Replica] = queue.SimpleQueue()
        for _ in range(self._workers):
            replica = Replica(copy.deepcopy(model), layout, channels_last=channels_last)
            self._replicas.put(replica)
        self._consuming = threading.Lock()
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(self._workers, "client", _use_one_thread)

    def __enter__(self) -> Cohort:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._pool.shutdown(cancel_futures=True)
        # A worker's set_num_threads is also what threads started later begin with.
        torch.set_num_threads(torch.get_num_threads())

    def train(
        self, served: ModelState, round_number: int, groups: Sequence[Group], consume: Consume
    ) -> None:
        """Train the clients from ``served``, in any order.

        An exception that training raises goes to ``consume``; one that ``consume`` raises, or an
        interrupt, abandons the round and is raised here.
        """

        def train_group(group: Group) -> None:
            with self._replica(served) as replica, self._generators(round_number, group[0]):
                try:
                    outcome: Outcome
                    if len(group) > 1 and self._group_training:
                        outcome = self._group_training(served, round_number, group, self._stopping)
                    else:
                        outcome = self._training(replica, round_number, group[0], self._stopping)
                except Stopped:
                    return
                except Exception as error:
                    _log.warning("round %d: clients %s", round_number, list(group), exc_info=True)
                    outcome = error
                with self._consuming:
                    consume(group, outcome)

        self._all([self._pool.submit(train_group, group) for group in groups])

    def test(self, state: ModelState) -> Evaluation:
        """Test a model on the test set."""

        def test_part(batches: Iterable[Batch]) -> list[Tally]:
            with self._replica(state) as replica, self._generators(0, 0):
                replica.model.eval()
                return [tally(replica.model, batch) for batch in batches]

        parts = _parts(self._batches.test(), self._workers)
        tallies = self._all([self._pool.submit(test_part, part) for part in parts])
        return evaluation(tally for part in tallies for tally in part)

    def alone(self, call: Callable[[], T]) -> T:
        """Call a user's code as a client is trained: on one thread, the generators seeded."""

        def seeded() -> T:
            with self._generators(0, 0):
                return call()

        return self._all([self._pool.submit(seeded)])[0]

    @contextmanager
    def _replica(self, state: ModelState) -> Iterator[Replica]:
        replica = self._replicas.get()
        try:
            replica.load(state)
            yield replica
        finally:
            self._replicas.put(replica)

    def _generators(self, round_number: int, client: int) -> AbstractContextManager[None]:
        if self._seed is None:
            return nullcontext()
        return isolated_generators(self._seed, "client", round_number, client)

    def _all(self, futures: list[Future[T]]) -> list[T]:
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            self._stopping.set()
            for future in futures:
                future.cancel()
            wait(futures)
            raise
        return [future.result() for future in futures]


def _use_one_thread() -> None:
    torch.set_num_threads(1)


def _until(stopping: threading.Event, batches: Iterable[Batch]) -> Iterator[Batch]:
    for batch in batches:
        _raise_if(stopping)
        yield batch


def _raise_if(stopping: threading.Event) -> None:
    if stopping.is_set():
        raise Stopped


def _parts(batches: Iterable[Batch], count: int) -> list[Iterable[Batch]]:
    """Cut the batches into ``count`` runs of neighbours; one run is left as it is."""
    if count == 1:
        return [batches]
    listed = list(batches)
    size = -(-len(listed) // count) or 1
    return [listed[start : start + size] for start in range(0, len(listed), size)]
