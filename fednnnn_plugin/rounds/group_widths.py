"""How many clients of a round train in one set of kernels: kept, so that a resumed run is the same.

A change of width changes the order of additions, and so the bits. On a GPU the widths are therefore
in the run folder: which was planned, and from which round on it was less, ``{"0": 32, "7": 16}``.
"""

import json
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.files import open_regular, write_atomically
from fednnnn_plugin.run_folder.folder import RunFolder

#: From which round on how many clients train in one set of kernels, at most; 0 is the start.
Widths = dict[int, int]

_LONGEST = 1 << 20  # bytes
_WIDTHS: TypeAdapter[Widths] = TypeAdapter(
    dict[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=1)]]
)


def width_in(widths: Widths, number: int) -> int:
    """Return the width of a round."""
    return widths[max(first for first in widths if first <= number)]


def kept_widths(folder: RunFolder, most: int) -> Widths | None:
    """Return the widths of the run in a folder, at most ``most``; None where it has none."""
    if not folder.widths.exists():
        return None
    try:
        with open_regular(folder.widths, _LONGEST) as file:
            widths = _WIDTHS.validate_json(file.read())
    except (OSError, ValidationError):
        widths = {}
    if 0 not in widths:
        raise UserError(f"--resume: {folder.widths}: damaged: replace the run with --overwrite")
    return {first: min(width, most) for first, width in widths.items()}


def keep_widths(folder: RunFolder, widths: Widths) -> None:
    """Write the widths, where clients train together."""
    if max(widths.values()) > 1:
        write_atomically(folder.widths, f"{json.dumps(widths)}\n".encode())
