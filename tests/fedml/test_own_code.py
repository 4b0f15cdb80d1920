"""Code of a user's own in FedML's scripts: rules, data, models, samplers."""

import sys
from pathlib import Path

import fedml
import pytest
import torch
from torch.testing import assert_close

from fednnnn_plugin.models import create_model
from fednnnn_plugin.server.rules import positive, rule

from .rounds import CPU, fedml_args, linear, moved, play, refused, silo, simulate, two_clients

pytestmark = pytest.mark.usefixtures("own_folder", "one_core")

MINE = """
import torch
import fednnnn_plugin as fp
from fednnnn_plugin.server.rules import positive


@fp.rule(own_scale=positive(default=0.5), evaluated="served")
class Scaled(torch.optim.Optimizer):
    def __init__(self, params, own_scale):
        super().__init__(params, {"scale": own_scale})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                count = self.state[p].get("count", 0) + 1
                self.state[p]["count"] = count
                p.sub_(p.grad, alpha=group["scale"] * count)


def load():
    x, y = torch.rand(20, 1, 4, 4), torch.arange(20) % 2
    return x, y, x[:4], y[:4]


def create(n):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, n))


def last(number, total, size, _):
    return range(total)[-size:]
"""
FEDNNNN = {"federated_optimizer": "FedNNNN", "beta": 0.5, "gamma": 0.5}


@pytest.fixture(autouse=True)
def _with_a_module(own_code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine.py").write_text(MINE)
    monkeypatch.setenv("FEDNNNN_ALLOW_CODE", "1")


def run(args) -> None:
    fedml.FedMLRunner(args, CPU, two_clients(), linear())


@pytest.mark.parametrize(
    ("key", "name", "call", "values"),
    [
        ("federated_optimizer", "mine:Scaled", run, {}),
        ("federated_optimizer", "mine:Scaled", run, {"training_type": "cross_silo"}),
        ("client_sampling", "mine:last", run, {}),
        ("dataset", "mine:load", fedml.data.load, {}),
        ("dataset", "mine:load", fedml.data.load, FEDNNNN),
        ("model", "mine:create", lambda args: fedml.model.create(args, 7), {}),
    ],
)
def test_own_code_needs_the_environments_permission(key, name, call, values, monkeypatch) -> None:
    monkeypatch.delenv("FEDNNNN_ALLOW_CODE")
    with refused(rf"\w+_args.{key}: '{name}' is code .*FEDNNNN_ALLOW_CODE=1 in"):
        call(fedml_args(**values | {key: name, "role": "server"}))
    assert "mine" not in sys.modules
    assert not Path("runs").exists()


def test_own_data_and_model_are_any_that_fedml_run_has() -> None:
    for method in ({}, FEDNNNN):
        args = fedml_args(dataset="mine:load", client_num_in_total=3, **method)
        dataset, classes = fedml.data.load(args)
        assert (classes, *dataset[:2]) == (2, 20, 4)
    for name in ("mine:create", "squeezenet1_1"):
        made = fedml.model.create(fedml_args(model=name, random_seed=3), 7)
        expected = create_model(name, 3, 7, allow_code=True).state_dict()
        assert_close(made.state_dict(), expected, rtol=0, atol=0)
        with pytest.raises(Exception, match="no such model definition"):
            fedml.model.create(fedml_args(model=name, federated_optimizer="FedAvg"), 7)


def test_own_rule_and_sampler_run_in_a_simulation() -> None:
    """Of clients 0 and 1 the second alone, whose S the rule takes half of."""
    values = {"client_sampling": "mine:last", "client_num_per_round": 1}
    result, record = simulate(**values, federated_optimizer="mine:Scaled")
    dataset = two_clients()
    dataset[5][0] = dataset[5][1]
    alone, _ = simulate(dataset, output="alone")
    assert record["evaluated"] == "served"
    start = linear().state_dict()
    for name, tensor in alone.items():
        assert_close(result[name] - start[name], 0.5 * (tensor - start[name]))


def one_round(name: str, **values) -> list[float]:
    """A silo's round with one client that is one further along in each element: S = 1."""
    server = silo(None, name, beta=None, gamma=None, **values)
    return play(server, moved(server, (1.0, 1.0)))[0]["weight"].flatten().tolist()


def test_own_rule_of_a_silo_outlives_a_restart() -> None:
    """w = 0.5, then 0.5 + 2 · 0.5, by what it counts."""
    where = {"server_state_path": "state.safetensors"}
    assert one_round("mine:Scaled", **where) == [0.5, 0.5]
    assert one_round("mine:Scaled", start_round=1, **where) == [1.5, 1.5]
    with refused(".*own_scale: -1: must be"):
        one_round("mine:Scaled", own_scale=-1)


def test_own_rule_that_the_script_registers_needs_no_permission(monkeypatch) -> None:
    """What it draws depends on the seed."""
    monkeypatch.delenv("FEDNNNN_ALLOW_CODE")

    @rule(factor=positive(default=3.0))
    class Drawing(torch.optim.SGD):
        def __init__(self, params, factor):
            super().__init__(params, lr=factor)

        def step(self, closure=None):
            super().step()
            for p in self.param_groups[0]["params"]:
                p.data.add_(1e-3 * torch.randn_like(p))

    first, again, other = (one_round("Drawing", random_seed=seed) for seed in (0, 0, 1))
    assert first == again != other
    assert first == pytest.approx([3.0, 3.0], abs=0.1)
