"""The engine against a plain PyTorch loop, written from the paper's equations, on real images."""

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from click.testing import CliRunner
from torch import Tensor, nn

from fednnnn_plugin.cli import main
from fednnnn_plugin.data.federated import DataSpec, FederatedData, load_federated
from fednnnn_plugin.models import create_model
from fednnnn_plugin.seeds import torch_generator

pytestmark = [pytest.mark.real_data, pytest.mark.slow]

SEED = 0
# 1 % of the training images is what the models are tested on: 10,000 in fp64 would take a minute.
HELD_OUT = 0.01


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As a client trains; in fp64 several threads are many times slower on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def mnist_network(model: nn.Module) -> nn.Module:
    """The paper's table of layers, over the parameters of ``model``."""
    layers: dict[str, Any] = dict(model.named_children())
    return nn.Sequential(
        *(layers["conv1"], nn.ReLU(), nn.MaxPool2d(2)),
        *(layers["conv2"], nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), layers["fc1"], nn.ReLU(), layers["fc2"]),
    )


def cifar10_network(model: nn.Module) -> nn.Module:
    layers: dict[str, Any] = dict(model.named_children())
    convolutions: list[nn.Module] = []
    for pair in "123":
        for name in (f"{pair}1", f"{pair}2"):
            convolutions += [layers[f"conv{name}"], layers[f"bn{name}"], nn.ReLU()]
        convolutions.append(nn.MaxPool2d(2))
    dense = (layers["fc1"], nn.ReLU(), layers["fc2"], nn.ReLU(), layers["fc3"])
    return nn.Sequential(*convolutions, nn.Flatten(), *dense)


NETWORKS = {"nnnn_mnist": mnist_network, "nnnn_cifar10": cifar10_network}


@dataclass
class PlainLoop:
    """One client after another by ``torch.optim.SGD``, then the server's rule on the averages."""

    model: str
    data: FederatedData
    clients: int
    epochs: int
    batch_size: int
    rule: str
    beta: float = 1.0
    gamma: float = 0.0
    weight_decay: float = 0.0
    learning_rate: float = 0.05
    dtype: torch.dtype = torch.float64
    norms: list[dict[str, float]] = field(default_factory=list)

    def run(self, rounds: int) -> nn.Module:
        """Return the evaluation model of the last round."""
        served = create_model(self.model, SEED).to(self.dtype)
        moved = [torch.zeros_like(p) for p in served.parameters()]  # d
        for index in range(1, rounds + 1):
            returned = [self._train(copy.deepcopy(served), index, k) for k in self._cohort(index)]
            average = copy.deepcopy(served)
            for name, tensor in average.state_dict().items():
                stack = torch.stack([client.state_dict()[name] for client in returned])
                tensor.copy_(stack.mean(0) if stack.is_floating_point() else stack.amax(0))
            update = difference(average, served)
            n = norm(update)
            e = sum(norm(difference(client, served)) for client in returned) / len(returned)
            scale = self.beta * e / n if self.rule in {"NormNorm", "FedNNNN"} else 1.0
            moved = [self.gamma * d + scale * s for d, s in zip(moved, update, strict=True)]
            self.norms.append(
                {"mean_update_norm": n, "mean_client_norm": e, "server_update_norm": norm(moved)}
            )
            start = copy.deepcopy(served)
            served.load_state_dict(average.state_dict())  # the buffers
            with torch.no_grad():
                for p, before, d in zip(
                    served.parameters(), start.parameters(), moved, strict=True
                ):
                    p.copy_(before + d)
        return average

    def _cohort(self, index: int) -> list[int]:
        generator = torch_generator(SEED, "cohort", index)
        return torch.randperm(self.data.num_clients, generator=generator)[: self.clients].tolist()

    def _train(self, model: nn.Module, index: int, client: int) -> nn.Module:
        network = NETWORKS[self.model](model).train()
        optimizer = torch.optim.SGD(
            network.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay
        )
        images, labels = self.data.client_data(client)
        generator = torch_generator(SEED, "shuffle", index, client)
        for _ in range(self.epochs):
            order = torch.randperm(len(labels), generator=generator)
            for begin, end in pairwise([*range(0, len(order), self.batch_size), len(order)]):
                batch = order[begin:end]
                optimizer.zero_grad()
                nn.functional.cross_entropy(
                    network(images[batch].to(self.dtype)), labels[batch]
                ).backward()
                optimizer.step()
        return model

    def accuracy(self, model: nn.Module) -> float:
        network = NETWORKS[self.model](model).eval()
        with torch.no_grad():
            found = network(self.data.test_images.to(self.dtype)).argmax(1)
        return (found == self.data.test_labels).double().mean().item()


