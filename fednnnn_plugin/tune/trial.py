"""One trial: a run of one grid point, in a run folder of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fednnnn_plugin.engine.folder import RunFolder
from fednnnn_plugin.engine.progress import Follower
from fednnnn_plugin.engine.ranks import Solo
from fednnnn_plugin.engine.records import MetricsFile, RoundRecord
from fednnnn_plugin.engine.run import run_recipe
from fednnnn_plugin.errors import RunError
from fednnnn_plugin.recipe import Recipe
from fednnnn_plugin.tune.plan import Metric

State = Literal["finished", "pruned", "failed"]


@dataclass(frozen=True)
class Result:
    """How a trial ended, and what its rounds measured on the validation part.

    Attributes:
        state: ``finished``; ``pruned``, stopped early; ``failed``, for ``reason``.
        best_accuracy, final_accuracy: in [0, 1]; None where no round was tested.
        best_round: the first with the best accuracy.
        final_loss: mean cross-entropy in nats; None where it is not finite.
        rounds: how many were run.
        reason: of a failure, in a line.
    """

    state: State
    best_accuracy: float | None = None
    best_round: int | None = None
    final_accuracy: float | None = None
    final_loss: float | None = None
    rounds: int = 0
    reason: str = ""

    def value(self, metric: Metric) -> float | None:
        """Return the figure that trials are compared by."""
        value: float | None = getattr(self, metric)
        return value


@dataclass(frozen=True)
class Means:
    """How trials are run here; it shows in no result.

    Attributes:
        jobs: processes that train side by side on this machine.
        allow_code: the user lets a dataset ``module:function`` run.
    """

    jobs: int = 1
    allow_code: bool = False


def point_name(point: Mapping[str, float]) -> str:
    """Return the name of a grid point's folder, as in ``beta=0.7,gamma=0.8``."""
    return ",".join(f"{key}={value!r}" for key, value in point.items())


def run_trial(
    recipe: Recipe,
    folder: Path,
    *,
    metric: Metric,
    means: Means,
    hopeless: Callable[[float, int], bool],
) -> Result:
    """Run a trial, or the rest of one that was cut short.

    Args:
        recipe: what to run.
        folder: of the run.
        metric: what trials are compared by.
        means: how.
        hopeless: given the metric so far and the round, tells whether to end the trial.
    """
    state: State = "finished"
    reason = ""
    try:
        run_recipe(
            recipe,
            folder,
            "resume" if RunFolder(folder).begun() else "new",
            ranks=_Sharing(means.jobs),
            followers=[_Pruner(folder, metric, hopeless)],
            allow_code=means.allow_code,
        )
    except _HopelessError:
        state = "pruned"
    except RunError as error:
        state, reason = "failed", str(error)
    return _result(folder, state, reason)


class _Pruner(Follower):
    """Ends a trial that is hopeless."""

    def __init__(
        self, folder: Path, metric: Metric, hopeless: Callable[[float, int], bool]
    ) -> None:
        tested = MetricsFile(RunFolder(folder).metrics).tested()
        self._best = max((accuracy for _, accuracy in tested), default=0.0)
        self._metric, self._hopeless = metric, hopeless

    def round_done(self, record: RoundRecord) -> None:
        """Look at a round's test."""
        if record.test_acc is None:
            return
        self._best = max(self._best, record.test_acc)
        value = {
            "best_accuracy": self._best,
            "final_accuracy": record.test_acc,
            "final_loss": record.test_loss,
        }[self._metric]
        if value is not None and self._hopeless(value, record.round):
            raise _HopelessError


def _result(folder: Path, state: State, reason: str) -> Result:
    path = RunFolder(folder).metrics
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    tested = [record for record in map(json.loads, lines) if record["test_acc"] is not None]
    if not tested:
        return Result(state, rounds=len(lines), reason=reason)
    best = max(tested, key=lambda record: (record["test_acc"], -record["round"]))
    last: dict[str, Any] = tested[-1]
    return Result(
        state,
        best["test_acc"],
        best["round"],
        last["test_acc"],
        last["test_loss"],
        len(lines),
        reason,
    )


class _HopelessError(Exception):
    """The pruner ends the trial."""


class _Sharing(Solo):
    """A single process among several on this machine's cores."""

    def __init__(self, sharers: int) -> None:
        self.core_sharers = sharers
