"""Run folders as one tidy table: a line a round, settings and layers as columns."""

from __future__ import annotations

import gzip
import json
import math
import sys
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.report.study import is_study

METRICS = ("metrics.jsonl", "metrics.jsonl.gz")  # as the engine writes it, and as it is published
RECIPE, SUMMARY = "recipe.yaml", "summary.json"
DISPLAY_NAMES = {"PaperFedAvg": "FedAvg", "PaperFedProx": "FedProx", "NormNorm": "Norm-Norm"}
CLIENT_NORMS = ["client_norm_min", "client_norm_median", "client_norm_max"]
SECONDS = ["seconds.train", "seconds.aggregate", "seconds.evaluate"]
# The columns of every table, recorded or not.
NUMBERS = [
    *("round", "test_acc", "test_loss", "served_test_acc"),
    *("mean_update_norm", "mean_client_norm", "server_update_norm", "integrated_norm"),
    *("clients", "rejected", "degenerate", *CLIENT_NORMS, *SECONDS),
]
# Names of other columns; a user's own rule may have a key of such a name.
_TAKEN = frozenset(
    {
        *("run", "folder", "finished", "method", "seed", "line", "evaluated", *NUMBERS),
        *("data", "dealt", "sizes", "condition", "values", "label", "nth", "of"),
    }
)
# What a file of others' may cost; one of gzip's can be larger than it looks.
MAX_SETTINGS_BYTES, MAX_LINE_BYTES, MAX_METRICS_BYTES = 1 << 18, 1 << 24, 1 << 29
MAX_PROBLEMS_SHOWN = 3
# Settings of these sections identify a run, but for those that say where and how, not what.
_SECTIONS = ("data_args", "model_args", "train_args")
_NOT_COMPUTED = frozenset(
    {
        *("data_cache_dir", "download", "start_round", "checkpoint_every", "client_batching"),
        *("max_client_failures", "client_threads"),
    }
)


def read_runs(*folders: str | Path) -> pd.DataFrame:
    """Read run folders, or folders of them, into a tidy table with one line a round.

    Unfinished runs are read too. Columns, in this order:

    - ``run``, ``folder``, ``finished``, ``method`` (as the paper writes it), ``seed``, then the
      settings that identify a run by their recipe key (``dataset``, ``beta``, ...);
    - ``round``, and the numbers of ``metrics.jsonl``: accuracies in [0, 1], L2 norms, seconds;
      ``client_norm_min``, ``client_norm_median`` and ``client_norm_max``; layers such as
      ``layers.fc3.mean_update_norm``; NaN where nothing was recorded.

    A damaged line is left out, with a warning that names its file and number.

    Raises:
        UserError: no round was found.
    """
    runs, problems = read_folders([Path(folder) for folder in folders])
    if runs.empty:
        raise UserError("\n".join([*problems, "no run with a recorded round was given"]))
    for problem in problems:
        warnings.warn(problem, stacklevel=2)
    return runs


def setting_columns(runs: pd.DataFrame) -> list[str]:
    """The columns that hold settings: those before ``round``."""
    return list(runs.columns[: list(runs.columns).index("round")])


def layers(runs: pd.DataFrame) -> list[str]:
    """The modules whose norms are recorded, in the model's order."""
    names = (name for name in runs if str(name).startswith("layers."))
    return list(dict.fromkeys(name[7:].rpartition(".")[0] for name in names))


def read_folders(paths: Sequence[Path]) -> tuple[pd.DataFrame, list[str]]:
    """Read run folders, or folders of them; studies are passed over.

    Returns:
        The table of ``read_runs``, and a line for each thing that was left out.
    """
    problems: list[str] = []
    folders = {folder.resolve(): folder for folder in _run_folders(paths, problems)}
    times = Counter(place.name for place in folders)
    parts: list[pd.DataFrame] = []
    settings: dict[str, None] = {}
    for place, folder in folders.items():
        rounds = _read_rounds(folder, problems)
        name = place.name if times[place.name] == 1 else folder
        identity = _identity(folder, printable(name), rounds, problems)
        parts.append(rounds.assign(**identity))
        settings |= dict.fromkeys(identity)
    table = pd.concat(parts or [pd.DataFrame(columns=NUMBERS)], ignore_index=True)
    others = (name for name in table if name not in settings and name not in NUMBERS)
    return table[[*settings, *NUMBERS, *others]], problems


def printable(text: object) -> str:
    """Text for a terminal and for XML: no control characters."""
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(char if char.isprintable() else "?" for char in plain)


def method_name(method: str) -> str:
    """A method as the paper writes it; a user's own ``module:Class`` by its class."""
    return DISPLAY_NAMES.get(method, method.rpartition(":")[2])


def _run_folders(paths: Sequence[Path], problems: list[str]) -> Iterator[Path]:
    for path in paths:
        if _is_run(path):
            yield path
        elif not is_study(path):
            children = path.iterdir() if path.is_dir() else ()
            inside = sorted(p for p in children if p.is_dir() and not p.name.startswith("."))
            yield from filter(_is_run, inside)
            others = [p for p in inside or [path] if not _is_run(p) and not is_study(p)]
            why = f"no run: it has neither {METRICS[0]} nor {RECIPE}"
            problems += [f"{printable(other)}: {why}" for other in others]


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (*METRICS, RECIPE))


