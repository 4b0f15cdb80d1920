"""When a run ends before its last round: at a target, or without progress."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fednnnn_plugin.errors import RunError, one_of, printable

STOP = "validation_args.stop"
ACCURACY, LOSS, WORST_10 = "accuracy", "loss", "worst_10"


class RoundTest(NamedTuple):
    """What the test of a round found, as its record has it: the recipe's metrics before others."""

    round: int
    values: Mapping[str, float | None]

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "RoundTest":
        """Return it of a record's fields."""
        values = {ACCURACY: record["test_acc"], LOSS: record["test_loss"]}
        if spread := record.get("client_acc"):  # of this process, or read
            values[WORST_10] = (spread if isinstance(spread, Mapping) else vars(spread))[WORST_10]
        return cls(record["round"], values | (record["test_metrics"] or {}))


@dataclass(frozen=True)
class Stop:
    """Ends a run after the round r of which a test gave the value v_r.

    - ``target``: v_r is at least the target, or at most, where lower is better.
    - ``patience`` p: r ≥ b + p, where b is the last tested round that was better by more than
      ``min_delta`` than the last such round before it; the first that has a value is one, and until
      then b is the first tested round.

    A tested round without a finite value is no better. ``metric`` is one of the recipe's, or
    ``accuracy``, ``loss`` or ``worst_10`` of the clients; None is the accuracy where there is one,
    else the loss.
    """

    metric: str | None = None
    higher_is_better: bool | None = None  # of a metric of the recipe, None for the others
    target: float | None = None
    patience: int | None = None  # rounds
    min_delta: float = 0.0

    def reason(self, tests: Iterable[RoundTest]) -> str | None:
        """Say why a run of these tests, in their order, ends after the last one, if it does.

        Raises:
            RunError: no test has a value named ``metric``, which is none of the recipe's, or it is
                the accuracy and none was measured.
        """
        tests = list(tests)
        if not tests:
            return None
        measured = {
            name
            for test in tests
            for name, value in test.values.items()
            if name != ACCURACY or value is not None
        }
        metric = self.metric or (ACCURACY if ACCURACY in measured else LOSS)
        if metric not in measured and self.higher_is_better is None:
            raise RunError(
                f"{STOP}: metric: {printable(metric)}: the test of round {tests[-1].round} has "
                f"none: {one_of(map(printable, sorted(measured)), metric)}"
            )
        higher = metric != LOSS if self.higher_is_better is None else self.higher_is_better
        sign, name = 1.0 if higher else -1.0, printable(metric)
        best, since = None, tests[0].round
        for test in tests:
            value = test.values.get(metric)
            if value is not None and (best is None or sign * (value - best) > self.min_delta):
                best, since = value, test.round
        last = tests[-1]
        if self.target is not None and value is not None and sign * (value - self.target) >= 0:
            return f"{name} {value:.4g} has reached the target {self.target:g}"
        if self.patience is not None and last.round >= since + self.patience:
            if best is None:
                return f"{name} has had no value since round {since}"
            more = f" by more than {self.min_delta:g}" if self.min_delta else ""
            rounds = last.round - since
            return f"{name} has not been better than {best:.4g}{more} for {rounds} rounds"
        return None
