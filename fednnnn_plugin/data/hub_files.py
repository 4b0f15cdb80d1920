"""The files of a data set of the Hugging Face hub, or on disk, as tables of `datasets`."""

import os
from collections.abc import Mapping
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

from fednnnn_plugin.data.spec import DataSpec
from fednnnn_plugin.errors import UserError, how_to_install, printable, reason, shown
from fednnnn_plugin.files import user_path
from fednnnn_plugin.user_code import HUB

_OLDEST = 4  # the first release that runs no code of a data set


def read_tables(spec: DataSpec, arguments: Mapping[str, str], where: str) -> tuple[list[Any], Path]:
    """Return the table to train on, and that to test on where the data set has such a split.

    And the file or the folder of the data set. Files of code are neither downloaded nor run.
    """
    library = _library("datasets", where)
    if int(library.__version__.partition(".")[0]) < _OLDEST:
        raise UserError(
            where,
            f"datasets {library.__version__} may run a data set's own code",
            f"must be {_OLDEST} or later",
        )
    place = _place(spec, arguments.get("revision"), where)
    saved = ({"dataset_dict.json"}, {"state.json", "dataset_info.json"})
    if any(all((place / name).exists() for name in names) for names in saved):
        must = "must be parquet files: write each split of load_from_disk(...) by to_parquet()"
        raise UserError(where, "was written by save_to_disk", must)
    cache = str(spec.data_cache_dir / "huggingface")
    hint, shows_progress = "", library.is_progress_bar_enabled()
    library.disable_progress_bars()
    try:
        if place.is_file():
            files = {"train": str(place)}
            builder = library.load_dataset_builder("parquet", data_files=files, cache_dir=cache)
        else:
            subset = arguments.get("subset")
            builder = library.load_dataset_builder(str(place), subset, cache_dir=cache)
        hint = f"; if the files are whole, delete the library's copy of them: {builder.cache_dir}"
        builder.download_and_prepare()
        tables = [builder.as_dataset(split=part) for part in _parts(library, builder, arguments)]
        return tables, Path(os.path.realpath(place))
    except UserError:
        raise
    except Exception as error:  # the library raises nearly anything
        raise UserError(
            where, f"cannot be read: {printable(reason(error))}{printable(hint)}"
        ) from error
    finally:
        if shows_progress:
            library.enable_progress_bars()


def _parts(library: Any, builder: Any, arguments: Mapping[str, str]) -> list[str]:
    """Return the split to train on, and that to test on, if there is one: no sample is in both."""
    lengths = {name: split.num_examples for name, split in builder.info.splits.items()}

    def rows(split: str) -> Any:
        whole = "+".join(lengths) if split == "all" else split  # as the library reads it
        return library.ReadInstruction.from_spec(whole).to_absolute(lengths)

    split, held = arguments.get("split", "train"), arguments.get("test_split")
    trained = rows(split)
    if held is None:
        names = {part.splitname for part in trained}
        return [split, "test"] if "test" in lengths.keys() - names else [split]
    for a, b in product(trained, rows(held)):
        if a.splitname == b.splitname and max(a.from_, b.from_) < min(a.to, b.to):
            must = f"must have no sample of data_args.split, {shown(split)}"
            raise UserError("data_args.test_split", shown(held), must)
    return [split, held]


def _place(spec: DataSpec, revision: str | None, where: str) -> Path:
    """Return the file or folder on disk of this name, else the hub's, downloaded if allowed."""
    name = spec.dataset.removeprefix(HUB)
    path = user_path(name).absolute()
    if path.is_dir() or path.is_file():
        return path
    if name.startswith((".", "~", os.sep)) or name.endswith(".parquet"):
        raise UserError(where, "no such file or folder")
    hub = _library("huggingface_hub", where)
    try:
        snapshot: str = hub.snapshot_download(
            name,
            repo_type="dataset",
            revision=revision,
            cache_dir=str(spec.data_cache_dir / "huggingface"),
            ignore_patterns=["*.py"],
            local_files_only=not spec.download,
        )
    except Exception as error:
        why = f"download failed: {printable(reason(error))}"
        if not spec.download:
            why = (
                f"not in data_args.data_cache_dir, {printable(spec.data_cache_dir)}: set download: "
                "true, or name a folder or a parquet file on disk"
            )
        raise UserError(where, why) from error
    return Path(snapshot)


def _library(name: str, where: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise UserError(
            where,
            f"needs the library {name}",
            f"{how_to_install('huggingface')} ({printable(reason(error))})",
        ) from error