def _identity(folder: Path, name: str, rounds: pd.DataFrame, problems: list[str]) -> dict[str, Any]:
    """What says which run it is: the leading columns of the table."""
    recipe, summary = (_read_settings(folder / file, problems) for file in (RECIPE, SUMMARY))
    method = printable(_section(recipe, "train_args").get("federated_optimizer", name))
    settings = {
        f"{section}.{own}" if (own := printable(key)) in _TAKEN else own: _scalar(value)
        for section in _SECTIONS
        for key, value in _section(recipe, section).items()
        if key not in _NOT_COMPUTED
    }
    # A summary may be of a shorter run, which was extended since.
    last = rounds["round"].max()
    planned = settings.get("comm_round")
    return {
        "run": name,
        "folder": printable(folder),
        "finished": _scalar(summary.get("rounds")) == last
        and not (isinstance(planned, int | float) and planned > last),
        "method": method_name(method),
        "seed": _scalar(_section(recipe, "common_args").get("random_seed")),
    } | settings


def _section(recipe: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = recipe.get(name)
    return section if isinstance(section, dict) else {}


def _read_settings(path: Path, problems: list[str]) -> dict[str, Any]:
    """A recipe or a summary; empty where it cannot be used."""
    if not path.is_file():  # a pipe would block; without a summary a run is unfinished
        problems += [f"{printable(path)}: no such file"] * (path.name == RECIPE)
        return {}
    try:
        with path.open("rb") as file:
            read = json.loads if path.suffix == ".json" else yaml.safe_load
            return dict(read(file.read(MAX_SETTINGS_BYTES)))
    except (OSError, ValueError, TypeError, yaml.YAMLError, RecursionError):
        problems.append(f"{printable(path)}: damaged; not used")
        return {}


def _scalar(value: Any) -> str | float | bool | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, list | dict):
        flat = isinstance(value, list) and not any(isinstance(v, list | dict) for v in value)
        return " × ".join(map(printable, value[:4])) if flat else "..."
    try:  # PyYAML reads 5e-4 as a string
        return value if isinstance(value, int) and abs(value) < 2**53 else float(value)
    except (ValueError, TypeError, OverflowError):
        return printable(value)[:200]


def _read_rounds(folder: Path, problems: list[str]) -> pd.DataFrame:
    """The rounds of a folder, ascending, each once."""
    path = next((folder / n for n in METRICS if (folder / n).is_file()), folder / METRICS[0])
    said: list[str] = []
    table = pd.DataFrame(_lines(path, said))
    table = table.reindex(columns=[*NUMBERS, *(n for n in table if n not in NUMBERS)])
    numbers = table.drop(columns=["line", "evaluated"], errors="ignore")
    parsed = numbers.map(_number)
    lowest = pd.Series(-math.inf, numbers.columns).where(
        numbers.columns.str.startswith("test_metrics."), 0.0
    )
    highest = pd.Series(sys.float_info.max, numbers.columns)
    lowest["round"], highest[["round", "test_acc", "served_test_acc"]] = 1.0, [1e9, 1.0, 1.0]
    wrong = (numbers.notna() & parsed.isna()) | (parsed < lowest) | (parsed > highest)
    wrong["round"] |= parsed["round"].isna()
    bad = wrong.any(axis=1)
    for line, name in zip(table.loc[bad].get("line", []), wrong[bad].idxmax(axis=1), strict=True):
        said.append(f"line {line}: {name} is no number that can be; left out")
    table[numbers.columns] = parsed
    table = table[~bad].drop_duplicates("round", keep="last").sort_values("round")
    if len(table) < (~bad).sum():
        said.append("a round more than once; the last line of it counts")
    if table.empty and not said:
        said = ["no round recorded yet"]
    if len(said) > MAX_PROBLEMS_SHOWN + 1:
        said[MAX_PROBLEMS_SHOWN:] = [f"and {len(said) - MAX_PROBLEMS_SHOWN} more problems"]
    problems += [f"{printable(path)}: {problem}" for problem in said]
    return table.drop(columns="line", errors="ignore").astype({"round": int})


def _lines(path: Path, said: list[str]) -> list[dict[str, Any]]:
    """Every line that holds a record, flat, with its number."""
    if not path.is_file():
        said.append("no such file")
        return []
    found, number, total = [], 0, 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while raw := file.readline(min(MAX_LINE_BYTES, MAX_METRICS_BYTES - total)):
                number, total = number + 1, total + len(raw)
                try:
                    record = json.loads(raw, parse_int=_integer)
                    norms = record.pop("client_norms", None) or [None] * 3
                    record |= dict(zip(CLIENT_NORMS, norms, strict=True))
                    flat = dict(_flat(record)) | {"line": number}
                    found.append(flat | {"evaluated": printable(flat.get("evaluated") or "")})
                except (ValueError, TypeError, AttributeError, RecursionError):
                    said.append(f"line {number}: not the record of a round; left out")
    except (OSError, EOFError, zlib.error) as error:
        said.append(f"after line {number}: cannot be read: {printable(error)}")
    return found


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{printable(key)}.")
        else:
            yield prefix + printable(key), value


def _integer(text: str) -> int | float:
    return int(text) if len(text) < 18 else float(text)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
