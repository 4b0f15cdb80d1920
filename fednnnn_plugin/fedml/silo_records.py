"""What a cross-silo server says of each round."""

import logging
from collections.abc import Mapping
from typing import Any

from fednnnn_plugin.assembly.from_recipe import thresholds
from fednnnn_plugin.followers.follower import figures
from fednnnn_plugin.quantities import ClientRecord
from fednnnn_plugin.recipe import Recipe
from fednnnn_plugin.run_folder.prometheus import write_prometheus
from fednnnn_plugin.run_folder.round_watch import RoundWatch
from fednnnn_plugin.run_folder.server_records import ServerRecords
from fednnnn_plugin.run_folder.server_state import file_to_write

_log = logging.getLogger(__name__)


class SiloRecords(ServerRecords):
    """The rounds of a silos' server: an INFO line each, beside what is kept in ``metrics_path``."""

    def __init__(self, recipe: Recipe, settings: Mapping[str, Any]) -> None:
        train, tracking = recipe.train_args, recipe.tracking_args
        super().__init__(tracking.metrics_path, train.start_round, "start_round", settings)
        self._watch = RoundWatch(train.client_num_per_round, thresholds(recipe))
        self._prometheus = file_to_write("prometheus_path", tracking.prometheus_path)

    def say(self) -> None:
        """Say what is known of the last round, once."""
        record, self._last = self._last, None
        if record is None:
            return
        self._watch.look(record)
        if self._prometheus is not None:
            write_prometheus(self._prometheus, record)
        least, median, largest = record.client_norms
        parts = [
            figures(record),
            f"N {record.mean_update_norm:.4g}, E {record.mean_client_norm:.4g}",
            f"client norms {least:.4g}, {median:.4g}, {largest:.4g} (least, median, largest)",
            f"{record.clients} clients accepted",
            *(_said(one) for one in record.by_client if one.outcome != "accepted"),
        ]
        _log.info("round %d: %s", record.round, "; ".join(parts))


def settings_line(recipe: Recipe, *, served_alone: bool) -> str:
    """Return which rule serves, in which rounds, what is tested, and where files go."""
    train, tracking, settings = recipe.train_args, recipe.tracking_args, recipe.rule_settings
    values = {
        **{key: settings[key] for key in recipe.rule.keys},
        "client_weighting": train.client_weighting,
        "max_client_norm": train.max_client_norm,
    }
    said = ", ".join(f"{key} {value}" for key, value in values.items() if value is not None)
    first, last = train.start_round + 1, train.start_round + train.comm_round
    return (
        f"{recipe.rule.name}: {said}; rounds {first} to {last}, {train.client_num_per_round} of "
        f"{train.client_num_in_total} clients a round; tested is the "
        f"{'served' if served_alone else recipe.rule.evaluated} model; "
        f"state: {tracking.server_state_path or 'not kept (server_state_path)'}; "
        f"records: {tracking.metrics_path or 'not kept (metrics_path)'}"
    )


def _said(client: ClientRecord) -> str:
    why = f": {client.why}" if client.why else ""
    return f"rank {client.client} {client.outcome}{why}"
