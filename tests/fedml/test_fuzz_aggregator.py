"""Whatever clients return: a round with finite results, or an error of ours and nothing changed."""

import copy
import math
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from fednnnn_plugin.assembly.executors import make_executor
from fednnnn_plugin.assembly.inputs import Inputs
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.replica import layout_of, named_tensors
from fednnnn_plugin.errors import RunError, UserError
from fednnnn_plugin.processes.ranks import Ranks
from fednnnn_plugin.rounds.loaders import LoaderData
from fednnnn_plugin.rounds.schedule import Schedule
from fednnnn_plugin.rounds.simulation import Federation, TrainState, simulate_round
from fednnnn_plugin.run_folder.records import Evaluation
from fednnnn_plugin.server import rules
from fednnnn_plugin.server.layout import State
from fednnnn_plugin.server.server import Server

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
MISSING = object()
ODD = TENSORS | st.sampled_from(
    [
        *(MISSING, None, 1.5, "w", [1.0], {}, torch.zeros(2, 3).to_sparse(), torch.zeros(3, 2).t()),
        *(torch.zeros(2, 3, device="meta"), torch.zeros(2, 3).requires_grad_() * 1),
    ]
)
NAMES = st.sampled_from([*Model().state_dict(), "", "fc", 3, None])
CHANGES = st.just({}) | st.dictionaries(NAMES, ODD, max_size=2)
# What a client does to the served model, nine times of ten, or returns in its place.
EDITS = st.tuples(FLOATS | st.floats(-2, 2, width=32), CHANGES)
PLACES = st.sampled_from([None, [], "model", 7, {}, ZeroDivisionError("no\nsamples")])
FOUR = st.lists(st.integers(0, 9).flatmap(lambda n: EDITS if n else PLACES), min_size=4, max_size=4)


def edited(state: State, edit: Any) -> Any:
    if isinstance(edit, Exception):
        raise edit
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


EVERY = {
    "rounds": st.lists(FOUR, min_size=1, max_size=3),
    "rule": st.sampled_from(list(RULES)),
    "weighting": st.sampled_from(["uniform", "samples"]),
    "failures": st.sampled_from([0, 1, 4]),
}


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(**EVERY, clip=st.sampled_from([None, 1e-30, 1.0, 1e30]))
def test_engine_takes_any_client(
    rounds: list[list[Any]], rule: str, weighting: Any, failures: int, clip: float | None
) -> None:
    """The clients of its trainer do as they are told."""

    def train(client: int, state: State, round_number: int) -> State:
        returned: State = edited(state, rounds[round_number - 1][client])
        return returned

    model = Model()
    trainer = SimpleNamespace(train=train, test=lambda _: Evaluation(0.5, None))
    like, layout = copy.deepcopy(model.state_dict()), layout_of(model)
    inputs = Inputs(model, LoaderData({}, {}, (), 2), torch.device("cpu"), trainer)
    limits = {"max_client_failures": failures, "max_client_norm": clip, "weighting": weighting}
    schedule = Schedule(len(rounds), (1, 5, 2, 9), cohort_size=4, seed=0, **limits)
    server = Server(rules.RULES[rule], RULES[rule], layout)
    train_state = TrainState(server.start(named_tensors(model)))
    with make_executor(inputs, LocalSGD(1, 1, 0.1), seed=0, most=1, workers=1) as cohort:
        federation = Federation(schedule, server, cohort, Ranks())
        for _ in rounds:
            before = copy.deepcopy(server.state_dict(train_state.server))
            try:
                record, train_state = simulate_round(federation, train_state)
            except RunError as error:
                said = str(error)
                assert said.isprintable()
                assert_close(server.state_dict(train_state.server), before, rtol=0, atol=0)
                return
            assert record.clients + record.rejected == 4
            record.to_json()  # refuses numbers that are not finite
            assert record.mean_update_norm <= record.mean_client_norm
            assert clip is None or record.client_norms[2] <= clip * (1 + 1e-12)
            check_state(layout.state_dict(train_state.server.served), like)
            check_state(layout.state_dict(train_state.server.evaluation), like)


SAMPLES = st.sampled_from([1, 5, 0, -1, 2.5, math.nan, None, "3", 10**400])


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 2)
@given(**EVERY, samples=st.lists(SAMPLES, min_size=4, max_size=4))
def test_aggregator_takes_any_client(
    rounds: list[list[Any]], samples: list[Any], rule: str, weighting: str, failures: int
) -> None:
    keys = {"client_weighting": weighting, "max_client_failures": failures}
    keys |= {"beta": None, "gamma": None} | RULES[rule]
    aggregator = silo(Model(), rule, **keys)
    like = aggregator.get_model_params()
    for told in rounds:
        before = aggregator.get_model_params()
        returned = (None if isinstance(edit, Exception) else edited(before, edit) for edit in told)
        try:
            kept, places = aggregator.on_before_aggregation([*zip(samples, returned, strict=True)])
            assert len(kept) == len(places) >= 4 - failures
            served = aggregator.on_after_aggregation(aggregator.aggregate(kept))
            aggregator.set_model_params(served)
        except (RunError, UserError):
            assert_close(aggregator.get_model_params(), before, rtol=0, atol=0)
            return
        assert isinstance(served, OrderedDict)
        check_state(served, like)
        check_state(aggregator.evaluation_state_dict(), like)
