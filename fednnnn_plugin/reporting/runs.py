"""Run folders as one tidy table: a line a round, settings and layers as columns."""

import gzip
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import ValidationError

from fednnnn_plugin.data.spec import CLIENT_HOLDOUT
from fednnnn_plugin.errors import UserError, printable, reason
from fednnnn_plugin.quantities import NOT_ALWAYS, NUMBERS, columns, read_record
from fednnnn_plugin.reading import read_mapping
from fednnnn_plugin.reporting.study import is_study
from fednnnn_plugin.reporting.typed_csv import MAX_BYTES

METRICS = ("metrics.jsonl", "metrics.jsonl.gz")  # as the engine writes it, and as it is published
RECIPE, SUMMARY, FINGERPRINT = "recipe.yaml", "summary.json", "fingerprint.json"
DIRECTIONS = "metric_directions.json"
# What a fingerprint has beside the digests of custom objects.
_NOT_OWN = ("versions", "device", "data_set")
FINGERPRINT_SUFFIX = "_fingerprint"  # of the columns with these digests
DISPLAY_NAMES = {"PaperFedAvg": "FedAvg", "PaperFedProx": "FedProx", "NormNorm": "Norm-Norm"}
DISPLAY_NAMES |= {"fedprox": "FedProx", "scaffold": "SCAFFOLD", "feddyn": "FedDyn"}
DISPLAY_NAMES |= {"fedsam": "FedSAM", "fedcm": "FedCM", "fednova": "FedNova"}
SECONDS = ["seconds.train", "seconds.aggregate", "seconds.evaluate"]
_NAMED = ("layers.", "test_metrics.", "served_test_metrics.")
# Names of other columns; a custom rule may have a key of such a name.
ARRANGED = ["data", "partition", "condition", "label", "shade"]
IDENTITY = [
    *("run", "folder", "finished", "stopped", "method", "seed", "device", "commit"),
    *("metric", "lower_is_better", "settings"),
]
_TAKEN = {*IDENTITY, "evaluated", "holdout", *NUMBERS, *ARRANGED}
_LARGEST = 1e100  # of a number that can be drawn
_LONGEST_SETTING = 60  # characters of a list or mapping; a longer one ends with a digest
#: The settings of a partition, beside its method and the sizes.
PARTITION_ARGS = (
    *("classes_per_client", "partition_alpha", "power_law_exponent", "min_samples"),
    *("partition_by", "test_division"),
)
#: What a recipe says of its partition, and what stands there for a split that the data had.
PARTITION = ("partition_method", "partition_sizes", *PARTITION_ARGS)
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


def own_metrics(runs: pd.DataFrame) -> dict[str, str]:
    """The columns of custom metrics, with the names of the metrics."""
    own = (name for name in map(str, runs) if name.startswith("test_metrics."))
    return {column: column.partition(".")[2] for column in own}


def read_folders(paths: Sequence[Path]) -> tuple[pd.DataFrame, list[str]]:
    """The table of ``read_runs``, and a line for each thing left out; studies are passed over."""
    problems: list[str] = []
    folders: dict[Path, Path] = {}
    for path in paths:
        found = runs_and_studies(path)
        if not found:
            problems.append(f"{printable(path)}: no run: no {METRICS[0]} and no {RECIPE}")
        folders |= {folder.resolve(): folder for folder in found if _is_run(folder)}
    times = Counter(place.name for place in folders)
    heads: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for place, folder in folders.items():
        rounds = _read_rounds(folder, problems)
        name = printable(place.name if times[place.name] == 1 else folder)
        heads.append(_identity(folder, name, max(rounds, default=0), problems))
        rows += [{"head": len(heads) - 1} | rounds[number] for number in sorted(rounds)]
    if not rows:
        return pd.DataFrame(columns=[*NUMBERS]), problems
    table = _typed(pd.DataFrame(heads, dtype=object)).join(_numbers(rows), how="inner")
    return table.reset_index(drop=True).copy(), problems  # in one piece, as pandas wants it


