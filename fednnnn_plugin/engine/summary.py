"""``summary.json``: a finished run in a few numbers."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fednnnn_plugin.engine.files import write_atomically

_LONGEST = 1 << 20  # bytes


@dataclass(frozen=True)
class Summary:
    """A finished run.

    Accuracies are the evaluation model's, in [0, 1]; ``client_batching`` is how many clients
    trained in one set of kernels.
    """

    recipe: str
    seed: int
    rounds: int
    best_test_acc: float
    best_round: int
    final_test_acc: float
    backend: str
    ranks: int
    device: str
    client_batching: int
    wall_seconds: float
    versions: dict[str, str]

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        write_atomically(path, (json.dumps(asdict(self), indent=2) + "\n").encode())


def read_rounds(path: Path) -> int:
    """Return how many rounds the finished run in this folder had; 0 if none finished there."""
    try:
        with path.open("rb") as file:
            rounds = json.loads(file.read(_LONGEST))["rounds"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return 0
    return rounds if isinstance(rounds, int) else 0


def versions() -> dict[str, str]:
    """Return the versions that the numbers may depend on."""
    found = {"python": platform.python_version()}
    for package in ("fednnnn-plugin", "fedml", "torch", "torchvision", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
