"""A round of the simulation, from the served model to the record, on every rank."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain

from fednnnn_plugin.errors import RunError, StartError, UserError
from fednnnn_plugin.followers.follower import Follower
from fednnnn_plugin.processes.endings import raise_lost_stop
from fednnnn_plugin.processes.ranks import Ranks
from fednnnn_plugin.processes.workers import Failure
from fednnnn_plugin.quantities import RoundRecord, Seconds
from fednnnn_plugin.rounds.client_results import class_results, client_results
from fednnnn_plugin.rounds.client_vectors import ClientVectors, MethodState
from fednnnn_plugin.rounds.clock import Clock
from fednnnn_plugin.rounds.evaluation import Tested
from fednnnn_plugin.rounds.executor import Executor
from fednnnn_plugin.rounds.group_adder import GroupAdder, cause_of, refuse_failures
from fednnnn_plugin.rounds.groups import GroupTooWide, assign, plan_groups
from fednnnn_plugin.rounds.own_test import OwnTest
from fednnnn_plugin.rounds.schedule import Schedule
from fednnnn_plugin.run_folder.records import Evaluation, round_record
from fednnnn_plugin.run_folder.results import NO_RESULTS, ClassResult, ClientResult, Results
from fednnnn_plugin.server.average import ClientSum
from fednnnn_plugin.server.layout import ModelState
from fednnnn_plugin.server.server import Server, ServerState

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainState:
    """Where a federation is after a whole round."""

    server: ServerState
    round: int = 0
    integrated_norm: float = 0.0
    wall_seconds: float = 0.0
    method: MethodState = field(default_factory=MethodState)


@dataclass
class Federation:
    """What computes the rounds, on one rank."""

    schedule: Schedule
    server: Server
    executor: Executor
    ranks: Ranks
    vectors: ClientVectors  # those of the client method
    followers: Sequence[Follower] = ()
    width: int = 1  # of clients in one set of kernels, at most
    classes: Sequence[ClassResult] = ()  # that a test counts
    own_test: OwnTest | None = None  # used on rank 0, instead of the executor's

    def try_out(self, start: ServerState) -> None:
        """Try each part of a round, so that what cannot work ends the run before the first round.

        Sample a cohort, train its first client for one step, apply a synthetic update by the server
        rule, and test the initial model. If clients may fail, none is trained.

        Raises:
            UserError: the sampler or the method raised; a `StartError` where another of these did.
        """
        first, warnings = self.schedule.draw(1)[0], self.vectors.calls.try_all()
        with _trial(f"the first step of client {first}"):
            if not self.schedule.max_client_failures:
                self.executor.try_training(start.served, first)
        with _trial("a step of the server"):
            warnings += self.server.try_rule(start, self.vectors.returns)
        with _trial("a test of the model before round 1"):
            if self.own_test is None:
                self.executor.try_test(start.evaluation)
        for warning in warnings:
            _log.warning(warning)

    def simulate_round(self, before: TrainState) -> tuple[RoundRecord | None, Results, TrainState]:
        """Compute the next round (paper, algorithms 1 and 3); all ranks call this.

        Returns the round's record, what its test found by client and by class, and the state after
        it. On the ranks but 0 there is no record, and the served model of their state is
        overwritten by rank 0's.

        Raises:
            RunError: too many clients failed, no update was accepted, or the served or the
                evaluation model overflowed.
        """
        schedule, served, number = self.schedule, before.server.served, before.round + 1
        raise_lost_stop()
        clock = Clock(served.vector.device)
        self.ranks.broadcast(served.tensors)
        total = self._train(before, self._cohort(number), clock)
        if total is None:  # it is on rank 0
            self._test_round(number, served, served)
            return None, NO_RESULTS, replace(before, round=number)
        refuse_failures(schedule, number, total.seen.failed)
        try:
            update, after, move = self.server.close_round(
                number, before.server, total, schedule.seed
            )
        except UserError as error:
            raise RunError(f"round {number}: {error}") from error.__cause__
        method = self.vectors.finish_round(before.method, update.returned, update.clients)
        clock.mark("aggregate")
        of_served, evaluation, results = self._test_round(number, after.served, after.evaluation)
        clock.mark("evaluate")
        seconds = Seconds(**clock.seconds())
        integrated_norm = before.integrated_norm + move.server_update_norm
        record = round_record(
            number,
            update,
            move,
            integrated_norm=integrated_norm,
            evaluated=self.server.rule.evaluated,
            evaluation=evaluation,
            served=of_served,
            seconds=seconds,
            learning_rate=schedule.rates(number) if schedule.rates else None,
            measured=self.vectors.measured,
            results=results,
        )
        wall_seconds = before.wall_seconds + seconds.total
        return record, results, TrainState(after, number, integrated_norm, wall_seconds, method)

    def _cohort(self, number: int) -> list[int]:
        """Return a round's clients; those of a user's sampler, which may be any, are rank 0's."""
        schedule = self.schedule
        if schedule.sampler is None and schedule.available is None:
            return schedule.draw(number)
        try:
            drawn = [] if self.ranks.rank else schedule.draw(number)
            return self.ranks.broadcast_object(drawn)
        except UserError as error:
            raise RunError(str(error)) from error.__cause__

    def _train(self, before: TrainState, clients: Sequence[int], clock: Clock) -> ClientSum | None:
        """Train a round's clients, assigned to the ranks; return the sum of all updates, on rank 0.

        Where the memory of a GPU ends for a group, all ranks train the round's clients anew in
        groups of half the width, and so in the rounds after it: the bits depend on the width alone.
        """
        number = before.round + 1
        while True:
            width = self.width
            part = self._train_part(before, clients, width, clock)
            fits = isinstance(part, ClientSum)
            if width == 1 or all(self.ranks.allgather(fits)):
                assert isinstance(part, ClientSum)
                self.vectors.collect()
                return self.ranks.reduce(part)
            self.executor.give_back_memory()
            self.width = width // 2
            _log.warning(
                "round %d: %d clients in one set of kernels need more memory than the GPU has: "
                "%d from now on (%s)",
                *(number, width, width // 2, "on another rank" if fits else part),
            )

    def _train_part(
        self, before: TrainState, clients: Sequence[int], width: int, clock: Clock
    ) -> ClientSum | GroupTooWide:
        """Train this rank's clients and add up their updates, or return why its GPU cannot."""
        schedule, vectors, number = self.schedule, self.vectors, before.round + 1
        served, sizes = before.server.served, schedule.client_sizes
        groups = plan_groups(clients, sizes, width, schedule.least_groups)
        work = [
            len(group) if schedule.equal_work else sum(sizes[client] for client in group)
            for group in groups
        ]
        assignment = assign(groups, work, self.ranks.size)
        mine = assignment[self.ranks.rank]
        weights_of = {client: schedule.weight(client) for client in clients}
        vectors.begin(number, before.method, assignment, served, weights_of)
        total = ClientSum(self.server.layout, served, schedule.max_client_norm, vectors.returns)
        adding = GroupAdder(
            *(number, served, total, clock, schedule, vectors, self.followers),
            clients=sum(map(len, mine)),
        )
        try:
            self.executor.train(served, number, mine, adding.add, vectors.correction)
            adding.finish()
        except GroupTooWide as error:
            return error.with_traceback(None)  # whose frames hold the group's memory
        return total

    def _test_round(
        self, number: int, served: ModelState, evaluation: ModelState
    ) -> tuple[Evaluation | None, Evaluation | None, Results]:
        """Test the models of rank 0 after a round, where that is due; all ranks call this.

        On the others nothing is found, and the models that they give are overwritten.
        """
        schedule = self.schedule
        if not schedule.tests(number):
            return None, None, NO_RESULTS
        of_served = self._test(number, served) if schedule.test_served else None
        found = self._test(number, evaluation)
        clients: Sequence[ClientResult] = ()
        if schedule.tests_clients(number):
            clients = client_results(self._test_batches(number, evaluation, by_client=True))
        counts = found.by_class if found else ()
        classes = class_results(counts, self.classes) if counts else ()
        return of_served, found, Results(clients, classes)

    def _test(self, number: int, state: ModelState) -> Evaluation | None:
        """Test a model: on all ranks, or on rank 0 as a user does; None where there is no batch."""
        tallied = [] if self.own_test else self._test_batches(number, state)
        if self.ranks.rank or not (tallied or self.own_test):
            return None
        with _test_of(number):
            return (
                self.own_test(number, state) if self.own_test else self.executor.evaluate(tallied)
            )

    def _test_batches(
        self, number: int, state: ModelState, *, by_client: bool = False
    ) -> list[Tested]:
        """Test rank 0's model, which overwrites others', on all ranks; rank 0 has the results."""
        ranks = self.ranks
        ranks.broadcast(state.tensors)
        with _test_of(number):
            part = self.executor.test(state, ranks.rank, ranks.size, by_client=by_client)
        return [*chain.from_iterable(ranks.gather(part))]


@contextmanager
def _trial(what: str) -> Iterator[None]:
    """Say what failed before there is a round."""
    try:
        yield
    except UserError as error:
        raise StartError(f"{error}; tried before round 1") from error.__cause__
    except Failure as error:
        raise StartError(f"{what} failed", error) from cause_of(error)


@contextmanager
def _test_of(number: int) -> Iterator[None]:
    """Name the round in the errors of its test."""
    try:
        yield
    except (Failure, UserError) as error:
        _log.info("round %d: test", number, exc_info=True)
        raise RunError(f"round {number}: the test failed ({error})") from cause_of(error)
