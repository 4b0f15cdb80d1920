"""Training a round's clients, and testing a model, in one process."""

import copy
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from functools import partial
from itertools import islice
from operator import itemgetter
from types import MappingProxyType

from torch import nn

from fednnnn_plugin.client.correction import Correction
from fednnnn_plugin.client.group_sgd import Group
from fednnnn_plugin.client.loss import CROSS_ENTROPY, Loss
from fednnnn_plugin.client.replica import Replica
from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.processes.devices import is_out_of_memory
from fednnnn_plugin.processes.workers import Call, Failure, Step, Threads, Workers, all_of
from fednnnn_plugin.rounds.batches import Batches
from fednnnn_plugin.rounds.evaluation import Metric, Tested, evaluation, tally
from fednnnn_plugin.rounds.groups import GroupTooWide
from fednnnn_plugin.run_folder.records import Evaluation
from fednnnn_plugin.seeds import isolated_generators
from fednnnn_plugin.server.layout import ModelState
from fednnnn_plugin.user_code import on_threads

_log = logging.getLogger(__name__)

#: How a group trains: from a replica that holds the served model, which it may change, the round's
#: number, the clients, what a method changes in their steps, and what it calls before each step. It
#: gives the models ``[m, d]`` in the order of the group.
Training = Callable[[Replica, int, Group, Correction | None, Step], ModelState]
#: A group's correction, if its method has one.
CorrectionOf = Callable[[Group], Correction | None]
#: Takes a group's models as soon as its training ends, or why there are none; the tensors are
#: overwritten after it returns.
Consume = Callable[[Group, ModelState | Exception], None]


class _StepDone(Exception):
    """The one step that is tried has been made."""


