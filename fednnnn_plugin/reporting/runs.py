"""Run folders as one tidy table: a line a round, settings and layers as columns."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fednnnn_plugin.errors import UserError, printable, reason
from fednnnn_plugin.files import open_regular
from fednnnn_plugin.reading import read_mapping
from fednnnn_plugin.reporting.room import Columns, Room
from fednnnn_plugin.reporting.study import is_study

METRICS = ("metrics.jsonl", "metrics.jsonl.gz")  # as the engine writes it, and as it is published
RECIPE, SUMMARY, FINGERPRINT = "recipe.yaml", "summary.json", "fingerprint.json"
DIRECTIONS = "metric_directions.json"
#: Columns with the digests of custom objects.
_OWN = (
    "model",
    "data",
    "split",
    "rule",
    "trainer",
    "sampler",
    "client_method",
    "loss",
    "optimizer",
    "metrics",
)
FINGERPRINTS = tuple(f"{own}_fingerprint" for own in _OWN)
DISPLAY_NAMES = {"PaperFedAvg": "FedAvg", "PaperFedProx": "FedProx", "NormNorm": "Norm-Norm"}
DISPLAY_NAMES |= {"fedprox": "FedProx", "scaffold": "SCAFFOLD"}
CLIENT_NORMS = ["client_norm_min", "client_norm_median", "client_norm_max"]
SECONDS = ["seconds.train", "seconds.aggregate", "seconds.evaluate"]
WAITED = "seconds.waited"
COUNTS = ["clients", "rejected"]
# The columns of every table, recorded or not.
NUMBERS = [
    *("round", "tested", "test_acc", "test_loss", "served_test_acc"),
    *("mean_update_norm", "mean_client_norm", "server_update_norm", "integrated_norm"),
    *("orthogonal_norm", *COUNTS, "degenerate", *CLIENT_NORMS, *SECONDS, WAITED),
]
# Of those that are whole numbers; the others are float64.
_TYPES = {"round": "int64", "degenerate": "boolean", "tested": "boolean"} | dict.fromkeys(
    COUNTS, "Int64"
)
OTHER_NUMBERS = re.compile(r"(layers\..*|test_metrics)\.")
# Names of other columns; a custom rule may have a key of such a name.
ARRANGED = ["data", "deal", "condition", "label", "shade"]
IDENTITY = [
    *("run", "folder", "finished", "method", "seed", "device", "commit"),
    *("metric", "lower_is_better", "frequency_of_the_test", "settings"),
]
_TAKEN = {*IDENTITY, "evaluated", *NUMBERS, *ARRANGED, *FINGERPRINTS}
# What a file of others' may cost; one of gzip's can be larger than it looks.
MAX_LINE_BYTES, MAX_METRICS_BYTES = 1 << 24, 1 << 29
MAX_ROUNDS, MAX_DAMAGED = 100_000, 1_000
_LARGEST = 1e100  # of a number that can be drawn
_HIGHEST = dict.fromkeys(("test_acc", "served_test_acc", "degenerate", "tested"), 1.0)
_HIGHEST |= dict.fromkeys(("round", *COUNTS), 1e9)
_MAX_FINGERPRINT = 1 << 20  # bytes
_LONGEST_SETTING = 60  # characters of a list or mapping; a longer one ends with a digest
#: What a recipe says of its partition, and what stands there for a split that the data had.
PARTITION = (
    *("partition_method", "partition_sizes", "classes_per_client", "partition_alpha"),
    *("power_law_exponent", "min_samples"),
)
OWN_SPLIT = "own split"
# Settings of these sections identify a run, but for those that say where and how, not what.
_SECTIONS = ("data_args", "model_args", "train_args")
_NOT_COMPUTED = {"data_cache_dir", "download", "start_round", "checkpoint_every"}
_NOT_COMPUTED |= {"client_batching", "max_client_failures", "client_threads"}
_NOT_COMPUTED |= {"model_file_cache_folder", "global_model_file_path", "client_id_list"}  # FedML's


def setting_columns(runs: pd.DataFrame) -> list[str]:
    """The columns that were read as settings, whatever columns were added since."""
    named = dict.fromkeys("\n".join(runs["settings"].drop_duplicates()).split("\n"))
    return [*IDENTITY, *(name for name in runs if name in named)]


def layers(runs: pd.DataFrame) -> list[str]:
    """The modules whose norms are recorded, in the model's order."""
    names = (name for name in runs if str(name).startswith("layers."))
    return list(dict.fromkeys(name[7:].rpartition(".")[0] for name in names))


