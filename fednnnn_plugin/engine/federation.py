"""The round loop."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from fednnnn_plugin.engine.checkpoint import Progress
from fednnnn_plugin.engine.cohort import Cohort, draw_cohort
from fednnnn_plugin.engine.evaluation import Evaluation
from fednnnn_plugin.engine.grouping import group_clients
from fednnnn_plugin.engine.ranks import Ranks
from fednnnn_plugin.engine.records import RoundRecord, Seconds, layer_records
from fednnnn_plugin.engine.state import State
from fednnnn_plugin.errors import RunError, UserError
from fednnnn_plugin.server.accumulator import Update, UpdateAccumulator
from fednnnn_plugin.server.server import Server, ServerMove

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
        batch_size: B, and with it the steps of a client.
        group_size: how many clients train in one set of kernels.
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
    batch_size: int = 1
    group_size: int = 1

    def weight(self, client: int) -> float:
        """Return the client's weight, up to a common factor."""
        return 1.0 if self.weighting == "uniform" else float(self.client_sizes[client])

    def tests(self, round_number: int) -> bool:
        """Tell whether a round's models are tested."""
        return (round_number - 1) % self.test_every == 0 or round_number == self.rounds


class Federation:
    """Serve, train the cohort, average, move the server, test: once a round.

    Args:
        schedule: what to do.
        server: on rank 0; the others hold one whose served model is overwritten by rank 0's.
        trainable: the names that training changes.
        cohort: trains this rank's clients.
        ranks: the processes that share the clients.
        test: tests a model.
    """

    def __init__(
        self,
        schedule: Schedule,
        server: Server,
        trainable: list[str],
        cohort: Cohort,
        ranks: Ranks,
        test: Callable[[State], Evaluation],
    ) -> None:
        self._schedule = schedule
        self._trainable = trainable
        self._cohort = cohort
        self._ranks = ranks
        self._test = test
        self.server = server
        self.rounds = schedule.rounds
        self.progress = Progress(0, 0.0, 0.0)

    def run_round(self, keep: Callable[[RoundRecord], None] | None = None) -> RoundRecord | None:
        """Do the next round; return its record on rank 0.

        Args:
            keep: called with the record, on rank 0, before the round counts as done.

        Raises:
            RunError: too many clients failed, no update was accepted, or the served model
                overflowed. After this or any other error the server is as it was before the round.
        """
        started = time.perf_counter()
        number = self.progress.round + 1
        self._ranks.serve(self.server.served)
        part, adding = self._train(number)
        trained = time.perf_counter()
        total = self._ranks.reduce(part)
        if total is None:
            self.progress = Progress(number, 0.0, 0.0)
            return None
        self._check(number, total)
        with self._undone_on_error():
            update = total.finish()
            move = self._move(number, update)
            aggregated = time.perf_counter()
            evaluation, served = self._evaluate(number)
            ended = time.perf_counter()
            self.progress = Progress(
                number,
                self.progress.integrated_norm + move.server_update_norm,
                self.progress.wall_seconds + ended - started,
            )
            record = RoundRecord(
                round=number,
                test_acc=evaluation.accuracy if evaluation else None,
                test_loss=evaluation.loss if evaluation else None,
                test_metrics=evaluation.metrics if evaluation else None,
                served_test_acc=served.accuracy if served else None,
                mean_update_norm=update.mean_update_norm,
                mean_client_norm=update.mean_client_norm,
                server_update_norm=move.server_update_norm,
                integrated_norm=self.progress.integrated_norm,
                client_norms=update.client_norms,
                layers=layer_records(update, move),
                clients=update.clients,
                rejected=update.rejected,
                degenerate=move.degenerate,
                seconds=Seconds(
                    train=trained - started - adding,
                    aggregate=aggregated - trained + adding,
                    evaluate=ended - aggregated,
                ),
            )
            if keep:
                keep(record)
        return record

    @contextmanager
    def _undone_on_error(self) -> Iterator[None]:
        """Take both models, the momentum and the progress back where a round ends half-way.

        An interrupt may come at any moment, and what is saved then must be of a whole round.
        """
        progress, evaluation = self.progress, self.server.evaluation
        state = {name: tensor.clone() for name, tensor in self.server.state_dict().items()}
        try:
            yield
        except BaseException:
            self.server.load_state_dict(state)
            self.server.evaluation = evaluation
            self.progress = progress
            raise

    def _move(self, number: int, update: Update) -> ServerMove:
        move = self.server.apply(update)
        if not math.isfinite(move.server_update_norm):
            raise RunError(
                f"round {number}: the served model is no longer finite: the server moved it by "
                f"{move.server_update_norm}"
            )
        return move

    def _train(self, number: int) -> tuple[UpdateAccumulator, float]:
        """Train this rank's clients; return their sum and the seconds that adding took."""
        schedule = self._schedule
        part = UpdateAccumulator(self.server.served, self._trainable, schedule.max_client_norm)
        adding = 0.0

        def add(client: int, outcome: State | Exception) -> None:
            nonlocal adding
            began = time.perf_counter()
            reason: object = outcome
            if not isinstance(outcome, Exception):
                try:
                    if not part.add(outcome, schedule.weight(client)):
                        _log.warning(
                            "round %d: client %d: update rejected: not finite", number, client
                        )
                    adding += time.perf_counter() - began
                    return
                except UserError as error:
                    reason = error
            part.fail()
            _log.warning("round %d: client %d failed: %s", number, client, reason)
            if part.tally.failed > schedule.max_client_failures:
                raise RunError(
                    f"round {number}: client {client} failed ({_one_line(reason)}): "
                    f"{part.tally.failed} in this round, max_client_failures allows "
                    f"{schedule.max_client_failures}"
                )

        clients = draw_cohort(
            schedule.seed, number, len(schedule.client_sizes), schedule.cohort_size
        )
        groups = group_clients(
            clients, schedule.client_sizes, schedule.batch_size, schedule.group_size
        )
        work = [sum(schedule.client_sizes[client] for client in group) for group in groups]
        self._cohort.train(self.server.served, number, self._ranks.deal(groups, work), add)
        return part, adding

    def _check(self, number: int, total: UpdateAccumulator) -> None:
        if total.tally.failed > self._schedule.max_client_failures:
            raise RunError(
                f"round {number}: {total.tally.failed} clients failed, max_client_failures allows "
                f"{self._schedule.max_client_failures}"
            )
        if not total.clients:
            raise RunError(
                f"round {number}: no client update to average: all {total.rejected} were rejected"
            )

    def _evaluate(self, number: int) -> tuple[Evaluation | None, Evaluation | None]:
        if not self._schedule.tests(number):
            return None, None
        served = self._test(self.server.served) if self._schedule.test_served else None
        return self._test(self.server.evaluation), served


def _one_line(reason: object) -> str:
    text = " ".join(str(reason).split()) or type(reason).__name__
    return text if isinstance(reason, UserError) else f"{type(reason).__name__}: {text}"
