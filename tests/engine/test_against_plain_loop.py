"""The engine against a plain PyTorch loop, written from the paper's equations."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch import Tensor, nn

from fednnnn_plugin.cli import main
from fednnnn_plugin.data.federated import FederatedData, load_federated
from fednnnn_plugin.models import create_model
from fednnnn_plugin.recipe import load_recipe
from fednnnn_plugin.recipe.data_spec import data_spec
from fednnnn_plugin.seeds import torch_generator

SEED, BATCH, LEARNING_RATE = 0, 50, 0.05
OWN_CODE = """
import torch
from torch import nn

def net(classes):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, classes)
    )

def the_higher_the_oftener(number, clients, size, generator):
    return torch.multinomial(torch.arange(clients) + number / 9, size, generator=generator)
"""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As a client trains; in fp64 several threads are many times slower on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def difference(one: nn.Module, other: nn.Module) -> list[Tensor]:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return [(p - q).detach() for p, q in pairs]


def norm(tensors: list[Tensor]) -> float:
    return torch.cat([tensor.flatten() for tensor in tensors]).norm().item()


def train(
    model: nn.Module,
    data: FederatedData,
    number: int,
    client: int,
    epochs: int,
    prox_mu: float = 0.0,
    **sgd: float,
) -> None:
    """Train one client of a round; FedProx adds ``μ/2 ‖w - w_t‖²`` to the loss."""
    model.train()
    served = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, **sgd)
    images, labels = data.client_data(client)
    generator = torch_generator(SEED, "shuffle", number, client)
    for _ in range(epochs):
        for batch in torch.randperm(len(labels), generator=generator).split(BATCH):
            optimizer.zero_grad()
            found = model(images[batch].double())
            loss = nn.functional.cross_entropy(found, labels[batch])
            pairs = zip(model.parameters(), served, strict=True)
            away = sum((w - w_t).square().sum() for w, w_t in pairs)
            (loss + prox_mu / 2 * away).backward()
            optimizer.step()


def plain_loop(
    served: nn.Module, data: FederatedData, clients: int, rounds: int, rule: dict, **sgd: float
) -> tuple[nn.Module, list[dict[str, float]]]:
    """One client after another, for as many epochs as rounds, then the rule on the averages.

    Return the evaluation model of the last round, and every round's norms. A ``rule`` without a
    β adds S as it is; its ``client_weighting`` may be ``samples``, which weighs clients by n_k,
    and its ``client_sampling`` one that draws client k with a weight of k + a ninth of the round.
    """
    moved = [torch.zeros_like(p) for p in served.parameters()]  # d
    norms = []
    for index in range(1, rounds + 1):
        generator = torch_generator(SEED, "cohort", index)
        returned, sizes = [], []
        if "client_sampling" in rule:
            of_each = torch.arange(data.num_clients) + index / 9
            cohort = torch.multinomial(of_each, clients, generator=generator)
        else:
            cohort = torch.randperm(data.num_clients, generator=generator)[:clients]
        for client in cohort.tolist():
            returned.append(copy.deepcopy(served))
            train(returned[-1], data, index, client, rounds, **sgd)
            sizes.append(data.client_size(client))
        by_samples = rule.get("client_weighting") == "samples"
        weights = torch.tensor(sizes if by_samples else [1] * clients, dtype=torch.float64)
        weights /= weights.sum()
        average = copy.deepcopy(served)
        for name, tensor in average.state_dict().items():
            stack = torch.stack([client.state_dict()[name] for client in returned])
            averaged = stack.is_floating_point()
            tensor.copy_(torch.tensordot(weights, stack, 1) if averaged else stack.amax(0))
        update = difference(average, served)
        n = norm(update)
        norms_of_clients = [norm(difference(client, served)) for client in returned]
        e = torch.dot(weights, torch.tensor(norms_of_clients, dtype=torch.float64)).item()
        scale = rule["beta"] * e / n if "beta" in rule else 1.0
        decay = rule.get("gamma", 0.0)
        moved = [decay * d + scale * s for d, s in zip(moved, update, strict=True)]
        norms.append(
            {"mean_update_norm": n, "mean_client_norm": e, "server_update_norm": norm(moved)}
        )
        following = copy.deepcopy(average)  # its buffers
        with torch.no_grad():
            for new, old, d in zip(following.parameters(), served.parameters(), moved, strict=True):
                new.copy_(old + d)
        served = following
    return average, norms


def check(
    folder: Path, recipe: str, clients: int, rounds: int, rule: dict, sgd: dict, **more: object
) -> None:
    """Run a recipe in fp64; compare model, records and accuracy with the plain loop's."""
    train_args = {"client_num_per_round": clients, "epochs": rounds}
    train_args |= {"comm_round": rounds, "precision": "fp64", "batch_size": BATCH}
    train_args |= {"learning_rate": LEARNING_RATE} | rule | sgd
    settings = {f"train_args.{key}": value for key, value in train_args.items()}
    settings |= {"device_args.using_gpu": False} | more
    words = [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]
    arguments = ["run", recipe, "--output", str(folder), "--allow-code", *words]
    assert CliRunner().invoke(main, arguments, catch_exceptions=False).exit_code == 0

    loaded = load_recipe(folder / "recipe.yaml", allow_code=True)
    data = load_federated(data_spec(loaded))
    start = create_model(loaded.model_args.model, SEED, data.num_classes, allow_code=True).double()
    expected, norms = plain_loop(start, data, clients, rounds, rule, **sgd)
    found = load_file(folder / "model.safetensors")
    torch.testing.assert_close(found, dict(expected.state_dict()), rtol=0, atol=1e-9)
    assert norm(difference(expected, start)) > 1e-6
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record, round_norms in zip(records, norms, strict=True):
        assert {name: record[name] for name in round_norms} == pytest.approx(round_norms, rel=1e-8)
    with torch.no_grad():
        classes = expected.eval()(data.normalised(data.test_images).double()).argmax(1)
    accuracy = (classes == data.test_labels).double().mean().item()
    assert records[-1]["test_acc"] == pytest.approx(accuracy, abs=1e-9)


