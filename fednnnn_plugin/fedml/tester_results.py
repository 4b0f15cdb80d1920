"""What the tests of FedML's aggregators and trainers return, as an evaluation."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fednnnn_plugin.run_folder.records import Evaluation
from fednnnn_plugin.server.admission import as_float

_log = logging.getLogger(__name__)

#: What FedML's trainers return of a test.
_COUNTS = ("test_correct", "test_loss", "test_total")
_ACCURACIES = {"accuracy", "acc", "test_accuracy", "test_acc", "Test/Acc"}


class ResultReader:
    """Reads the results of a tester; what is wrong with them it says once.

    FedML's testers return (accuracy, loss, …), its trainers counts; others return numbers by names
    of their own, which become metrics.
    """

    def __init__(self, whose: str) -> None:
        self._whose, self._said = whose, False

    def evaluation(self, *found: Any) -> Evaluation:
        """Return what a tester's results say, as far as it can be known; the later ones' first."""
        accuracy = loss = None
        metrics: dict[str, float] = {}
        for one in map(self._evaluation, found):
            accuracy = accuracy if one.accuracy is None else one.accuracy
            loss = loss if one.loss is None else one.loss
            metrics |= one.metrics or {}
        if accuracy is None and loss is None and not metrics:
            self._say(
                "no accuracy, loss or other number is recorded: it has no test method that returns "
                "FedML's test_correct, test_loss and test_total, or other numbers by name"
            )
        return Evaluation(accuracy, loss, metrics or None)

    def _evaluation(self, found: Any) -> Evaluation:
        if isinstance(found, Mapping):
            given = ((str(name), _number(value)) for name, value in found.items())
            numbers = {name: value for name, value in given if value is not None}
            accuracy, loss = self._of_counts(found)
            if accuracy is not None:
                numbers = {name: value for name, value in numbers.items() if name not in _COUNTS}
            for name in sorted(numbers.keys() & _ACCURACIES):
                self._checked(name, numbers[name], "recorded as a metric of its own")
            return Evaluation(accuracy, loss, numbers or None)
        if not isinstance(found, Sequence) or isinstance(found, str):
            found = (found,)
        accuracy, loss, *_ = (*map(_number, found), None, None)
        return Evaluation(self._checked("accuracy", accuracy, "not recorded"), loss)

    def _of_counts(self, found: Mapping[Any, Any]) -> tuple[float | None, float | None]:
        correct, total = _number(found.get("test_correct")), _number(found.get("test_total"))
        # Some count samples, and of each sample many labels.
        if "test_loss" not in found or correct is None or not total:
            return None, None
        accuracy = self._checked("test_correct / test_total", correct / total, "not recorded")
        loss = _number(found["test_loss"])
        return accuracy, None if accuracy is None or loss is None else loss / total

    def _checked(self, name: str, value: float | None, what: str) -> float | None:
        """Return an accuracy, or None where it is out of range."""
        if value is None or 0 <= value <= 1:
            return value
        self._say(f"its test gives {name} {value:.6g}, which is not in [0, 1]: {what}")
        return None

    def _say(self, text: str) -> None:
        if not self._said:
            self._said = True
            _log.warning("%s: %s", self._whose, text)


def _number(value: Any) -> float | None:
    return number if math.isfinite(number := as_float(value)) else None
