"""Data sets of the hub's formats on disk: parquet files, and folders as a repository has them."""

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import fednnnn_plugin as fp
from fednnnn_plugin.data.federated import FederatedData, load_federated
from fednnnn_plugin.data.own_data import bring_data, load_own_data

from ..tiny import quick_run
from .conftest import DIGITS, refusal

datasets = pytest.importorskip("datasets")
parquet = pytest.importorskip("pyarrow.parquet")

GREY = [np.full((2, 3), 10 * i, np.uint8) for i in range(6)]
WRITERS = ["b", "a", "b", "c", "a", "b"]


def table(images: list[np.ndarray], characters: list[int], writers: list[str]) -> Any:
    """As FEMNIST is there."""
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "writer_id": datasets.Value("string"),
            "character": datasets.ClassLabel(names=["A", "B", "C"]),
        }
    )
    columns = {"image": images, "writer_id": writers, "character": characters}
    return datasets.Dataset.from_dict(columns, features=features)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "owner" / "femnist"
    (folder / "data").mkdir(parents=True)
    whole = table(GREY, [0, 1, 0, 1, 0, 1], WRITERS)
    whole.to_parquet(folder / "data" / "train-00000-of-00001.parquet")
    held = table([np.full((2, 3), 7, np.uint8)] * 2, [1, 1], ["b", "z"])
    held.to_parquet(folder / "data" / "test-00000-of-00001.parquet")
    return folder


def load(place: Path | str, cache: Path, clients: int = 3, **spec: Any) -> FederatedData:
    given = {"partition_method": "natural", "partition_by": "writer_id", "min_samples": 1}
    given |= {"num_clients": clients, "data_cache_dir": cache, "loss": ""}
    arguments = {"label_column": "character"} | spec.pop("arguments", {})
    given |= {"arguments": {key: value for key, value in arguments.items() if value is not None}}
    return load_federated(replace(DIGITS, dataset=f"hf:{place}", **given | spec))


def test_folder_of_a_repository(repository: Path) -> None:
    """Its writers are the clients: a, b and c."""
    data = load(repository, repository.parent)
    assert data.train_images.dtype == torch.uint8
    assert data.train_images.shape == (6, 1, 2, 3)
    values = data.train_images[:, 0, 1, 2]
    assert [values[part].tolist() for part in data.client_indices] == [[10, 40], [0, 20, 50], [30]]
    assert data.train_labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert data.class_names == ("A", "B", "C")
    assert data.num_classes == 3
    tests = [part.tolist() for part in data.client_test_indices]
    assert (tests, data.test_images[:, 0, 0, 0].tolist()) == ([[], [0], []], [7, 7])
    resized = load(repository, repository.parent, image_size=(4, 4))
    assert resized.train_images.shape == (6, 1, 4, 4)


def test_parquet_file_without_a_test_part(tmp_path: Path) -> None:
    file = tmp_path / "all.parquet"
    colour = [np.stack([image] * 3, -1) for image in GREY]
    table(colour, [0, 1, 0, 1, 0, 1], WRITERS).to_parquet(file)
    data = load(file, tmp_path, test_fraction=0.4)
    assert data.train_images.shape[1:] == (3, 2, 3)
    assert [len(part) for part in (*data.client_indices, *data.client_test_indices)] == [
        *(1, 2, 1, 1, 1, 0)
    ]
    dealt = {"partition_method": "iid", "partition_by": None, "clients": 2}
    data = load(file, tmp_path, **dealt, arguments={"input_column": "image"}, test_fraction=0.34)
    assert (len(data.train_labels), len(data.test_labels)) == (4, 2)
    part = load(file, tmp_path, **dealt, arguments={"input_column": "image", "split": "train[:5]"})
    assert len(part.train_labels) + len(part.test_labels) == 5


@pytest.mark.parametrize(
    ("splits", "trained", "tested"),
    [
        ({"split": "test"}, 1, 1),
        ({"split": "train+test"}, 4, 4),
        ({"split": "all"}, 4, 4),
        ({"split": "train[:3]"}, 3, 2),
        ({"split": "train[50%:]", "test_split": "train[:3]+test[:0]"}, 3, 3),
    ],
)
def test_no_sample_is_trained_and_tested_on(
    repository: Path, splits: dict[str, str], trained: int, tested: int
) -> None:
    """The six samples of `train` have pixels of 0 to 50, and the two of `test` of 7."""
    dealt = {"partition_method": "iid", "partition_by": None, "clients": 1, "test_fraction": 0.5}
    arguments = {"input_column": "image", **splits}
    data = load(repository, repository.parent, **dealt, arguments=arguments)
    assert (len(data.train_labels), len(data.test_labels)) == (trained, tested)
    pixels = [part.flatten().tolist() for part in (data.train_images, data.test_images)]
    assert set(pixels[0]) & set(pixels[1]) <= {7}


