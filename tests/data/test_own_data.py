"""Data of a user's own: any shape, tensors or arrays, and one line for all that is wrong."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.nested import nested_tensor
from torch.utils.data import Dataset

from fednnnn_plugin.data.federated import load_federated
from fednnnn_plugin.data.images import ImageDataset
from fednnnn_plugin.data.own_data import bring_data, checked_parts, load_own_data
from fednnnn_plugin.data.own_forms import clients_of

from .conftest import DIGITS, refusal


def images(n: int = 4, value: int = 0, *shape: int) -> Tensor:
    return torch.full((n, *(shape or (1, 2, 2))), value, dtype=torch.uint8)


def labels(n: int = 4) -> Tensor:
    return torch.arange(n) % 2


def load(given: object, seed: int = 0, loss: str = "cross_entropy") -> ImageDataset:
    """Load data, or what a function returns."""
    spec = replace(DIGITS, dataset="<object>:mine", loss=loss, seed=seed)
    return load_own_data(bring_data(spec, given), spec)


@pytest.mark.parametrize("form", [torch.as_tensor, np.asarray])
def test_own_data_of_uint8_is_normalised(form: Callable[[Tensor], object]) -> None:
    train = images()
    train[:2] = 100
    parts = (train, labels().short(), images(2, 200), torch.tensor([0, 2]))
    dataset = load(tuple(map(form, parts)))
    assert dataset.class_names == ("0", "1", "2")
    assert dataset.parts.train.labels.dtype == torch.int64
    assert dataset.mean == pytest.approx((50,))
    normalised = dataset.normalisation(dataset.parts.test.inputs)
    assert normalised.dtype == torch.float32
    assert normalised[0, 0, 0, 0].item() == pytest.approx(3.0, rel=1e-5)  # (200 - 50) / 50


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize(
    ("inputs", "values", "dtype"),
    [
        (lambda n: np.arange(n * 2.0).reshape(n, 2)[::-1], [[2, 3], [0, 1]], torch.float32),
        (lambda n: np.frombuffer(bytes(2 * n), np.float16), [0, 0], torch.float32),  # read-only
        (lambda n: images(n, n).double() / 4, [[[[0.5] * 2] * 2]] * 2, torch.float32),
        (lambda n: torch.ones(n, dtype=torch.int64), [1, 1], torch.int64),
    ],
)
def test_own_data_of_other_types_is_unchanged(
    inputs: Callable[[int], object], values: list[object], dtype: torch.dtype
) -> None:
    dataset = load((inputs(4), np.arange(4), inputs(2), np.arange(2, dtype="u2")))
    tensor = dataset.parts.test.inputs
    assert tensor.tolist() == values
    assert tensor.dtype == dataset.parts.train.inputs.dtype == dtype
    assert dataset.normalisation is None
    assert len(dataset.class_names) == 4


class FloatSet(Dataset):
    """Which a run takes, and nothing else."""


REST = (labels(), images(), labels())
FLOATS = images().float()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((images(), labels()), "a tuple of 2"),
        ((images(0), *REST), "train_inputs: torch.uint8 of [0, 1, 2, 2]"),
        ((images(), labels(3), *REST[1:]), "train_labels: 3, for 4 train_inputs"),
        ((images(), labels(), images(4, 0, 1, 2, 3), labels()), "test_inputs: torch.uint8 of [4,"),
        (([FloatSet()], (images(), labels())), "client 0: a FloatSet"),
        (([(FLOATS, [0, 1])], REST[1:]), "client 0: a tuple of Tensor and list"),
        (lambda: 1 / 0, "raised ZeroDivisionError: division by zero ("),
        ((FLOATS, labels(), FLOATS.double() + 1e300, labels()), "test_inputs: "),
        (lambda: (nested_tensor([FLOATS]), *REST), "train_inputs: "),
        ((np.ma.ones((4, 2)), *REST), "train_inputs: "),
        ((images(), -labels(), *REST[1:]), "train_labels: has -1"),
        ((images(), 0 * labels()) * 2, "labels up to 0"),
        ((images(4, 0, 5, 5, 3), labels()) * 2, "train_inputs: torch.uint8 of [4, 5, 5, 3]"),
        ((images(4, 0, 9, 9), labels()) * 2, "train_inputs: torch.uint8 of [4, 9, 9]"),
        (([(FLOATS, labels()), None], REST[1:]), "client 1: a NoneType"),
        (
            ([(FLOATS, labels()), (FLOATS[:0], labels()[:0])], REST[1:]),
            "client 1: inputs: torch.float32 of [0, 1, 2, 2]: must be [n, ...], not empty",
        ),
        (([(FLOATS, labels())] * 2, [None, None]), "no client has a test part"),
        (deque((images(), *REST)), "a deque"),
        ((FLOATS, labels(), FLOATS, labels(), [[0, 1], []]), "client 1: "),
        ((images(), images().long()) * 2, "train_labels: torch.int64 of [4, 1, 2, 2]"),
    ],
)
def test_own_data_that_does_not_fit_is_refused(given: object, said: str) -> None:
    assert refusal(load, given).startswith(f"data_args.dataset: <object>:mine: {said}")


TABLE = pd.DataFrame({"sort": ["a", "b", "c", "a"], "class": [0.0, 1, 2, 0], "age": [7, 8, 9, 7]})
X = np.ones((4, 6), np.float32)


@pytest.mark.parametrize("other", [["age", "class"], ["class", "years"]])
def test_columns_of_tables_are_the_same_everywhere(other: list[str]) -> None:
    """They are taken by their places."""
    here, y = TABLE[["class", "age"]], TABLE["age"]
    there = here.set_axis(other, axis=1)
    there_y = (there, y)
    for given, name in (
        ((here, y, *there_y), "test_inputs"),
        (([(here, y), there_y], (here, y)), "client 1: inputs"),
        (([(here, y), (here, y)], [(here, y), there_y]), "test_client 1: inputs"),
    ):
        message = refusal(load, given, loss="mse")
        assert message.startswith(f"data_args.dataset: <object>:mine: {name}: columns {other}; ")


def test_numbers_of_columns_are_no_names() -> None:
    """As in a table that was made of an array, such as a scaler's."""
    here, y = TABLE[["class", "age"]], TABLE["age"]
    load((here, y, pd.DataFrame(here.to_numpy()), y), loss="mse")


