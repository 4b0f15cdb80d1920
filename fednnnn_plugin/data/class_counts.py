"""How many samples of each class every client holds; needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

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

    of_images = _whole_numbers(labels)
    if of_images is None:
        raise UserError("labels", allowed="must be the class of each image, [n] integers")
    classes, class_of = np.unique(of_images, return_inverse=True)
    if not isinstance(parts, Iterable):
        raise UserError("parts", shown(parts), "must be a list with each client's positions")
    of_parts = []
    for client, part in enumerate(parts):
        positions = _whole_numbers(part)
        if positions is None or ((positions < 0) | (positions >= class_of.size)).any():
            must = f"must be positions of its images, integers from 0 to {class_of.size - 1}"
            raise UserError(f"parts[{client}]", allowed=must)
        of_parts.append(class_of[positions])
    rows = [np.bincount(of_part, minlength=classes.size) for of_part in of_parts]
    named = int(classes.max(initial=0)) < len(class_names)
    names = [printable(class_names[label]) if named else str(label) for label in classes]
    return pd.DataFrame(np.array(rows), columns=names).rename_axis(index="client")


def _whole_numbers(given: npt.ArrayLike) -> npt.NDArray[np.intp] | None:
    """The list as an array, or None if it is no list [n] of integers; an empty one is."""
    with suppress(TypeError, ValueError):  # rows of several lengths, and what is no array
        numbers = np.asarray(given)
        if numbers.ndim == 1 and (numbers.dtype.kind in "iu" or not numbers.size):
            return numbers.astype(np.intp)
    return None
