"""FedML's single-process FedAvg against a plain loop: in round 1 all clients train on one model."""

import copy

import fedml
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.testing import assert_close

from .rounds import CPU, eight_values, fedml_args

CLIENTS, ROUNDS, RATE = 3, 3, 0.5


def fedavg(net: nn.Module, batches: dict[int, list], one_after_another_in: int) -> Tensor:
    """w ← Σ n_k/n w_k, where w_k is w trained on client k's data, or in one round w_(k-1)."""
    net = copy.deepcopy(net)
    samples = torch.tensor([float(sum(len(y) for _, y in own)) for own in batches.values()])
    for number in range(1, ROUNDS + 1):
        trained, model = [], net
        for own in batches.values():
            model = copy.deepcopy(model if number == one_after_another_in else net)
            for x, y in own:
                loss = nn.functional.cross_entropy(model(x), y)
                gradients = torch.autograd.grad(loss, list(model.parameters()))
                w = parameters_to_vector(model.parameters()) - RATE * parameters_to_vector(
                    gradients
                )
                vector_to_parameters(w.detach(), model.parameters())
            trained.append(w.detach())
        vector_to_parameters(samples / samples.sum() @ torch.stack(trained), net.parameters())
    return parameters_to_vector(net.parameters()).detach()


@pytest.mark.usefixtures("own_folder", "one_core")
@pytest.mark.parametrize(
    ("method", "shared_in"), [("FedAvg", 1), ("PaperFedAvg", 0)], ids=["FedML's", "ours"]
)
def test_fedavg_of_a_single_process(method: str, shared_in: int) -> None:
    """A FedML that mends it fails here: then launch/README.md is to be changed."""
    generator = torch.Generator().manual_seed(0)

    def batch(size: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(size, 4, generator=generator)
        return x, torch.randint(2, (size,), generator=generator)

    batches = {k: [batch(4), batch(2 + k)] for k in range(CLIENTS)}
    values = {"client_num_in_total": CLIENTS, "client_num_per_round": CLIENTS, "output": "run"}
    values |= {"federated_optimizer": method, "comm_round": ROUNDS, "learning_rate": RATE}
    values["client_weighting"] = "samples" if method == "PaperFedAvg" else None
    net = nn.Linear(4, 2)
    expected, other = (fedavg(net, batches, number) for number in (shared_in, 1 - shared_in))
    fedml.FedMLRunner(fedml_args(**values), CPU, eight_values(batches), net).run()
    found = parameters_to_vector(net.parameters()).detach()
    assert_close(found, expected)
    assert (expected - other).norm() > 0.01 * expected.norm()
