"""The served model follows the rule, the evaluation model is what the rule names."""

import math
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from fednnnn_plugin.errors import RunError
from fednnnn_plugin.server.accumulator import UpdateAccumulator
from fednnnn_plugin.server.average import ClientSum
from fednnnn_plugin.server.layout import Layout, State
from fednnnn_plugin.server.rules import RULES, rule
from fednnnn_plugin.server.server import Server, ServerMove, ServerState

from .rules.test_battery import DEVICES, DTYPES, SETTINGS, every_rule

TRAINABLE = ["fc.weight", "fc.bias"]

# Two clients, two rounds, for β = γ = 0.5: E/N is 5/4, then 2.
# Round 1: Δ = (0, 25), (24, 7): S = (12, 16), N = 20, E = 25, d = 5/8 S = (7.5, 10).
# Round 2: Δ = (9, 12), (-3, -4): S = (3, 4), N = 5, E = 10, d = d / 2 + S = (6.75, 9).
START = (1.0, 2.0)
DELTAS = [[(0.0, 25.0), (24.0, 7.0)], [(9.0, 12.0), (-3.0, -4.0)]]
EVALUATED = [(13.0, 18.0), (11.5, 16.0)]
SERVED = [(8.5, 12.0), (15.25, 21.0)]


def model(weight: float, bias: float, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return {
        "fc.weight": torch.tensor([[weight]], dtype=dtype),
        "fc.bias": torch.tensor([bias], dtype=dtype),
        "bn.running_var": torch.tensor([1.0], dtype=dtype),
        "bn.num_batches_tracked": torch.tensor(0),
        # As in a momentum encoder: not to be taken for the server's d.
        "momentum.fc.weight": torch.tensor([[100.0]], dtype=dtype),
    }


class Federation:
    """A server and where it stands."""

    def __init__(self, name: str, start: State) -> None:
        self.server = Server(RULES[name], SETTINGS[name], Layout(start, TRAINABLE), 2)
        self.state, self.rounds = self.server.start(start), 0

    def named(self, which: str) -> dict[str, Tensor]:
        return self.server.layout.state_dict(getattr(self.state, which))

    def restored(self, stored: State, device: str = "cpu") -> ServerState:
        state = self.server.restore(stored, torch.device(device))
        assert state is not None
        return state

    def play(
        self,
        deltas: list[tuple[float, float]],
        scale: float = 1.0,
        max_client_norm: float | None = None,
    ) -> ServerMove:
        """Do a round; client k's buffers, from 1 on, are 2 k and 8 + 2 k batches."""
        acc = UpdateAccumulator(self.named("served"), TRAINABLE, max_client_norm)
        for k, delta in enumerate(deltas, start=1):
            client = {name: tensor.clone() for name, tensor in self.named("served").items()}
            for name, change in zip(TRAINABLE, delta, strict=True):
                client[name] += scale * change
            client["bn.running_var"].fill_(2.0 * k)
            client["bn.num_batches_tracked"].fill_(8 + 2 * k)
            assert acc.add(client, 1.0)
        self.rounds += 1
        _, self.state, move = self.server.close_round(self.rounds, self.state, acc, 0)
        return move


def values(state: State) -> tuple[float, float]:
    return state["fc.weight"].item(), state["fc.bias"].item()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_server_two_rounds_worked_by_hand(dtype: torch.dtype, device: str) -> None:
    start = {name: tensor.to(device) for name, tensor in model(*START, dtype).items()}
    federation = Federation("FedNNNN", start)
    before = START
    for deltas, served, evaluated in zip(DELTAS, SERVED, EVALUATED, strict=True):
        move = federation.play(deltas)
        for which, expected in (("served", served), ("evaluation", evaluated)):
            state = federation.named(which)
            assert values(state) == expected
            assert list(state) == list(start)
            assert {tensor.device.type for tensor in state.values()} == {device}
            assert {t.dtype for n, t in state.items() if "tracked" not in n} == {dtype}
            assert state["bn.running_var"].tolist() == [3.0]
            assert state["bn.num_batches_tracked"].item() == 12
        moved = pytest.approx(math.dist(served, before), rel=1e-12)
        assert move == ServerMove(moved, {"fc": moved}, degenerate=False)
        before = served


@pytest.mark.parametrize(
    ("name", "clip", "moves"),
    [
        ("PaperFedAvg", None, (1 / 3, 1.0)),
        ("FedNNNN", None, (7 / 2, 7 / 4 + 1 / 2)),
        ("FedNNNN", 1.0, (1 / 2, 1 / 4 + 1 / 2)),
    ],
)
def test_huge_updates_that_cancel_worked_by_hand(
    name: str, clip: float | None, moves: tuple[float, float]
) -> None:
    """For β = γ = 0.5: Δ = (10, 0), (-10, 0), (0, 1): S = (0, 1/3), and E = 7, or 1 if clipped.

    FedAvg moves by N = 1/3, FedNNNN by β E, and by γ of it in the next round, whose Δ = (0, 1).
    """
    federation = Federation(name, model(*START, torch.float64))
    attack = [(10.0, 0.0), (-10.0, 0.0), (0.0, 1.0)]
    for deltas, move in zip((attack, attack[2:]), moves, strict=True):
        before = np.array(values(federation.named("served")))
        federation.play(deltas, max_client_norm=clip)
        assert values(federation.named("served")) - before == pytest.approx([0.0, move])


@every_rule
def test_evaluation_model_is_what_the_rule_names(name: str) -> None:
    """The paper's the average, FedExP the middle of two iterates, the other baselines the last.

    Clients that disagree so much that FedExP's step is 2.5 S, for S = (3, 4).
    """
    federation = Federation(name, model(*START, torch.float64))
    federation.play(DELTAS[1])
    served = values(federation.named("served"))
    midpoint = ((1 + served[0]) / 2, (2 + served[1]) / 2)
    last = ("FedAdam", "FedYogi", "FedAdagrad", "FedAvgM", "FedDyn")
    expected = {"FedExP": midpoint, **dict.fromkeys(last, served)}.get(name, (4.0, 6.0))
    assert values(federation.named("evaluation")) == pytest.approx(expected, rel=1e-15)


@every_rule
def test_state_is_left_alone_and_restored(name: str) -> None:
    """A round that fails half-way has nothing to undo; resumed, it has the same bits."""
    straight, resumed = Federation(name, model(*START)), Federation(name, model(7.0, 7.0))
    straight.play(DELTAS[0], scale=0.1)
    before = straight.state
    stored = {n: t.clone() for n, t in straight.server.state_dict(before).items()}
    resumed.play([(1.0, 5.0), (2.0, -7.0)])  # another memory, to be replaced
    resumed.state = resumed.restored(stored)
    for federation in (straight, resumed):
        federation.play(DELTAS[1], scale=0.1)
    first, second = (each.server.state_dict(each.state) for each in (straight, resumed))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(straight.server.state_dict(before), stored, rtol=0, atol=0)
    assert not torch.equal(straight.state.served.vector, before.served.vector)


def test_rule_memory_may_be_of_any_shape() -> None:
    federation = Federation("Momentum", model(*START))
    remembered: dict[str, Any] = {
        "count": 3, "best": 0.25, "warm": True, "momentum": torch.tensor([1.0, 2.0]),
        "table": torch.eye(3), "scalar": torch.tensor(2.0), "step": torch.tensor(3.0),
    }  # fmt: skip
    state = ServerState(federation.state.served, federation.state.evaluation, remembered)
    stored = federation.server.state_dict(state)
    restored, elsewhere = (federation.restored(stored, device) for device in ("cpu", "meta"))
    for name, value in remembered.items():
        assert type(restored.memory[name]) is type(value)
        assert torch.equal(torch.as_tensor(restored.memory[name]), torch.as_tensor(value))
    # As torch keeps it: its Adam refuses a count of steps that is on the GPU.
    assert not elsewhere.memory["step"].is_meta
    assert elsewhere.memory["momentum"].is_meta


class Writing(torch.optim.Optimizer):
    """Writes into S, to serve w_t + S with three times the bias's part, and into the buffers.

    It keeps the model itself, twice, and what it draws.
    """

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(
        self, closure: Any = None, *, vector: Tensor, mean_update: State, buffers: State
    ) -> None:
        mean_update["fc.bias"].mul_(3.0)
        for buffer in buffers.values():
            buffer.fill_(7)
        (p,) = self.param_groups[0]["params"]
        p.add_(vector)
        self.state[p] = {"last": p, "same": p.data, "drawn": torch.rand(())}


def test_evaluation_is_safe_from_a_writing_rule(monkeypatch: Any, rules_taken_back: None) -> None:
    """Its memory shares no storage: a checkpoint cannot hold two tensors in one memory.

    In the next round it draws anew.
    """
    rule(wants=("vector", "mean_update", "buffers"))(Writing)
    monkeypatch.setitem(SETTINGS, "Writing", {})
    federation = Federation("Writing", model(*START))
    federation.play(DELTAS[0])
    assert values(federation.named("served")) == (13.0, 50.0)
    assert values(federation.named("evaluation")) == (13.0, 18.0)
    assert federation.named("evaluation")["bn.running_var"].tolist() == [3.0]
    stored = safetensors.torch.save(federation.server.state_dict(federation.state))
    restored = federation.restored(safetensors.torch.load(stored))
    assert torch.equal(restored.memory["last"], federation.state.served.vector)
    assert not federation.state.memory["last"].requires_grad
    federation.play(DELTAS[0])
    assert federation.state.memory["drawn"] != restored.memory["drawn"]


class Forgetful(torch.optim.Optimizer):
    """Counts its steps in each place that a rule has; the unchanged ones are no matter."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"t": 0, "lr": 1.0})
        self.t, self.sum, self.tables, self.array = 0, torch.zeros(1), {"t": 0}, np.zeros(1)
        self.inner = torch.optim.SGD(params, 1.0, momentum=0.9)
        self.best, self.last = math.nan, None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        (p,) = self.param_groups[0]["params"]
        self.state[p]["t"] = self.state["all"]["t"] = 1
        self.t += 1
        self.sum.add_(1)
        self.tables["t"] += 1
        self.array += 1
        self.inner.step()
        self.last, self.device = p.clone(), p.device
        self.param_groups[0]["t"] += 1
        self.degenerate = False


def test_what_a_rule_forgets_is_a_warning(monkeypatch: Any, rules_taken_back: None) -> None:
    rule()(Forgetful)
    monkeypatch.setitem(SETTINGS, "Forgetful", {})
    federation = Federation("Forgetful", model(*START))
    warnings = federation.server.try_rule(federation.state)
    changed = [warning.partition("changes ")[2].partition(",")[0] for warning in warnings]
    attributes = [f"self.{name}" for name in ("t", "sum", "tables", "array", "inner", "last")]
    assert changed == [*attributes, "group['t']", "self.state['all']"]


FUSED = ("SGD", "Adagrad", "Adam", "AdamW")


@pytest.mark.parametrize(
    ("name", "fused"),
    [
        *((name, {}) for name in (*FUSED, "NAdam", "RAdam", "Rprop")),
        *((name, {"fused": True}) for name in FUSED),
    ],
)
def test_optimizer_of_pytorch_forgets_nothing(
    monkeypatch: Any, rules_taken_back: None, name: str, fused: dict[str, bool]
) -> None:
    kind: Any = getattr(torch.optim, name)
    rule()(type("Known", (kind,), {"__init__": lambda self, p: kind.__init__(self, p, **fused)}))
    monkeypatch.setitem(SETTINGS, "Known", {})
    federation = Federation("Known", model(*START))
    assert federation.server.try_rule(federation.state) == []


@pytest.mark.parametrize(
    "change",
    [
        {"fc.weight": torch.zeros(1)},
        {"fc.weight": torch.zeros(1, 1, dtype=torch.float64)},
        {"other": torch.zeros(1)},
        {".momentum.fc.bias": torch.zeros(3)},
        {"fc.bias": None},
        {".momentum.fc.bias": None},
    ],
)
def test_state_of_another_model_is_not_restored(change: dict[str, Tensor | None]) -> None:
    federation = Federation("Momentum", model(*START))
    federation.play(DELTAS[0])
    stored = federation.server.state_dict(federation.state)
    federation.restored(stored)
    other = {name: x for name, x in (stored | change).items() if x is not None}
    assert federation.server.restore(other, torch.device("cpu")) is None


def test_evaluation_model_that_overflows_is_an_error() -> None:
    """``w_t + S`` is out of fp16's range, and the served model not yet, under a small β."""
    start = {"w": torch.full((2,), 60_000.0, dtype=torch.float16)}
    layout = Layout(start, ["w"])
    server = Server(RULES["NormNorm"], {"beta": 0.1}, layout, 1)
    state = server.start(start)
    total = ClientSum(layout, state.served, None)
    assert total.add({"w": torch.full((2,), 72_000.0)}, 1.0)
    with pytest.raises(RunError, match=r"^round 1: the evaluation model is no longer finite"):
        server.close_round(1, state, total, seed=0)
