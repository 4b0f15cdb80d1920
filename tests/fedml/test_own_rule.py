"""A user's own server rule in FedML's scripts: by module and class, or registered by the script."""

import sys
from collections import OrderedDict
from pathlib import Path

import fedml
import pytest
import torch
from torch import nn

import fednnnn_plugin as fp
from fednnnn_plugin.server.rules import positive, rule

RULE = """
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
"""
NAME = "my_rules:Scaled"


@pytest.fixture(autouse=True)
def _with_the_rule(own_folder: Path, own_code: Path) -> None:
    Path("my_rules.py").write_text(RULE)


def zeros() -> nn.Module:
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


@pytest.fixture
def one_round(silo, play):
    """A silo's server, and one client that is one further along in each element: S = 1."""

    def served(name: str, **values) -> list[float]:
        server = silo(zeros(), name, beta=None, gamma=None, **values)
        client = OrderedDict(weight=server.get_model_params()["weight"] + 1)
        return play(server, [(1, client)])[0]["weight"].flatten().tolist()

    return served


@pytest.mark.parametrize("kind", ["cross_silo", "simulation"])
def test_it_runs_only_where_the_environment_allows_it(kind, fedml_args, eight_values) -> None:
    args = fedml_args(training_type=kind, federated_optimizer=NAME, role="server")
    with pytest.raises(fp.UserError, match=rf"'{NAME}' is code .* FEDNNNN_ALLOW_CODE=1"):
        fedml.FedMLRunner(args, "cpu", eight_values({}), zeros())
    assert "my_rules" not in sys.modules


def test_silo_server_steps_by_a_custom_rule(one_round, monkeypatch) -> None:
    """w = 0.5, then 0.5 + 2 · 0.5: what it counts outlives a restart."""
    monkeypatch.setenv("FEDNNNN_ALLOW_CODE", "1")
    where = {"server_state_path": "state.safetensors"}
    assert one_round(NAME, **where) == [0.5, 0.5]
    assert one_round(NAME, start_round=1, **where) == [1.5, 1.5]
    with pytest.raises(fp.UserError, match="own_scale: -1: must be a finite number greater than 0"):
        one_round(NAME, own_scale=-1)


def test_a_simulation_runs_it(fedml_args, eight_values, monkeypatch) -> None:
    monkeypatch.setenv("FEDNNNN_ALLOW_CODE", "1")
    dataset = eight_values({0: [(torch.eye(2), torch.tensor([0, 1]))]})
    alone = {"client_num_in_total": 1, "client_num_per_round": 1, "output": "run"}
    args = fedml_args(federated_optimizer=NAME, **alone)
    fedml.FedMLRunner(args, torch.device("cpu"), dataset, nn.Linear(2, 2)).run()
    assert '"evaluated":"served"' in Path("run/metrics.jsonl").read_text().replace(" ", "")


def test_one_that_the_script_registers_needs_no_permission(one_round) -> None:
    @rule(factor=positive(default=3.0))
    class ScriptsOwn(torch.optim.SGD):
        def __init__(self, params, factor):
            super().__init__(params, lr=factor)

    assert one_round("ScriptsOwn") == [3.0, 3.0]


def test_what_a_rule_draws_depends_on_the_seed(one_round) -> None:
    @rule(factor=positive(default=1.0))
    class Drawing(torch.optim.SGD):
        def __init__(self, params, factor):
            super().__init__(params, lr=factor)

        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                p.data.add_(torch.randn_like(p))

    first, again, other = (one_round("Drawing", random_seed=seed) for seed in (0, 0, 1))
    assert first == again != other
