"""FedML's own tracking of a run."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fedml

from fednnnn_plugin.engine.tracking import Log

_log = logging.getLogger(__name__)


@contextmanager
def mlops(folder: Path) -> Iterator[Log]:
    """Send a round's scalars to ``fedml.mlops.log``, for ``using_mlops: true``."""
    del folder  # FedML keeps the numbers elsewhere

    def log(values: dict[str, float], round_number: int) -> None:
        try:
            fedml.mlops.log({**values, "round": round_number})
        except Exception as error:  # a service that is down must not end the run
            _log.warning("round %d: fedml.mlops.log failed: %s", round_number, error)

    yield log
