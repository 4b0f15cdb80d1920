"""The round loop."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from fednnnn_plugin.client.groups import Group, plan_groups
from fednnnn_plugin.engine.checkpoint import Progress
from fednnnn_plugin.engine.cohort import Cohort, Outcome, draw_cohort
from fednnnn_plugin.engine.devices import Clock
from fednnnn_plugin.engine.evaluation import Evaluation
from fednnnn_plugin.engine.progress import Follower
from fednnnn_plugin.engine.ranks import Ranks
from fednnnn_plugin.engine.records import RoundRecord, Seconds, round_record
from fednnnn_plugin.errors import RunError, UserError
from fednnnn_plugin.server.average import UpdateAccumulator
from fednnnn_plugin.server.layout import ModelState
from fednnnn_plugin.server.server import Server, ServerMove, ServerState
from fednnnn_plugin.server.update import Update

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Schedule:
    """What a federation does in each round.

    Attributes:
        rounds: number of the last round.
        client_sizes: number of samples of each of the K clients.
        cohort_size: m, clients a round.
        seed: of the cohorts.
        weighting: α_k = 1/m, or n_k/n.
        test_every: the rounds with ``(round - 1) % test_every = 0`` are tested, and the last.
        test_served: test the served model as well.
        max_client_failures: how many clients of a round may fail before the run ends.
        max_client_norm: longer updates are clipped to this norm.
        group_size: how many clients train in one set of kernels, at most.
        least_groups: how many such groups a round has at least, where there are as many clients.
    """

    rounds: int
    client_sizes: tuple[int, ...]
    cohort_size: int
    seed: int
    weighting: Literal["uniform", "samples"] = "uniform"
    test_every: int = 1
    test_served: bool = False
    max_client_failures: int = 0
    max_client_norm: float | None = None
    group_size: int = 1
    least_groups: int = 1

    def weight(self, client: int) -> float:
        """Return the client's weight, up to a common factor."""
        return 1.0 if self.weighting == "uniform" else float(self.client_sizes[client])

    def tests(self, round_number: int) -> bool:
        """Tell whether a round's models are tested."""
        return (round_number - 1) % self.test_every == 0 or round_number == self.rounds


@dataclass(frozen=True)
class Standing:
    """Where a federation is after a whole round; replaced as one, whatever interrupts it."""

    server: ServerState
    progress: Progress


