"""Run folders as one tidy table: a line a round, settings and layers as columns."""

from __future__ import annotations

import gzip
import json
import math
import os
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import pandas as pd
import yaml

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.report.study import is_study

METRICS = ("metrics.jsonl", "metrics.jsonl.gz")  # as the engine writes it, and as it is published
RECIPE, SUMMARY = "recipe.yaml", "summary.json"
DISPLAY_NAMES = {"PaperFedAvg": "FedAvg", "PaperFedProx": "FedProx", "NormNorm": "Norm-Norm"}
CLIENT_NORMS = ("client_norm_min", "client_norm_median", "client_norm_max")
# What every table has, recorded or not.
NUMBERS = (
    *("test_acc", "test_loss", "served_test_acc"),
    *("mean_update_norm", "mean_client_norm", "server_update_norm", "integrated_norm"),
    *CLIENT_NORMS,
    *("clients", "rejected", "seconds.train", "seconds.aggregate", "seconds.evaluate"),
)
MAX_SETTINGS_BYTES, MAX_LINE_BYTES, MAX_METRICS_BYTES = 1 << 20, 1 << 22, 1 << 29
MAX_PROBLEMS_SHOWN = 3
# Settings of these sections identify a run, but for those that say where and how, not what.
_SECTIONS = ("data_args", "model_args", "train_args")
_NOT_COMPUTED = frozenset(
    {
        *("data_cache_dir", "download", "start_round", "checkpoint_every", "client_batching"),
        *("max_client_failures", "client_threads"),
    }
)

Settings = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Run:
    """One run folder: its name, settings and summary by ``section.key``, and a line a round."""

    name: str
    folder: Path
    settings: Settings
    summary: Settings
    rounds: pd.DataFrame

    @property
    def last_round(self) -> int:
        return int(self.rounds["round"].max()) if len(self.rounds) else 0

    @property
    def planned(self) -> int:
        """The rounds that its recipe asks for; those recorded where there is none."""
        rounds = self.settings.get("train_args.comm_round")
        return rounds if isinstance(rounds, int) else self.last_round

    @property
    def finished(self) -> bool:
        """Whether all rounds are there; a summary may be of a shorter run that was extended."""
        done = self.summary.get("rounds") == self.last_round >= self.planned
        return bool(self.summary) and done

    def identity(self) -> dict[str, Any]:
        """The settings that say what was computed, by the recipe's key."""
        method = self.settings.get("train_args.federated_optimizer", self.name)
        known: dict[str, Any] = {
            "run": self.name,
            "folder": str(self.folder),
            "finished": self.finished,
            "method": DISPLAY_NAMES.get(str(method), str(method)),
            "seed": self.settings.get("common_args.random_seed"),
        }
        for name, value in self.settings.items():
            section, _, key = name.partition(".")
            if section in _SECTIONS and key not in _NOT_COMPUTED:
                known[key] = value
        return known


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
    if not any(len(run.rounds) for run in runs):
        raise UserError("\n".join([*problems, "no run with a recorded round was given"]))
    for problem in problems:
        warnings.warn(problem, stacklevel=2)
    return tidy(runs)


def tidy(runs: Sequence[Run]) -> pd.DataFrame:
    """One table of several runs' rounds, settings before ``round`` and numbers after it."""
    parts = [run.rounds.assign(**run.identity()) for run in runs if len(run.rounds)]
    settings = dict.fromkeys(key for run in runs for key in run.identity())
    if not parts:
        return pd.DataFrame(columns=[*settings, "round", *NUMBERS])
    table = pd.concat(parts, ignore_index=True)
    return table[[*settings, *(name for name in table if name not in settings)]]


def setting_columns(runs: pd.DataFrame) -> list[str]:
    """The columns that hold settings: those before ``round``."""
    return list(runs.columns[: runs.columns.get_loc("round")])


def layers(runs: pd.DataFrame) -> list[str]:
    """The modules whose norms are recorded, in the model's order."""
    names = (name for name in runs if str(name).startswith("layers."))
    return list(dict.fromkeys(name[7:].rpartition(".")[0] for name in names))


