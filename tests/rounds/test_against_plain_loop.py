"""The engine against `plain_loop`, in fp64: model, records, loss and accuracy."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fednnnn_plugin.data.federated import load_federated
from fednnnn_plugin.models import create_model
from fednnnn_plugin.recipe import load_recipe
from fednnnn_plugin.recipe.data_spec import data_spec
from fednnnn_plugin.user_code import on_threads

from ..tiny import read_records
from .plain_loop import Outcome, as_inputs, loss_of, plain_loop

Start = Callable[..., Any]
SETTINGS: dict[str, Any] = {"client_num_per_round": 3, "epochs": 2, "comm_round": 3}
SETTINGS |= {"precision": "fp64", "batch_size": 50, "learning_rate": 0.05}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As a client trains; in fp64 several threads are many times slower on a busy machine."""
    with on_threads(1):
        yield


def check(start: Start, recipe: str, **settings: Any) -> Outcome:
    """Run a recipe; compare with the plain loop."""
    folder = start("run", recipe, allow_code=True, **SETTINGS | settings).folder
    loaded = load_recipe(folder / "recipe.yaml", allow_code=True)
    data = load_federated(data_spec(loaded))
    model = create_model(loaded.model_args.model, 0, data.num_classes, allow_code=True).double()
    expected = plain_loop(copy.deepcopy(model), data, loaded)
    tested, close = expected.average.eval(), {"rtol": 1e-9, "atol": 1e-9}
    found = load_file(folder / "model.safetensors")
    torch.testing.assert_close(found, dict(tested.state_dict()), **close)
    for now, before in zip(tested.parameters(), model.parameters(), strict=True):
        assert (now - before).abs().max() > 1e-6
    newest = load_file(max((folder / "checkpoint").iterdir()))
    served = [newest[name].flatten() for name, _ in tested.named_parameters()]
    torch.testing.assert_close(torch.cat(served), expected.served, **close)

    records = read_records(folder)
    for record, norms in zip(records, expected.norms, strict=True):
        assert {name: record[name] for name in norms} == pytest.approx(norms, rel=1e-8)
    with torch.no_grad():
        outputs = tested(as_inputs(data.normalised(data.test_images)))
    labels = as_inputs(data.test_labels)
    loss = loss_of(loaded)(outputs, labels).item()
    assert records[-1]["test_loss"] == pytest.approx(loss, rel=1e-8)
    accuracy = None
    if not labels.is_floating_point():
        counts = labels != -100
        right = (outputs.argmax(1) == labels)[counts].double().mean().item()
        accuracy = pytest.approx(right, abs=1e-9)
    assert records[-1]["test_acc"] == accuracy
    return expected


PAPER = {"beta": 0.7, "gamma": 0.8}
BATCH_NORM = PAPER | {"model_args.model": "own:convolution", "weight_decay": 5e-2}


ADAM = {"client_optimizer": "adam", "client_optimizer_args": {"betas": [0.8, 0.95]}}
MOMENTUM = {"client_optimizer_args": {"momentum": 0.9}, "weight_decay": 0.01}
FOUR = {"client_num_in_total": 4, "client_num_per_round": 4, "batch_size": 4, "comm_round": 2}


def own(data: str, model: str, loss: str, **settings: Any) -> dict[str, Any]:
    named = {"data_args.dataset": f"own:{data}", "model_args.model": f"own:{model}", "loss": loss}
    return named | FOUR | settings


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("b_fedavg", {"weight_decay": 5e-2, "client_method": "fedprox", "prox_mu": 0.5}),
        ("b_normnorm", {"beta": 1.1}),
        ("b_momentum", {"gamma": 0.9}),
        (
            "ub_fednnnn",
            BATCH_NORM
            | {"client_weighting": "samples", "client_sampling": "own:the_higher_the_oftener"},
        ),
        ("ub_fednnnn", PAPER | {"local_steps": 3, "epochs": None}),
        ("b_fedavg", {"epochs": 1.5, "batch_size": 10}),
        *(
            ("b_normnorm", {"beta": 1.1, "learning_rate_decay": 0.5, "client_batching": batching})
            for batching in ("off", 3)
        ),
        (
            "b_fedavg",
            own("numbers", "net", "mse", learning_rate_decay=0.5, max_grad_norm=0.1, **ADAM),
        ),
        (
            "b_fedprox",
            own("numbers", "net", "own:huber", client_optimizer="RMSprop", prox_mu=0.3),
        ),
        (
            "b_fedavg",
            own("several", "net", "bce_with_logits", client_optimizer="AdamW", weight_decay=0.05),
        ),
        (
            "b_fedavg",
            own("tokens", "tagger", "cross_entropy", max_grad_norm=0.5, **MOMENTUM)
            | {"batch_size": -1},
        ),
    ],
)
def test_rounds_of_recipe(start: Start, recipe: str, settings: dict[str, Any]) -> None:
    check(start, f"digits_noniid_{recipe}", **settings)


