"""How many samples of each class every client holds; needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fednnnn_plugin.errors import UserError, printable, shown

if TYPE_CHECKING:
    import pandas as pd


def client_counts(
    labels: npt.ArrayLike, parts: Sequence[npt.ArrayLike], class_names: Sequence[str] = ()
) -> pd.DataFrame:
    """Images by client (rows, from 0) and class (columns).

    ``labels`` has the class of each image, [n] integers; ``parts`` for each client the positions
    of its images. Classes without a name in ``class_names`` go by their number.

    Raises:
        UserError: labels that are no classes, or parts that are not such positions.
    """
    import pandas as pd

    of_images = whole_numbers(labels, "labels", "must be the class of each image, [n] integers")
    classes, class_of = np.unique(of_images, return_inverse=True)
    if not isinstance(parts, Iterable):
        raise UserError("parts", shown(parts), "must be a list with each client's positions")
    must = f"must be positions of its images, [n] integers from 0 to {class_of.size - 1}"
    of_parts = []
    for client, part in enumerate(parts):
        where = f"parts[{client}]"
        positions = whole_numbers(part, where, must)
        if outside := positions[(positions < 0) | (positions >= class_of.size)].tolist():
            raise UserError(where, f"has {outside[0]}", must)
        of_parts.append(class_of[positions])
    rows = [np.bincount(of_part, minlength=classes.size) for of_part in of_parts]
    named = int(classes.max(initial=0)) < len(class_names)
    names = [printable(class_names[label]) if named else str(label) for label in classes]
    return pd.DataFrame(np.array(rows), columns=names).rename_axis(index="client")


def whole_numbers(given: Any, where: str, allowed: str) -> npt.NDArray[np.intp]:
    """Return a list, an array or a tensor [n] of integers, which may be empty, as an array."""
    kind = printable(type(given).__name__)
    # Rows of several lengths, what is no array, and a tensor that has a gradient or no values.
    with suppress(TypeError, ValueError, RuntimeError):
        numbers = np.asarray(given.cpu() if hasattr(given, "cpu") else given)
        if numbers.ndim == 1 and (numbers.dtype.kind in "iu" or not numbers.size):
            return numbers.astype(np.intp)
        kind = f"{kind} of {numbers.dtype} with shape {list(numbers.shape)}"
    raise UserError(where, f"a {kind}", allowed)
