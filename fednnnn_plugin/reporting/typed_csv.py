"""Tables of known columns from CSV files."""

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import pandas as pd

MAX_BYTES = 1 << 28  # of a file of tables or records, unpacked


def read_typed_csv(content: bytes, types: Mapping[str, Any], **how: Any) -> pd.DataFrame:
    """Read the columns of ``types``, each as its type; a float has the bits that were written.

    pandas before 3.1 rounds floats that it reads, and later releases do not bear the argument that
    ends this: they are read as text here.

    Raises:
        ValueError: a column is missing, or a value is not of its type.
    """
    floats = [name for name, kind in types.items() if kind is float]
    read_as = {**types, **dict.fromkeys(floats, str)}
    table = pd.read_csv(BytesIO(content), usecols=[*types], dtype=read_as, **how)[[*types]]
    return table.astype(dict.fromkeys(floats, float))
