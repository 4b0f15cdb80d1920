"""How many samples of each class every client holds; needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fednnnn_plugin.errors import printable

if TYPE_CHECKING:
    import pandas as pd


def client_counts(
    labels: npt.ArrayLike, parts: Sequence[npt.ArrayLike], class_names: Sequence[str] = ()
) -> pd.DataFrame:
    """Images by client (rows, from 0) and class (columns).

    ``labels`` has the class of each image, [n] integers; ``parts`` for each client the positions
    of its images. Classes without a name in ``class_names`` go by their number.
    """
    import pandas as pd

    classes, class_of = np.unique(np.asarray(labels), return_inverse=True)
    of_parts = (class_of[np.asarray(part, dtype=np.intp)] for part in parts)
    rows = [np.bincount(of_part, minlength=classes.size) for of_part in of_parts]
    named = int(classes.max(initial=0)) < len(class_names)
    names = [printable(class_names[label]) if named else str(label) for label in classes]
    return pd.DataFrame(np.array(rows), columns=names).rename_axis(index="client")
