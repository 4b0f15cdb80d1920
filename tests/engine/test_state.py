"""A model's tensors by name: tied ones once, buffers that are not saved not at all."""

import torch
from torch import nn

from fednnnn_plugin.engine.evaluation import Evaluation, Tally, evaluation, tally
from fednnnn_plugin.engine.state import aliases, load, named_tensors, trainable_names


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.second = nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)
        self.register_buffer("kept", torch.zeros(1))
        self.register_buffer("also_kept", self.kept)
        self.register_buffer("scratch", torch.zeros(1), persistent=False)


def test_each_tensor_comes_once_by_its_first_name() -> None:
    model = Model()
    assert set(named_tensors(model)) == {"first.weight", "second.bias", "frozen", "kept"}
    assert trainable_names(model) == ["first.weight", "second.bias"]
    assert aliases(model) == {"second.weight": "first.weight", "also_kept": "kept"}
    assert named_tensors(model).keys() | aliases(model).keys() == model.state_dict().keys()


def test_loading_writes_into_the_model() -> None:
    model = Model()
    tensors = named_tensors(model)
    load(tensors, {name: torch.full_like(tensor, 7.0) for name, tensor in tensors.items()})
    assert model.second.weight.tolist() == [[7.0, 7.0], [7.0, 7.0]]
    assert model.kept.item() == 7.0
    assert not any(tensor.requires_grad for tensor in tensors.values())


def test_a_tally_worked_by_hand() -> None:
    """Logits (0, 0), (0, ln 3): losses ln 2 and ln 4 for label 0; the first of equals is found."""
    model = nn.Linear(1, 2, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0], [1.0]]))
    inputs = torch.tensor([[0.0], [3.0]]).log().clamp(min=0)
    counted = tally(model, (inputs, torch.tensor([0, 0])))
    assert (counted.correct, counted.samples) == (1, 2)
    assert abs(counted.loss - torch.tensor(8.0).log().item()) < 1e-6


def test_tallies_add_up() -> None:
    assert evaluation([Tally(1, 2.0, 2), Tally(2, 4.0, 4)]) == Evaluation(0.5, 1.0)
    assert evaluation([Tally(1, float("nan"), 2)]) == Evaluation(0.5, None)
    assert evaluation([Tally(1, float("inf"), 2)]) == Evaluation(0.5, None)
    assert evaluation([]) == Evaluation(0.0, None)
