"""What one round is measured with: FedML's single process, a plain loop, and ours."""

import copy
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fednnnn_plugin.assembly.federation import run_federation
from fednnnn_plugin.assembly.from_recipe import local_sgd
from fednnnn_plugin.assembly.functions import Functions
from fednnnn_plugin.assembly.inputs import Inputs
from fednnnn_plugin.data.federated import FederatedData, load_federated
from fednnnn_plugin.models import create_model
from fednnnn_plugin.processes.numerics import keep_freed_memory
from fednnnn_plugin.quantities import Seconds
from fednnnn_plugin.recipe import Recipe, find_recipe, load_recipe
from fednnnn_plugin.recipe.data_spec import data_spec

Measure = Callable[[], Seconds]


class OwnMnist(nn.Module):
    """The paper's MNIST network as a user brings it: no class of the package's."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 20, 5), nn.Conv2d(20, 50, 5)
        self.fc1, self.fc2 = nn.Linear(800, 500), nn.Linear(500, 10)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(self.dropout(F.relu(self.fc1(x.flatten(1)))))


def settings(
    condition: str, clients: int, precision: str, folder: Path, batching: int | str = "auto"
) -> Recipe:
    """Return the recipe of two rounds of so many clients."""
    keys = {
        "data_args.data_cache_dir": folder,
        "data_args.download": "false",
        "train_args.client_num_in_total": clients,
        "train_args.client_num_per_round": clients,
        "train_args.comm_round": 2,
        "train_args.precision": precision,
        "train_args.client_batching": batching,
        "validation_args.frequency_of_the_test": 1,
    }
    overrides = [f"{key}={value}" for key, value in keys.items()]
    return load_recipe(find_recipe(f"{condition}_fednnnn"), overrides)


def federated(recipe: Recipe, samples: int | None = None) -> FederatedData:
    """Divide the data between the paper's 100 clients; keep the first, each with so many images."""
    data = load_federated(replace(data_spec(recipe), num_clients=100))
    kept = data.client_indices[: recipe.train_args.client_num_in_total]
    return replace(data, client_indices=tuple(held[:samples] for held in kept))


def client_data(data: FederatedData, client: int) -> tuple[Tensor, Tensor]:
    """Return a client's inputs, normalised, and labels."""
    indices = data.client_indices[client]
    return data.normalised(data.train_images[indices]), data.train_labels[indices]


def loaders(recipe: Recipe, data: FederatedData) -> list[DataLoader[Any]]:
    """Return the clients' data as PyTorch's users have it."""
    size = recipe.train_args.batch_size
    return [
        DataLoader(TensorDataset(*client_data(data, client)), batch_size=size, shuffle=True)
        for client in range(data.num_clients)
    ]


def test_loader(recipe: Recipe, data: FederatedData) -> DataLoader[Any]:
    """Return the test set, in batches of the training's size as FedML's loaders have it."""
    dataset = TensorDataset(data.normalised(data.test_images), data.test_labels)
    return DataLoader(dataset, batch_size=recipe.train_args.batch_size)


def fedml_fedavg(recipe: Recipe, data: FederatedData, device: torch.device) -> Measure:
    """Return FedML's own single-process FedAvg: its clients, trainer and aggregation."""
    from fedml.simulation.sp.fedavg.fedavg_api import FedAvgAPI

    train = recipe.train_args
    args = SimpleNamespace(
        dataset=recipe.data_args.dataset,
        client_num_in_total=data.num_clients,
        client_num_per_round=data.num_clients,
        client_optimizer="sgd",
        learning_rate=train.learning_rate,
        weight_decay=train.weight_decay,
        epochs=train.epochs,
        batch_size=train.batch_size,
        enable_wandb=False,
    )
    local = dict(enumerate(loaders(recipe, data)))
    sizes = {client: data.client_size(client) for client in local}
    model = create_model(recipe.model_args.model, 0)
    total = sum(sizes.values())
    dataset = [total, len(data.test_labels), None, None, sizes, local, local, data.num_classes]
    api = FedAvgAPI(args, device, dataset, model)
    test = test_loader(recipe, data)

    def measure() -> Seconds:
        times = [now(device)]
        weights = api.model_trainer.get_model_params()
        collected = []
        for client in api.client_list:
            trained = client.train(copy.deepcopy(weights))
            collected.append((client.get_sample_number(), copy.deepcopy(trained)))
        times.append(now(device))
        api.model_trainer.set_model_params(api._aggregate(collected))
        times.append(now(device))
        api.model_trainer.test(test, device, args)
        return _seconds(*times, now(device))

    return measure