def test_tokens_and_labels_that_are_texts(tmp_path: Path) -> None:
    columns = {"ids": [[1, 2], [3, 0], [4, 5]], "label": ["spam", "ham", "spam"], "by": [7, 5, 7]}
    whole = datasets.Dataset.from_dict(columns).cast_column(
        "ids", datasets.Sequence(datasets.Value("int32"))
    )
    whole.to_parquet(tmp_path / "all.parquet")
    given = {"partition_by": "by", "clients": 2, "arguments": {"label_column": None}}
    data = load(tmp_path / "all.parquet", tmp_path, **given)
    assert data.train_images.dtype == torch.int64
    assert sorted([*data.train_images.tolist(), *data.test_images.tolist()]) == [
        *([1, 2], [3, 0], [4, 5])
    ]
    assert data.class_names == ("ham", "spam")
    assert [len(part) for part in data.client_indices] == [1, 1]  # of 5 and of 7


@pytest.mark.parametrize(
    ("images", "test", "said"),
    [
        ([GREY[0], None], None, "train: image 1: missing"),
        (
            [GREY[0], GREY[1]],
            [np.zeros((3, 3), np.uint8)],
            r"test: image 0: .* 3 x 3 pixels \(height x width\), where .* has 2 x 3: give data_",
        ),
    ],
)
def test_images_that_are_missing_or_unlike_are_refused(
    tmp_path: Path, images: list[Any], test: list[Any] | None, said: str
) -> None:
    for part, given in (("train", images), ("test", test or GREY[:1])):
        table(given, [0] * len(given), ["a"] * len(given)).to_parquet(tmp_path / f"{part}.parquet")
    assert re.search(said, refusal(load, tmp_path, tmp_path, clients=1))


def write(files: list[Any], to: Path) -> None:
    """Write a table whose images are as they are given: content, or the name of a file."""
    labels = [row % 2 for row in range(len(files))]
    whole = datasets.Dataset.from_dict({"image": files, "label": labels})
    parquet.write_table(whole.cast_column("image", datasets.Image()).data.table, to)


PLAIN = {"partition_method": "iid", "partition_by": None, "test_fraction": 0.5}
PLAIN |= {"arguments": {"label_column": None}}


def test_files_outside_a_data_set_are_refused(tmp_path: Path) -> None:
    """What a table names may be anywhere on the user's disk, or never end."""
    folder = tmp_path / "set"
    for of in "ab":
        (folder / of).mkdir(parents=True)
        for number, image in enumerate(GREY[:2]):
            Image.fromarray(image).save(folder / of / f"{number}.png")
    data = load(folder, tmp_path, clients=2, **PLAIN)
    assert sorted(torch.cat([data.train_images, data.test_images])[:, 0, 0, 0].tolist()) == [
        *(0, 0, 10, 10)
    ]
    snapshot = tmp_path / "hub" / "snapshots" / "1a2b"  # whose files are links to the hub's blobs
    shutil.copytree(folder, tmp_path / "hub" / "blobs")
    for image in folder.rglob("*.png"):
        link = snapshot / image.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(tmp_path / "hub" / "blobs" / image.relative_to(folder))
    assert len(load(snapshot, tmp_path, clients=2, **PLAIN).train_labels) == len(data.train_labels)
    (folder / "private").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(tmp_path / "private.png")
    (folder / "linked").symlink_to(tmp_path, target_is_directory=True)
    (folder / "sub" / "deep").mkdir(parents=True)
    shutil.copy(folder / "a" / "0.png", folder / "sub" / "link")
    (folder / "deep").symlink_to(folder / "sub" / "deep", target_is_directory=True)
    shutil.copy(folder / "a" / "0.png", tmp_path / "private.png")
    shutil.copy(folder / "a" / "0.png", folder / "own")
    content = (folder / "a" / "0.png").read_bytes()
    for of in "ab":
        shutil.rmtree(folder / of)
    table = folder / "b.parquet"
    for path in (
        *("/dev/zero", folder / "private", folder / "pipe", folder / "gone.png", folder),
        *(tmp_path / "private.png", folder / ".." / "private.png", folder / ("x" * 5_000)),
        *(
            folder / "link",
            folder / "linked" / "private.png",
            f"{folder}/deep/../link",
            f"{folder}/\0",
            "own",
            None,
        ),
    ):
        files = [{"bytes": content, "path": "0.png"}, {"bytes": None, "path": path and str(path)}]
        write(files, table)
        for place in (table, folder):
            message = refusal(load, place, tmp_path, **PLAIN)
            assert "train: image 1: " in message
            assert "must be an image in the table, or, where the data set is a folder" in message

    files[1]["path"] = str(folder / "own")
    write(files * 2, table)
    assert len(load(folder, tmp_path, clients=1, **PLAIN).train_labels) == 2


