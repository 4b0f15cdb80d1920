"""Training a round's clients, and testing a model, in one process."""

import copy
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import TypeVar

import torch
from torch import nn

from fednnnn_plugin.client.groups import Group
from fednnnn_plugin.client.replica import Replica
from fednnnn_plugin.engine.batches import Batch, Batches
from fednnnn_plugin.engine.evaluation import Evaluation, Tally, evaluation, tally
from fednnnn_plugin.seeds import isolated_generators, torch_generator
from fednnnn_plugin.server.layout import ModelState, State

_log = logging.getLogger(__name__)
S = TypeVar("S")
T = TypeVar("T")

Step = Callable[[], None]
#: How a group trains: from a replica that holds the served model, which it may change, the round's
#: number, the clients, and what it calls before each step. It gives the models ``[m, d]`` in the
#: order of the group, or one by names.
Training = Callable[[Replica, int, Group, Step], ModelState | State]
#: What the training of a group gave, or why it gave nothing.
Outcome = ModelState | State | Exception | SystemExit
#: Takes a group's outcome as soon as its training ends. One call at a time; the tensors are
#: overwritten after it returns.
Consume = Callable[[Group, Outcome], None]


class Stopped(Exception):
    """The round is being abandoned."""


def draw_cohort(seed: int, round_number: int, num_clients: int, cohort_size: int) -> list[int]:
    """Draw m of K clients uniformly without replacement, in increasing order."""
    generator = torch_generator(seed, "cohort", round_number)
    return sorted(torch.randperm(num_clients, generator=generator)[:cohort_size].tolist())


class Cohort:
    """Trains groups of clients ``workers`` at a time; each on one thread.

    So its bits depend neither on how many train beside it nor on the number of cores. Memory: one
    model a worker, whatever the size of the cohort. A ``seed`` is for a model, data or training
    that may draw from the global generators: each client then trains alone, with the generators
    seeded for it and restored after. Models are tested on the batches, or as ``own_test`` does.
    """

    def __init__(
        self,
        model: nn.Module,
        training: Training,
        batches: Batches,
        *,
        workers: int = 1,
        seed: int | None = None,
        own_test: Callable[[ModelState], Evaluation] | None = None,
    ) -> None:
        self._model, self._training, self._batches, self._seed = model, training, batches, seed
        self._workers = workers if seed is None else 1
        self._own_test = own_test
        self._worker = threading.local()
        self._consuming, self._stopping = threading.Lock(), threading.Event()
        self._pool = ThreadPoolExecutor(self._workers, "client", torch.set_num_threads, (1,))

    def __enter__(self) -> "Cohort":
        return self

    def __exit__(self, *_: object) -> None:
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
            with self._generators(round_number, group[0]):
                outcome: Outcome
                replica = self._replica(served)
                try:
                    outcome = self._training(replica, round_number, group, self._go_on)
                except Stopped:
                    return
                except (Exception, SystemExit) as error:
                    _log.info("round %d: clients %s", round_number, list(group), exc_info=True)
                    outcome = error
                with self._consuming:
                    consume(group, outcome)

        self._each(train_group, groups)

    def test(self, state: ModelState) -> Evaluation:
        """Test a model, as a client is trained: on one thread, the generators seeded."""

        def test_own(own_test: Callable[[ModelState], Evaluation]) -> Evaluation:
            with self._generators(0, 0):
                return own_test(state)

        def test_part(batches: Iterable[Batch]) -> list[Tally]:
            with self._generators(0, 0):
                model = self._replica(state).model.eval()
                return [tally(model, self._batches.staged(batch)) for batch in batches]

        if self._own_test:
            return self._each(test_own, [self._own_test])[0]
        parts = _parts(self._batches.test(), self._workers)
        return evaluation(chain.from_iterable(self._each(test_part, parts)))

    def _replica(self, state: ModelState) -> Replica:
        """Return this worker's, with a state loaded; a new one of a model that is not ours.

        Such a model may have more of its own than its state holds, which no client is to inherit.
        """
        if self._seed is not None or not hasattr(self._worker, "replica"):
            self._worker.replica = Replica(copy.deepcopy(self._model))
        replica: Replica = self._worker.replica
        replica.load(state)
        return replica

    def _generators(self, round_number: int, client: int) -> AbstractContextManager[None]:
        if self._seed is None:
            return nullcontext()
        return isolated_generators(self._seed, "client", round_number, client)

    def _go_on(self) -> None:
        if self._stopping.is_set():
            raise Stopped

    def _each(self, call: Callable[[S], T], items: Iterable[S]) -> list[T]:
        """Let the workers call a function with each item; return the results in order."""
        futures = [self._pool.submit(call, item) for item in items]
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


def _parts(batches: Iterable[Batch], count: int) -> list[Iterable[Batch]]:
    """Cut the batches into ``count`` runs of neighbours; one run is left as it is."""
    if count == 1:
        return [batches]
    listed = list(batches)
    size = -(-len(listed) // count) or 1
    return [listed[start : start + size] for start in range(0, len(listed), size)]
