"""What a server that is no simulation keeps of its rounds, in a folder that reports read."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.files import write_atomically
from fednnnn_plugin.quantities import RoundRecord, Seconds
from fednnnn_plugin.reading import write_yaml
from fednnnn_plugin.run_folder.folder import RunFolder
from fednnnn_plugin.run_folder.records import Evaluation, MetricsFile, round_record
from fednnnn_plugin.run_folder.results import ClientResult, Results, ResultTables
from fednnnn_plugin.run_folder.server_state import file_to_write
from fednnnn_plugin.server.rules import Evaluated
from fednnnn_plugin.server.server import ServerMove
from fednnnn_plugin.server.update import Update


class ServerRecords:
    """The rounds of a server, a line of ``metrics.jsonl`` each, with its settings: a run folder.

    Times are the server's: ``train`` is what it waits for the clients, their network included.

    Args:
        folder: ``metrics_path``, where records are kept; None keeps none.
        done: rounds that are done.
        told_by: the setting that says how many are done.
        settings: the server's, by section.
        begun: whether there was a state: if no round is done, it was killed in the first one, whose
            record may be there.

    Raises:
        UserError: the folder has fewer records than rounds that are done, or holds a federation
            that this one does not continue.
    """

    def __init__(
        self,
        folder: str | Path | None,
        done: int,
        told_by: str,
        settings: Mapping[str, Any],
        *,
        begun: bool = False,
    ) -> None:
        self._file = records_file(folder, done, told_by, begun=begun)
        self._tables: ResultTables | None = None
        self._integrated = 0.0
        self._last: RoundRecord | None = None
        self._marks = [time.monotonic()] * 3
        self._begun_with, self._settings = done, settings
        if self._file is None:
            return
        home = self._file.path.parent
        self._tables = ResultTables(home)
        if done:
            *_, last = islice(self._file.records(), done)
            self._integrated = last["integrated_norm"]
            if last["tested"] is False:  # it may have ended in the test
                with suppress(ValidationError):  # of another version
                    self._last = TypeAdapter(RoundRecord).validate_python(last)
        self._file.cut(done)
        self._tables.cut(done)

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
            seconds=Seconds(train=came - began, aggregate=ended - came, evaluate=0.0),
        )
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._last = replace(record, time=now)
        if self._file is not None:
            if number == self._begun_with + 1:  # no round has the settings before
                recipe = RunFolder(self._file.path.parent).recipe
                write_atomically(recipe, write_yaml(self._settings).encode())
            self._file.append(self._last)
            self._file.sync()
        self._marks[0] = ended

    def tested(self, evaluation: Evaluation, clients: Sequence[ClientResult] = ()) -> None:
        """Put what a test found into the record of the last round; of several the last counts.

        Before the first round of a restart that is the last one before it, if it has no test. What
        ``clients`` found on their own data is in ``clients.csv``, once a round.
        """
        last, began, ended = self._last, self._marks[0], time.monotonic()
        self._marks[0] = ended
        if last is None:
            return
        evaluate = last.seconds.evaluate + ended - began
        metrics = {**(last.test_metrics or {}), **(evaluation.metrics or {})}
        self._last = replace(
            last,
            tested=last.tested or evaluation != Evaluation(),
            test_acc=last.test_acc if evaluation.accuracy is None else evaluation.accuracy,
            test_loss=last.test_loss if evaluation.loss is None else evaluation.loss,
            test_metrics=metrics or None,
            seconds=replace(last.seconds, evaluate=evaluate),
        )
        if clients and last.client_acc is None and last.client_loss is None:
            results = Results(clients)
            acc, loss = map(results.spreads.get, ("client_acc", "client_loss"))
            self._last = replace(self._last, client_acc=acc, client_loss=loss)
            if self._tables is not None:
                self._tables.append(last.round, results)
        if self._file is not None:
            self._file.replace_last(self._last)


def records_file(
    folder: str | Path | None,
    done: int,
    told_by: str,
    *,
    begun: bool = False,
    only_check: bool = False,
) -> MetricsFile | None:
    """Return the file of a folder's records, or refuse others' files or numbers of rounds.

    To ``only_check`` writes nothing.
    """
    if folder == "":  # not the root of all folders
        raise UserError("metrics_path", "''", "must name a folder; leave it out for no records")
    name = None if folder is None else f"{folder}/metrics.jsonl"
    path = file_to_write("metrics_path", name, only_check=only_check)
    if path is None:
        return None
    ResultTables(path.parent).check("metrics_path")
    recipe = RunFolder(path.parent).recipe
    if recipe.exists() and not path.exists():  # which comes before it
        why = f"{printable(recipe)}: of no federation"
        raise UserError("metrics_path", why, "move it, or name another folder")
    file = MetricsFile(path)
    recorded = file.rounds()
    there = f"metrics_path: {printable(path.parent)}: has records of {recorded} rounds"
    there += f", {told_by} says {done}"
    if recorded < done:
        raise UserError(there, allowed="must be the folder of the rounds before")
    if recorded > int(begun) and not done:
        raise UserError(there, f"continue them by {told_by}, move the folder away, or name another")
    return file
