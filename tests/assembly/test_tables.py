"""Objects of the library ``datasets``: as arrays they give what the arrays give."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from torch import nn

import fednnnn_plugin as fp
from fednnnn_plugin.data.images import Parts
from fednnnn_plugin.data.natural import are_owners
from fednnnn_plugin.data.own_data import bring_data, load_own_data
from fednnnn_plugin.data.own_forms import clients_of
from fednnnn_plugin.data.spec import DataSpec

from ..tiny import PARTS, TEST, quick_run

datasets = pytest.importorskip("datasets")
pa = pytest.importorskip("pyarrow")

MINE = DataSpec("mine", Path(), False, "iid", "balanced", 2, 1.0, 1, 4, 0)
FOUR = {"client_num_in_total": 4, "client_num_per_round": 4, "comm_round": 1}


def table(inputs: Any, labels: Any) -> Any:
    return datasets.Dataset.from_dict({"label": labels.tolist(), "x": inputs.tolist()})


def load(given: object) -> Parts:
    return load_own_data(bring_data(MINE, given), MINE).parts


def pictures(images: np.ndarray) -> Any:
    features = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(names=["no", "yes"])}
    )
    values = {"img": [*images], "label": [0, 1] * (len(images) // 2)}
    return datasets.Dataset.from_dict(values, features=features)


@pytest.mark.slow
@pytest.mark.parametrize("transform", [None, lambda rows: {k: torch.tensor(rows[k]) for k in rows}])
def test_tables_train_as_arrays(tmp_path: Path, transform: Callable[..., Any] | None) -> None:
    """Or batch by batch, where a table has a transform of its own."""
    parts = [table(*part) for part in (*PARTS, TEST)]
    for each in parts if transform else ():
        each.set_transform(transform)
    *clients, test = parts
    run = quick_run(tmp_path / "run", model=nn.Linear(6, 4), data=(clients, test), **FOUR)
    assert fp.read_runs(run.folder)["clients"].tolist() == [4]
    if not transform:
        whole = quick_run(tmp_path / "arrays", model=nn.Linear(6, 4), data=(PARTS, TEST), **FOUR)
        said = [(each.folder / "fingerprint.json").read_text() for each in (run, whole)]
        assert said[0].partition("model")[0] == said[1].partition("model")[0]


@pytest.mark.parametrize("shape", [(8, 6), (8, 6, 3)])
def test_pictures_have_their_channels_first(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, *shape), dtype=np.uint8)
    both = datasets.DatasetDict(train=pictures(images[:4]), test=pictures(images[4:]))
    for given in (both, (both["train"], both["test"])):
        loaded = load(given)
        expected = images[:4, None] if len(shape) == 2 else images[:4].transpose(0, 3, 1, 2)
        assert loaded.train.inputs.tolist() == expected.tolist()
        assert loaded.test.labels.tolist() == [0, 1]


def test_pictures_of_any_mode_are_as_those_of_files() -> None:
    """A palette's pixels are row numbers; grey ones among colours have three channels."""
    rng = np.random.default_rng(0)
    plain = [PIL.Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)) for _ in range(3)]
    given = [plain[0].quantize(16), plain[1].convert("RGBA"), plain[2].convert("L")]
    expected = np.stack([np.asarray(image.convert("RGB")) for image in given])
    features = datasets.Features({"img": datasets.Image(), "label": datasets.Value("int64")})
    both = datasets.Dataset.from_dict({"img": given, "label": [0, 1, 1]}, features=features)
    found = load((both, both)).train.inputs
    assert found.tolist() == expected.transpose(0, 3, 1, 2).tolist()


def test_pictures_keep_a_mode_that_is_named() -> None:
    images = [PIL.Image.new(mode, (4, 4)) for mode in ("RGBA", "L", "F")]
    images.append(PIL.Image.new("L", (3, 3)))

    def of(*chosen: int, mode: str | None = None) -> Any:
        features = {"img": datasets.Image(mode=mode), "label": datasets.Value("int64")}
        values = {"img": [images[k] for k in chosen], "label": [0, 1]}
        return datasets.Dataset.from_dict(values, features=datasets.Features(features))

    named = of(0, 0, mode="RGBA")
    assert load((named, named)).train.inputs.shape == (2, 4, 4, 4)
    for uneven in (of(1, 2), of(1, 3)):  # of 32 bits, and of another size
        with pytest.raises(fp.UserError, match="column img: ndarray of several sizes"):
            load((uneven, uneven))


