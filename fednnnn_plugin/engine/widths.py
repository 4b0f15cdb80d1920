"""How many clients of a round train in one set of kernels: kept, so that a resumed run is the same.

A change of width changes the order of additions, and so the bits. On a GPU the widths are therefore
in the run folder: from which round on which, ``{"1": 32, "7": 16}``.
"""

import json
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from fednnnn_plugin.engine.folder import RunFolder, open_regular, write_atomically
from fednnnn_plugin.errors import UserError

#: From which round on how many clients train in one set of kernels, at most; round 1 is there.
Widths = dict[int, int]

_LONGEST = 1 << 20  # bytes
_Positive = Annotated[int, Field(ge=1)]
_WIDTHS: TypeAdapter[Widths] = TypeAdapter(dict[_Positive, _Positive])


def width_in(widths: Widths, number: int) -> int:
    """Return the width of a round."""
    return widths[max(first for first in widths if first <= number)]


def kept_widths(folder: RunFolder) -> Widths | None:
    """Return the widths of the run in a folder; None where its clients train one by one."""
    if not folder.widths.exists():
        return None
    try:
        with open_regular(folder.widths, _LONGEST) as file:
            widths = _WIDTHS.validate_json(file.read())
    except (OSError, ValidationError):
        widths = {}
    if 1 not in widths:
        raise UserError(f"--resume: {folder.widths}: damaged: replace the run with --overwrite")
    return widths


def keep_widths(folder: RunFolder, widths: Widths) -> None:
    """Write the widths, where clients train together."""
    if max(widths.values()) > 1:
        write_atomically(folder.widths, f"{json.dumps(widths)}\n".encode())
