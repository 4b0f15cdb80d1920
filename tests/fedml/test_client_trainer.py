"""The client trainer on its own, and in federations without a transport."""

import copy
import os
import random
from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch
from fedml.cross_silo.client.fedml_trainer_dist_adapter import TrainerDistAdapter
from fedml.ml.trainer.my_model_trainer_classification import ModelTrainerCLS
from safetensors.torch import load_file
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import fednnnn_plugin as fp
from fednnnn_plugin.assembly.federation import run_federation
from fednnnn_plugin.assembly.inputs import Inputs
from fednnnn_plugin.fedml.loaders import engine_data, fedml_dataset
from fednnnn_plugin.fedml.settings import script_recipe
from fednnnn_plugin.models import create_model

from ..support.clients import client_data
from .rounds import CPU, PRIVACY, fedml_args, play, refused, silo_args

DATA = [(torch.eye(2), torch.tensor([0, 1]))]
CLIENTS, ROUNDS = 3, 2


def trained(net, data=DATA, **values) -> OrderedDict:
    """What our trainer makes of a copy of the model in round 1, or the one that is given."""
    args = fedml_args(**{"round_idx": 0} | values)
    trainer = fp.FedNNNNClientTrainer(copy.deepcopy(net), args)
    trainer.train(data, CPU, args)
    next(iter(trainer.get_model_params().values())).zero_()  # a copy
    return trainer.get_model_params()


def test_trainer_two_full_batch_steps_by_hand() -> None:
    """w - η (∇ + λ w); the proximal term counts from the second step on."""
    model = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(model.weight)
    # Softmax of zeros is 1/2: the gradient is (p - 1)/2 on the diagonal, p/2 beside it.
    first = torch.tensor([[0.25, -0.25], [-0.25, 0.25]])
    gradient = (torch.softmax(first, dim=0) - torch.eye(2)) / 2  # of each input's logits
    expected = first - (gradient + 0.5 * first + 0.25 * first)
    values = {"epochs": 2, "learning_rate": 1.0, "weight_decay": 0.5, "prox_mu": 0.25}
    assert_close(trained(model, **values)["weight"], expected)
    assert_close(trained(model, precision="fp64", **values)["weight"], expected.double())
    for enabled in (True, False, None):  # its privacy, which limits the whole model by that norm
        named = PRIVACY | {"enable_dp": enabled, "max_grad_norm": 0.01}
        assert (trained(model, **values, **named)["weight"].norm() > 0.1) == (enabled is True)


def test_trainer_seeds_go_on_after_a_restart(images) -> None:
    dataset, model = fedml_dataset(images, -1, 0), create_model("nnnn_digits", 0)

    def after(start: int, number: int) -> dict:
        values = {"start_round": start, "round_idx": number, "batch_size": 5}
        return dict(trained(model, dataset[5][1], **values))

    assert_close(after(2, 1), after(0, 3), rtol=0, atol=0)
    assert not torch.equal(after(1, 0)["fc2.weight"], after(0, 0)["fc2.weight"])
    assert dataset[4][0] == 12
    of_size = (dict(trained(model, dataset[5][0], batch_size=n)) for n in (-1, 12))
    assert_close(*of_size, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"client_optimizer": "lbfgs"}, "args: train_args.client_optimizer: 'lbfgs'"),
        ({"client_method": "fedprox"}, "args: train_args.prox_mu: missing"),
        ({"learning_rate_decay": 0.9, "start_round": "auto"}, "train_args.start_round: auto: "),
        ({"scenario": "hierarchical"}, "scenario: hierarchical: "),
        ({"enable_fhe": True}, "enable_fhe: true: "),
        ({"model": "lr"}, "model_args.model: lr: does not take inputs of"),
    ],
)
def test_trainer_refuses_what_does_not_fit(values, line, images) -> None:
    with refused(line):
        trained(nn.Linear(784, 10), fedml_dataset(images, 5, 0)[5][0], **values)


def test_trainer_uses_the_cores_that_its_silo_has() -> None:
    seen: list[int] = []
    model, before = nn.Linear(2, 2), torch.get_num_threads()
    model.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    for given in (None, 3):
        trained(model, client_threads=given)
        assert torch.get_num_threads() == before
    assert seen == [len(os.sched_getaffinity(0)), 3]