def read_folders(paths: Sequence[Path]) -> tuple[pd.DataFrame, list[str]]:
    """The table of ``read_runs``, and a line for each thing left out; studies are passed over."""
    problems: list[str] = []
    folders = {folder.resolve(): folder for folder in _run_folders(paths, problems)}
    times = Counter(place.name for place in folders)
    heads: list[dict[str, Any]] = []
    parts: list[pd.DataFrame] = []
    room = Room([*IDENTITY, *NUMBERS, "evaluated"])
    for place, folder in folders.items():
        rounds = _read_rounds(folder, room, problems)
        name = printable(place.name if times[place.name] == 1 else folder)
        heads.append(_identity(folder, name, rounds["round"].max(), room, problems))
        parts.append(rounds)
    if not parts:
        return pd.DataFrame(columns=NUMBERS), problems
    by_folder = pd.concat(parts, keys=range(len(parts))).droplevel(1)
    columns = [*dict.fromkeys([*NUMBERS, "evaluated", *by_folder])]
    by_folder = by_folder[columns].astype(_TYPES)
    table = _typed(pd.DataFrame(heads, dtype=object)).join(by_folder, how="inner")
    table = table.reset_index(drop=True)
    return table.copy(), problems  # in one piece: of many layers pandas would warn at every use


def _typed(heads: pd.DataFrame) -> pd.DataFrame:
    """Counts as ``Int64``, switches as ``boolean``, other numbers as floats, where all are such."""
    types = {
        name: {type(value) for value in column if not pd.isna(value)}
        for name, column in heads.items()
    }
    found = {name: "boolean" for name, of in types.items() if of == {bool}}
    found |= {name: "Int64" for name, of in types.items() if of == {int}}
    found |= {name: "float64" for name, of in types.items() if float in of <= {int, float}}
    return heads.where(heads.notna(), None).astype(found)


def method_name(method: str, client_method: object = None) -> str:
    """A method as the paper writes it; a custom ``module:Class`` by its class, if it may be."""
    name = DISPLAY_NAMES.get(method, method.rpartition(":")[2])
    name = method if ":" in method and name in DISPLAY_NAMES.values() else name
    return f"{name} + {method_name(client_method)}" if isinstance(client_method, str) else name


def _run_folders(paths: Sequence[Path], problems: list[str]) -> Iterator[Path]:
    for path in paths:
        found = runs_and_studies(path)
        if not found:
            problems.append(f"{printable(path)}: no run: no {METRICS[0]} and no {RECIPE}")
        yield from filter(_is_run, found)


def runs_and_studies(folder: Path, depth: int = 4) -> list[Path]:
    """The folder, if it is a run or a study, else those below it; none inside another."""
    if _is_run(folder) or is_study(folder):
        return [folder]
    found: list[Path] = []
    for path in sorted(folder.glob("[!.]*")) if depth else []:
        if not path.is_symlink() or _is_run(path) or is_study(path):
            found += runs_and_studies(path, depth - 1)
    return found


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (*METRICS, RECIPE))


