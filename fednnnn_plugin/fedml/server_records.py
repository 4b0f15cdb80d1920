"""What a cross-silo server says of each round, and keeps of it where it is asked to."""

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from fednnnn_plugin.errors import UserError, printable, shown
from fednnnn_plugin.files import write_atomically
from fednnnn_plugin.followers.follower import figures
from fednnnn_plugin.quantities import ClientRecord, RoundRecord, Seconds
from fednnnn_plugin.reading import read_mapping, write_yaml
from fednnnn_plugin.recipe import Recipe
from fednnnn_plugin.run_folder.folder import RunFolder
from fednnnn_plugin.run_folder.records import (
    Evaluation,
    MetricsFile,
    round_record,
)
from fednnnn_plugin.run_folder.server_state import file_to_write
from fednnnn_plugin.server.rules import Evaluated
from fednnnn_plugin.server.server import ServerMove
from fednnnn_plugin.server.update import Update

_log = logging.getLogger(__name__)
# What a restart may have otherwise, and no round shows.
_OF_A_START = ("start_round", "comm_round", "server_state_path", "metrics_path", "save_path")


class ServerRecords:
    """The rounds of a server: an INFO line each, and a line of ``metrics.jsonl`` in a folder.

    The folder is one that reports read: it has the server's settings as ``recipe.yaml``. Times are
    the server's: ``train`` is what it waits for the clients, their network included.

    Args:
        folder: ``metrics_path``, where records are kept; None keeps none.
        done: rounds that are done.
        settings: the server's, by section.

    Raises:
        UserError: the folder has fewer records than rounds that are done, or holds a federation
            that this one does not continue.
    """

    def __init__(self, folder: str | None, done: int, settings: Mapping[str, Any]) -> None:
        name = None if folder is None else f"{folder}/metrics.jsonl"
        path = file_to_write("metrics_path", name)
        self._file = None if path is None else MetricsFile(path)
        self._integrated = 0.0
        self._last: RoundRecord | None = None
        self._marks = [time.monotonic()] * 3
        if self._file is not None:
            self._go_on(self._file, done, settings)

    def _go_on(self, file: MetricsFile, done: int, settings: Mapping[str, Any]) -> None:
        recorded = file.rounds()
        where = f"metrics_path: {printable(file.path.parent)}"
        if recorded < done:
            raise UserError(
                f"{where}: has records of {recorded} rounds, start_round is {done}: must be the "
                "folder of the rounds before"
            )
        if recorded and not done:
            raise UserError(
                f"{where}: has records of {recorded} rounds: set start_round to those that are "
                "done, or name another folder"
            )
        if done:
            self._integrated, _ = file.until(done)
        file.cut(done)
        recipe = RunFolder(file.path.parent).recipe
        if done and recipe.exists():
            _warn_of_changes(where, read_mapping(recipe, "recipe"), settings, done)
        write_atomically(recipe, write_yaml(settings).encode())

    def say_settings(self, recipe: Recipe, *, served_alone: bool) -> None:
        """Say at the start which rule serves, what is tested, and where files go."""
        train, tracking = recipe.train_args, recipe.tracking_args
        settings = recipe.rule_settings
        values = {
            **{key: settings[key] for key in recipe.rule.keys},
            "client_weighting": train.client_weighting,
            "max_client_norm": train.max_client_norm,
        }
        _log.info(
            "%s: %s; tested is the %s model; state: %s; records: %s",
            recipe.rule.name,
            ", ".join(f"{key} {value}" for key, value in values.items() if value is not None),
            "served" if served_alone else recipe.rule.evaluated,
            tracking.server_state_path or "not kept (server_state_path)",
            tracking.metrics_path or "not kept (metrics_path)",
        )

    def clients_came(self) -> None:
        """Note that the clients' models are there."""
        self._marks[1] = time.monotonic()

    def aggregated(
        self, number: int, update: Update, move: ServerMove, evaluated: Evaluated
    ) -> None:
        """Keep the record of a round, which may yet be tested."""
        self._marks[2] = time.monotonic()
        began, came, ended = self._marks
        self._integrated += move.server_update_norm
        record = round_record(
            number,
            update,
            move,
            integrated_norm=self._integrated,
            evaluated=evaluated,
            evaluation=None,
            served=None,
            seconds=Seconds(train=came - began, aggregate=ended - came, evaluate=0.0),
        )
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._last = replace(record, time=now)
        if self._file is not None:
            self._file.append(self._last)
            self._file.sync()
        self._marks[0] = ended

    def tested(self, evaluation: Evaluation) -> None:
        """Put what the tests found into the record of the last round."""
        if self._last is None:
            return
        ended = time.monotonic()
        seconds = self._last.seconds
        self._last = replace(
            self._last,
            tested=True,
            test_acc=evaluation.accuracy,
            test_loss=evaluation.loss,
            test_metrics=evaluation.metrics,
            seconds=replace(seconds, evaluate=ended - self._marks[0]),
        )
        if self._file is not None:
            self._file.replace_last(self._last)
        self._marks[0] = ended

    def say(self) -> None:
        """Say what is known of the last round, once."""
        record, self._last = self._last, None
        if record is None:
            return
        least, median, largest = record.client_norms
        parts = [
            figures(record),
            f"N {record.mean_update_norm:.4g}, E {record.mean_client_norm:.4g}",
            f"client norms {least:.4g}, {median:.4g}, {largest:.4g} (least, median, largest)",
            f"{record.clients} clients accepted",
            *(_said(one) for one in record.by_client if one.outcome != "accepted"),
        ]
        _log.info("round %d: %s", record.round, "; ".join(parts))


def sent_as(client: ClientRecord, sent_norms: Mapping[int | str, float]) -> ClientRecord:
    """Return a client's record with the norm of what it sent, if FedML has changed that since."""
    sent = sent_norms.get(client.client)
    if sent is None or client.norm is None:
        return client
    clipped = client.outcome == "accepted" and sent > 1.001 * client.norm
    return replace(client, norm=sent, outcome="clipped" if clipped else client.outcome)


def _said(client: ClientRecord) -> str:
    why = f": {client.why}" if client.why else ""
    return f"rank {client.client} {client.outcome}{why}"


def _warn_of_changes(
    where: str, before: Mapping[str, Any], now: Mapping[str, Any], done: int
) -> None:
    """Say which settings the earlier rounds had otherwise: a folder has one ``recipe.yaml``."""
    for section, values in now.items():
        old = before.get(section)
        for key, value in values.items():
            stored = old.get(key) if isinstance(old, dict) else None
            if key not in _OF_A_START and stored != value:
                _log.warning(
                    "%s: %s: %s, but %s up to round %d: reports show the new value for all rounds",
                    *(where, key, shown(value), shown(stored), done),
                )
