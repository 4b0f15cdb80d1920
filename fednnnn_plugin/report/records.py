"""Read one ``metrics.jsonl`` into columns, whatever state the file is in."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.float64]

SCALARS = (
    "test_acc",
    "test_loss",
    "served_test_acc",
    "mean_update_norm",
    "mean_client_norm",
    "server_update_norm",
    "integrated_norm",
    "clients",
    "rejected",
)
CLIENT_NORMS = ("client_norm_min", "client_norm_median", "client_norm_max")
LAYER_SCALARS = ("mean_update_norm", "mean_client_norm", "server_update_norm")
FRACTIONS = ("test_acc", "served_test_acc")
# A round of a model with thousands of modules stays far below; a longer line is no record of ours.
MAX_LINE_BYTES = 4 * 1024 * 1024
MAX_PIECES_SKIPPED = 256
MAX_ROUND = 10**9
MAX_MODULES = 2000
MISSING = float("nan")
_FRACTION_AT = [SCALARS.index(name) for name in FRACTIONS]
_PLAIN = frozenset({int, float, type(None)})


@dataclass(frozen=True, eq=False)
class Records:
    """The rounds of one run as columns of equal length T; NaN where nothing was recorded.

    Args:
        rounds: int64 [T], ascending, each once.
        columns: quantity -> float64 [T]; the names of ``metrics.jsonl``, and ``client_norms`` as
            ``client_norm_min``, ``client_norm_median`` and ``client_norm_max``.
        layers: module -> quantity -> float64 [T].
        degenerate: rounds whose N was too near 0 to normalise.
    """

    rounds: npt.NDArray[np.int64]
    columns: Mapping[str, Column]
    layers: Mapping[str, Mapping[str, Column]]
    degenerate: int


def read_records(path: Path) -> tuple[Records, list[str]]:
    """Read ``metrics.jsonl``; a line that cannot be used is left out and said.

    Args:
        path: the file; it need not exist.

    Returns:
        The rounds found, and one line for each problem ("line 3: ...").
    """
    problems: list[str] = []
    by_round: dict[int, dict[str, Any]] = {}
    for number, line in _lines(path, problems):
        index = line.get("round")
        if type(index) is not int or not 1 <= index <= MAX_ROUND:
            problems.append(f"line {number}: round is {_short(index)}, must be an integer from 1")
            continue
        if index in by_round:
            problems.append(f"line {number}: round {index} a second time; the later line counts")
        by_round[index] = line
    return _columns(by_round, problems), problems


def _lines(path: Path, problems: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    if not path.is_file():  # also a FIFO or a device, which would block or never end
        problems.append("no such file" if not path.exists() else "not a plain file")
        return
    try:
        with path.open("rb") as file:
            number = 0
            while raw := file.readline(MAX_LINE_BYTES):
                number += 1
                if len(raw) == MAX_LINE_BYTES and not raw.endswith(b"\n"):
                    problems.append(f"line {number}: longer than {MAX_LINE_BYTES} bytes; left out")
                    if not _skip_line(file):
                        problems.append(f"line {number}: it does not end; the rest is left out")
                        return
                elif raw.strip():
                    try:
                        yield number, _object(raw)
                    except (ValueError, RecursionError):
                        last = not raw.endswith(b"\n")
                        what = "the last line is cut off; left out" if last else "no JSON object"
                        problems.append(f"line {number}: {what}")
    except OSError as error:
        problems.append(f"cannot be read ({error.strerror})")


def _skip_line(file: BinaryIO) -> bool:
    """Go to the end of a line; False if it is so far that there may be none."""
    for _ in range(MAX_PIECES_SKIPPED):
        rest = file.readline(MAX_LINE_BYTES)
        if not rest or rest.endswith(b"\n"):
            return True
    return False


def _object(raw: bytes) -> dict[str, Any]:
    # NaN and Infinity are no JSON, though Python's parser takes them: kept as text, and refused.
    values = json.loads(raw, parse_constant=str)
    if not isinstance(values, dict):
        raise ValueError("not an object")
    return values


def _columns(by_round: Mapping[int, dict[str, Any]], problems: list[str]) -> Records:
    rounds = sorted(by_round)
    modules = _modules(by_round.values(), problems)
    names = [*SCALARS, *CLIENT_NORMS]
    names += [f"layers.{module}.{name}" for module in modules for name in LAYER_SCALARS]
    table = np.full((len(rounds), len(names)), MISSING)
    for row, index in enumerate(rounds):
        found: list[str] = []
        table[row] = _numbers(_flat(by_round[index], modules, found), names, found)
        problems.extend(f"round {index}: {problem}" for problem in found)
    own = len(SCALARS) + len(CLIENT_NORMS)
    steps = range(own, len(names), len(LAYER_SCALARS))
    return Records(
        rounds=np.array(rounds, dtype=np.int64),
        columns={name: table[:, i] for i, name in enumerate(names[:own])},
        layers={
            module: {name: table[:, start + i] for i, name in enumerate(LAYER_SCALARS)}
            for module, start in zip(modules, steps, strict=True)
        },
        degenerate=sum(line.get("degenerate") is True for line in by_round.values()),
    )


def _modules(lines: Iterable[dict[str, Any]], problems: list[str]) -> list[str]:
    found: dict[str, None] = {}
    for line in lines:
        layers = line.get("layers")
        if isinstance(layers, dict):
            found.update(dict.fromkeys(layers))
    if len(found) > MAX_MODULES:
        problems.append(f"{len(found)} modules; only the first {MAX_MODULES} are read")
    return list(found)[:MAX_MODULES]


def _flat(line: Mapping[str, Any], modules: Sequence[str], problems: list[str]) -> list[Any]:
    """A record's values in the order of the columns, as they stand in the file."""
    flat: list[Any] = [line.get(name) for name in SCALARS]
    norms = line.get("client_norms")
    if isinstance(norms, list) and len(norms) == len(CLIENT_NORMS):
        flat += norms
    else:
        flat += [None] * len(CLIENT_NORMS)
        if norms is not None:
            problems.append("client_norms must be [minimum, median, maximum]")
    layers = line.get("layers")
    if layers is not None and not isinstance(layers, dict):
        problems.append("layers must be an object of modules")
        layers = None
    for module in modules:
        norms = (layers or {}).get(module)
        if isinstance(norms, dict):
            flat += map(norms.get, LAYER_SCALARS)
        else:
            flat += [None] * len(LAYER_SCALARS)
            if norms is not None:
                problems.append(f"layers.{_short(module)} must be an object of norms")
    return flat


def _numbers(flat: Sequence[Any], names: Sequence[str], problems: list[str]) -> Column:
    """The values as float64, NaN for null; what is no usable number is NaN too, and said."""
    if _PLAIN.issuperset(map(type, flat)):  # the rule; spares looking at each value by itself
        with suppress(OverflowError):
            row = np.array(flat, dtype=np.float64)
            if not ((row < 0.0) | np.isinf(row)).any() and not (row[_FRACTION_AT] > 1.0).any():
                return row
    return np.array([_number(v, n, problems) for v, n in zip(flat, names, strict=True)])


def _number(value: object, name: str, problems: list[str]) -> float:
    if value is None:
        return MISSING
    highest = 1.0 if name in FRACTIONS else sys.float_info.max
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= highest:
        return float(value)
    allowed = "from 0 to 1" if name in FRACTIONS else "finite and not negative"
    problems.append(f"{_short(name)[1:-1]} is {_short(value)}, must be a number, {allowed}")
    return MISSING


def _short(value: object) -> str:
    if isinstance(value, list | dict):
        return f"a {type(value).__name__}"
    if isinstance(value, int) and abs(value) > 10**15:
        return "a huge integer"
    text = ascii(value)
    return text if len(text) <= 40 else text[:37] + "..."