def test_arrays_of_inference_mode_can_be_trained_on() -> None:
    with torch.inference_mode():
        x = torch.ones(4, 2)
    parts = checked_parts({"train_": (x, labels())}, "mine", "cross_entropy")
    assert not parts["train_"].inputs.is_inference()


def test_table_of_objects_says_what_to_do() -> None:
    table = pd.DataFrame({"age": [1.0, 2.0, 3.0, 4.0], "smokes": [True, False, True, True]})
    message = refusal(load, (table, labels(), table, labels()))
    assert message.endswith(
        "object: must be numbers: of a table of numbers give x.astype('float32')"
    )


def test_clients_and_their_tests_are_matched_by_name() -> None:
    train = {name: (images(), labels()) for name in ("ann", "bob")}
    own = {"bob": (images(2), labels(2)), "ann": (images(6), labels(6))}
    split = load((train, own)).split
    assert [len(part) for part in split.test] == [6, 2]
    message = refusal(load, (train, {"ann": own["ann"], "eve": own["bob"]}))
    assert "mine: 'bob': is in the clients' parts or in the tests, not in both: " in message


@pytest.mark.parametrize(
    ("column", "loss", "remedy"),
    [
        (TABLE[["class"]], "cross_entropy", "y[:, 0].astype(int)"),
        (pd.get_dummies(TABLE["age"]).astype(int), "cross_entropy", "y.argmax(1)"),
        (TABLE[["class", "age"]], "cross_entropy", "loss: mse"),
        (TABLE["class"].where(TABLE["class"] > 0), "cross_entropy", "has NaN or infinite values"),
        (TABLE["sort"], "mse", "factorize"),
        (TABLE["age"] > 8, "bce_with_logits", "y.astype(int)"),
        (TABLE["age"].astype(object), "", "y.astype(int)"),
        (TABLE["age"] - 8, "cross_entropy", "give pandas.factorize(y, sort=True)[0], y of all"),
        (TABLE["age"] - 8, "", "of numbers to predict y.astype(float)"),
        (TABLE["age"] - 8, "bce_with_logits", "give (y + 1) / 2 of -1 and 1"),
        (TABLE["class"], "bce_with_logits", "from 0 to 2: for train_args.loss bce_with_logits"),
        (TABLE["sort"].tolist(), "", "factorize"),
        (TABLE["age"].tolist(), "", "a list: must be"),
    ],
)
def test_labels_of_a_table_say_what_to_do(column: Any, loss: str, remedy: str) -> None:
    message = refusal(load, (X, column, X, column), loss=loss)
    assert message.startswith("data_args.dataset: <object>:mine: train_labels: ")
    assert remedy in message


