"""Drawing a part of a labelled set that has the classes in the proportions of the whole."""

import numpy as np
from numpy.typing import NDArray


def draw_stratified(
    labels: NDArray[np.int64], num_drawn: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Mark ``num_drawn`` of the labels, of each class its share, rounded by largest remainder.

    Args:
        labels: int64 [n], from 0 on.
        num_drawn: at most n.
        rng: draws which ones of a class.
    """
    class_sizes = np.bincount(labels)
    quotas, remainders = np.divmod(class_sizes * num_drawn, len(labels))
    quotas[np.argsort(-remainders, kind="stable")[: num_drawn - quotas.sum()]] += 1
    drawn = np.zeros(len(labels), dtype=np.bool_)
    for label, quota in enumerate(quotas):
        drawn[rng.permutation(np.flatnonzero(labels == label))[:quota]] = True
    return drawn