def test_files_are_read_as_images_to_train_on_alone(tmp_path: Path) -> None:
    """The library would open those of other columns from anywhere."""
    image = {"bytes": None, "path": str(tmp_path / "gone.png")}
    for columns, feature, name in (
        ({"x": [[1], [2]], "label": [image] * 2}, datasets.Image(), "label"),
        ({"x": [[image]] * 2, "label": [0, 1]}, datasets.Sequence(datasets.Image()), "x"),
    ):
        whole = datasets.Dataset.from_dict(columns).cast_column(name, feature)
        parquet.write_table(whole.data.table, tmp_path / "all.parquet")
        message = refusal(load, tmp_path / "all.parquet", tmp_path, **PLAIN)
        assert f"column {name}: has files: must have numbers or texts" in message


def test_labels_of_a_regression_are_no_classes(tmp_path: Path) -> None:
    """Whatever names they have: a model has as many outputs as for the same labels as an array."""
    table(GREY, [0, 1, 2] * 2, WRITERS).to_parquet(tmp_path / "all.parquet")
    data = load(tmp_path / "all.parquet", tmp_path, loss="mse", test_fraction=0.5)
    assert (data.num_classes, data.train_labels.dtype) == (1, torch.float32)


def test_grey_test_images_become_colour_as_those_to_train_on(tmp_path: Path) -> None:
    colour = [np.stack([image] * 3, -1) for image in GREY[:2]]
    for part, images in (("train", colour), ("test", GREY[:1])):
        table(images, [0] * len(images), ["a"] * len(images)).to_parquet(
            tmp_path / f"{part}.parquet"
        )
    data = load(tmp_path, tmp_path, clients=1)
    assert data.test_images.shape == (1, 3, 2, 3)


def test_rows_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    """A text without a label; a test of all samples."""
    given = {"partition_by": None, "partition_method": "iid", "clients": 1}
    for columns, more, said in (
        ({"ids": [[1], [2]], "label": ["spam", None]}, {}, "column label: has null"),
        ({"ids": [[1], [2]], "label": [[1], [1, 2]]}, {}, "column label: has a"),
        ({"ids": [[1], [2]], "label": [0.5, 1.5]}, {"test_fraction": 0.8}, "the training without"),
    ):
        datasets.Dataset.from_dict(columns).to_parquet(tmp_path / "all.parquet")
        arguments = {"label_column": None}
        message = refusal(
            load, tmp_path / "all.parquet", tmp_path, **given, **more, arguments=arguments
        )
        assert said in message


def test_nothing_of_a_data_set_runs(tmp_path: Path, repository: Path) -> None:
    script = repository / "femnist.py"
    script.write_text(f"open({str(tmp_path / 'was-here')!r}, 'w')")
    message = refusal(load, repository, tmp_path, allow_code=True)
    assert message.startswith(f"data_args.dataset: hf:{repository}: ")
    assert not (tmp_path / "was-here").exists()
    script.unlink()
    (repository / "data" / "test-00000-of-00001.parquet").write_bytes(b"PAR1" * 9)
    message = refusal(load, repository, tmp_path / "other")
    assert message.startswith(f"data_args.dataset: hf:{repository}: ")


