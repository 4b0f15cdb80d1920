"""A data set whose files torchvision downloads: looked for, downloaded where allowed, and read."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fednnnn_plugin.data.images import ImageDataset, Parts, channel_moments
from fednnnn_plugin.data.sets import named_dataset
from fednnnn_plugin.data.sources import data_folder, download_missing
from fednnnn_plugin.data.spec import DataSpec
from fednnnn_plugin.errors import UserError, check_known, printable


def torchvision_set(
    name: str,
    missing: Callable[[Path, str], list[str]],
    read: Callable[[Path, str], tuple[Parts, Sequence[str]]],
    *,
    called: str = "",
    splits: tuple[str, ...] = ("",),
    downloads: tuple[Mapping[str, object], ...] = ({},),
    moments: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
) -> None:
    """Register the data set of torchvision's class ``name``, which a recipe may call otherwise.

    ``missing`` lists which files a data folder lacks, and ``read`` returns their images and the
    classes' names. Both take the split, of ``splits``, of which the first is the default; it is
    empty where the class has none. Each of the ``downloads`` are the arguments of a call that
    downloads a part. ``moments`` are the mean and the standard deviation of each channel; without
    them those of the training part are computed.
    """

    @named_dataset(
        called or name,
        has_files=lambda folder: not missing(folder, splits[0]),
        arguments=("split",) if splits[0] else (),
    )
    def _load(spec: DataSpec) -> ImageDataset:
        given, folder = spec.arguments.get("split", splits[0]), spec.data_cache_dir
        check_known("data_args.split", given, splits)
        split = str(given)
        with data_folder(folder):
            if spec.download:
                calls = [{"split": split}] if split else downloads
                download_missing(name, folder, lambda place: not missing(place, split), calls)
            if lacking := missing(folder, split):
                raise UserError(
                    "data_cache_dir",
                    f"{printable(folder)}: no {name} here: looked for {', '.join(lacking)}",
                    "set download: true, or put what is missing there",
                )
            parts, classes = read(folder, split)
        return ImageDataset(
            parts, tuple(classes), *(moments or channel_moments(parts.train.inputs))
        )
