"""Whatever clients return: a round with finite results, or an error of ours and nothing changed."""

import math
from collections import OrderedDict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fednnnn_plugin.errors import RunError, UserError

from .rounds import silo

RULES: dict[str, dict[str, float]] = {
    "FedNNNN": {"beta": 0.7, "gamma": 0.8},
    "FedExP": {},
    "FedYogi": {"server_lr": 0.1, "server_tau": 1e-3},
}


def model() -> nn.Module:
    """A parameter of six elements and one without any, and buffers of three kinds."""
    built = nn.Linear(3, 2, bias=False)
    built.none = nn.Parameter(torch.ones(0))
    for name, buffer in (("mean", [0.0, 0.0]), ("count", 3), ("flag", [False])):
        built.register_buffer(name, torch.tensor(buffer))
    return built


FLOATS = st.sampled_from([0.0, 1.0, -2.5, 1e-45, 1e-30, 1e10, -3.4e38, 1e39, math.nan, math.inf])
TENSORS = st.builds(
    lambda shape, value, dtype: torch.full(shape, value, dtype=torch.float64).to(dtype),
    st.sampled_from([(), (0,), (1,), (2,), (2, 3), (3, 2), (6,)]),
    FLOATS,
    st.sampled_from([torch.float16, torch.float64, torch.int64, torch.bool, torch.complex64]),
)
STRANGE = st.sampled_from([torch.zeros(2, 3).to_sparse(), torch.zeros(2, 3, device="meta"), [1.0]])
NAMES = st.sampled_from([*model().state_dict(), "", 3, None])
#: What a client adds to the served model, which entries it replaces, and which it leaves out.
EDITS = st.tuples(
    FLOATS | st.floats(-2, 2, width=32),
    st.just({}) | st.dictionaries(NAMES, TENSORS | STRANGE, max_size=2),
    st.just(()) | st.sets(NAMES, max_size=1),
)
SAMPLES = st.sampled_from([1, 5, 0, -1, 2.5, math.nan, None, "3", 10**400])
CLIENT = st.tuples(SAMPLES, EDITS | st.sampled_from([None, [], "model"]))


def edited(state, edit):
    if not isinstance(edit, tuple):
        return edit
    shift, replaced, missing = edit
    moved = {
        name: (tensor.double() + shift).to(tensor.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in state.items()
    }
    return {name: value for name, value in (moved | replaced).items() if name not in missing}


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(
    rounds=st.lists(st.lists(CLIENT, min_size=4, max_size=4), min_size=1, max_size=3),
    rule=st.sampled_from(list(RULES)),
    weighting=st.sampled_from(["uniform", "samples"]),
    failures=st.sampled_from([0, 1, 4]),
    clip=st.sampled_from([None, 1e-30, 1.0, 1e30]),
)
def test_aggregator_takes_any_client(rounds, rule, weighting, failures, clip) -> None:
    keys = {"client_weighting": weighting, "max_client_failures": failures, "max_client_norm": clip}
    aggregator = silo(model(), rule, **{"beta": None, "gamma": None} | RULES[rule] | keys)
    for told in rounds:
        before = aggregator.get_model_params()
        given = [(samples, edited(before, edit)) for samples, edit in told]
        try:
            kept, places = aggregator.on_before_aggregation(given)
            assert len(kept) == len(places) >= 4 - failures
            served = aggregator.on_after_aggregation(aggregator.aggregate(kept))
            aggregator.set_model_params(served)
        except (RunError, UserError):
            after = aggregator.get_model_params()
            assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
            return
        assert isinstance(served, OrderedDict)
        for state in (served, aggregator.evaluation_state_dict()):
            assert state.keys() == before.keys()
            for name, tensor in state.items():
                assert torch.isfinite(tensor).all()
                assert (tensor.shape, tensor.dtype) == (before[name].shape, before[name].dtype)