@pytest.mark.parametrize(
    ("column", "loss", "dtype", "classes"),
    [
        (TABLE["age"], "cross_entropy", torch.int64, 10),
        (TABLE[["age", "age"]], "mse", torch.float32, 2),
        (TABLE["class"], "", torch.float32, 1),
        (pd.get_dummies(TABLE["sort"]).astype(int), "bce_with_logits", torch.float32, 3),
        (np.eye(4)[[0, 2, 1, 3]], "cross_entropy", torch.float32, 4),
        (np.arange(24).reshape(4, 6) % 5, "cross_entropy", torch.int64, 5),  # of each input
    ],
)
def test_labels_are_what_the_loss_takes(
    column: Any, loss: str, dtype: torch.dtype, classes: int
) -> None:
    loaded = load((X, column, X, column), loss=loss)
    assert loaded.parts.train.labels.dtype == dtype
    assert loaded.parts.train.labels.tolist() == np.asarray(column).tolist()
    assert len(loaded.class_names) == classes


def test_own_data_that_is_drawn_follows_the_seed() -> None:
    def drawn() -> tuple[Tensor, ...]:
        x = torch.rand(4, 2) + random.random() + np.random.rand()  # noqa: NPY002
        return x, labels(), x, labels()

    one, again, other = (load(drawn, seed) for seed in (1, 1, 2))
    parts = [dataset.parts.train.inputs for dataset in (one, again, other)]
    assert torch.equal(parts[0], parts[1])
    assert not torch.equal(parts[0], parts[2])
    before, after = (dataset.fingerprint["data"] for dataset in (one, other))
    assert before.keys() == {"code", "drawn_tensors"}
    assert before["code"] == after["code"]
    assert before["drawn_tensors"] != after["drawn_tensors"]
    whole = (images(), labels(), images(), labels(), [[0, 1], [2, 3]])
    one, other = (load(lambda: whole, seed).fingerprint for seed in (1, 2))
    assert one == other
    assert one.keys() == {"data", "split"}


def test_clients_are_counted_before_data_are_checked() -> None:
    """Of owners and of lists; none of owners that cannot be compared, which loading refuses."""
    owners = np.array(["b", "a", "b", "b"])
    mixed = np.array(["b", 1, None, "b"], dtype=object)
    for given, count in (
        ((images(), labels(), owners), 2),
        ((images(), *REST, torch.tensor([4, 4, 5, 6])), 3),
        (([(images(), labels())] * 4, (images(), labels())), 4),
        ((images(), labels(), mixed), 0),
        ((images(), *REST), 0),
    ):
        assert clients_of(given) == count
    assert "owners: object of [4]: must be names" in refusal(load, (images(), labels(), mixed))


def test_counts_are_divided_by_their_values() -> None:
    spec = replace(DIGITS, dataset="<object>:mine", loss="mse", num_clients=2, classes_per_client=1)
    x, y = torch.rand(40, 2), torch.tensor([3.0, 5.0]).repeat_interleave(20)
    data = load_federated(spec, bring_data(spec, (x, y, x, y)))
    values = [data.train_labels[part].unique().tolist() for part in data.client_indices]
    assert sorted(values) == [[3.0], [5.0]]
