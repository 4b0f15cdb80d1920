"""The server optimizers in each of FedML's three registries."""

from importlib import import_module
from inspect import signature

import pytest
import torch

import fednnnn_plugin as fp
from fednnnn_plugin.server.rules import RULES

from .rounds import refused

MOMENTS = {"FedAdam": fp.FedAdam, "FedYogi": fp.FedYogi}
NEEDING = {"FedNNNN": fp.FedNNNN, "NormNorm": fp.NormNorm, "Momentum": fp.Momentum}
NEEDING |= {"FedExP": fp.FedExP}
ALL = NEEDING | MOMENTS | {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam}


@pytest.fixture(params=["sp.fedopt", "mpi.fedopt", "mpi.fedopt_seq"])
def repo(request: pytest.FixtureRequest):
    """One of FedML's registries, as its own import leaves it and the patch finds it."""
    fp.register()
    repo = import_module(f"fedml.simulation.{request.param}.optrepo").OptRepo
    before = repo.__dict__["name2cls"].__func__
    fp.register()
    assert repo.__dict__["name2cls"].__func__ is before  # wrapped once
    repo.repo = {name.lower(): optimizer for name, optimizer in repo.repo.items()}
    return repo


def test_optimizers_are_found_in_any_case(repo) -> None:
    for _ in range(2):
        for name, optimizer in ALL.items():
            for written in (name, name.lower(), name.upper()):
                assert repo.name2cls(written) is optimizer
        assert set(ALL) <= set(repo.get_opt_names())  # builds the registry anew
    with pytest.raises(KeyError):
        repo.name2cls("no such optimizer")
    for rule in RULES.values():
        name, arguments = rule.optimizer.__name__, signature(rule.optimizer).parameters
        assert name in repo.get_opt_names()
        assert set(repo.supported_parameters(name)) == arguments.keys() - {"params"}


def test_optimizers_step_or_say_what_is_missing(repo) -> None:
    """m = S / 10 and v = 10⁻⁶ + S² / 100, whose 0.99 or 1 of 10⁻⁶ is far below S²."""
    for name in NEEDING | MOMENTS:
        weight = torch.nn.Parameter(torch.zeros(2))
        server = repo.name2cls(name)([weight], lr=1.0)
        weight.grad = -torch.ones(2)
        if name in MOMENTS:
            server.step()
            assert weight.tolist() == pytest.approx([0.1 / 0.101] * 2, rel=1e-3)
        else:
            with refused(f"{name}.step: "):
                server.step()


def test_optimizers_carry_momentum_over(repo) -> None:
    """FedOpt makes a new optimizer every round and carries the state over: d₂ = γ d₁ + S₂."""
    weight = torch.nn.Parameter(torch.zeros(2))
    server = repo.name2cls("Momentum")(iter([weight]), lr=1.0, momentum=0.5)
    for update, expected in (([1.0, 0.0], [1.0, 0.0]), ([0.0, 1.0], [1.5, 1.0])):
        server.zero_grad()
        state = server.state_dict()
        weight.grad = -torch.tensor(update)
        server = repo.name2cls("Momentum")(iter([weight]), lr=1.0, momentum=0.5)
        server.load_state_dict(state)
        server.step()
        assert weight.tolist() == expected
