"""The data sets that have a name, one file each; its loader's decorator puts each into `DATASETS`.

A new one is a file here and nothing else: recipes, commands and FedML scripts read the registry.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from fednnnn_plugin.data.images import ImageDataset
from fednnnn_plugin.data.spec import DataSpec
from fednnnn_plugin.user_code import HUB

Load = Callable[[DataSpec], ImageDataset]


@dataclass(frozen=True)
class NamedDataset:
    """A data set; ``has_files`` tells whether a data folder has its files, and reads none.

    ``arguments`` are keys of its own in ``data_args``.
    """

    load: Load
    has_files: Callable[[Path], bool]
    arguments: tuple[str, ...] = ()


#: Stands for the names of all data sets of the Hugging Face hub.
HUB_NAME = f"{HUB}owner/name"
#: By the name that a recipe's ``dataset`` has.
DATASETS: dict[str, NamedDataset] = {}


def named_dataset(
    name: str,
    *,
    has_files: Callable[[Path], bool] = lambda folder: True,
    arguments: tuple[str, ...] = (),
) -> Callable[[Load], Load]:
    """Register what a function loads; see :class:`NamedDataset`."""

    def register(load: Load) -> Load:
        DATASETS[name] = NamedDataset(load, has_files, arguments)
        return load

    return register


def find_dataset(name: object) -> NamedDataset | None:
    """Return what a recipe's name stands for; all names of the Hugging Face hub are one."""
    if isinstance(name, str) and name.startswith(HUB) and name != HUB:
        name = HUB_NAME
    return DATASETS.get(name) if isinstance(name, str) else None


def is_present(name: str, cache_dir: Path) -> bool:
    """Tell whether the files of a data set of this name are in a data folder; no file is read."""
    try:
        return name in DATASETS and DATASETS[name].has_files(cache_dir)
    except OSError:
        return False


for _file in iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")
