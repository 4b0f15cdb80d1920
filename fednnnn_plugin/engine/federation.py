"""The round loop."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from fednnnn_plugin.client.groups import Group, plan_groups
from fednnnn_plugin.engine.client_vectors import NO_STATE, ClientVectors, MethodState
from fednnnn_plugin.engine.cohort import Cohort, GroupTooWide, Outcome
from fednnnn_plugin.engine.devices import Clock
from fednnnn_plugin.engine.endings import raise_lost_stop
from fednnnn_plugin.engine.evaluation import Evaluation, Tally
from fednnnn_plugin.engine.progress import Follower
from fednnnn_plugin.engine.ranks import Ranks, deal
from fednnnn_plugin.engine.records import RoundRecord, Seconds, round_record
from fednnnn_plugin.engine.sampling import Sampler, draw_cohort
from fednnnn_plugin.engine.widths import Widths, width_in
from fednnnn_plugin.engine.workers import Failure
from fednnnn_plugin.errors import RunError, UserError
from fednnnn_plugin.server.average import UpdateAccumulator
from fednnnn_plugin.server.layout import ModelState
from fednnnn_plugin.server.server import Server, ServerMove, ServerState
from fednnnn_plugin.server.update import Update

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Schedule:
    """What a federation does in each round."""

    rounds: int  # the number of the last one
    client_sizes: tuple[int, ...]  # samples of each of the K clients
    cohort_size: int  # m, clients a round
    seed: int  # of the cohorts, and of what a user's rule draws
    weighting: Literal["uniform", "samples"] = "uniform"  # α_k = 1/m, or n_k/n
    sampler: Sampler | None = None  # a user's own, of the cohorts; None draws uniformly
    test_every: int = 1  # rounds with (round - 1) % test_every = 0 are tested, and the last
    test_served: bool = False  # the served model as well
    max_client_failures: int = 0  # of a round, before the run ends
    max_client_norm: float | None = None  # longer updates are clipped to it
    least_groups: int = 1  # of a round, where it has as many clients


@dataclass(frozen=True)
class Standing:
    """Where a federation is after a whole round; replaced as one, whatever interrupts it."""

    server: ServerState
    round: int = 0
    integrated_norm: float = 0.0
    wall_seconds: float = 0.0
    method: MethodState = NO_STATE


class Federation:
    """Serve, train the cohort, average, move the server, test: once a round.

    The ranks but 0 start with a state whose served model rank 0's overwrites.
    """

    def __init__(
        self,
        schedule: Schedule,
        server: Server,
        start: ServerState,
        cohort: Cohort,
        ranks: Ranks,
        followers: Sequence[Follower] = (),
        widths: Widths | None = None,
        vectors: ClientVectors | None = None,
    ) -> None:
        self._schedule, self._cohort, self._ranks = schedule, cohort, ranks
        self.followers = followers
        self.server = server
        self.rounds = schedule.rounds
        self.widths: Widths = widths or {0: 1}  # clients in one set of kernels, at most
        self.vectors = vectors  # those of a client method that has some
        self.standing = Standing(start, method=vectors.start() if vectors else NO_STATE)

    def run_round(self, keep: Callable[[RoundRecord], None] | None = None) -> RoundRecord:
        """Do the next round, on rank 0, and ``keep`` its record before the round counts as done.

        After an error, such as ``RunError`` where too many clients failed, no update was accepted
        or the served model overflowed, the standing is that before the round.
        """
        before = self.standing
        number = before.round + 1
        total = self.train(number)
        assert total is not None
        self._refuse_failures(number, total.known.failed)
        update, state, move = self._move(number, total)
        method = before.method
        if self.vectors:
            method = self.vectors.finish_round(method, update.returned, update.clients)
        self._clock.mark("aggregate")
        served = self._test(number, state.served) if self._tests(number) > 1 else None
        tested = self._test(number, state.evaluation) if self._tests(number) else None
        self._clock.mark("evaluate")
        seconds = self._clock.seconds()
        integrated_norm = before.integrated_norm + move.server_update_norm
        record = round_record(
            number,
            update,
            move,
            integrated_norm=integrated_norm,
            evaluated=self.server.rule.evaluated,
            evaluation=tested,
            served=served,
            seconds=Seconds(**seconds),
        )
        if keep:
            keep(record)
        wall_seconds = before.wall_seconds + sum(seconds.values())
        self.standing = Standing(state, number, integrated_norm, wall_seconds, method)
        return record

    def try_test(self) -> None:
        """Test the start on one batch: what has no room ends the run before the first round."""
        with _named(self.standing.round + 1):
            self._cohort.try_test(self.standing.server.evaluation)

    def try_draw(self) -> None:
        """Draw a cohort: what is wrong with a sampler ends the run before the first round."""
        self._draw(self.standing.round + 1)

    def assist(self, number: int) -> None:
        """Do this rank's part of a round, on the others than rank 0."""
        self.train(number)
        for _ in range(0 if self._cohort.tests_alone else self._tests(number)):
            self._test_part(number, self.standing.server.served)

    def train(self, number: int) -> UpdateAccumulator | None:
        """Train this rank's clients of a round; on rank 0, add up all ranks'.

        Where the memory of a GPU ends for a group, all ranks train the round's clients anew in
        groups of half the width, and so in the rounds after it: the bits depend on the width alone.
        """
        raise_lost_stop()
        self._clock = Clock(self.standing.server.served.vector.device)
        self._ranks.serve(self.standing.server.served.tensors)
        clients = self._cohort_of(number)
        while True:
            width = width_in(self.widths, number)
            part = self._train_part(number, clients, width)
            if width > 1:
                self._ranks.wait()  # open to signals
            if width == 1 or self._ranks.least(int(part is not None)):
                assert part is not None
                if self.vectors:
                    self.vectors.collect()
                return self._ranks.reduce(part)
            self.widths = {**self.widths, number: width // 2}
            _log.warning(
                "round %d: %d clients in one set of kernels need more memory than the GPU has: "
                "%d from now on",
                *(number, width, width // 2),
            )

    def _train_part(
        self, number: int, clients: Sequence[int], width: int
    ) -> UpdateAccumulator | None:
        """Train this rank's clients; None where the memory of its GPU ends."""
        schedule, served = self._schedule, self.standing.server.served
        sizes = schedule.client_sizes
        layout = self.server.layout
        trained = [entry.name for entry in layout.entries]
        vectors = self.vectors
        part = UpdateAccumulator(
            layout.state_dict(served),
            trained,
            schedule.max_client_norm,
            vectors.returns if vectors else (),
        )
        groups = plan_groups(clients, sizes, width, schedule.least_groups)
        work = [sum(sizes[client] for client in group) for group in groups]
        hands = deal(groups, work, self._ranks.size)
        mine = hands[self._ranks.rank]
        if vectors:
            vectors.begin(number, self.standing.method, hands)
        done, of = 0, sum(map(len, mine))

        def add(group: Group, outcome: Outcome) -> None:
            nonlocal done
            self._clock.mark("train")
            self._add(number, part, group, outcome)
            self._clock.mark("aggregate")
            done += len(group)
            for follower in self.followers:
                follower.client_done(number, done, of)

        try:
            correction = vectors.correction if vectors else None
            self._cohort.train(served, number, mine, add, correction)
        except GroupTooWide:
            return None
        self._clock.mark("train")
        return part

    def _cohort_of(self, number: int) -> list[int]:
        """Return a round's clients; those of a user's sampler, which may be any, are rank 0's."""
        if self._schedule.sampler is None:
            return self._draw(number)
        try:
            return self._ranks.share([] if self._ranks.rank else self._draw(number))
        except UserError as error:
            raise RunError(str(error)) from error.__cause__

    def _draw(self, number: int) -> list[int]:
        schedule = self._schedule
        total, of_a_round = len(schedule.client_sizes), schedule.cohort_size
        return draw_cohort(schedule.seed, number, total, of_a_round, schedule.sampler)

    def _add(self, number: int, part: UpdateAccumulator, group: Group, outcome: Outcome) -> None:
        sizes, uniform = self._schedule.client_sizes, self._schedule.weighting == "uniform"
        weights = [1.0 if uniform else float(sizes[client]) for client in group]
        names = [f"round {number}: client {client}" for client in group]
        accepted: list[bool] = []
        if isinstance(outcome, ModelState):
            if self.vectors:
                served = self.standing.server.served
                kept, returned = self.vectors.finish(group, served, outcome)
                accepted = part.add_group(outcome, weights, names, returned)
                self.vectors.keep(group, accepted, kept)
            else:
                accepted = part.add_group(outcome, weights, names)
        elif not isinstance(outcome, Exception):
            try:
                accepted = [part.add(outcome, weights[0], names[0])]
            except UserError as error:
                outcome = error
        if not accepted:
            said = " ".join(str(outcome).split())
            for client in group:
                part.fail()
                _log.warning("round %d: client %d failed: %s", number, client, said)
            reason = f"client {group[0]} failed ({said}): "
            cause = outcome if isinstance(outcome, Exception) else None
            self._refuse_failures(number, part.known.failed, reason, _root(cause))

    def _refuse_failures(
        self, number: int, failed: int, reason: str = "", cause: BaseException | None = None
    ) -> None:
        allowed = self._schedule.max_client_failures
        if failed > allowed:
            raise RunError(
                f"round {number}: {reason}{failed} of its clients failed; "
                f"train_args.max_client_failures allows {allowed}"
            ) from cause

    def _tests(self, number: int) -> int:
        """Return how many models a round tests: the evaluation model, and the served one first."""
        if (number - 1) % self._schedule.test_every and number != self.rounds:
            return 0
        return 1 + self._schedule.test_served

    def _test(self, number: int, state: ModelState) -> Evaluation:
        """Test a model of rank 0's on all ranks."""
        if self._cohort.tests_alone:
            with _named(number):
                return self._cohort.own_test(number, state)
        tallied = chain.from_iterable(self._test_part(number, state))
        with _named(number):
            return self._cohort.evaluate(tallied)

    def _test_part(self, number: int, state: ModelState) -> list[list[tuple[int, Tally]]]:
        """Test rank 0's model, which overwrites others', on this rank's batches; return all."""
        self._ranks.serve(state.tensors)
        with _named(number):
            part = self._cohort.test(state, self._ranks.rank, self._ranks.size)
        return self._ranks.gather(part)

    def _move(
        self, number: int, total: UpdateAccumulator
    ) -> tuple[Update, ServerState, ServerMove]:
        try:
            before, seed = self.standing.server, self._schedule.seed
            return self.server.close_round(number, before, total, seed)
        except UserError as error:
            raise RunError(f"round {number}: {error}") from error.__cause__


@contextmanager
def _named(number: int) -> Iterator[None]:
    """Say of a test that raises in which round it was."""
    try:
        yield
    except (Failure, UserError) as error:
        _log.info("round %d: test", number, exc_info=True)
        raise RunError(f"round {number}: the test failed ({error})") from _root(error)


def _root(error: BaseException | None) -> BaseException | None:
    """Return the user's own exception behind the line that stands for it."""
    return error.__cause__ if isinstance(error, Failure) and error.__cause__ else error