def _numbers(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows of records as columns of numbers, by the place of their run."""
    table = pd.DataFrame(rows).set_index("head")
    found = [name for name in table if name.startswith(_NAMED)]
    numbers = [name for name in NUMBERS if name not in NOT_ALWAYS or name in table]
    table = table.reindex(columns=[*numbers, "evaluated", *found])
    types = {int: "Int64", bool: "boolean", float: "float64"}
    table = table.astype({n: types[NUMBERS.get(n, float)] for n in (*numbers, *found)})
    floats = table.select_dtypes("float64")
    table[floats.columns] = floats.mask(floats.abs() > _LARGEST)
    table["evaluated"] = table["evaluated"].fillna("").map(printable)
    return table.astype({"round": "int64"}).rename(columns=printable)


def _typed(heads: pd.DataFrame) -> pd.DataFrame:
    """Counts as ``Int64``, switches as ``boolean``, other numbers as floats, where all are such."""
    found: dict[Any, Any] = {}
    for name, column in heads.items():
        kinds = {type(value) for value in column if not pd.isna(value)}
        if kinds and kinds <= {int, float}:
            found[name] = "float64" if float in kinds else "Int64"
        elif kinds == {bool}:
            found[name] = "boolean"
    return heads.where(heads.notna(), None).astype(found)


def method_name(method: str, client_method: object = None) -> str:
    """A method as the paper writes it; a custom ``module:Class`` by its class, if it may be."""
    name = DISPLAY_NAMES.get(method, method.rpartition(":")[2])
    name = method if ":" in method and name in DISPLAY_NAMES.values() else name
    return f"{name} + {method_name(client_method)}" if isinstance(client_method, str) else name


def runs_and_studies(folder: Path, depth: int = 4) -> list[Path]:
    """The folder, if it is a run or a study, else those below it; none inside another."""
    if _is_run(folder) or is_study(folder):
        return [folder]
    found: list[Path] = []
    for path in sorted(folder.glob("[!.]*")) if depth else []:
        found += runs_and_studies(path, depth - 1)
    return found


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (*METRICS, RECIPE))


def _identity(folder: Path, name: str, last: int, problems: list[str]) -> dict[str, Any]:
    """What says which run it is: the leading columns of the table."""
    recipe, summary, fingerprint, directions = (
        _read_settings(folder / file, problems)
        for file in (RECIPE, SUMMARY, FINGERPRINT, DIRECTIONS)
    )
    sections = {name: values for name, values in recipe.items() if isinstance(values, dict)}
    settings = _settings(sections) | _fingerprints(fingerprint)
    if settings.get("split_fingerprint"):  # the data had it: the recipe's partition was not used
        settings |= dict.fromkeys(settings.keys() & set(PARTITION))
        settings["partition_method"] = OWN_SPLIT
    validation = sections.get("validation_args", {})
    if validation.get("per_client"):  # no client trains on what it is tested on
        is_dealt = settings.get("partition_method") not in (None, OWN_SPLIT, "natural")
        holdout = _scalar(validation.get("holdout")) or CLIENT_HOLDOUT
        # Others may have tests of their own: of them only an unusual share is a condition.
        settings["holdout"] = holdout if is_dealt or holdout != CLIENT_HOLDOUT else None
    # A summary may be of a shorter run, which was extended since.
    planned, method = settings.get("comm_round"), settings.get("federated_optimizer")
    is_planned_longer = isinstance(planned, int | float) and planned > last
    stopped = _scalar(summary.get("stopped")) if summary.get("rounds") == last else None
    of_clients = settings.get("client_method")
    higher_is_better = directions.get("higher_is_better")
    metrics = higher_is_better if isinstance(higher_is_better, dict) else {}
    metric = next(iter(metrics), None)  # the recipe's first
    return {
        "run": name,
        "folder": printable(folder),
        "finished": summary.get("rounds") == last and not (is_planned_longer and stopped is None),
        "stopped": stopped,
        "method": _label(sections)
        or (name if method is None else method_name(str(method), of_clients)),
        "seed": _scalar(sections.get("common_args", {}).get("random_seed")),
        "device": _scalar(summary.get("device")),
        "commit": _scalar(summary.get("commit")),
        "metric": None if metric is None else printable(metric),
        "lower_is_better": metrics.get(metric) is False,
        "settings": "\n".join(settings),
    } | settings


def _settings(sections: Mapping[str, Any]) -> dict[str, Any]:
    """What a recipe has that identifies a run, by the key, or ``section.key`` to tell it apart."""
    settings = {}
    named = Counter(key for section in _SECTIONS for key in sections.get(section, {}))
    for section in _SECTIONS:
        for key, value in sections.get(section, {}).items():
            own = printable(key)
            # An argument of a user's function may have any name.
            twice = named[key] > 1 and section != "train_args"
            taken = own in _TAKEN or own.startswith(_NAMED) or own.endswith(FINGERPRINT_SUFFIX)
            if twice or taken:
                own = f"{section}.{own}"
            if key not in _NOT_COMPUTED:
                settings[own] = _scalar(value)
    return settings


def _label(sections: Mapping[str, Any]) -> str | None:
    """What the run's method is to be called, if it says so."""
    label = sections.get("tracking_args", {}).get("label")
    return printable(label) if isinstance(label, str) and label else None


def _fingerprints(stored: Mapping[str, Any]) -> dict[str, str]:
    """A short digest of each custom object, without what follows from the seed."""
    found = {}
    for own, parts in stored.items():
        if isinstance(parts, dict) and parts and own not in _NOT_OWN:
            fixed = repr(sorted(part for part in parts.items() if not part[0].startswith("drawn")))
            digest = hashlib.blake2b(fixed.encode(), digest_size=4).hexdigest()
            found[f"{printable(own)}{FINGERPRINT_SUFFIX}"] = digest
    return found


def _read_settings(path: Path, problems: list[str]) -> dict[str, Any]:
    """A recipe, or what a run may have stored; empty where it cannot be used."""
    # A folder of NWDARecorder has neither recipe nor summary.
    if not path.exists() and (path.name != RECIPE or not path.with_name(SUMMARY).exists()):
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


def _read_rounds(folder: Path, problems: list[str]) -> dict[int, dict[str, Any]]:
    """The rounds of a folder by their numbers, each as a row; what is damaged is left out."""
    path = next((folder / n for n in METRICS if (folder / n).is_file()), folder / METRICS[0])
    found: dict[int, dict[str, Any]] = {}
    said, number = [], 0
    try:
        for number, line in enumerate(_lines(path), start=1):
            try:
                row = columns(read_record(line))
            except ValidationError as error:
                said.append(f"line {number}: left out: {error.errors()[0]['msg']}")
                continue
            if row["round"] in found:
                said.append(f"line {number}: round {row['round']} once more; this line counts")
            found[row["round"]] = row
    except (OSError, EOFError, zlib.error) as error:
        said.append(f"after line {number}: cannot be read: {reason(error)}")
    if not found and not said:
        said = ["no round recorded yet"]
    more = f", and {len(said) - 1} more problems" * (len(said) > 1)
    problems += [f"{printable(path)}: {printable(problem)}{more}" for problem in said[:1]]
    return found


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, packed or not, one at a time."""
    if not path.is_file():
        raise OSError("no such file")
    left = MAX_BYTES
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        while line := file.readline(left):
            left -= len(line)
            if not left:
                raise OSError(f"it is larger than {MAX_BYTES} bytes")
            yield line
