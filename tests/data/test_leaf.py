"""LEAF folders, written as LEAF writes them: each user is a client."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fednnnn_plugin as fp
from fednnnn_plugin.data.federated import FederatedData, load_federated

from ..tiny import QUICK, quick_run
from .conftest import DIGITS, refusal

Samples = Mapping[str, tuple[list[Any], list[Any]]]


def write_leaf(path: Path, users: Samples, /, **more: Any) -> None:
    content = {
        "users": [*users],
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content | more))


def load(folder: Path, clients: int = 2, **spec: Any) -> FederatedData:
    given = {"data_dir": folder, "partition_method": "natural", "min_samples": 1, "loss": ""}
    given |= {"data_cache_dir": folder, "num_clients": clients}
    return load_federated(replace(DIGITS, dataset="leaf", **given | spec))


def test_numbers_are_divided_as_their_files(tmp_path: Path) -> None:
    """Users in the order of their names; f9 has no sample to train on, f1 none to test on."""
    write_leaf(tmp_path / "train/b.json", {"f1": ([[1, 2.5], [3, 4]], [0.0, 1])})
    write_leaf(tmp_path / "train/a.json", {"f2": ([[5, 6]], [2])}, hierarchies=["x"])
    write_leaf(tmp_path / "test/a.json", {"f2": ([[7, 8]], [0]), "f9": ([[9, 9]], [1])})
    data = load(tmp_path)
    assert data.train_images.tolist() == [[5, 6], [1, 2.5], [3, 4]]  # a.json is the first
    assert data.train_labels.tolist() == [2, 0, 1]
    assert [part.tolist() for part in data.client_indices] == [[1, 2], [0]]  # f1, f2
    assert not len(data.client_test_indices[0])
    assert data.test_images[data.client_test_indices[1]].tolist() == [[7, 8]]
    assert len(data.test_labels) == 2
    assert data.num_classes == 3
    whole = load(tmp_path, test_division="within_clients", test_fraction=0.5, min_samples=2)
    assert [len(part) for part in (*whole.client_indices, *whole.client_test_indices)] == [1] * 4


@pytest.mark.parametrize("top", [1.0, 255])
def test_pixels_become_images(tmp_path: Path, top: float) -> None:
    """FEMNIST's are rows of 784 numbers from 0 to 1."""
    rows = [[0 * top] * 6, [0 * top] * 5 + [top]]
    write_leaf(tmp_path / "all_data/all.json", {"w": (rows * 4, [0, 1] * 4), "v": (rows, [0, 1])})
    data = load(tmp_path, image_size=(2, 3), test_fraction=0.5)
    assert data.train_images.dtype == torch.uint8
    assert data.train_images.shape[1:] == (1, 2, 3)
    whole = torch.cat((data.train_images, data.test_images))
    assert sorted(whole[:, 0, 1, 2].tolist()) == [0] * 5 + [255] * 5
    assert int(whole[:, 0, :, :2].max()) == 0
    dealt = load(tmp_path, image_size=(2, 3), partition_method="iid")  # as if there were no users
    assert len(dealt.train_labels) == 8
    for size, said in (((2, 2), "[6] numbers"), ((1, 1), "3 times")):
        assert said in refusal(load, tmp_path, image_size=size)


def test_pixels_of_three_colours(tmp_path: Path) -> None:
    row = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0] * 2  # 2 × 2 pixels of red, green and blue
    write_leaf(tmp_path / "all_data/all.json", {"w": ([row] * 4, [0, 1] * 2)})
    data = load(tmp_path, clients=1, image_size=(2, 2), test_fraction=0.5)
    assert data.train_images[0, :, 0, 1].tolist() == [153, 204, 255]


