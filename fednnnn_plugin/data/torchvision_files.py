"""A data set whose files torchvision downloads: looked for, downloaded where allowed, and read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fednnnn_plugin.data.images import ImageDataset, Parts, channel_moments
from fednnnn_plugin.data.sets import named_dataset
from fednnnn_plugin.data.sources import data_folder, download_missing
from fednnnn_plugin.data.spec import DataSpec
from fednnnn_plugin.errors import UserError, check_known, printable


@dataclass(frozen=True)
class TorchvisionFiles:
    """The files of torchvision's class ``name``.

    ``missing`` lists which a data folder lacks, and ``read`` returns their images and the classes'
    names. Both take the split, of ``splits``, of which the first is the default; it is empty where
    the class has none. Each of the ``downloads`` are the arguments of a call that downloads a part.
    ``moments`` are the mean and the standard deviation of each channel; without them those of the
    training part are computed.
    """

    name: str
    missing: Callable[[Path, str], list[str]]
    read: Callable[[Path, str], tuple[Parts, Sequence[str]]]
    splits: tuple[str, ...] = ("",)
    downloads: tuple[Mapping[str, object], ...] = ({},)
    moments: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def register(self, name: str = "", *, is_fedmls: bool = False) -> None:
        """Make it known by its name, or by another."""
        named_dataset(
            name or self.name,
            has_files=lambda folder: not self.missing(folder, self.splits[0]),
            arguments=("split",) if self.splits[0] else (),
            is_fedmls=is_fedmls,
        )(self._load)

    def _load(self, spec: DataSpec) -> ImageDataset:
        given, folder = spec.arguments.get("split", self.splits[0]), spec.data_cache_dir
        check_known("data_args.split", given, self.splits)
        split = str(given)
        with data_folder(folder):
            if spec.download:
                calls = [{"split": split}] if split else self.downloads
                download_missing(
                    self.name, folder, lambda place: not self.missing(place, split), calls
                )
            if missing := self.missing(folder, split):
                raise UserError(
                    "data_cache_dir",
                    f"{printable(folder)}: no {self.name} here: looked for {', '.join(missing)}",
                    "set download: true, or put what is missing there",
                )
            parts, classes = self.read(folder, split)
        moments = self.moments or channel_moments(parts.train.inputs)
        return ImageDataset(parts, tuple(classes), *moments)
