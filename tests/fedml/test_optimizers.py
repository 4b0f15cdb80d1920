"""The server optimizers in each of FedML's three registries."""

from importlib import import_module
from inspect import signature

import pytest
import torch

from fednnnn_plugin.server.rules import RULES

from .rounds import refused

OURS = {rule.optimizer.__name__: rule.optimizer for rule in RULES.values()}


@pytest.fixture(params=["sp.fedopt", "mpi.fedopt", "mpi.fedopt_seq"])
def repo(request: pytest.FixtureRequest):
    """One of FedML's registries."""
    return import_module(f"fedml.simulation.{request.param}.optrepo").OptRepo


def test_optimizers_are_found_in_any_case(repo) -> None:
    for name, optimizer in {**OURS, "SGD": torch.optim.SGD, "Adam": torch.optim.Adam}.items():
        for written in (name, name.lower(), name.upper()):
            assert repo.name2cls(written) is optimizer
    for name, optimizer in OURS.items():
        arguments = signature(optimizer).parameters.keys() - {"params"}
        assert set(repo.supported_parameters(name)) == arguments


def test_optimizers_step_as_fedopt_has_them_step(repo) -> None:
    """Each round a new one, which is given the last one's state: d₂ = γ d₁ + S₂."""
    weight, state = torch.nn.Parameter(torch.zeros(2)), None
    for update, expected in (([1.0, 0.0], [1.0, 0.0]), ([0.0, 1.0], [1.5, 1.0])):
        server = repo.name2cls("Momentum")(iter([weight]), lr=1.0, momentum=0.5)
        if state:
            server.load_state_dict(state)
        weight.grad = -torch.tensor(update)
        server.step()
        state = server.state_dict()
        assert weight.tolist() == expected
    for name in ("FedNNNN", "NormNorm", "Momentum", "FedExP"):  # no momentum, no clients' norms
        with refused(f"{name}.step: "):
            repo.name2cls(name)([weight], lr=1.0).step()
