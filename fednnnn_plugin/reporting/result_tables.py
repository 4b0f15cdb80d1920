"""Results by client and by class, from the CSV files of run folders."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, Union

import pandas as pd

from fednnnn_plugin.errors import UserError, printable, reason
from fednnnn_plugin.files import read_regular
from fednnnn_plugin.reporting.conditions import check_runs
from fednnnn_plugin.reporting.frames import read_runs
from fednnnn_plugin.reporting.typed_csv import MAX_BYTES, read_typed_csv
from fednnnn_plugin.run_folder.results import CLASSES, CLIENTS, COLUMNS

Place: TypeAlias = Union[str, "os.PathLike[str]"]
Runs: TypeAlias = pd.DataFrame | Place | Iterable[Place]

_HEAD = ["run", "data", "condition", "method", "seed"]
# Of columns that are no counts.
_TYPES: dict[str, Any] = dict.fromkeys(("client", "name"), str)
_TYPES |= dict.fromkeys(("accuracy", "loss", "weight"), float)
_KEYS = {CLIENTS: "validation_args.per_client", CLASSES: "validation_args.per_class"}


def client_results(*runs: Runs) -> pd.DataFrame:
    """Return each client's results, one row for each client and tested round.

    They are those of the evaluation model on the client's own test part, of runs with
    ``validation_args: per_client``.

    Args:
        runs: what :func:`read_runs` takes or returns; also the :class:`Run` of :func:`run`.

    Returns:
        A table with ``run``, ``data``, ``condition``, ``method``, ``seed``, ``round``, ``client``,
        ``samples`` of its test part, ``accuracy`` in [0, 1] and the mean ``loss``. NaN means that
        there is none.

    Raises:
        UserError: no run has such results, or their file is damaged.

    Example::

        found = fp.client_results("runs/*")
        runs = found.groupby(["data", "condition", "method", "round"])
        runs["accuracy"].quantile([0.1, 0.5, 0.9])
    """
    return _results(runs, CLIENTS)


def class_results(*runs: Runs) -> pd.DataFrame:
    """Return the accuracy on each class, one row for each class and tested round.

    It is that of the evaluation model on the whole test part, of runs with
    ``validation_args: per_class``.

    Args:
        runs: what :func:`read_runs` takes or returns; also the :class:`Run` of :func:`run`.

    Returns:
        A table with ``run``, ``data``, ``condition``, ``method``, ``seed``, ``round``, ``class``,
        ``name``, ``samples`` of the test part and ``accuracy`` in [0, 1]; of the class
        ``train_samples`` of all clients, ``train_clients`` that have one, and ``weight``: its share
        in each client's samples, averaged over all clients as their models are.

    Raises:
        UserError: no run has such results, or their file is damaged.
    """
    return _results(runs, CLASSES)


def _results(given: Sequence[Any], name: str) -> pd.DataFrame:
    if len(given) == 1 and isinstance(given[0], pd.DataFrame):
        check_runs(runs := given[0])
        return results_of(runs, name)
    return results_of(read_runs(*given), name)


def results_of(runs: pd.DataFrame, name: str) -> pd.DataFrame:
    """The results of the rounds of ``read_runs`` from their runs' files of a name.

    Raises:
        UserError: none has one, or it is damaged.
    """
    heads = runs.drop_duplicates("run").set_index("run", drop=False)
    tables = []
    for head in heads.to_dict("records"):
        table = _read(Path(head["folder"]) / name, name)
        if table is not None:
            table = table[table["round"].isin(runs.loc[runs["run"] == head["run"], "round"])]
            own = {key: head.get(key) for key in _HEAD}
            tables.append(table.assign(**own)[[*_HEAD, *table]])
    if not any(map(len, tables)):
        raise UserError("runs", f"none has a {name} of their rounds: those with {_KEYS[name]} do")
    return pd.concat(tables, ignore_index=True)


def _read(path: Path, name: str) -> pd.DataFrame | None:
    """Read one file, if it is there with a line; what a process was just writing is left out."""
    if not path.exists():
        return None
    types = {column: _TYPES.get(column, "Int64") for column in COLUMNS[name]}
    try:
        whole = read_regular(path, MAX_BYTES).rpartition(b"\n")[0]
        if not whole:
            return None
        # A class may be called NA.
        table = read_typed_csv(whole, types, keep_default_na=False, na_values=[""])
    except (OSError, ValueError) as error:
        raise UserError(printable(path), f"cannot be read: {reason(error)}") from None
    if name == CLIENTS and table["client"].str.isdigit().all():
        table = table.astype({"client": "int64"})
    return table