def _identity(
    folder: Path, name: str, last: float, room: Room, problems: list[str]
) -> dict[str, Any]:
    """What says which run it is: the leading columns of the table."""
    recipe, summary = (_read_settings(folder / file, problems) for file in (RECIPE, SUMMARY))
    sections = {name: values for name, values in recipe.items() if isinstance(values, dict)}
    settings, crowded_out = {}, 0
    named = Counter(key for section in _SECTIONS for key in sections.get(section, {}))
    for section in _SECTIONS:
        for key, value in sections.get(section, {}).items():
            own = printable(key)
            # An argument of a user's function may have any name.
            twice = named[key] > 1 and section != "train_args"
            taken = twice or own in _TAKEN or OTHER_NUMBERS.match(own)
            own = f"{section}.{own}" if taken else own
            if key not in _NOT_COMPUTED and room.for_column(own):
                settings[own] = _scalar(value)
            else:
                crowded_out += key not in _NOT_COMPUTED
    if crowded_out:
        problems.append(f"{printable(folder / RECIPE)}: too many settings: {crowded_out} left out")
    settings |= _fingerprints(folder / FINGERPRINT, problems)
    if settings.get("split_fingerprint"):  # the data had it: the recipe's partition was not used
        settings |= dict.fromkeys(settings.keys() & set(PARTITION)) | {
            "partition_method": OWN_SPLIT
        }
    # A summary may be of a shorter run, which was extended since.
    planned, method = settings.get("comm_round"), settings.get("federated_optimizer")
    validation = sections.get("validation_args", {})
    frequency = _scalar(validation.get("frequency_of_the_test"))
    metric = _first_metric(validation)
    higher = summary.get("higher_is_better", _direction(folder, metric, problems))
    return {
        "run": name,
        "folder": printable(folder),
        "finished": _scalar(summary.get("rounds")) == last
        and not (isinstance(planned, int | float) and planned > last),
        "method": name
        if method is None
        else method_name(str(method), settings.get("client_method")),
        "seed": _scalar(sections.get("common_args", {}).get("random_seed")),
        "device": _scalar(summary.get("device")),
        "commit": _scalar(summary.get("commit")),
        "metric": printable(metric.rpartition(":")[2]) or None,
        "lower_is_better": None if higher is None and ":" in metric else higher is False,
        "frequency_of_the_test": frequency if isinstance(frequency, int) else None,
        "settings": "\n".join(settings),
    } | settings


def _direction(folder: Path, metric: str, problems: list[str]) -> bool | None:
    """Whether a metric is the better the higher; None where an older version did not store it."""
    path = folder / DIRECTIONS
    stored = _read_settings(path, problems).get("higher_is_better") if path.exists() else None
    found = stored.get(metric.rpartition(":")[2]) if isinstance(stored, dict) else None
    return found if isinstance(found, bool) else None


def _first_metric(validation: Mapping[str, Any]) -> str:
    """The first metric of a recipe: a scorer's name or ``module:function``; empty without one."""
    metrics = validation.get("metrics")
    first = metrics[0] if isinstance(metrics, list) and metrics else None
    return first if isinstance(first, str) else ""


def _fingerprints(path: Path, problems: list[str]) -> dict[str, str]:
    """A short digest of each custom object, without what follows from the seed."""
    if not path.exists():
        return {}
    try:
        with open_regular(path, _MAX_FINGERPRINT) as file:
            stored = json.loads(file.read())
        digests = {own: sorted(parts.items()) for own, parts in stored.items()}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        problems.append(f"{printable(path)}: not used: {reason(error)}")
        return {}
    found = {}
    for column in FINGERPRINTS:
        if parts := digests.get(column.removesuffix("_fingerprint")):
            fixed = repr([part for part in parts if not part[0].startswith("drawn")])
            found[column] = hashlib.blake2b(fixed.encode(), digest_size=4).hexdigest()
    return found


def _read_settings(path: Path, problems: list[str]) -> dict[str, Any]:
    """A recipe or a summary; empty where it cannot be used."""
    if path.name == SUMMARY and not path.exists():  # the run is not finished
        return {}
    try:
        return read_mapping(path, "settings")
    except UserError as error:
        problems.append(f"not used: {error}")
        return {}