@pytest.mark.parametrize("positions", [(), (3, 5)])
def test_trainer_counts_labels_not_samples(positions) -> None:
    """As FedML's trainer does for one label a sample."""
    x, labels = torch.randn(4, 2, *positions), torch.randint(2, (4, *positions))
    data, model, args = [(x, labels.int())], nn.Identity(), fedml_args()
    model.w = nn.Parameter(torch.zeros(()))
    found = fp.FedNNNNClientTrainer(model, args).test(data, CPU, args)
    loss = labels.numel() * nn.functional.cross_entropy(x, labels).item()
    correct = int((x.argmax(1) == labels).sum())
    expected = {"test_correct": correct, "test_loss": loss, "test_total": labels.numel()}
    assert found == pytest.approx(expected)
    if not positions:
        assert found == pytest.approx(ModelTrainerCLS(model, args).test(data, CPU, args))


def federate(args, dataset, model) -> fp.FedNNNNAggregator:
    """Run a federation of FedML's own client class, as its managers do."""
    server = fp.FedNNNNAggregator(model, args)
    total, _, _, _, sizes, local, local_test, _ = dataset
    clients = []
    for rank in range(1, CLIENTS + 1):
        own = copy.deepcopy(model)
        given = (copy.copy(args), CPU, rank, own, total, sizes, local, local_test)
        clients.append(TrainerDistAdapter(*given, fp.FedNNNNClientTrainer(own, args)))
    for number in range(ROUNDS):
        received = []
        for index, client in enumerate(clients):
            client.update_dataset(index)
            client.update_model(server.get_model_params())
            weights, samples = client.train(number)
            received.append((samples, weights))
        play(server, received)
    return server


# One takes images in any order of memory, the other draws from the global generator.
CONVOLVES = (nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
HEAD = (nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 10))
DROPS = (nn.Flatten(), nn.Linear(64, 8), *HEAD)


def own_loaders(images) -> list:
    """Loaders that shuffle by the global generator, which the engine seeds for each client."""
    parts = {k: TensorDataset(*client_data(images, k)) for k in range(CLIENTS)}
    local = {k: DataLoader(part, batch_size=4, shuffle=True) for k, part in parts.items()}
    test = [(images.normalised(images.test_images), images.test_labels)]
    return [29, 20, None, test, {k: len(part) for k, part in parts.items()}, local, None, 10]


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "own"), [(CONVOLVES, False), (DROPS, True)])
def test_trainer_gives_the_engines_bits(layers, own, images, tmp_path) -> None:
    """The served and evaluation models have the bits of a standalone run; the latter is left.

    `test_cross_silo_processes` does the same with our model.
    """
    model = copy.deepcopy(nn.Sequential(*layers))
    values = {"client_num_in_total": CLIENTS, "client_num_per_round": CLIENTS, "epochs": 2}
    values |= {"comm_round": ROUNDS, "client_threads": 1, "batch_size": 5, "weight_decay": 0.01}
    args = silo_args(**values, client_weighting="samples", beta=0.7)
    args.server_state_path = str(tmp_path / "state")
    dataset = own_loaders(images) if own else fedml_dataset(images, 5, args.random_seed)
    engines = engine_data(dataset, CLIENTS)
    start = copy.deepcopy(model)
    states = torch.get_rng_state(), random.getstate(), torch.get_num_threads()
    server = federate(args, dataset, model)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), torch.get_num_threads())

    changed = {"training_type": "simulation", "server_state_path": None}
    changed["federated_optimizer"] = "FedNNNN"
    recipe = script_recipe(SimpleNamespace(**vars(args) | changed))
    run_federation(recipe, lambda: Inputs(start, engines, CPU), tmp_path / "run")
    served = load_file(max((tmp_path / "run" / "checkpoint").iterdir()))
    assert_close(load_file(args.server_state_path), served, rtol=0, atol=0)
    average = load_file(tmp_path / "run" / "model.safetensors")
    for found in (server.evaluation_state_dict(), server.get_model_params()):
        assert_close(dict(found), average, rtol=0, atol=0)


def test_trainer_decays_by_the_federations_rounds() -> None:
    """In round 3, the second since a restart, by a quarter."""
    model = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(model.weight)
    third = trained(model, learning_rate_decay=0.5, start_round=1, round_idx=1)["weight"]
    plain = trained(model)["weight"]
    assert_close(third, plain / 4)
    assert_close(trained(model, local_steps=1, epochs=None)["weight"], plain)
    more = {"epochs": 2, "client_optimizer_args": {"momentum": 0.9}}
    of_momentum = trained(model, **more)["weight"] - trained(model, epochs=2)["weight"]
    assert_close(of_momentum, 0.9 * plain)