def test_columns_of_arrow_tables_must_agree() -> None:
    inputs = pa.table({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    with pytest.raises(fp.UserError, match=r"test_inputs: columns .*train_inputs have"):
        load((inputs, np.arange(2), inputs.select(["b", "a"]), np.arange(2)))
    own = load((inputs, np.arange(2), inputs, np.arange(2), pa.array(["x", "y"])))
    assert own.train.inputs.tolist() == [[1, 3], [2, 4]]
    assert not are_owners(pa.array([[0, 1], [2]]))  # positions


def test_pictures_of_16_bits_are_neither_images_nor_tokens() -> None:
    deep = pictures(np.full((4, 2, 3), 40_000, np.uint16))
    with pytest.raises(fp.UserError, match="must be floating, int64, or images"):
        load((deep, deep))


def test_columns_are_arrays() -> None:
    """Of inputs, of labels and of owners."""
    one = table(torch.ones(4, 2), torch.tensor([0, 1, 2, 1])).add_column("who", [*"abba"])
    if isinstance(one["x"], list):
        pytest.skip("of releases before 4.0 a column is a list")
    given = (one["x"], one["label"], one["x"], one["label"])
    loaded = load(given)
    assert loaded.train.labels.tolist() == [0, 1, 2, 1]
    given = (one["x"], one["label"], one["who"])
    assert clients_of(given) == 2
    assert [len(part) for part in load_own_data(bring_data(MINE, given), MINE).split.train] == [
        1,
        1,
    ]
    named = table(torch.ones(2, 2), np.array(["a", "b"]))
    for given in ((named["x"], named["label"]) * 2, (named, named)):
        with pytest.raises(
            fp.UserError, match=r"train_labels: names or other .*: \['a', 'b'\]: .*factorize"
        ):
            load(given)


def test_columns_that_a_format_leaves_out_are_left_out() -> None:
    """Unless it gives them as they are, beside its own."""
    more = table(torch.ones(2, 2), torch.arange(2)).add_column("mask", [1, 2])
    of_format = more.with_format("torch", columns=["x", "label"])
    assert load((of_format, of_format)).train.inputs.tolist() == [[1, 1], [1, 1]]
    beside = more.with_format("torch", columns=["x", "label"], output_all_columns=True)
    with pytest.raises(fp.UserError, match="train: has 'label', 'x', 'mask'"):
        load((beside, beside))


def test_owners_of_the_test_table_may_be_unknown() -> None:
    """Then they are of the training table alone, as those of files are."""
    test = table(torch.ones(2, 2), torch.arange(2))
    train = table(torch.ones(4, 2), torch.arange(4) % 2).add_column("who", [*"abba"])
    spec = replace(MINE, partition_by="who")
    loaded = load_own_data(bring_data(spec, {"train": train, "test": test}), spec)
    assert [len(part) for part in loaded.split.train] == [2, 2]
    assert not loaded.split.test
    with pytest.raises(fp.UserError, match=r"whose: .*train: has the columns label, x, who"):
        bring_data(replace(MINE, partition_by="whose"), (train, test))


def test_table_of_other_columns_says_what_it_has() -> None:
    more = table(torch.ones(2, 2), torch.arange(2)).add_column("at", [1, 2])
    for given, said in (
        ((more, more), "train: has 'label', 'x', 'at': must have the labels under"),
        (([more], more), "client 0: has 'label', 'x', 'at': must"),
        ((table(np.array(["a", "b"]), torch.arange(2)),) * 2, "column x: .*text: must be numbers"),
        ((more.with_transform(dict), more), "train: has a transform, which"),
    ):
        with pytest.raises(fp.UserError, match=said):
            bring_data(MINE, given)


def test_table_in_the_place_of_the_clients_is_refused() -> None:
    one = table(torch.ones(2, 2), torch.arange(2))
    with pytest.raises(fp.UserError, match=r"mine: a tuple of 2; must be"):
        load((one, (torch.ones(2, 2), torch.arange(2))))