class Executor:
    """Trains groups of clients side by side, by ``workers``; each on one thread.

    So its bits depend neither on how many train beside it nor on the number of cores. Memory: one
    model a worker, whatever the size of the cohort. A ``seed`` is for a model, data or training
    that may draw from the global generators: they are then seeded for each client, and for each
    batch of the test, and restored after. A custom trainer has no batches to test a model on. A
    training that is not ``in_steps`` calls nothing before each of them. To ``give_back`` is to let
    go of memory that the training keeps from round to round.
    """

    def __init__(
        self,
        model: nn.Module,
        training: Training,
        batches: Batches | None = None,
        *,
        workers: Workers | None = None,
        seed: int | None = None,
        loss: Loss = CROSS_ENTROPY,
        metrics: Mapping[str, Metric] = MappingProxyType({}),
        classes: int = 0,
        in_steps: bool = True,
        give_back: Callable[[], None] | None = None,
    ) -> None:
        self._model, self._training, self._batches, self._seed = model, training, batches, seed
        self._loss, self._metrics, self._in_steps = loss, metrics, in_steps
        self._classes = classes  # of which each is counted in a test
        self._give_back = give_back
        self.workers = workers or Threads()
        self._worker = threading.local()
        self._warned = set[str]()  # kinds of warning that were logged, each once

    def __enter__(self) -> "Executor":
        self.workers.__enter__()
        return self

    def __exit__(self, *ended: object) -> None:
        """Wait for the clients of an abandoned round; give back the memory that training kept.

        A traceback that lives on, as in a notebook, would hold that memory.
        """
        self.workers.__exit__(*ended)
        self.give_back_memory()

    def train(
        self,
        served: ModelState,
        round_number: int,
        groups: Sequence[Group],
        consume: Consume,
        correction: CorrectionOf | None = None,
    ) -> None:
        """Train the clients from ``served``, in any order; each worker computes the corrections.

        Where one client makes the training of a group fail, each of the group trains alone: no
        other fails with it. An exception that training a client raises goes to ``consume``; where
        the memory of a GPU ends for a group of several, that is ``GroupTooWide``. One that
        ``consume`` raises, or an interrupt, abandons the round and is raised here, at once.
        """
        train_group = partial(self._train_group, served, round_number, correction)
        with on_threads(1):
            while groups:
                calls = [partial(train_group, group) for group in groups]
                groups = self._consume_all(groups, calls, round_number, consume)

    def _consume_all(
        self, groups: Sequence[Group], calls: Sequence[Call], round_number: int, consume: Consume
    ) -> list[Group]:
        """Train groups; return the clients of those that failed, as groups of one."""
        alone: list[Group] = []
        with closing(self.workers.each(calls)) as ended:
            for place, trained in ended:
                group, failed = groups[place], isinstance(trained, Exception)
                if failed:
                    _log.info("round %d: clients %s", round_number, group, exc_info=trained)
                is_taken = not failed or len(group) == 1
                if is_taken:
                    consume(group, trained)  # which may raise it: a debugger then has its locals
                if isinstance(trained, Failure):
                    trained.forget_locals()
                if is_taken:
                    continue
                why = " ".join(str(trained).split())
                if is_out_of_memory(trained.__cause__):
                    raise GroupTooWide(why)
                said = "round %d: a group of %d clients failed, and each trains alone: %s"
                self._warn_once("alone", said, round_number, len(group), why)
                alone += [(client,) for client in group]
        return alone

    def _warn_once(self, of: str, message: str, *given: object) -> None:
        if of not in self._warned:
            self._warned.add(of)
            _log.warning(message, *given)

    def _train_group(
        self,
        served: ModelState,
        round_number: int,
        correction: CorrectionOf | None,
        group: Group,
        before_step: Step,
    ) -> ModelState:
        with self._generators("client", round_number, group[0]):
            replica = self._replica(served)
            more = correction(group) if correction else None
            return self._training(replica, round_number, group, more, before_step)

    def try_training(self, served: ModelState, client: int) -> None:
        """Have a worker make the first step of a client in round 1; raise what that raises.

        A custom trainer is not tried: it makes all steps, and may keep something.
        """
        if self._in_steps:
            all_of(self.workers, [partial(self._first_step, served, client)])

    def _first_step(self, served: ModelState, client: int, before_step: Step) -> None:
        begun = False

        def once() -> None:
            nonlocal begun
            if begun:
                raise _StepDone
            before_step()
            begun = True

        with suppress(_StepDone):
            self._train_group(served, 1, None, (client,), once)

    def try_test(self, state: ModelState) -> None:
        """Test a model on the first batch alone, which is as large as memory is to allow.

        Where there are metrics, on all: one may need every class. One of the user's that has no
        value of a model, such as an untrained one, is a warning.
        """
        if self._metrics:
            try:
                self.evaluate(self.test(state))
            except UserError as error:
                if not isinstance(error.__cause__, ArithmeticError | ValueError):
                    raise
                _log.warning("before round 1: %s", error)
        else:
            all_of(self.workers, [partial(self._test_part, state, False, 0, 1, stop=1)])

    def test(
        self, state: ModelState, part: int = 0, of: int = 1, *, by_client: bool = False
    ) -> list[Tested]:
        """Test a model on every ``of``-th batch from ``part`` on: of all, or ``by_client``."""
        step = of * self.workers.count
        test = partial(self._test_part, state, by_client)
        calls = [partial(test, first, step) for first in range(part, step, of)]
        with on_threads(1):
            return [found for tallies in self._tested(calls) for found in tallies]

    def _tested(self, calls: Sequence[Call]) -> list[list[Tested]]:
        try:
            return all_of(self.workers, calls)
        except Failure as error:
            if self._give_back is None or not is_out_of_memory(error.__cause__):
                raise
            error.forget_locals()
        self._warn_once(
            "given back",
            "a test needs the memory that the training keeps: it is given back before each test, "
            "and taken anew after it, which takes time",
        )
        self.give_back_memory()
        return all_of(self.workers, calls)

    def give_back_memory(self) -> None:
        """Let go of what the training keeps from round to round."""
        if self._give_back:
            self._give_back()

    def _test_part(
        self,
        state: ModelState,
        by_client: bool,
        first: int,
        step: int,
        _: Step,
        stop: int | None = None,
    ) -> list[Tested]:
        assert self._batches is not None
        keep, classes = (False, 0) if by_client else (bool(self._metrics), self._classes)
        test = partial(tally, loss=self._loss, keep=keep, classes=classes)
        with self._generators("client", 0, 0):
            replica = self._replica(state)
            whole = replica.model
            whole.eval()
            weights = {id(each): each for each in whole.parameters()}
            every = self._batches.test(by_client=by_client)
            found = list[Tested]()
            for place, (client, batch) in islice(enumerate(every), first, stop, step):
                # Whoever tests the batches before it, and whatever those leave in a user's model.
                with self._generators("test", 0, place):
                    model = whole
                    if self._seed is not None:
                        replica.load(state)  # the copies share the weights, which may have moved
                        model = copy.deepcopy(whole, dict(weights))
                    found.append(((client, place), test(model, self._batches.staged(batch))))
            return found

    def evaluate(self, tallied: Iterable[Tested]) -> Evaluation:
        """Put together what all ranks' parts of a test found."""
        tallies = [found for _, found in sorted(tallied, key=itemgetter(0))]
        found = evaluation(tallies, self._metrics)
        for name in self._metrics.keys() - (found.metrics or {}).keys():
            self._warn_once(
                f"metric {name}",
                "validation_args.metrics: %s: gives NaN or infinity, recorded as no value here and "
                "wherever it does again",
                printable(name),
            )
        return found

    def _replica(self, state: ModelState) -> Replica:
        """Return this worker's, with a state loaded; a new one of a model that is not ours.

        Such a model may have more of its own than its state holds, which no client is to inherit.
        """
        if self._seed is not None or not hasattr(self._worker, "replica"):
            self._worker.replica = Replica(copy.deepcopy(self._model))
        replica: Replica = self._worker.replica
        replica.load(state)
        return replica

    def _generators(
        self, purpose: str, round_number: int, number: int
    ) -> AbstractContextManager[None]:
        if self._seed is None:
            return nullcontext()
        return isolated_generators(self._seed, purpose, round_number, number)
