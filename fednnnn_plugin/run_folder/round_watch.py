"""What in a round's record makes an operator look at the clients, as warnings."""

import logging
from collections.abc import Iterator
from typing import NamedTuple

from fednnnn_plugin.quantities import RoundRecord

_log = logging.getLogger(__name__)


class Thresholds(NamedTuple):
    """What is unusual, each above which there is a warning."""

    norm_ratio: float  #: the largest client norm, as a multiple of the median
    alignment: float  #: N/E: all clients sent nearly the same update
    weight_share: float  #: one client's α_k


class RoundWatch:
    """Warns of unusual rounds; of each kind ``once`` in a run, or in every such round.

    Args:
        cohort: clients a round; 0 if fewer are no reason to warn.
        thresholds: what is unusual.
        once: whether a kind is said in the first such round alone.
    """

    def __init__(self, cohort: int, thresholds: Thresholds, *, once: bool = False) -> None:
        self._cohort, self._limits, self._once = cohort, thresholds, once
        self._said: set[str] = set()

    def look(self, record: RoundRecord) -> None:
        """Warn of what is unusual in a round."""
        for kind, text in self._unusual(record):
            if not (self._once and kind in self._said):
                self._said.add(kind)
                _log.warning("round %d: %s", record.round, text)

    def _unusual(self, record: RoundRecord) -> Iterator[tuple[str, str]]:
        _, median, largest = record.client_norms
        limits, mean = self._limits, record.mean_client_norm
        if median > 0 and largest > limits.norm_ratio * median:
            yield (
                "norm",
                f"the largest client norm, {largest:.3g}, is {largest / median:.3g} times the "
                "median, and nothing clips it: train_args.max_client_norm does",
            )
        if record.clients > 1 and mean > 0 and record.mean_update_norm > limits.alignment * mean:
            yield (
                "alignment",
                f"N/E is {record.mean_update_norm / mean:.4f}: the clients sent nearly the same "
                "update; do they have the same data?",
            )
        if record.clients > 1 and record.largest_share > limits.weight_share:
            share = f"{100 * record.largest_share:.0f} %"
            yield "share", f"one client has {share} of the weight"
        if record.clients < self._cohort:
            yield (
                "fewer",
                f"{record.clients} clients are averaged; client_num_per_round is {self._cohort}",
            )