class Staged:
    """A client's batches, drawn on the device where its data lies."""

    def __init__(self, images: Tensor, labels: Tensor, batch_size: int) -> None:
        self.images, self.labels, self.batch_size = images, labels, batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.labels), device=self.labels.device)
        for batch in order.split(self.batch_size):
            yield self.images[batch], self.labels[batch]


def plain_loop(
    recipe: Recipe, data: FederatedData, device: torch.device, *, staged: bool = False
) -> Measure:
    """Return what a researcher writes first: DataLoader, SGD, state dicts averaged.

    Or what comes after that, all the data on the device.
    """
    train, sgd, local = recipe.train_args, local_sgd(recipe, Functions()), loaders(recipe, data)
    if staged:
        shares = [client_data(data, client) for client in range(data.num_clients)]
        local = [Staged(x.to(device), y.to(device), train.batch_size) for x, y in shares]
    test = test_loader(recipe, data)
    served = create_model(recipe.model_args.model, 0).to(device)

    def trained(batches: DataLoader[Any] | Staged) -> dict[str, Tensor]:
        model = copy.deepcopy(served).train()
        optimizer = torch.optim.SGD(
            model.parameters(), lr=train.learning_rate, weight_decay=train.weight_decay
        )
        for _ in range(train.epochs):
            for images, labels in batches:
                optimizer.zero_grad()
                with sgd.autocast(device):
                    loss = F.cross_entropy(model(images.to(device)), labels.to(device))
                loss.backward()
                optimizer.step()
        return model.state_dict()

    @torch.no_grad()
    def accuracy(model: nn.Module) -> float:
        model.eval()
        correct = 0
        for images, labels in test:
            correct += int((model(images.to(device)).argmax(1) == labels.to(device)).sum())
        return correct / len(data.test_labels)

    def measure() -> Seconds:
        times = [now(device)]
        states = [trained(batches) for batches in local]
        times.append(now(device))
        mean = {k: torch.stack([state[k] for state in states]).float().mean(0) for k in states[0]}
        served.load_state_dict(mean)
        times.append(now(device))
        accuracy(served)
        return _seconds(*times, now(device))

    return measure


def ours(
    recipe: Recipe, data: FederatedData, device: torch.device, model: nn.Module | None = None
) -> Measure:
    """Return the engine, as ``fedml run`` starts it: the second of two rounds."""
    keep_freed_memory()
    model = model or create_model(recipe.model_args.model, 0)

    def measure() -> Seconds:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name, "run")
            run_federation(recipe, lambda: Inputs(model, data, device), folder)
            _, second = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return Seconds(**json.loads(second)["seconds"])

    return measure


def now(device: torch.device) -> float:
    """Return the time when the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _seconds(*times: float) -> Seconds:
    started, trained, aggregated, tested = times
    return Seconds(trained - started, aggregated - trained, tested - aggregated)


# Name -> what makes its measure, and the precision that it computes in.
CONTENDERS = {
    "FedML, single process": (fedml_fedavg, "fp32"),
    "plain PyTorch loop": (plain_loop, "fp32"),
    "ours, fp32": (ours, "fp32"),
    "ours, bf16": (ours, "bf16"),
}
# What a user brings instead, in the same run.
OWN = {
    "own network, fp32": (partial(ours, model=OwnMnist()), "fp32"),
    "own network with dropout, fp32": (partial(ours, model=OwnMnist(0.5)), "fp32"),
}
