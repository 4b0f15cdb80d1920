"""FedML's own tracking of a run."""

import logging

import fedml

from fednnnn_plugin.engine.progress import Follower, scalars
from fednnnn_plugin.engine.records import RoundRecord

_log = logging.getLogger(__name__)


class Mlops(Follower):
    """Sends a round's scalars to ``fedml.mlops.log``, for ``using_mlops: true``."""

    def round_done(self, record: RoundRecord) -> None:
        """Send them; a service that is down must not end the run."""
        try:
            fedml.mlops.log({**scalars(record), "round": record.round})
        except Exception as error:
            _log.warning("round %d: fedml.mlops.log failed: %s", record.round, error)