def test_texts_are_their_characters(tmp_path: Path) -> None:
    """As Shakespeare's: the label is the next character. Of a, b and c the tokens are 0, 1, 2."""
    users = {"romeo": (["abba", "bbaa"], ["a", "c"]), "juliet": (["bbbb"], ["b"])}
    write_leaf(tmp_path / "train/1.json", users)
    write_leaf(tmp_path / "test/1.json", {"romeo": (["aaaa"], ["b"])})
    data = load(tmp_path)
    assert data.train_images.tolist() == [[0, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
    assert data.train_labels.tolist() == [0, 2, 1]
    assert data.class_names == ("a", "b", "c")
    assert [part.tolist() for part in data.client_indices] == [[2], [0, 1]]


def test_tweets_of_several_lengths_end_with_0(tmp_path: Path) -> None:
    """As Sent140's: a sample is a row, whose text stands in place 1."""
    users = {"u": ([["7", "ab"], ["8", "b"]], ["bad", "good"]), "v": ([["9", "a"]], ["bad"])}
    write_leaf(tmp_path / "train/1.json", users)
    write_leaf(tmp_path / "test/1.json", users)
    data = load(tmp_path, arguments={"input_column": 1})
    assert data.train_images.tolist() == [[1, 2], [2, 0], [1, 0]]
    assert data.train_labels.tolist() == [0, 1, 0]
    assert data.class_names == ("bad", "good")
    for field in (None, 2, "text"):
        message = refusal(load, tmp_path, arguments={"input_column": field})
        assert message.startswith(f"data_args.input_column: {field!r}".replace("None", "null"))


def test_images_may_be_files(tmp_path: Path) -> None:
    """As CelebA's, in the folder where LEAF has them."""
    home = tmp_path / "raw" / "img_align_celeba"
    home.mkdir(parents=True)
    for i in range(4):
        Image.fromarray(np.full((2, 2, 3), 50 * i, np.uint8)).save(home / f"{i}.png")
    write_leaf(tmp_path / "train/1.json", {"a": (["2.png"], [1]), "b": (["0.png"], [0])})
    write_leaf(tmp_path / "test/1.json", {"a": (["3.png", "1.png"], [1, 0])})
    data = load(tmp_path)
    assert data.train_images[:, 2, 1, 1].tolist() == [100, 0]
    assert data.test_images[:, 0, 0, 0].tolist() == [150, 50]
    write_leaf(tmp_path / "test/1.json", {"a": (["../../3.png"], [1])})
    assert "must be a file below" in refusal(load, tmp_path)


@pytest.mark.parametrize(
    ("users", "more", "named"),
    [
        ({"a": ([[1, 2]], [0])}, {"users": None}, "all.json: "),
        ({"a": ([[1, 2]], [0])}, {"num_samples": [2]}, "user a: "),
        ({"a": ([[1, 2]], [0])}, {"num_samples": []}, "num_samples: "),
        ({"a": ([[1, 2]], [0])}, {"users": ["a", "a"], "num_samples": [1, 1]}, "users: a is there"),
        ({"a": ([[1, 2], [3]], [0, 1])}, {}, "samples: "),
        ({"a": ([[1, float("nan")]] * 2, [0, 1])}, {}, "NaN"),
        ({"a": ([[1, 2]] * 2, [0, None])}, {}, "labels: "),
        ({}, {}, "no user"),
    ],
)
def test_folder_that_is_not_leafs_is_refused(
    tmp_path: Path, users: Samples, more: dict[str, Any], named: str
) -> None:
    assert "looked for train/" in refusal(load, tmp_path)
    write_leaf(tmp_path / "all_data/all.json", users, **more)
    assert named in refusal(load, tmp_path)
    (tmp_path / "all_data/all.json").write_text("{" + "[" * 100_000)
    assert "all.json: " in refusal(load, tmp_path)


def test_texts_longer_than_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fednnnn_plugin.data.leaf_samples.MEMORY", 4 * 4 * 2 * 9)
    for length in (9, 10):
        write_leaf(tmp_path / "all_data/all.json", {"a": (["b", "c" * length], ["b", "c"])})
        if length == 9:
            assert load(tmp_path, clients=1, test_fraction=0.5).train_images.shape[1:] == (9,)
    assert "its texts need" in refusal(load, tmp_path, clients=1, test_fraction=0.5)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"data_dir": None}, "data_dir: "),
        ({"partition_by": "writer", "partition_method": "iid"}, "partition_by: "),
        ({"partition_by": "writer"}, "partition_by: "),
        ({"partition_sizes": "power_law"}, "partition_sizes: "),
        ({"test_division": "both"}, "test_division: "),
        ({"dataset": "digits", "data_dir": None}, "partition_method: natural: "),
    ],
)
def test_recipe_that_does_not_fit_is_refused(
    tmp_path: Path, more: dict[str, Any], named: str
) -> None:
    write_leaf(tmp_path / "all_data/all.json", {"a": ([[1, 2]] * 9, [0, 1, 2] * 3)})
    keys = {"dataset": "leaf", "data_dir": str(tmp_path), "partition_method": "natural"}
    keys |= {"client_num_in_total": 1, "client_num_per_round": 1}
    with pytest.raises(fp.UserError, match=named):
        quick_run(tmp_path / "run", **keys | more)


@pytest.mark.slow
def test_search_on_writers(tmp_path: Path) -> None:
    """Each trial trains on the writers; the paper's first step deals their samples by class."""
    samples = {f"w{k}": ([[k / 9] * 64] * k, [i % 3 for i in range(k)]) for k in (4, 5, 6)}
    write_leaf(tmp_path / "all_data/all.json", samples)
    keys = {"dataset": "leaf", "data_dir": str(tmp_path), "partition_method": "natural"}
    keys |= {"client_num_in_total": 2, "client_num_per_round": 2, "min_samples": 4}
    found = fp.tune(
        "digits_noniid_b_normnorm",
        paper=True,
        overrides=QUICK | keys | {"image_size": 8, "comm_round": 1, "per_client": True},
        metric="worst_10",
        grid={"learning_rate": [0.1], "beta": [0.5]},
        study=tmp_path / "study",
    )
    assert found.best == {"learning_rate": 0.1, "beta": 0.5}
    deals = fp.read_runs(tmp_path / "study" / "trials")["partition_method"].unique()
    assert sorted(deals) == ["n_class", "natural"]