def load(dataset: str, folder: Path, clients: int, sizes: str = "balanced") -> FederatedData:
    return load_federated(
        DataSpec(
            dataset=dataset,
            data_cache_dir=folder,
            download=False,
            partition_method="n_class",
            partition_sizes=sizes,
            classes_per_client=2,
            power_law_exponent=1.0,
            min_samples=10,
            num_clients=clients,
            seed=SEED,
            validation_fraction=HELD_OUT,
        )
    )


def difference(one: nn.Module, other: nn.Module) -> list[Tensor]:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return [(p - q).detach() for p, q in pairs]


def norm(tensors: list[Tensor]) -> float:
    return torch.cat([tensor.flatten() for tensor in tensors]).norm().item()


def ours(folder: Path, recipe: str, data_dir: Path, **settings: Any) -> list[dict[str, Any]]:
    """Run a recipe with other settings by the command; return its records."""
    settings |= {
        "data_args.data_cache_dir": str(data_dir),
        "data_args.download": False,
        "data_args.validation_fraction": HELD_OUT,
        "device_args.using_gpu": False,
    }
    arguments = ["run", recipe, "--output", str(folder)]
    for key, value in settings.items():
        name = key if "." in key else f"train_args.{key}"
        arguments += ["--set", f"{name}={json.dumps(value)}"]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def compare(
    folder: Path, records: list[dict[str, Any]], loop: PlainLoop, theirs: nn.Module, atol: float
) -> None:
    found = safetensors.torch.load_file(folder / "model.safetensors")
    start = create_model(loop.model, SEED)
    assert found.keys() == theirs.state_dict().keys()
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=atol, check_dtype=False)
    assert norm(difference(theirs, start)) > 1_000 * atol
    for record, expected in zip(records, loop.norms, strict=True):
        assert {key: record[key] for key in expected} == pytest.approx(expected, rel=10 * atol)
    assert records[-1]["test_acc"] == pytest.approx(loop.accuracy(theirs), abs=1e-9)


RULES = {
    "FedNNNN": {"beta": 0.7, "gamma": 0.8},
    "NormNorm": {"beta": 1.1},
    "Momentum": {"gamma": 0.9},
}


@pytest.mark.parametrize("rule", RULES)
def test_three_rounds_of_mnist_in_fp64(rule: str, real_data_dir: Path, tmp_path: Path) -> None:
    """500 clients of two classes have 118 or 119 images: two batches of 50 and a short one."""
    loop = PlainLoop(
        *("nnnn_mnist", load("mnist", real_data_dir, 500)), clients=4, epochs=2, batch_size=50,
        rule=rule, **RULES[rule],
    )  # fmt: skip
    records = ours(
        tmp_path / "run", f"mnist_noniid_b_{rule.lower()}", real_data_dir, precision="fp64",
        client_num_in_total=500, client_num_per_round=4, comm_round=3, epochs=2, **RULES[rule],
    )  # fmt: skip
    compare(tmp_path / "run", records, loop, loop.run(3), atol=1e-9)


def test_a_round_of_cifar10_with_batch_norm_decay_and_power_law(
    real_data_dir: Path, tmp_path: Path
) -> None:
    decay = {"weight_decay": 5e-2}  # a hundred times the paper's, so that a round would show it
    loop = PlainLoop(
        *("nnnn_cifar10", load("cifar10", real_data_dir, 200, "power_law")), clients=2, epochs=1,
        batch_size=50, rule="FedNNNN", beta=0.7, gamma=0.6, **decay,
    )  # fmt: skip
    records = ours(
        tmp_path / "run", "cifar10_noniid_ub_fednnnn", real_data_dir, precision="fp64",
        client_num_in_total=200, client_num_per_round=2, comm_round=1, epochs=1, **decay,
    )  # fmt: skip
    compare(tmp_path / "run", records, loop, loop.run(1), atol=1e-9)


def test_a_local_step_in_fp32(real_data_dir: Path, tmp_path: Path) -> None:
    """One batch holds all of a client's 594 images: what fp32 adds up is small."""
    loop = PlainLoop(
        *("nnnn_mnist", load("mnist", real_data_dir, 100)), clients=6, epochs=1, batch_size=600,
        rule="PaperFedAvg", dtype=torch.float32,
    )  # fmt: skip
    records = ours(
        tmp_path / "run", "mnist_noniid_b_fedavg", real_data_dir,
        client_num_per_round=6, comm_round=1, epochs=1, batch_size=600,
    )  # fmt: skip
    compare(tmp_path / "run", records, loop, loop.run(1), atol=1e-5)