def read_folders(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Read run folders, or folders of them, in the order given; studies are passed over.

    Returns:
        The runs, and a line for each thing that was left out.
    """
    problems: list[str] = []
    runs: dict[str, Run] = {}
    for folder in _run_folders(paths, problems):
        place = os.path.realpath(folder)
        if place in runs:
            problems.append(f"{printable(folder)}: given twice; read once")
        else:
            runs[place] = _read_run(folder, Path(place).name, problems)
    times = Counter(run.name for run in runs.values())
    named = [
        run if times[run.name] == 1 else replace(run, name=printable(run.folder))
        for run in runs.values()
    ]
    return named, problems


def printable(text: object) -> str:
    """Text for a terminal and for XML: no control characters."""
    return "".join(char if char.isprintable() else "?" for char in str(text))


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (*METRICS, RECIPE))


def _run_folders(paths: Sequence[Path], problems: list[str]) -> Iterator[Path]:
    for path in paths:
        try:
            if not path.is_dir():
                how = "not a folder" if path.exists() else "not found"
                problems.append(f"{printable(path)}: {how}")
            elif _is_run(path):
                yield path
            elif not is_study(path):
                children = sorted(p for p in path.iterdir() if p.is_dir() and p.name[0] != ".")
                inside = [child for child in children if not is_study(child)]
                yield from filter(_is_run, inside)
                others = [p for p in inside if not _is_run(p)] if children else [path]
                why = f"no run (it has neither {METRICS[0]} nor {RECIPE})"
                problems += [f"{printable(other)}: {why}" for other in others]
        except OSError as error:
            problems.append(f"{printable(path)}: cannot be read ({error.strerror})")


def _read_run(folder: Path, name: str, problems: list[str]) -> Run:
    settings = _read_settings(folder / RECIPE, problems)
    summary = {}
    if (folder / SUMMARY).exists():
        summary = _read_settings(folder / SUMMARY, problems)
    return Run(printable(name), folder, settings, summary, _read_rounds(folder, problems))


def _read_settings(path: Path, problems: list[str]) -> dict[str, Any]:
    """``section.key`` -> value of a recipe or a summary; empty where it cannot be used."""
    try:
        if not path.is_file():  # a pipe would block
            raise OSError(0, "no such file")
        with path.open("rb") as file:
            text = file.read(MAX_SETTINGS_BYTES)
        values = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        if not isinstance(values, dict):
            raise ValueError("not a mapping")
    except OSError as error:
        problems.append(f"{printable(path)}: cannot be read ({error.strerror})")
        return {}
    except (ValueError, yaml.YAMLError, RecursionError):
        problems.append(f"{printable(path)}: not valid {path.suffix[1:].upper()}; not used")
        return {}
    flat: dict[str, Any] = {}
    for section, value in values.items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        for key, item in inner:
            flat[printable(f"{section}.{key}" if key else section)] = _scalar(item)
    return flat


def _scalar(value: object) -> str | float | bool | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, dict) or (isinstance(value, list) and len(value) > 4):
        return "..."
    if isinstance(value, list):
        return " × ".join(str(_scalar(item)) for item in value)
    try:  # PyYAML reads 5e-4 as a string
        number = float(value)  # type: ignore[arg-type]
    except (ValueError, TypeError, OverflowError):
        return printable(value)[:200]
    return int(value) if isinstance(value, int) else number


def _read_rounds(folder: Path, problems: list[str]) -> pd.DataFrame:
    """The rounds of a folder, ascending, each once."""
    path = next((folder / n for n in METRICS if (folder / n).is_file()), folder / METRICS[0])
    found: dict[int, dict[str, Any]] = {}
    said: list[str] = []
    for number, raw in _lines(path, said):
        try:
            line = _numbers(json.loads(raw, parse_constant=_refuse))
        except (ValueError, OverflowError, RecursionError) as error:
            reason = str(error) if type(error) is ValueError else "no JSON object"
            said.append(f"line {number}: {printable(reason)[:200]}; left out")
            continue
        if line["round"] in found:
            said.append(f"line {number}: round {line['round']} once more; the later line counts")
        found[line["round"]] = line
    if not found and not said:
        said = ["no round recorded yet"]
    problems += [f"{printable(path)}: {problem}" for problem in said[:MAX_PROBLEMS_SHOWN]]
    if len(said) > MAX_PROBLEMS_SHOWN:
        problems.append(f"{printable(path)}: and {len(said) - MAX_PROBLEMS_SHOWN} more problems")
    table = pd.DataFrame([found[index] for index in sorted(found)])
    missing = [name for name in ("round", *NUMBERS) if name not in table]
    table = table.assign(**dict.fromkeys(missing, math.nan))
    return table[["round", *NUMBERS, *(n for n in table if n not in ("round", *NUMBERS))]]


def _lines(path: Path, said: list[str]) -> Iterator[tuple[int, bytes]]:
    if not path.is_file():
        said.append("no such file")
        return
    total = number = 0
    try:
        with _open(path) as file:
            while raw := file.readline(MAX_LINE_BYTES):
                number, total = number + 1, total + len(raw)
                if len(raw) == MAX_LINE_BYTES or total > MAX_METRICS_BYTES:
                    said.append(f"line {number}: too long; it and what follows is left out")
                    return
                if raw.strip():
                    yield number, raw
    except (OSError, EOFError, zlib.error) as error:
        said.append(f"after line {number}: cannot be read ({printable(error)})")


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def _numbers(record: object) -> dict[str, Any]:
    """A line's values by column.

    Raises:
        ValueError: what stands there is not what the engine records.
    """
    if not isinstance(record, dict):
        raise ValueError("no JSON object")
    norms = record.pop("client_norms", None) or [None] * 3
    if not isinstance(norms, list) or len(norms) != len(CLIENT_NORMS):
        raise ValueError("client_norms must be [minimum, median, maximum]")
    values = dict(_flat(record | dict(zip(CLIENT_NORMS, norms, strict=True))))
    if type(values.get("round")) is not int or not 0 < values["round"] < 10**9:
        raise ValueError("round must be an integer from 1")
    for name, value in values.items():
        if name in ("round", "degenerate", "evaluated"):
            continue
        highest = 1.0 if name in ("test_acc", "served_test_acc") else math.inf
        lowest = -math.inf if name.startswith("test_metrics.") else 0.0
        if value is None:
            values[name] = math.nan
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} must be a number")
        elif not lowest <= (number := float(value)) <= highest or math.isinf(number):
            raise ValueError(f"{name} is {value}, out of range")
    return values


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{printable(key)}.")
        elif value is not None or not prefix:
            yield prefix + printable(key), value
