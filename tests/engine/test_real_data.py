"""On the real files: against a plain PyTorch loop, and what the paper's equations ask for."""

import copy
import json
import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from fednnnn_plugin.data.federated import FederatedData, load_federated
from fednnnn_plugin.engine.settings import data_spec
from fednnnn_plugin.models import create_model
from fednnnn_plugin.recipe import Recipe, find_recipe, load_recipe
from fednnnn_plugin.seeds import torch_generator

pytestmark = pytest.mark.real_data

SIX = {"client_num_per_round": 6, "comm_round": 1}

Run = Callable[..., Any]
Load = Callable[..., tuple[Recipe, FederatedData]]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As a client trains; in fp64 several threads are many times slower on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def load(real_data_dir: Path) -> Load:
    """Load a recipe, some ``train_args`` or other keys replaced, and its data."""

    def loaded(name: str, **settings: Any) -> tuple[Recipe, FederatedData]:
        settings |= {"data_args.data_cache_dir": str(real_data_dir), "data_args.download": False}
        overrides = [
            f"{key if '.' in key else f'train_args.{key}'}={json.dumps(value)}"
            for key, value in settings.items()
        ]
        recipe = load_recipe(find_recipe(name), overrides)
        return recipe, load_federated(data_spec(recipe))

    return loaded


def plain_network(start: nn.Module) -> nn.Module:
    """The paper's network as its table has it, the activation before the pooling."""
    layers: dict[str, Any] = dict(start.named_children())
    return nn.Sequential(
        *(layers["conv1"], nn.ReLU(), nn.MaxPool2d(2)),
        *(layers["conv2"], nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), layers["fc1"], nn.ReLU(), layers["fc2"]),
    )


def plain_round(recipe: Recipe, data: FederatedData, dtype: torch.dtype) -> dict[str, Tensor]:
    """FedAvg's first round in the textbook's way: torch.optim.SGD, one client after another."""
    train, seed = recipe.train_args, recipe.common_args.random_seed
    start = create_model("nnnn_mnist", seed).to(dtype)
    drawn = torch.randperm(data.num_clients, generator=torch_generator(seed, "cohort", 1))
    cohort = drawn[: train.client_num_per_round].tolist()
    mean = {name: torch.zeros_like(p) for name, p in start.named_parameters()}
    for client in cohort:
        model = copy.deepcopy(start)
        network = plain_network(model).train()
        optimizer = torch.optim.SGD(
            network.parameters(), lr=train.learning_rate, weight_decay=train.weight_decay
        )
        for images, labels in plain_batches(recipe, data, client):
            optimizer.zero_grad()
            nn.CrossEntropyLoss()(network(images.to(dtype)), labels).backward()
            optimizer.step()
        for name, parameter in model.named_parameters():
            mean[name] += parameter.detach() / len(cohort)
    return mean


def plain_batches(
    recipe: Recipe, data: FederatedData, client: int
) -> Iterator[tuple[Tensor, Tensor]]:
    images, labels = data.client_data(client)
    generator = torch_generator(recipe.common_args.random_seed, "shuffle", 1, client)
    for _ in range(recipe.train_args.epochs):
        order = torch.randperm(len(labels), generator=generator)
        stops = [*range(0, len(order), recipe.train_args.batch_size), len(order)]
        for begin, end in pairwise(stops):
            yield images[order[begin:end]], labels[order[begin:end]]


@pytest.mark.slow
def test_a_round_in_fp64_is_the_plain_loops(run: Run, load: Load, tmp_path: Path) -> None:
    recipe, data = load("mnist_noniid_b_fedavg", precision="fp64", **SIX)
    run(recipe, data=data, model=create_model("nnnn_mnist", 0))
    ours = safetensors.torch.load_file(tmp_path / "run" / "model.safetensors")
    start = create_model("nnnn_mnist", 0)
    for name, theirs in plain_round(recipe, data, torch.float64).items():
        torch.testing.assert_close(ours[name], theirs, rtol=0, atol=1e-9)
        assert (theirs - start.get_parameter(name)).abs().max() > 1e-3


def test_a_local_step_in_fp32_is_the_plain_loops(run: Run, load: Load, tmp_path: Path) -> None:
    """One batch holds all of a client's 600 images."""
    recipe, data = load("mnist_noniid_b_fedavg", epochs=1, batch_size=600, **SIX)
    run(recipe, data=data, model=create_model("nnnn_mnist", 0))
    ours = safetensors.torch.load_file(tmp_path / "run" / "model.safetensors")
    start = create_model("nnnn_mnist", 0)
    for name, theirs in plain_round(recipe, data, torch.float32).items():
        torch.testing.assert_close(ours[name], theirs, rtol=0, atol=1e-4)
        moved = (theirs - start.get_parameter(name)).abs().max()
        assert (ours[name] - theirs).abs().max() < 1e-2 * moved


def test_norm_norm_moves_by_beta_times_the_mean_client_norm(
    run: Run, load: Load, tmp_path: Path
) -> None:
    recipe, data = load("mnist_noniid_b_normnorm", client_num_per_round=3, comm_round=1)
    start = create_model("nnnn_mnist", 0)
    run(recipe, data=data, model=start)
    [checkpoint] = (tmp_path / "run" / "checkpoint").iterdir()
    served = safetensors.torch.load_file(checkpoint)
    squares = [
        (served[name].double() - parameter.double()).square().sum().item()
        for name, parameter in start.named_parameters()
    ]
    record = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert recipe.train_args.beta is not None
    move = recipe.train_args.beta * record["mean_client_norm"]
    assert math.sqrt(sum(squares)) == pytest.approx(move, rel=1e-5)
    assert record["mean_update_norm"] < 0.9 * record["mean_client_norm"]


@pytest.mark.slow
def test_running_variances_stay_positive_under_strong_momentum(
    run: Run, load: Load, tmp_path: Path
) -> None:
    recipe, data = load(
        "cifar10_noniid_b_fednnnn",
        client_num_in_total=10,
        client_num_per_round=2,
        comm_round=2,
        epochs=1,
        gamma=0.9,
    )
    run(recipe, data=data, model=create_model("nnnn_cifar10", 0))
    [checkpoint] = (tmp_path / "run" / "checkpoint").iterdir()
    for path in (checkpoint, tmp_path / "run" / "model.safetensors"):
        state = safetensors.torch.load_file(path)
        variances = {name: t for name, t in state.items() if name.endswith("running_var")}
        assert len(variances) == 6
        for name, variance in variances.items():
            assert (variance > 0).all(), name
            assert variance.isfinite().all(), name
        assert int(state["bn11.num_batches_tracked"]) == 2 * 100
