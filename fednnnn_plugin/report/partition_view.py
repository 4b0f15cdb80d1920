"""How a data set was dealt to the clients: table, checks and picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fednnnn_plugin.report.tables import Cell, Table

Ints = npt.NDArray[np.int64]

# Up to this many clients the terminal shows all; of more, the first and the last.
ALL_CLIENTS, FIRST_CLIENTS, LAST_CLIENTS = 25, 12, 6
# A fit to sizes that are whole numbers comes this near to the law that they follow.
EXPONENT_TOLERANCE = 0.05


@dataclass(frozen=True)
class Check:
    """A promise of the partition, whether it is kept, and the numbers."""

    promise: str
    kept: bool
    found: str


@dataclass(frozen=True, eq=False)
class PartitionSummary:
    """What each client holds.

    Args:
        title: what was dealt, and how.
        classes: the labels that occur, ascending, [C].
        counts: int64 [K, C]: images of each class at each client.
        exponent: of the power law fitted to sizes by rank; None where there is nothing to fit.
        fitted: how many of the largest clients the fit rests on.
        checks: the class-count and size-law checks.
    """

    title: str
    classes: Ints
    counts: Ints
    exponent: float | None
    fitted: int
    checks: tuple[Check, ...]

    @property
    def sizes(self) -> Ints:
        """int64 [K]: images of each client."""
        sizes: Ints = self.counts.sum(axis=1)
        return sizes

    @property
    def kept(self) -> bool:
        """Whether every check holds."""
        return all(check.kept for check in self.checks)

    def text(self) -> str:
        """For a terminal: the clients, the spread of their sizes, and the checks."""
        lines = [_client_table(self).text()]
        low, middle, high = np.quantile(self.sizes, (0.0, 0.5, 1.0))
        lines.append(f"images a client: smallest {low:g}, median {middle:g}, largest {high:g}\n")
        for check in self.checks:
            lines.append(f"{'ok' if check.kept else 'NO':<3} {check.promise}: {check.found}")
        return "\n".join(lines) + "\n"


def partition_summary(
    labels: Sequence[int] | npt.ArrayLike,
    parts: Sequence[npt.ArrayLike],
    *,
    dataset: str = "",
    method: str = "iid",
    sizes: str = "balanced",
    classes_per_client: int = 2,
    power_law_exponent: float = 1.0,
    min_samples: int = 10,
) -> PartitionSummary:
    """Count what each client holds, and check it against what was asked for.

    Args:
        labels: class of each image, [n] integers.
        parts: for each client the positions of its images in ``labels``.
        dataset: its name, for the title.
        method, sizes, classes_per_client, power_law_exponent, min_samples: as given to
            ``partition``.
    """
    label_array = np.asarray(labels, dtype=np.int64)
    indices = [np.asarray(part, dtype=np.int64) for part in parts]
    classes, class_of = np.unique(label_array, return_inverse=True)
    counts = np.array(
        [np.bincount(class_of[part], minlength=classes.size) for part in indices], dtype=np.int64
    ).reshape(len(indices), classes.size)
    held = counts.sum(axis=1)
    # The law holds for the clients above the floor that every client is given.
    above = held > min_samples if sizes == "power_law" else np.ones(held.size, dtype=bool)
    exponent, fitted = _fitted_exponent(held[above])
    law = (
        _power_law(exponent, fitted, power_law_exponent, held, min_samples)
        if sizes == "power_law"
        else _balanced(held)
    )
    checks = (_dealt_once(indices, label_array.size), _classes(counts, method, classes_per_client))
    how = f"{method}, {sizes}, {len(indices)} clients, {label_array.size} images"
    return PartitionSummary(
        title=f"{dataset}: {how}" if dataset else how,
        classes=classes,
        counts=counts,
        exponent=exponent,
        fitted=fitted,
        checks=(*checks, law),
    )


def _fitted_exponent(sizes: Ints) -> tuple[float | None, int]:
    """The a of size = c rank^(-a), by least squares on logarithms."""
    positive = np.sort(sizes[sizes > 0])[::-1].astype(np.float64)
    if positive.size < 3:
        return None, int(positive.size)
    ranks = np.arange(1, positive.size + 1, dtype=np.float64)
    slope = float(np.polyfit(np.log(ranks), np.log(positive), 1)[0])
    return 0.0 - slope, int(positive.size)


def _dealt_once(parts: Sequence[Ints], total: int) -> Check:
    dealt = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
    distinct = np.unique(dealt).size
    kept = distinct == dealt.size == total
    found = f"{distinct} of {total} images" + (
        "" if distinct == dealt.size else f", {dealt.size - distinct} more than once"
    )
    return Check("every image is dealt to one client", kept, found)


def _classes(counts: Ints, method: str, classes_per_client: int) -> Check:
    held = (counts > 0).sum(axis=1)
    spread = f"{held.min()} to {held.max()}" if held.min() < held.max() else f"{held.min()}"
    if method == "n_class":
        right = held == classes_per_client
        promise = f"every client holds {classes_per_client} classes"
    else:
        # A client of fewer images than there are classes cannot hold them all.
        right = (held == counts.shape[1]) | (counts.sum(axis=1) < counts.shape[1])
        promise = "every client of enough images holds all classes"
    return Check(promise, bool(right.all()), f"{spread} classes at {int(right.sum())} clients")


def _balanced(sizes: Ints) -> Check:
    apart = int(sizes.max() - sizes.min())
    return Check("all clients are of one size, up to 1 image", apart <= 1, f"{apart} apart")


def _power_law(
    exponent: float | None, fitted: int, wanted: float, sizes: Ints, min_samples: int
) -> Check:
    promise = f"sizes follow rank^(-{wanted:g}), at least {min_samples} images"
    enough = int(sizes.min()) >= min_samples
    if exponent is None:
        return Check(promise, enough, f"{fitted} clients above the floor are too few for a fit")
    near = math.isclose(exponent, wanted, abs_tol=EXPONENT_TOLERANCE)
    found = f"fitted exponent {exponent:.3f} over the {fitted} largest clients"
    return Check(promise, near and enough, found)


def _client_table(summary: PartitionSummary) -> Table:
    number = len(summary.counts)
    shown = list(range(number))
    if number > ALL_CLIENTS:
        shown = [*range(FIRST_CLIENTS), -1, *range(number - LAST_CLIENTS, number)]
    rows = []
    for client in shown:
        if client < 0:
            rows.append(tuple(Cell("…") for _ in range(3 + summary.classes.size)))
            continue
        counts = summary.counts[client]
        cells = [client, counts.sum(), (counts > 0).sum()]
        texts = [str(int(value)) for value in cells] + [str(c) if c else "·" for c in counts]
        rows.append(tuple(Cell(text) for text in texts))
    columns = ("client", "images", "classes", *(str(label) for label in summary.classes))
    return Table(
        title=summary.title,
        columns=columns,
        rows=tuple(rows),
        numeric=frozenset(range(len(columns))),
    )
