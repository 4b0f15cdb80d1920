"""A replica: a module whose parameters are one vector."""

import pytest
import torch
from torch import Tensor, nn

from fednnnn_plugin.client.replica import Replica, aliases, named_tensors
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.layout import ModelState


class _Tied(nn.Module):
    """Tied weights, a frozen parameter, a buffer that each forward replaces, one not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.last = nn.Linear(2, 2)
        self.last.weight = self.first.weight
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("scratch", torch.zeros(()), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen = self.seen + 1
        return self.last(self.first(inputs))


def test_replica_vector_is_the_model() -> None:
    """d = 4 + 2: the tied weight once, then the bias; both ways, and loading writes both."""
    model = _Tied()
    before = torch.cat([model.first.weight.flatten(), model.last.bias]).tolist()
    replica = Replica(model)
    assert replica.vector.tolist() == before
    replica.vector.copy_(torch.arange(6.0))
    assert model.last.weight is model.first.weight
    assert model.last.weight.tolist() == [[0, 1], [2, 3]]
    assert model.last.bias.tolist() == [4, 5]
    replica.load(ModelState(torch.ones(6), {"frozen": torch.zeros(3), "seen": torch.tensor(7.0)}))
    assert model.first.weight.tolist() == [[1, 1], [1, 1]]
    assert model.frozen.tolist() == [0, 0, 0]
    assert all(parameter.is_leaf for parameter in model.parameters())


@pytest.mark.parametrize("saved", [False, True])
def test_replica_knows_buffers_by_saved_names(saved: bool) -> None:
    """A buffer under two names: saved under none of them, or under the second alone."""
    model, table = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), torch.ones(3)
    model[0].register_buffer("table", table, persistent=False)
    model[1].register_buffer("table", table, persistent=saved)
    assert named_tensors(model).keys() == model.state_dict().keys()
    assert aliases(model) == {}


def test_replica_has_the_model_s_newest_buffers() -> None:
    model = _Tied()
    replica = Replica(model)
    model(torch.ones(1, 2))
    assert set(replica.state.buffers) == {"frozen", "seen"}
    assert replica.state.buffers["seen"].item() == 1
    replica.load(ModelState(replica.vector, {"frozen": model.frozen, "seen": torch.tensor(7.0)}))
    assert model.seen.item() == 7


def test_replica_refuses_another_form_than_was_trained() -> None:
    for change in (
        lambda model: model.frozen.requires_grad_(),
        lambda model: model.add_module("more", nn.Linear(1, 1)),
        lambda model: setattr(model.last, "bias", nn.Parameter(torch.zeros(2))),
        lambda model: setattr(model.last.bias, "data", model.last.bias.data.clone()),
        lambda model: model.register_buffer("late", torch.zeros(1)),
        lambda model: delattr(model, "seen"),
        lambda model: setattr(model, "seen", torch.zeros(1)),
        lambda model: setattr(model, "seen", torch.tensor(0)),
    ):
        replica = Replica(_Tied())
        replica.check_trained()
        change(replica.model)
        with pytest.raises(
            UserError, match=r"^model_args\.model: (frozen|more\.bias|last\.bias|late|seen): "
        ):
            replica.check_trained()


def test_recurrent_layers_leave_their_weights_in_the_vector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU ``flatten_parameters()``, which a model may call, moves them to cuDNN's memory."""

    def moves(layer: nn.RNNBase) -> None:
        for parameter in layer.parameters():
            parameter.data = parameter.data.clone()

    replica = Replica(nn.Sequential(nn.GRU(2, 3)))
    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", moves)
    replica.model[0].flatten_parameters()
    replica.check_trained()
