"""FedML's own tracking of a run."""

import logging

import fedml

from fednnnn_plugin.engine.progress import Follower, scalars
from fednnnn_plugin.engine.records import RoundRecord

_log = logging.getLogger(__name__)


class Mlops(Follower):
    """Sends a round's scalars to ``fedml.mlops.log``, for ``using_mlops: true``, until it fails.

    FedML 0.9.6 raises while it holds a lock of its own: a second call would wait for ever.
    """

    _working = True

    def round_done(self, record: RoundRecord) -> None:
        """Send them; a service that is down must not end the run."""
        if not self._working:
            return
        try:
            fedml.mlops.log({**scalars(record), "round": record.round})
        except Exception as error:
            self._working = False
            _log.warning(
                "round %d: fedml.mlops.log failed, and gets no more of this run: %s",
                record.round,
                error,
            )