def test_hub_is_asked_where_it_may_be(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def download(name: str, **given: Any) -> str:
        asked.append({"name": name, **given})
        if given["local_files_only"]:
            raise FileNotFoundError(name)
        return str(repository)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    message = refusal(load, "owner/other", tmp_path)
    assert message.startswith("data_args.dataset: hf:owner/other: ")
    assert "download: true" in message
    data = load("owner/other", tmp_path, download=True, arguments={"revision": "v2"})
    assert len(data.train_labels) == 6
    assert [of["name"] for of in asked] == ["owner/other"] * 2
    assert [of["revision"] for of in asked] == [None, "v2"]
    assert asked[1]["ignore_patterns"] == ["*.py"]
    assert "no such file or folder" in refusal(load, "./owner/other", tmp_path, download=True)
    for name in ("state.json", "dataset_info.json"):
        (repository / name).touch()
    assert "save_to_disk" in refusal(load, "owner/other", tmp_path, download=True)
    monkeypatch.setattr(datasets, "__version__", "3.6.0")  # which would run a script
    assert "datasets 3.6.0" in refusal(load, repository, repository)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"arguments": {"input_column": "imge"}}, r"input_column: imge: .*did you mean image\?"),
        ({"arguments": {"label_column": None}}, "label_column: missing: .* image, writer_id"),
        ({"partition_by": None, "partition_method": "iid"}, "input_column: missing: "),
        ({"partition_by": None, "arguments": {"input_column": "image"}}, "partition_by: missing"),
        ({"partition_by": "writer"}, r"partition_by: writer: .*did you mean writer_id\?"),
        ({"arguments": {"test_split": "valid"}}, "dataset: hf:.*valid"),
        (
            {"arguments": {"test_split": "train[:20%]"}},
            r"test_split: 'train\[:20%\]': must have no sample of data_args.split, 'train'$",
        ),
        ({"arguments": {"split": "all", "test_split": "test[1:]"}}, "no sample of .*'all'$"),
        ({"arguments": {"split": "train[:-2]", "test_split": "test+train[3:]"}}, "no sample of"),
        ({"arguments": {"revision": 7}}, "revision: 7: "),
        ({"clients": 4}, "client_num_in_total: 4: "),
        ({"arguments": {"input_column": "writer_id"}}, "column writer_id: "),
    ],
)
def test_recipe_that_does_not_fit_is_refused(
    repository: Path, spec: dict[str, Any], said: str
) -> None:
    assert re.search(said, refusal(load, repository, repository.parent, **spec))


@pytest.mark.slow
def test_data_set_in_memory_runs(tmp_path: Path, repository: Path) -> None:
    """With its parts, or of one part."""
    objects = datasets.load_dataset(str(repository), cache_dir=str(tmp_path / "cache"))
    for name, data in (("both", objects), ("one", objects["train"])):
        run = quick_run(
            tmp_path / name,
            data=data.rename_column("character", "label"),
            model=nn.Sequential(nn.Flatten(), nn.Linear(6, 3)),
            **{"partition_method": "natural", "partition_by": "writer_id", "min_samples": 1},
            **{"client_num_in_total": 3, "comm_round": 1},
        )
        assert fp.read_runs(run.folder)["clients"].tolist() == [3]
    for given, named in (
        ({"dataset": "hf:"}, "dataset: 'hf:'"),
        ({"dataset": "hf:femnist", "data_args.input_colum": "image"}, "data_args.input_colum"),
        ({"dataset": "hf:femnist", "data_dir": "x"}, "data_dir: 'x'"),
    ):
        with pytest.raises(fp.UserError, match=named):
            quick_run(tmp_path / "other", **given)