class Federation:
    """Serve, train the cohort, average, move the server, test: once a round.

    Args:
        schedule: what to do.
        server: the rule.
        start: on rank 0; the others hold one whose served model is overwritten by rank 0's.
        cohort: trains this rank's clients.
        ranks: the processes that share the clients.
        test: tests a model.
        followers: are told how many of this rank's clients of a round are done.
    """

    def __init__(
        self,
        schedule: Schedule,
        server: Server,
        start: ServerState,
        cohort: Cohort,
        ranks: Ranks,
        test: Callable[[ModelState], Evaluation],
        followers: Sequence[Follower] = (),
    ) -> None:
        self._schedule = schedule
        self._cohort = cohort
        self._ranks = ranks
        self._test = test
        self._followers = followers
        self._clock = Clock(start.served.vector.device)
        self.server = server
        self.rounds = schedule.rounds
        self.standing = Standing(start, Progress(0, 0.0, 0.0))

    def begin_after(self, round_number: int) -> None:
        """Count the rounds from there, on a rank that holds no server."""
        self.standing = Standing(self.standing.server, Progress(round_number, 0.0, 0.0))

    def run_round(self, keep: Callable[[RoundRecord], None] | None = None) -> RoundRecord | None:
        """Do the next round; return its record on rank 0.

        Args:
            keep: called with the record, on rank 0, before the round counts as done.

        Raises:
            RunError: too many clients failed, no update was accepted, or the served model
                overflowed. After this or any other error the standing is that before the round.
        """
        before = self.standing
        number = before.progress.round + 1
        self._clock.start()
        self._ranks.serve(before.server.served)
        total = self._ranks.reduce(self._train(number, before.server.served))
        if total is None:
            self.standing = Standing(before.server, Progress(number, 0.0, 0.0))
            return None
        self._refuse_failures(number, total.known.failed)
        update, state, move = self._move(number, before.server, total)
        self._clock.end("aggregate")
        evaluation, served = self._evaluate(number, state)
        self._clock.end("evaluate")
        seconds = self._clock.seconds
        progress = Progress(
            number,
            before.progress.integrated_norm + move.server_update_norm,
            before.progress.wall_seconds + sum(seconds.values()),
        )
        record = round_record(
            number,
            update,
            move,
            integrated_norm=progress.integrated_norm,
            evaluated=self.server.rule.evaluated,
            evaluation=evaluation,
            served=served,
            seconds=Seconds(**seconds),
        )
        if keep:
            keep(record)
        self.standing = Standing(state, progress)
        return record

    def _train(self, number: int, served: ModelState) -> UpdateAccumulator:
        """Train this rank's clients and add them up."""
        schedule = self._schedule
        layout = self.server.layout
        trained = [entry.name for entry in layout.entries]
        part = UpdateAccumulator(layout.state_dict(served), trained, schedule.max_client_norm)
        clients = draw_cohort(
            schedule.seed, number, len(schedule.client_sizes), schedule.cohort_size
        )
        sizes = schedule.client_sizes
        groups = plan_groups(clients, sizes, schedule.group_size, schedule.least_groups)
        work = [sum(sizes[client] for client in group) for group in groups]
        mine = self._ranks.deal(groups, work)
        done, of = 0, sum(map(len, mine))

        def add(group: Group, outcome: Outcome) -> None:
            nonlocal done
            with self._clock.within("aggregate"):
                self._add(number, part, group, outcome)
            done += len(group)
            for follower in self._followers:
                follower.client_done(number, done, of)

        self._cohort.train(served, number, mine, add)
        self._clock.end("train")
        return part

    def _add(self, number: int, part: UpdateAccumulator, group: Group, outcome: Outcome) -> None:
        weights = [self._schedule.weight(client) for client in group]
        accepted: list[bool] = []
        reason: object = outcome
        if isinstance(outcome, ModelState):
            accepted = part.add_group(outcome, weights)
        elif not isinstance(outcome, Exception):
            try:
                accepted = [part.add(outcome, weights[0])]
            except UserError as error:
                reason = error
        for client, taken in zip(group, accepted, strict=False):
            if not taken:
                _log.warning("round %d: client %d: update rejected: not finite", number, client)
        if accepted:
            return
        for client in group:
            part.fail()
            _log.warning("round %d: client %d failed: %s", number, client, reason)
        self._refuse_failures(
            number, part.known.failed, f"client {group[0]} failed ({_one_line(reason)}): "
        )

    def _refuse_failures(self, number: int, failed: int, first: str = "") -> None:
        allowed = self._schedule.max_client_failures
        if failed > allowed:
            raise RunError(
                f"round {number}: {first}{failed} of its clients failed; "
                f"train_args.max_client_failures allows {allowed}"
            )

    def _move(
        self, number: int, before: ServerState, total: UpdateAccumulator
    ) -> tuple[Update, ServerState, ServerMove]:
        try:
            update = total.finish()
        except UserError as error:
            raise RunError(f"round {number}: {error}") from None
        state, move = self.server.apply(before, update)
        if not math.isfinite(move.server_update_norm):
            raise RunError(
                f"round {number}: the served model is no longer finite: the server moved it by "
                f"{move.server_update_norm}"
            )
        return update, state, move

    def _evaluate(
        self, number: int, state: ServerState
    ) -> tuple[Evaluation | None, Evaluation | None]:
        if not self._schedule.tests(number):
            return None, None
        served = self._test(state.served) if self._schedule.test_served else None
        return self._test(state.evaluation), served


def _one_line(reason: object) -> str:
    text = " ".join(str(reason).split()) or type(reason).__name__
    return text if isinstance(reason, UserError) else f"{type(reason).__name__}: {text}"
