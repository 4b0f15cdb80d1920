"""The client trainer on its own."""

import copy
import math
import os
from collections import OrderedDict

import pytest
import torch
from fedml.ml.trainer.my_model_trainer_classification import ModelTrainerCLS
from torch import nn
from torch.testing import assert_close

import fednnnn_plugin as fp
from fednnnn_plugin.fedml.loaders import fedml_dataset
from fednnnn_plugin.models import create_model

from .rounds import CPU, fedml_args, refused

DATA = [(torch.eye(2), torch.tensor([0, 1]))]


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
        ({"learning_rate": None}, "args: train_args.learning_rate: missing"),
        ({"client_threads": 0}, "args: train_args.client_threads: 0"),
        ({"federated_optimizer": "PaperFedProx"}, "args: train_args.prox_mu: missing"),
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
    x, y = torch.randn(4, 2, *positions), torch.arange(4 * math.prod(positions)) % 2
    data, model, args = [(x, y.reshape(4, *positions).int())], nn.Identity(), fedml_args()
    model.w = nn.Parameter(torch.zeros(()))
    found = fp.FedNNNNClientTrainer(model, args).test(data, CPU, args)
    labels = data[0][1].long()
    loss = y.numel() * nn.functional.cross_entropy(x, labels).item()
    correct = int((x.argmax(1) == labels).sum())
    expected = {"test_correct": correct, "test_loss": loss, "test_total": y.numel()}
    assert found == pytest.approx(expected)
    if not positions:
        assert found == pytest.approx(ModelTrainerCLS(model, args).test(data, CPU, args))