SAM, CM = {"client_method": "fedsam", "sam_rho": 0.1}, {"client_method": "fedcm"}
DYN, NOVA = {"feddyn_alpha": 0.1}, {"client_method": "fednova", "client_weighting": "samples"}
SCAFFOLD = {"client_method": "scaffold"}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "scaffold": (
        "ub_fednnnn",
        SCAFFOLD
        | {"weight_decay": 0.01, "client_weighting": "samples", "learning_rate_decay": 0.5},
    ),
    "fedsam": ("b_fedavg", SAM | {"weight_decay": 0.05, "model_args.model": "own:convolution"}),
    "fedcm": ("ub_fednnnn", CM | {"fedcm_beta": 0.4, "client_weighting": "samples"}),
    "fednova": ("ub_fednnnn", NOVA),
    "feddyn": ("ub_fednnnn", DYN | {"client_method": "feddyn"}),
    "feddyn's server": ("b_feddyn", DYN | {"client_weighting": "samples"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("batching", ["off", 3])
@pytest.mark.parametrize("name", METHODS)
def test_rounds_of_method(start: Start, name: str, batching: Any) -> None:
    """One by one, and in groups of three; with FedAvg's server or FedNNNN's, or its own."""
    recipe, settings = METHODS[name]
    fast = {"comm_round": 2, "epochs": 1, "client_batching": batching}
    expected = check(start, f"digits_noniid_{recipe}", **settings | fast)
    newest = load_file(max(Path("run/checkpoint").iterdir()))
    for sent in newest.keys() & {"..sent.c", "..sent.m"}:
        torch.testing.assert_close(newest[sent], expected.c, rtol=1e-9, atol=1e-12)
    places = dict(newest.get("..kept", torch.empty(0, 2)).tolist())
    if places:  # of those that were drawn, and no others
        assert places.keys() == expected.of_clients.keys()
    for client, number in places.items():
        [kept] = load_file(
            f"run/clients/client-{client:06d}-round-{number:06d}.safetensors"
        ).values()
        torch.testing.assert_close(kept, expected.of_clients[client], rtol=1e-9, atol=1e-12)
    records = read_records(Path("run"))
    assert {record["measured"] for record in records} == {
        "upload" if name == "fednova" else "update"
    }


@pytest.mark.slow
@pytest.mark.real_data
@pytest.mark.parametrize(
    ("recipe", "clients", "rounds", "settings"),
    [
        # 2,000 clients of two classes have 29 or 30 images: a batch of 20 and a short one.
        ("mnist_noniid_b_fednnnn", 3, 2, PAPER),
        # BatchNorm, the power law, and a hundred times the paper's decay: a round would show it.
        ("cifar10_noniid_ub_fednnnn", 2, 1, PAPER | {"weight_decay": 5e-2}),
    ],
)
def test_rounds_on_real_images(
    real_data_dir: Path, start: Start, recipe: str, clients: int, rounds: int, settings: Any
) -> None:
    """Tested on 0.2 % of the training images: 10,000 in fp64 would take a minute."""
    more = {"data_cache_dir": str(real_data_dir), "download": False, "validation_fraction": 0.002}
    more |= {"client_num_per_round": clients, "epochs": rounds, "comm_round": rounds}
    check(start, recipe, client_num_in_total=2000, batch_size=20, **settings, **more)
