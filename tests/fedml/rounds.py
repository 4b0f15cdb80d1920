"""FedML's arguments and data sets, a silo's server, and what a round has to make of its clients."""

import copy
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fedml
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters
from torch.testing import assert_close

import fednnnn_plugin as fp

CPU = torch.device("cpu")
WEIGHTS = ("0.weight", "0.bias", "1.weight", "1.bias")
STATISTICS = ("0.running_mean", "0.running_var")
COUNTS = ("0.num_batches_tracked", "positions")
#: Two clients' updates of a :func:`line`: S = (1.5, 2), N = 2.5, E = 3.5.
TWO = ((3.0, 0.0), (0.0, 4.0))
#: FedML's settings of global differential privacy.
PRIVACY: dict[str, Any] = {"enable_dp": True, "dp_solution_type": "cdp", "epsilon": 0.9}
PRIVACY |= {"mechanism_type": "gaussian", "delta": 0.01, "sensitivity": 0.05, "max_grad_norm": 1.0}

State = Mapping[str, Tensor]
Client = tuple[int, OrderedDict[str, Tensor]]


@contextmanager
def refused(start: str) -> Iterator[None]:
    """Expect one line of ours, which starts so."""
    with pytest.raises(fp.UserError, match=f"^{start}") as caught:
        yield
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, KeyError)  # FedML makes those a message about args.rank


def fedml_args(**values: Any) -> SimpleNamespace:
    """FedML's arguments for one process and nearly no training."""
    given = {"training_type": "simulation", "backend": "sp", "scenario": "horizontal"}
    given |= {"random_seed": 0, "dataset": "mine", "model": "mine"}
    given |= {"federated_optimizer": "PaperFedAvg", "frequency_of_the_test": 1}
    given |= {"client_num_in_total": 2, "client_num_per_round": 2, "comm_round": 1, "epochs": 1}
    given |= {"batch_size": 4, "client_optimizer": "sgd", "learning_rate": 0.1, "weight_decay": 0.0}
    given |= {"enable_wandb": False, "using_mlops": False, "using_gpu": False}
    return SimpleNamespace(**given | values)


def silo_args(**values: Any) -> SimpleNamespace:
    """A cross-silo server's, under β = γ = 1/2."""
    given = {"training_type": "cross_silo", "federated_optimizer": "FedAvg", "role": "server"}
    return fedml_args(**given | {"beta": 0.5, "gamma": 0.5, "comm_round": 100} | values)


def silo(
    model: nn.Module | None = None, method: str | None = None, **values: Any
) -> fp.FedNNNNAggregator:
    return fp.FedNNNNAggregator(model or line(), silo_args(**values), method)


def eight_values(local: dict[int, list[Any]], classes: int = 2) -> list[Any]:
    """FedML's data set of each client's batches, on all of which it is tested."""
    everything = [batch for batches in local.values() for batch in batches]
    sizes = {k: sum(len(x) for x, _ in batches) for k, batches in local.items()}
    total = sum(sizes.values())
    return [total, total, everything, everything, sizes, local, dict(local), classes]


def two_clients() -> list[Any]:
    """Such a data set: each client's data one list of one batch of four."""
    inputs = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(1))
    return eight_values({k: [(x, torch.tensor([k, 0, 1, 1]))] for k, x in enumerate(inputs)})


def linear() -> nn.Linear:
    """A model of such data that does not depend on a seed."""
    model = nn.Linear(3, 2)
    vector_to_parameters(torch.tensor([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0, 0]), model.parameters())
    return model


class Versioned(nn.Linear):
    """Has a state that is no tensor."""

    def get_extra_state(self) -> object:
        return {"version": 1}

    def set_extra_state(self, state: object) -> None:
        raise AssertionError


def simulate(
    dataset=None, model=None, trainer=None, aggregator=None, args=None, **values: Any
) -> tuple[State, dict[str, Any]]:
    """Run in ``FedMLRunner``; return the model of the run folder, and the last round's record."""
    args = args or fedml_args(**{"output": "out"} | values)
    given = (dataset or two_clients(), model or linear(), trainer, aggregator)
    fedml.FedMLRunner(args, CPU, *given).run()
    folder = Path(args.output).expanduser()
    last = (folder / "metrics.jsonl").read_text().splitlines()[-1]
    return load_file(folder / "model.safetensors"), json.loads(last)


def play(server: fp.FedNNNNAggregator, clients: list[Any]) -> tuple[State, list[int]]:
    """One round in FedML's order of calls; what is then served, and who was kept."""
    before = copy.deepcopy(clients)
    kept, places = server.on_before_aggregation(clients)
    served = server.on_after_aggregation(server.aggregate(kept))
    server.set_model_params(served)
    assert_close(clients, before, rtol=0, atol=0, equal_nan=True)  # they are only read
    return served, places


def line(outputs: int = 1) -> nn.Module:
    """A model of one parameter, ``weight``: two zeros, or more of them for more outputs."""
    model = nn.Linear(2, outputs, bias=False)
    nn.init.zeros_(model.weight)
    return model


def moved(server: fp.FedNNNNAggregator, *updates: tuple[float, float]) -> list[Client]:
    """Clients of a :func:`line` that moved so from what is served; further outputs stay."""
    w_t = server.get_model_params()["weight"]
    first = torch.eye(len(w_t), 1)
    return [(1, OrderedDict(weight=w_t + first * torch.tensor([update]))) for update in updates]


def net() -> nn.Module:
    """Batch normalisation's statistics, a count of batches, and a table of positions."""
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    model.register_buffer("positions", torch.arange(3))
    return model


def clients(aggregator, count: int, seed: int = 1, scale: float = 0.1) -> list[Client]:
    """Clients near the served model; client k has seen k more batches, of 10 (k + 1) samples."""
    generator, given = torch.Generator().manual_seed(seed), []
    for k in range(count):
        state = aggregator.get_model_params()
        state[COUNTS[0]] += k
        for names, draw in ((WEIGHTS, torch.randn), (STATISTICS, torch.rand)):
            for name in names:
                state[name] = state[name] + scale * draw(state[name].shape, generator=generator)
        given.append((10 * (k + 1), state))
    return given
