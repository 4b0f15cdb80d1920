"""Runs whose clients train together: the records, the bits, and what is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from fednnnn_plugin.client.groups import client_bytes
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine.batches import LoaderData
from fednnnn_plugin.engine.training import Inputs, widest_group
from fednnnn_plugin.errors import RunError, UserError
from fednnnn_plugin.models import create_model

CPU = torch.device("cpu")
MakeRecipe = Callable[..., Any]
Run = Callable[..., Any]
Records = Callable[..., list[dict[str, Any]]]

# Sizes 7, 12, 5, 30, 9, 16: with batches of 8 that is 1, 2, 1, 4, 2, 2 steps.
ALL = {"client_num_per_round": 6, "batch_size": 8}


def model_of(folder: Path) -> dict[str, Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


@pytest.mark.parametrize(
    "method",
    [
        {"weight_decay": 5e-3},
        {"federated_optimizer": "PaperFedProx", "prox_mu": 0.3, "beta": None, "gamma": None},
    ],
    ids=["FedNNNN", "FedProx"],
)
@pytest.mark.parametrize("together", [2, 100])
def test_a_round_together_is_the_round_one_by_one(
    run: Run, recipe: MakeRecipe, tmp_path: Path, method: dict[str, Any], together: int
) -> None:
    for name, batching in (("off", "off"), ("on", together)):
        settings = ALL | method | {"comm_round": 1, "precision": "fp64"}
        run(recipe(client_batching=batching, **settings), tmp_path / name)
    start = create_model("nnnn_digits", 0).state_dict()
    for name, tensor in model_of(tmp_path / "on").items():
        assert tensor.dtype == torch.float64
        torch.testing.assert_close(tensor, model_of(tmp_path / "off")[name], rtol=0, atol=1e-9)
        assert (tensor - start[name]).abs().max() > 1e-3


def test_a_resumed_run_has_the_bytes_of_a_whole_one(
    run: Run, recipe: MakeRecipe, tmp_path: Path
) -> None:
    settings = ALL | {"client_batching": 3, "client_num_per_round": 5}
    run(recipe(comm_round=4, **settings), tmp_path / "whole")
    run(recipe(comm_round=2, **settings), tmp_path / "parts")
    run(recipe(comm_round=4, **settings), tmp_path / "parts", mode="resume")
    whole, parts = (tmp_path / name / "model.safetensors" for name in ("whole", "parts"))
    assert whole.read_bytes() == parts.read_bytes()


@pytest.mark.parametrize(("setting", "clients"), [("auto", 1), (5, 4)])
def test_the_summary_says_how_many_train_together(
    run: Run, recipe: MakeRecipe, tmp_path: Path, setting: str | int, clients: int
) -> None:
    summary = run(recipe(client_batching=setting, comm_round=1))
    assert summary.client_batching == clients
    written = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert written["client_batching"] == clients


def test_auto_takes_as_many_as_a_gpus_memory_holds(data: FederatedData) -> None:
    """Of four times what a client needs ``MEMORY`` holds three; at least one trains."""
    model, sgd = create_model("nnnn_digits", 0), LocalSGD(1, 5, 0.1)
    inputs, needs = Inputs(model, data, CPU), client_bytes(model, sgd, (5, 1, 8, 8))
    for free, together in ((0, 1), (1, 1), (4 * needs, 3)):
        assert widest_group(inputs, sgd, "auto", free) == together
        assert widest_group(inputs, sgd, "off", free) == 1
        assert widest_group(inputs, sgd, 7, free) == 7


def test_what_is_the_users_trains_one_by_one(data: FederatedData) -> None:
    own, sgd = create_model("nnnn_digits", 0), LocalSGD(1, 5, 0.1)
    for inputs in (
        Inputs(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), data, CPU),
        Inputs(own, LoaderData({0: []}, {0: 1}, [], 10), CPU),
        Inputs(own, data, CPU, SimpleNamespace()),
    ):
        assert widest_group(inputs, sgd, "auto", 2**40) == widest_group(inputs, sgd, 1, 0) == 1
        with pytest.raises(UserError, match=r"^train_args\.client_batching: 2: must be auto or "):
            widest_group(inputs, sgd, 2, 0)


def test_a_client_that_fails_takes_its_group_with_it(
    run: Run, recipe: MakeRecipe, records: Records, data: FederatedData
) -> None:
    """Client 4's labels do not exist; 0 and 2 train with it, 3, 5 and 1 before."""
    labels = data.train_labels.clone()
    labels[data.client_indices[4]] = 99
    broken = replace(data, train_labels=labels)
    settings = ALL | {"client_batching": 3, "comm_round": 1}
    run(recipe(max_client_failures=3, **settings), data=broken)
    assert (records()[0]["clients"], records()[0]["rejected"]) == (3, 3)
    with pytest.raises(RunError, match=r"max_client_failures allows 2"):
        run(recipe(max_client_failures=2, **settings), data=broken, mode="overwrite")
