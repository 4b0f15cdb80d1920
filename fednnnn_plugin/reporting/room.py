"""How much one reading of others' folders may hold."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

# Of all folders together: 256 MiB of numbers. A table has a place for each round in each column.
MAX_CELLS = 1 << 25
# Each metric is drawn, and the values of each setting are compared.
MAX_COLUMNS = {"layers": 3_000, "test_metrics": 100, "settings": 300}


class Room:
    """The columns and rows of a whole reading, of which a folder gets what is left."""

    def __init__(self, columns: Iterable[str]) -> None:
        self._columns = set(columns)
        self._kinds = Counter[str]()
        self._rows = 0

    def for_row(self) -> bool:
        """Take the place of a row, if there is one."""
        if (self._rows + 1) * len(self._columns) > MAX_CELLS:
            return False
        self._rows += 1
        return True

    def for_column(self, name: str) -> bool:
        """Take the place of a column, if there is one; one that is there has it."""
        if name not in self._columns:
            kind = name.partition(".")[0]
            kind = kind if kind in MAX_COLUMNS else "settings"
            more = len(self._columns) + 1
            if self._kinds[kind] == MAX_COLUMNS[kind] or self._rows * more > MAX_CELLS:
                return False
            self._columns.add(name)
            self._kinds[kind] += 1
        return True


class Columns:
    """Rows of numbers, kept by column; NaN where a row has none."""

    def __init__(self, names: Iterable[str]) -> None:
        self._columns = {name: array("d") for name in names}
        self._rows = 0

    def append(self, row: Mapping[str, float]) -> None:
        """Add a row."""
        for name in row:
            if name not in self._columns:
                self._columns[name] = array("d", [math.nan]) * self._rows
        for name, column in self._columns.items():
            column.append(row.get(name, math.nan))
        self._rows += 1

    def table(self) -> pd.DataFrame:
        """Return the rows, the columns as they were named, then in the order in which they came."""
        return pd.DataFrame({name: np.array(column) for name, column in self._columns.items()})
