"""Cross-silo federations without a transport, and methods by name in FedML's runner."""

import copy
import random
import sys
from types import SimpleNamespace

import fedml
import pytest
import torch
from fedml.cross_silo.client.fedml_trainer_dist_adapter import TrainerDistAdapter
from fedml.ml.aggregator.default_aggregator import DefaultServerAggregator
from fedml.ml.trainer.my_model_trainer_classification import ModelTrainerCLS
from safetensors.torch import load_file
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import fednnnn_plugin as fp
from fednnnn_plugin.engine.run import run_federation
from fednnnn_plugin.engine.training import Inputs
from fednnnn_plugin.fedml import processes
from fednnnn_plugin.fedml.loaders import engine_data, fedml_dataset
from fednnnn_plugin.fedml.settings import script_recipe
from fednnnn_plugin.models import create_model

from ..support.clients import client_data
from .rounds import CPU, fedml_args, linear, play, refused, silo_args

CLIENTS, ROUNDS = 3, 2


def arguments(**values) -> SimpleNamespace:
    settings = {"client_num_in_total": CLIENTS, "client_num_per_round": CLIENTS}
    settings |= {"beta": 0.7, "comm_round": ROUNDS, "client_threads": 1}
    return silo_args(**settings | {"epochs": 2, "batch_size": 5} | values)


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
@pytest.mark.parametrize(("layers", "own"), [(CONVOLVES, False), (CONVOLVES, True), (DROPS, True)])
def test_trainer_gives_the_engines_bits(layers, own, images, tmp_path) -> None:
    """The served and evaluation models have the bits of a standalone run; the latter is left.

    `test_cross_silo_processes` does the same with our model.
    """
    model = copy.deepcopy(nn.Sequential(*layers))
    args = arguments(weight_decay=0.01, client_weighting="samples")
    args.server_state_path = str(tmp_path / "state")
    dataset = own_loaders(images) if own else fedml_dataset(images, 5, args.random_seed)
    engines = engine_data(dataset, CLIENTS)
    start = copy.deepcopy(model)
    states = torch.get_rng_state(), random.getstate(), torch.get_num_threads()
    server = federate(args, dataset, model)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), torch.get_num_threads())

    changed = {"training_type": "simulation", "server_state_path": None}
    recipe = script_recipe(SimpleNamespace(**vars(args) | changed), method="FedNNNN")
    run_federation(recipe, lambda: Inputs(start, engines, CPU), tmp_path / "run")
    served = load_file(max((tmp_path / "run" / "checkpoint").iterdir()))
    assert_close(load_file(args.server_state_path), served, rtol=0, atol=0)
    average = load_file(tmp_path / "run" / "model.safetensors")
    for found in (server.evaluation_state_dict(), server.get_model_params()):
        assert_close(dict(found), average, rtol=0, atol=0)


def test_method_by_name_gives_our_aggregator_and_trainer(images, monkeypatch, caplog) -> None:
    """The trainer for our data alone; what is given, and FedML's own names, are left alone."""
    started: list = []
    model = create_model("nnnn_digits", 0)

    def start(args, device, dataset, model, helper=None) -> None:
        started.append((args.federated_optimizer, helper))

    for role in ("Server", "Client"):
        monkeypatch.setattr(f"fedml.cross_silo.{role}", start)

    def run(args, dataset=None, **helpers):
        fedml.FedMLRunner(args, CPU, dataset or [None] * 8, model, **helpers)
        named, helper = started.pop()
        assert named == "FedAvg"
        return helper

    args = arguments(federated_optimizer="FedNNNN", role="client")
    own, ours = ModelTrainerCLS(model, args), fedml_dataset(images, 5, 0)
    assert type(run(args, ours)) is fp.FedNNNNClientTrainer
    assert run(args) is None  # FedML makes its default
    assert run(args, ours, client_trainer=own) is own
    assert not caplog.records
    args.federated_optimizer, args.prox_mu = "PaperFedProx", 0.1
    run(args)
    assert "PaperFedProx's proximal term is its own to add" in caplog.text
    args = arguments(federated_optimizer="Momentum", beta=None)
    made = run(args)
    assert type(made) is fp.FedNNNNAggregator
    assert made._recipe.rule.name == args.federated_optimizer == "Momentum"
    theirs = DefaultServerAggregator(model, args)
    assert run(arguments(), server_aggregator=theirs) is theirs
    theirs.test = lambda *_: "theirs"
    assert run(args, server_aggregator=theirs).test(None, CPU, args) == "theirs"
    assert run(arguments(role="client", beta=None), ours) is None


@pytest.mark.parametrize("kind", ["cross_cloud", "fedml_serving", "cross_device"])
def test_method_by_name_elsewhere_is_refused(kind) -> None:
    args = arguments(training_type=kind, federated_optimizer="FedNNNN", role="server")
    # FedML 0.9.6 itself cannot start serving from its runner; its phones send files of MNN.
    instead = ".*FedNNNNAggregator" if kind == "cross_cloud" else "[^;]*$"
    with refused(f"training_type: {kind}: FedNNNN runs by{instead}"):
        fedml.init(args, check_env=False)
    args.federated_optimizer = "FedAvg"
    sys.modules["fedml.core.mlops"].pre_setup(args)  # FedML's own goes on


@pytest.mark.parametrize(("error", "status"), [(fp.UserError("no"), 2), (ValueError("no"), 1)])
def test_error_of_one_process_over_mpi_ends_all(error, status, monkeypatch) -> None:
    """FedML's receiving thread would keep that process; the others would wait for it."""
    ended: list[int] = []
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    comm = SimpleNamespace(Get_size=lambda: 3, Abort=ended.append)
    args = arguments(federated_optimizer="FedNNNN", backend="MPI", comm=comm, beta=-1)
    for _ in "twice":  # it ends them once
        with refused(r"args: train_args\.beta: -1: must be"):
            fedml.FedMLRunner(args, CPU, [None] * 8, linear())
    sys.excepthook(type(error), error, None)
    assert ended == [status]


def test_simulation_ends_with_one_ranks_mistake(monkeypatch) -> None:
    """Where its data are not there; it waits for the others, who may make the same mistake."""
    ranks = SimpleNamespace(size=2, rank=1, local_rank=0, leave=sys.exit)
    monkeypatch.setattr(processes, "simulation_ranks", lambda recipe: ranks)
    values = {"dataset": "mnist", "data_cache_dir": "/nowhere", "download": False}
    with pytest.raises(SystemExit) as left:
        fedml.data.load(fedml_args(**values))
    assert left.value.code == 2
