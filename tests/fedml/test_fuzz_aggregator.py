"""Whatever clients return: a round with finite results, or an error of ours and nothing changed."""

import math
from collections import OrderedDict
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fednnnn_plugin.errors import RunError, UserError
from fednnnn_plugin.server.layout import State

from .rounds import silo

RULES: dict[str, dict[str, float]] = {
    "FedNNNN": {"beta": 0.7, "gamma": 0.8},
    "Momentum": {"gamma": 0.9},
    "FedExP": {},
    "FedYogi": {"server_lr": 0.1, "server_tau": 1e-3},
}


class Model(nn.Module):
    """A parameter in each of two modules, one without elements, and buffers of three kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2, bias=False)
        self.scale = nn.Parameter(torch.ones(()))
        self.none = nn.Parameter(torch.ones(0))
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("flag", torch.tensor([False]))
        nn.init.constant_(self.fc.weight, 0.5)


FLOATS = st.sampled_from(
    [0.0, -0.0, 1.0, -2.5, 1e-45, 1e-30, 1e10, 3.4e38, -3.4e38, 1e39, math.nan, math.inf]
)
TENSORS = st.builds(
    lambda shape, value, dtype: torch.full(shape, value, dtype=torch.float64).to(dtype),
    st.sampled_from([(), (0,), (1,), (2,), (2, 3), (3, 2), (6,)]),
    FLOATS,
    st.sampled_from([torch.float16, torch.float64, torch.int64, torch.bool, torch.complex64]),
)
ODD = TENSORS | st.sampled_from(
    [
        *(None, 1.5, "w", [1.0], {}, torch.zeros(2, 3).to_sparse(), torch.zeros(3, 2).t()),
        *(torch.zeros(2, 3, device="meta"), torch.zeros(2, 3).requires_grad_() * 1),
    ]
)
NAMES = [*Model().state_dict(), "", "fc", 3, None]
MISSING = object()


@st.composite
def edits(draw: st.DrawFn) -> Any:
    """What a client does to the served model, or returns in its place."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from([None, [], "model", 7, {}]))
    shift = draw(FLOATS | st.floats(-2, 2, width=32))
    changes = {}
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        changes[draw(st.sampled_from(NAMES))] = draw(ODD | st.just(MISSING))
    return shift, changes


def edited(state: State, edit: Any) -> Any:
    if not isinstance(edit, tuple):
        return edit
    shift, changes = edit
    model: dict[Any, Any] = {
        name: (tensor.double() + shift).to(tensor.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in state.items()
    }
    return {name: value for name, value in (model | changes).items() if value is not MISSING}


def check_state(state: State, like: State) -> None:
    assert state.keys() == like.keys()
    for name, tensor in state.items():
        assert torch.isfinite(tensor).all()
        assert (tensor.shape, tensor.dtype) == (like[name].shape, like[name].dtype)


SAMPLES = st.sampled_from([1, 5, 0, -1, 2.5, math.nan, None, "3", 10**400])


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(
    rounds=st.lists(st.lists(edits(), min_size=4, max_size=4), min_size=1, max_size=3),
    samples=st.lists(SAMPLES, min_size=4, max_size=4),
    rule=st.sampled_from(list(RULES)),
    weighting=st.sampled_from(["uniform", "samples"]),
    failures=st.sampled_from([0, 1, 4]),
    clip=st.sampled_from([None, 1e-30, 1.0, 1e30]),
)
def test_aggregator_takes_any_client(rounds, samples, rule, weighting, failures, clip) -> None:
    keys = {"client_weighting": weighting, "max_client_failures": failures, "max_client_norm": clip}
    aggregator = silo(Model(), rule, **{"beta": None, "gamma": None} | RULES[rule] | keys)
    like = aggregator.get_model_params()
    for told in rounds:
        before = aggregator.get_model_params()
        returned = (edited(before, edit) for edit in told)
        try:
            kept, places = aggregator.on_before_aggregation([*zip(samples, returned, strict=True)])
            assert len(kept) == len(places) >= 4 - failures
            served = aggregator.on_after_aggregation(aggregator.aggregate(kept))
            aggregator.set_model_params(served)
        except (RunError, UserError):
            after = aggregator.get_model_params()
            assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
            return
        assert isinstance(served, OrderedDict)
        check_state(served, like)
        check_state(aggregator.evaluation_state_dict(), like)
