"""Those that one round is measured with: FedML's single process, a plain loop, and ours."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine.devices import keep_freed_memory
from fednnnn_plugin.engine.progress import Follower
from fednnnn_plugin.engine.records import RoundRecord, Seconds
from fednnnn_plugin.engine.run import run_federation
from fednnnn_plugin.models import create_model
from fednnnn_plugin.recipe import Recipe

Measure = Callable[[], Seconds]


def loaders(recipe: Recipe, data: FederatedData) -> list[DataLoader[Any]]:
    """Return the clients' data as PyTorch's users have it."""
    return [
        DataLoader(
            TensorDataset(*data.client_data(client)),
            batch_size=recipe.train_args.batch_size,
            shuffle=True,
        )
        for client in range(data.num_clients)
    ]


def test_loader(recipe: Recipe, data: FederatedData) -> DataLoader[Any]:
    """Return the test set, in batches of the training's size as FedML's loaders have it."""
    dataset = TensorDataset(data.test_images, data.test_labels)
    return DataLoader(dataset, batch_size=recipe.train_args.batch_size)


def fedml_fedavg(recipe: Recipe, data: FederatedData, device: torch.device) -> Measure:
    """Return FedML's own single-process FedAvg: its clients, trainer and aggregation."""
    from types import SimpleNamespace

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
        started = time.perf_counter()
        weights = api.model_trainer.get_model_params()
        collected = []
        for client in api.client_list:
            trained = client.train(copy.deepcopy(weights))
            collected.append((client.get_sample_number(), copy.deepcopy(trained)))
        trained_at = time.perf_counter()
        api.model_trainer.set_model_params(api._aggregate(collected))
        aggregated = time.perf_counter()
        api.model_trainer.test(test, device, args)
        return _seconds(started, trained_at, aggregated)

    return measure


def plain_loop(recipe: Recipe, data: FederatedData, device: torch.device) -> Measure:
    """Return what a researcher writes first: DataLoader, SGD, state dicts averaged."""
    train = recipe.train_args
    local, test = loaders(recipe, data), test_loader(recipe, data)
    served = create_model(recipe.model_args.model, 0).to(device)

    def trained(loader: DataLoader[Any]) -> dict[str, Tensor]:
        model = copy.deepcopy(served).train()
        optimizer = torch.optim.SGD(
            model.parameters(), lr=train.learning_rate, weight_decay=train.weight_decay
        )
        for _ in range(train.epochs):
            for images, labels in loader:
                optimizer.zero_grad()
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
        started = time.perf_counter()
        states = [trained(loader) for loader in local]
        trained_at = time.perf_counter()
        served.load_state_dict(
            {
                name: torch.stack([state[name] for state in states]).float().mean(0)
                for name in states[0]
            }
        )
        aggregated = time.perf_counter()
        accuracy(served)
        return _seconds(started, trained_at, aggregated)

    return measure


class Last(Follower):
    """Keeps the seconds of the newest round."""

    seconds = Seconds(0.0, 0.0, 0.0)

    def round_done(self, record: RoundRecord) -> None:
        self.seconds = record.seconds


def ours(recipe: Recipe, data: FederatedData, device: torch.device) -> Measure:
    """Return the engine, as ``fedml run`` starts it: the second of two rounds."""
    keep_freed_memory()
    model = create_model(recipe.model_args.model, 0)

    def measure() -> Seconds:
        last = Last()
        with tempfile.TemporaryDirectory() as folder:
            run_federation(
                recipe,
                model=model,
                data=data,
                device=device,
                folder=Path(folder) / "run",
                followers=[last],
            )
        return last.seconds

    return measure


def _seconds(started: float, trained: float, aggregated: float) -> Seconds:
    return Seconds(trained - started, aggregated - trained, time.perf_counter() - aggregated)


CONTENDERS = {
    "FedML, single process": (fedml_fedavg, "fp32"),
    "plain PyTorch loop": (plain_loop, "fp32"),
    "ours, fp32": (ours, "fp32"),
    "ours, bf16": (ours, "bf16"),
}