@pytest.mark.parametrize(
    ("recipe", "rule", "sgd", "more"),
    [
        ("digits_noniid_b_fedavg", {}, {"weight_decay": 5e-2}, {}),
        ("digits_noniid_b_fedprox", {}, {"prox_mu": 0.5}, {}),
        ("digits_noniid_b_normnorm", {"beta": 1.1}, {}, {}),
        ("digits_noniid_b_momentum", {"gamma": 0.9}, {}, {}),
        ("digits_noniid_b_fednnnn", {"beta": 0.7, "gamma": 0.8}, {}, {}),
        ("digits_noniid_ub_fednnnn", {"beta": 0.7, "gamma": 0.8}, {}, {}),
        (
            "digits_noniid_b_fednnnn",
            {"beta": 0.7, "gamma": 0.8, "client_sampling": "own:the_higher_the_oftener"},
            {},
            {},
        ),
        (
            "digits_noniid_ub_fednnnn",
            {"beta": 0.7, "gamma": 0.8, "client_weighting": "samples"},
            {"weight_decay": 5e-2},
            {"model_args.model": "own:net"},  # with BatchNorm
        ),
    ],
)
def test_digits_rounds_in_fp64(
    own_code: Path, recipe: str, rule: dict, sgd: dict[str, float], more: dict[str, str]
) -> None:
    (own_code / "own.py").write_text(OWN_CODE)
    check(own_code / "run", recipe, 5, 3, rule, sgd, **more)


@pytest.mark.slow
@pytest.mark.real_data
@pytest.mark.parametrize(
    ("recipe", "clients", "rounds", "rule", "sgd"),
    [
        # 500 clients of two classes have 118 or 119 images: two batches of 50 and a short one.
        ("mnist_noniid_b_fednnnn", 4, 3, {"beta": 0.7, "gamma": 0.8}, {}),
        # BatchNorm, the power law, and a hundred times the paper's decay: a round would show it.
        (
            *("cifar10_noniid_ub_fednnnn", 2, 1, {"beta": 0.7, "gamma": 0.6}),
            {"weight_decay": 5e-2},
        ),
    ],
)
def test_rounds_in_fp64(
    real_data_dir: Path,
    tmp_path: Path,
    recipe: str,
    clients: int,
    rounds: int,
    rule: dict[str, float],
    sgd: dict[str, float],
) -> None:
    """Tested on 1 % of the training images: 10,000 in fp64 would take a minute."""
    more = {"data_args.data_cache_dir": str(real_data_dir), "data_args.download": False}
    more |= {"data_args.validation_fraction": 0.01, "train_args.client_num_in_total": 500}
    check(tmp_path / "run", recipe, clients, rounds, rule, sgd, **more)
