"""The registry of data sets: one that is registered is known wherever a name is read."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fednnnn_plugin as fp
from fednnnn_plugin.data.images import ImageDataset, Parts, Samples, channel_moments
from fednnnn_plugin.data.sets import DATASETS, find_dataset, is_present, named_dataset
from fednnnn_plugin.data.spec import DataSpec
from fednnnn_plugin.errors import UserError

from ..tiny import quick_run
from .conftest import DIGITS, refusal


@pytest.fixture
def stripes() -> Iterator[None]:
    """A data set as a file in ``data/sets/`` has it; image i is filled with ``factor`` i."""

    @named_dataset("stripes", has_files=lambda folder: (folder / "in").exists(), arguments=("by",))
    def _load(spec: DataSpec) -> ImageDataset:
        values = torch.arange(60) * int(str(spec.arguments.get("by", 1)))
        images = values.to(torch.uint8)[:, None, None, None].expand(60, 1, 8, 8)
        labels = torch.arange(60) % 10
        parts = Parts(Samples(images[:40], labels[:40]), Samples(images[40:], labels[40:]))
        return ImageDataset(parts, tuple("abcdefghij"), *channel_moments(images[:40]))

    yield
    del DATASETS["stripes"]


@pytest.mark.usefixtures("stripes")
def test_registered_data_set_is_known_everywhere(tmp_path: Path) -> None:
    given = {"dataset": "stripes", "client_num_in_total": 20, "client_num_per_round": 4}
    run = quick_run(tmp_path / "run", **given, **{"data_args.by": 2})
    assert "by: 2\n" in (tmp_path / "run" / "recipe.yaml").read_text()
    assert fp.read_runs(run.folder)["dataset"].unique().tolist() == ["stripes"]
    for wrong, named in (
        ({"data_args.bye": 2}, r"data_args\.bye: .*by\?"),
        ({"dataset": "digits", "data_args.by": 2}, r"data_args\.by: "),
        ({"dataset": "Stripes"}, r"dataset: 'Stripes': .*did you mean stripes\?"),
    ):
        with pytest.raises(UserError, match=named):
            quick_run(tmp_path / "other", **given | wrong)
    assert not is_present("stripes", tmp_path)
    (tmp_path / "in").touch()
    assert is_present("stripes", tmp_path)


def test_hub_without_its_library_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    name = f"hf:{tmp_path}"
    named = find_dataset(name)
    assert named is not None
    message = refusal(named.load, replace(DIGITS, dataset=name))
    assert message.startswith(f"data_args.dataset: {name}: needs the library datasets: pip install")