def test_named_tables_are_tested_by_their_names() -> None:
    def table(size: int) -> Any:
        return datasets.Dataset.from_dict({"x": [[0.5] * 4] * size, "label": [0, 1] * (size // 2)})

    clients, tests = {"a": table(8), "b": table(8)}, {"b": table(2), "a": table(6)}
    spec = replace(DIGITS, dataset="<object>:mine")
    dataset = load_own_data(bring_data(spec, (clients, tests)), spec)
    assert list(map(len, dataset.split.test)) == [6, 2]


def test_texts_of_both_parts_are_numbered_alike(tmp_path: Path) -> None:
    for part, labels in (("train", ["ham", "spam"]), ("test", ["spam", "spam"])):
        columns = {"ids": [[1], [2]], "label": labels, "by": [5, 7]}
        datasets.Dataset.from_dict(columns).to_parquet(tmp_path / f"{part}.parquet")
    given = {"partition_by": "by", "clients": 2, "arguments": {"label_column": None}}
    data = load(tmp_path, tmp_path, **given)
    assert (data.train_labels.tolist(), data.test_labels.tolist()) == ([0, 1], [1, 1])


def test_subset_is_the_one_that_is_named(tmp_path: Path) -> None:
    for number, name in enumerate(("one", "two")):
        columns = {"x": [number] * 4, "label": [0, 1] * 2}
        datasets.Dataset.from_dict(columns).to_parquet(tmp_path / f"{name}.parquet")
    files = "".join(f"- config_name: {n}\n  data_files: {n}.parquet\n" for n in ("one", "two"))
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{files}---\n")
    given = {"partition_method": "iid", "partition_by": None, "clients": 2, "test_fraction": 0.5}
    data = load(tmp_path, tmp_path, arguments={"subset": "two", "label_column": None}, **given)
    assert data.train_images.unique().tolist() == [1]


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1), (1, 2, 3)])
def test_arrays_of_uint8_are_images(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Of a table on disk, and of one from Python; they have no files that could be resized."""
    kind = datasets.Array2D if len(shape) == 2 else datasets.Array3D
    features = {"pixels": kind(shape, "uint8"), "label": datasets.Value("bool")}
    columns = {"pixels": [image.reshape(shape) for image in GREY], "label": [False, True] * 3}
    held = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    held.to_parquet(folder := tmp_path / "train.parquet")
    how = {"partition_method": "iid", "partition_by": None, "arguments": {"label_column": None}}
    data = load(folder, tmp_path, 2, **how, test_fraction=0.5)
    assert (data.train_images.dtype, data.train_images.shape[1:]) == (torch.uint8, (1, 2, 3))
    assert data.normalisation is not None
    assert data.class_names == ("False", "True")
    spec = replace(DIGITS, dataset="own")
    held = held.cast_column("label", datasets.Value("int64"))
    own = load_own_data(bring_data(spec, {"train": held, "test": held}), spec).parts.train.inputs
    assert (own.dtype, own.shape[1:]) == (torch.uint8, (1, 2, 3))
    message = refusal(load, folder, tmp_path, 2, **how, image_size=(8, 8))
    assert message.startswith("data_args.image_size: ")


def test_other_arrays_of_uint8_are_as_other_integers(tmp_path: Path) -> None:
    """With more dimensions than an image has they are no images; a missing number is not 0."""
    how = {"partition_method": "iid", "partition_by": None, "arguments": {"label_column": None}}
    path, labels = tmp_path / "train.parquet", [0, 1] * 3
    moving = datasets.Features({"x": datasets.Array4D((2, 2, 2, 3), "uint8")})
    moving["label"] = datasets.Value("int64")
    films = [np.full((2, 2, 2, 3), k, np.uint8) for k in range(6)]
    datasets.Dataset.from_dict({"x": films, "label": labels}, features=moving).to_parquet(path)
    data = load(path, tmp_path, 2, **how, test_fraction=0.5)
    assert (data.train_images.dtype, data.train_images.shape[1:]) == (torch.int64, (2, 2, 2, 3))
    rows = datasets.Sequence(datasets.Sequence(datasets.Value("uint8")))
    lacking = datasets.Features({"x": rows, "label": datasets.Value("int64")})
    values = {"x": [[[1, 2], [3, None]]] * 6, "label": labels}
    datasets.Dataset.from_dict(values, features=lacking).to_parquet(path)
    assert "has NaN or infinite values" in refusal(load, path, tmp_path, 2, **how)


def test_labels_of_true_and_false_that_lack_one_are_refused(tmp_path: Path) -> None:
    features = datasets.Features({"x": datasets.Value("float32"), "label": datasets.Value("bool")})
    for name, last in (("train", True), ("test", None)):
        values = {"x": [1.0] * 4, "label": [True, False, True, last]}
        part = datasets.Dataset.from_dict(values, features=features)
        part.to_parquet(tmp_path / f"{name}.parquet")
    message = refusal(load, tmp_path, tmp_path, **PLAIN)
    assert message.endswith("column label: has null: must have a text or a number in each row")


@pytest.mark.parametrize("splits", [False, True])
def test_folders_of_save_to_disk_are_refused(tmp_path: Path, splits: bool) -> None:
    """They may hold the library's cache files, whose rows would be read as samples."""
    held = datasets.Dataset.from_dict({"x": [[1.0, 2.0]] * 6, "label": [0, 1] * 3})
    saved = datasets.DatasetDict(train=held, test=held) if splits else held
    saved.save_to_disk(folder := tmp_path / "saved")
    message = refusal(load, folder, tmp_path, arguments={"label_column": None})
    assert "save_to_disk" in message
