"""Read a run's settings and summary into plain values by name."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fednnnn_plugin.recipe.reading import NotReadableError, read_yaml
from fednnnn_plugin.report.printable import printable

Scalar = str | int | float | bool | None

MAX_SETTINGS_BYTES = 256 * 1024


def read_settings(path: Path) -> tuple[dict[str, Scalar], list[str]]:
    """Read ``recipe.yaml`` or ``summary.json`` (by suffix), whatever state the file is in.

    Returns:
        ``section.key`` -> value, empty where the file cannot be used; and what is wrong with it.
    """
    values, problems = read_nested(path)
    return _flatten(values), problems


def read_nested(path: Path) -> tuple[dict[Any, Any], list[str]]:
    """Read a YAML or JSON file: its mapping, empty where it cannot be used; and what is wrong."""
    if not path.is_file():
        return {}, ["no such file" if not path.exists() else "not a plain file"]
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SETTINGS_BYTES + 1)
        if len(raw) > MAX_SETTINGS_BYTES:
            return {}, [f"larger than {MAX_SETTINGS_BYTES} bytes; not read"]
        text = raw.decode()
        values = json.loads(text) if path.suffix == ".json" else read_yaml(text)
    except OSError as error:
        return {}, [f"cannot be read ({error.strerror})"]
    except (ValueError, NotReadableError, RecursionError):
        return {}, [f"not valid {'JSON' if path.suffix == '.json' else 'YAML'}; not used"]
    if not isinstance(values, dict):
        return {}, ["must be a mapping; not used"]
    return values, []


def _flatten(values: Mapping[Any, Any]) -> dict[str, Scalar]:
    flat: dict[str, Scalar] = {}
    for section, value in values.items():
        if isinstance(value, dict):
            for key, inner in value.items():
                flat[f"{printable(section)}.{printable(key)}"] = _scalar(inner)
        else:
            flat[printable(section)] = _scalar(value)
    return flat


def _scalar(value: object) -> Scalar:
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < 10**18 else "a huge integer"
    if isinstance(value, list):
        items = value[:20]
        flat = all(item is None or isinstance(item, str | int | float) for item in items)
        text = ", ".join(printable(_scalar(item)) for item in items) if flat else "..."
    elif isinstance(value, dict):
        text = "..."
    else:
        text = printable(value)
    return text if len(text) <= 200 else text[:199] + "…"
