"""A search on Datasets: what is held out of each client's is judged on, never the test part."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fednnnn_plugin as fp
from fednnnn_plugin.assembly.loaders import load_loaders
from fednnnn_plugin.data.own_data import UserData
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe import find_recipe, load_recipe

from ..tiny import QUICK, TEST, X, Y

SIZES = (30, 50, 20, 40)
SETTINGS = ["dataset=<object>:data", "client_num_in_total=4", "client_num_per_round=4"]


class Numbered(TensorDataset):
    """Samples that are asked for one by one; the first input is the sample's number."""

    def __init__(self, first: int, count: int) -> None:
        inputs = X[first : first + count].clone()
        inputs[:, 0] = torch.arange(first, first + count)
        super().__init__(inputs, Y[first : first + count], torch.zeros(count))

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(each[index] for each in self.tensors[:2])


PARTS = [Numbered(sum(SIZES[:k]), size) for k, size in enumerate(SIZES)]


def test_part_of_each_client_is_held_out() -> None:
    """A tenth of 30, 50, 20 and 40 samples; all of them are somewhere, and none twice."""
    objects = {"data_args.dataset": "<object>:data"}
    recipe = load_recipe(
        find_recipe("digits_noniid_b_fedavg"),
        ["validation_fraction=0.1", *SETTINGS[1:]],
        objects=objects,
    )
    data, _ = load_loaders(UserData((PARTS, TEST), {}), recipe)
    assert [*data.sizes.values()] == [27, 45, 18, 36]
    numbers = [int(x[0]) for loader in data.train_loaders.values() for xs, _ in loader for x in xs]
    held = [int(x[0]) for inputs, _ in data.test_loader for x in inputs]
    assert len(held) == 3 + 5 + 2 + 4
    assert sorted(numbers + held) == [*range(140)]
    assert {*held} != {*range(3), *range(30, 35), *range(80, 82), *range(100, 104)}  # the first
    with pytest.raises(UserError, match=r"validation_fraction: 0\.1: must be 0, .* client 1"):
        load_loaders(UserData(([PARTS[0], DataLoader(PARTS[1]), *PARTS[2:]], TEST), {}), recipe)


@pytest.mark.slow
def test_search_on_datasets(own_code: Path) -> None:
    """Where it began, whatever the user's code changes the working directory to."""
    (own_code / "elsewhere").mkdir()
    shutil.copy(find_recipe("digits_noniid_b_fedavg"), "mine.yaml")
    there = [f"{client},1,1" for client in range(4)]
    Path("there.csv").write_text("\n".join(["client,first_round,last_round", *there]))

    def data() -> object:
        os.chdir(own_code / "elsewhere")
        return PARTS, TEST

    given = {"model": nn.Linear(6, 4), "data": data, "study": "study"}
    settings = {"comm_round": 1, "client_num_in_total": 4, "client_num_per_round": 4}
    given |= {"overrides": QUICK | settings, "client_availability": "there.csv"}
    for resume in (False, True):
        os.chdir(own_code)
        found = fp.tune("mine.yaml", grid={"learning_rate": [0.1]}, resume=resume, **given)
    assert found.best == {"learning_rate": 0.1}
    assert found.folder == own_code / "study"
    assert found.recipe.is_file()
    assert not [*(own_code / "elsewhere").iterdir()]
    assert fp.read_runs(found.folder / "trials")["test_acc"].notna().all()