def _scalar(value: Any) -> str | float | bool | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, list | dict):
        flat = isinstance(value, list) and not any(isinstance(v, list | dict) for v in value)
        if flat and len(value) <= 4:
            return " × ".join(map(printable, value))
        text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        if len(text) <= _LONGEST_SETTING:
            return printable(text)
        digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
        return printable(f"{text[:_LONGEST_SETTING]}… {digest}")
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**53):
        return value
    return printable(value)


def _read_rounds(folder: Path, room: Room, problems: list[str]) -> pd.DataFrame:
    """The rounds of a folder, ascending, each once."""
    path = next((folder / n for n in METRICS if (folder / n).is_file()), folder / METRICS[0])
    said: list[str] = []
    numbers, evaluated, number, crowded_out = Columns(NUMBERS), list[str](), 0, 0
    try:
        for number, raw in enumerate(_lines(path), start=1):
            try:
                record = _record(raw)
            except (ValueError, LookupError, TypeError, RecursionError) as error:
                said.append(f"line {number}: left out: {reason(error)}")
                if len(said) > MAX_DAMAGED:
                    raise OSError(f"more than {MAX_DAMAGED} damaged lines") from None
                continue
            if len(evaluated) == MAX_ROUNDS or not room.for_row():
                raise OSError(f"more than {len(evaluated)} rounds")
            evaluated.append(record.pop("evaluated"))
            fitting = {name for name in record if room.for_column(name)}
            numbers.append({name: x for name, x in record.items() if name in fitting})
            crowded_out = max(crowded_out, len(record) - len(fitting))
    except (OSError, EOFError, zlib.error) as error:
        said.append(f"after line {number}: cannot be read: {reason(error)}")
    if crowded_out:
        said.insert(0, f"too many metrics or layers: {crowded_out} of a round are left out")
    table = numbers.table().assign(evaluated=evaluated)
    once = table.drop_duplicates("round", keep="last").sort_values("round")
    if len(once) < len(table):
        said.append("a round more than once; the last line of it counts")
    if table.empty and not said:
        said = ["no round recorded yet"]
    more = f", and {len(said) - 1} more problems" * (len(said) > 1)
    problems += [f"{printable(path)}: {problem}{more}" for problem in said[:1]]
    return once


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, packed or not, one at a time."""
    if not path.is_file():
        raise OSError("no such file")
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        while raw := file.readline(MAX_LINE_BYTES):
            if file.tell() > MAX_METRICS_BYTES:
                raise OSError(f"it is larger than {MAX_METRICS_BYTES} bytes")
            yield raw


def _record(line: bytes) -> dict[str, Any]:
    """The columns of a round; an error where one of ours has no number that can be."""
    record = dict(json.loads(line, parse_int=float))
    norms = record.pop("client_norms", None) or [None] * 3
    if not isinstance(norms, list) or len(norms) != 3:
        raise ValueError("client_norms are not three numbers")
    record |= zip(CLIENT_NORMS, norms, strict=True)
    flat: dict[str, Any] = {"evaluated": printable(record.get("evaluated") or "")}
    for name, value in _flat(record, ""):
        if not (name in NUMBERS or OTHER_NUMBERS.match(name)):
            continue
        own = name.startswith("test_metrics.")
        lowest = -_LARGEST if own or name == "test_loss" else 0.0
        is_number = isinstance(value, bool | float)  # json made floats of integers
        fits = is_number and lowest <= value <= _HIGHEST.get(name, _LARGEST)
        fits = fits and not (name in _TYPES and value % 1)
        if not (fits or (own and is_number) or value is None):
            raise ValueError(f"{name} is no number that can be")
        flat[printable(name)] = float(value) if fits else math.nan
    if not flat.get("round", 0.0) >= 1.0:  # NaN is none
        raise ValueError("round is no number that can be")
    return flat


def _flat(values: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
