"""A user's own server rule in FedML's scripts: by module and class, or registered by the script."""

import sys
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import fedml
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fednnnn_plugin as fp
from fednnnn_plugin.server.rules import positive, rule

fp.register()

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


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "my_rules.py").write_text(RULE)
    monkeypatch.delitem(sys.modules, "my_rules", raising=False)


class Weight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return x + self.w


def silo(name: str, **values):
    args = SimpleNamespace(training_type="cross_silo", federated_optimizer=name, **values)
    return fp.FedNNNNAggregator(Weight(), args)


def one_round(server) -> list[float]:
    """One client, one further along in each element: S = 1."""
    served = server.aggregate([(1, OrderedDict(w=server.get_model_params()["w"] + 1))])
    server.set_model_params(served)
    return served["w"].tolist()


@pytest.mark.parametrize("kind", ["cross_silo", "simulation"])
def test_it_runs_only_where_the_environment_allows_it(kind) -> None:
    args = SimpleNamespace(
        training_type=kind, federated_optimizer="my_rules:Scaled", role="server", backend="sp"
    )
    with pytest.raises(fp.UserError, match=r"'my_rules:Scaled' is code .* FEDNNNN_ALLOW_CODE=1"):
        fedml.FedMLRunner(args, "cpu", [None] * 8, Weight())
    assert "my_rules" not in sys.modules


def test_a_silos_server_steps_by_it_and_goes_on(monkeypatch) -> None:
    """w = 0.5, then 0.5 + 2 · 0.5: what it counts outlives a restart."""
    monkeypatch.setenv("FEDNNNN_ALLOW_CODE", "1")
    where = {"server_state_path": "state.safetensors"}
    server = silo("my_rules:Scaled", **where)
    assert one_round(server) == [0.5, 0.5]
    assert server.evaluation_state_dict()["w"].tolist() == [0.5, 0.5]
    assert one_round(silo("my_rules:Scaled", start_round=1, **where)) == [1.5, 1.5]
    assert one_round(silo("my_rules:Scaled", own_scale=2.0)) == [2.0, 2.0]
    with pytest.raises(fp.UserError, match="own_scale: -1: must be a finite number greater than 0"):
        silo("my_rules:Scaled", own_scale=-1)


def test_a_simulation_runs_it_and_resumes(monkeypatch) -> None:
    monkeypatch.setenv("FEDNNNN_ALLOW_CODE", "1")

    def result(output: str, *rounds: int) -> dict:
        for number, last in enumerate(rounds):
            args = SimpleNamespace(
                training_type="simulation",
                backend="sp",
                federated_optimizer="my_rules:Scaled",
                dataset="mine",
                model="mine",
                client_num_in_total=1,
                client_num_per_round=1,
                comm_round=last,
                epochs=1,
                batch_size=2,
                learning_rate=0.1,
                output=output,
                resume=number > 0,
            )
            batches = [(torch.eye(2), torch.tensor([0, 1]))]
            dataset = [2, 2, batches, batches, {0: 2}, {0: batches}, {0: batches}, 2]
            fedml.FedMLRunner(args, torch.device("cpu"), dataset, nn.Linear(2, 2, bias=False)).run()
        return load_file(Path(output, "model.safetensors"))

    torch.manual_seed(0)
    once = result("once", 3)
    torch.manual_seed(0)
    assert torch.equal(result("twice", 2, 3)["weight"], once["weight"])


def test_one_that_the_script_registers_needs_no_permission() -> None:
    @rule(factor=positive(default=3.0))
    class ScriptsOwn(torch.optim.SGD):
        def __init__(self, params, factor):
            super().__init__(params, lr=factor)

    assert one_round(silo("ScriptsOwn")) == [3.0, 3.0]
