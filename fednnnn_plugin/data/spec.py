"""What to load, and how to divide it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

CLIENT_HOLDOUT = 0.2  # of each client's samples, where they are to be tested on them


@dataclass(frozen=True)
class DataSpec:
    """A recipe's values of its data; ``allow_code`` is the user's word.

    ``loss`` is the name of the loss, which says which labels it takes, where that is known;
    ``arguments`` are those of the user's function, or of the data set, that ``dataset`` names.
    """

    dataset: str
    data_cache_dir: Path
    download: bool
    partition_method: str
    partition_sizes: str
    classes_per_client: int
    power_law_exponent: float
    min_samples: int
    num_clients: int
    seed: int
    validation_fraction: float = 0.0
    client_holdout: float = 0.0  # of each client's samples, to test it on them
    data_dir: Path | None = None
    image_size: tuple[int, int] | None = None
    test_fraction: float = 0.2
    allow_code: bool = False
    partition_alpha: float = 0.5
    partition_by: str | None = None
    test_division: str | None = None
    loss: str = ""
    arguments: Mapping[str, object] = field(default_factory=dict, hash=False)
