"""The server under FedExP, FedAdam and FedYogi: both models, what is kept, what is refused."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fednnnn_plugin.errors import RunError, UserError
from fednnnn_plugin.server.average import UpdateAccumulator
from fednnnn_plugin.server.server import MOMENTUM, SECOND_MOMENT, Server, ServerRule, rule_state

TRAINABLE = ["fc.weight", "fc.bias"]
ADAM = ServerRule("FedAdam", server_lr=3.0, server_beta1=0.5, server_beta2=0.5, server_tau=2.0)
YOGI = ServerRule("FedYogi", server_lr=1.0, server_beta1=0.5, server_beta2=0.5, server_tau=2.0)
FEDEXP = ServerRule("FedExP", fedexp_epsilon=4.0)
RULES = [FEDEXP, ADAM, YOGI]
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.method)
CLIENTS = [(10.0, 0.0), (-2.0, 4.0)]


def state(weight: float = 1.0, bias: float = 2.0) -> dict[str, Tensor]:
    return {
        "fc.weight": torch.tensor([[weight]]),
        "fc.bias": torch.tensor([bias]),
        "bn.running_var": torch.tensor([1.0]),
    }


def play(server: Server, deltas: list[tuple[float, float]], *weights: float) -> None:
    acc = UpdateAccumulator(server.served, TRAINABLE)
    for delta, weight in zip(deltas, weights or (1.0,) * len(deltas), strict=True):
        client = {name: tensor.clone() for name, tensor in server.served.items()}
        for name, change in zip(TRAINABLE, delta, strict=True):
            client[name] += change
        client["bn.running_var"].fill_(3.0)
        assert acc.add(client, weight)
    assert not server.apply(acc.finish()).degenerate


def values(model: dict[str, Tensor]) -> tuple[float, float]:
    assert model["bn.running_var"].item() == 3.0
    return model["fc.weight"].item(), model["fc.bias"].item()


def test_fedexp_serves_the_last_iterate_and_evaluates_the_mean_of_the_last_two() -> None:
    """η_g = 60 / (2 (20 + 4)) = 5/4 with S = (4, 2); then η_g = 1 with S = (3, 4)."""
    server = Server(FEDEXP, state(), TRAINABLE)
    play(server, CLIENTS)
    assert values(server.served) == (6.0, 4.5)
    assert values(server.evaluation) == (3.5, 3.25)
    play(server, [(3.0, 4.0), (3.0, 4.0)])
    assert values(server.served) == (9.0, 8.5)
    assert values(server.evaluation) == (7.5, 6.5)
    assert not rule_state(server.state_dict())


def test_fedexp_weighs_the_squares_as_the_average() -> None:
    """Weights 3 and 1, ε = 8: S = (7, 1), N² = 50, (3 · 100 + 20) / 4 = 80: 80 / 116 < 1."""
    server = Server(ServerRule("FedExP", fedexp_epsilon=8.0), state(), TRAINABLE)
    play(server, CLIENTS, 3.0, 1.0)
    assert values(server.served) == (8.0, 3.0)
    # Weights 1 and 3: S = (1, 3), N² = 10, (100 + 3 · 20) / 4 = 40: 40 / (2 · (10 + 6)) = 5/4.
    server = Server(ServerRule("FedExP", fedexp_epsilon=6.0), state(), TRAINABLE)
    play(server, CLIENTS, 1.0, 3.0)
    assert values(server.served) == (2.25, 5.75)


def test_fedadam_evaluates_what_it_serves() -> None:
    """S = (14, 2): m = (7, 1), v = (100, 4): moves 3 (7/12, 1/4) = (1.75, 0.75)."""
    server = Server(ADAM, state(), TRAINABLE)
    play(server, [(14.0, 2.0)])
    assert values(server.served) == pytest.approx((2.75, 2.75), rel=1e-6)
    assert values(server.evaluation) == values(server.served)
    kept = {
        name: tensor.flatten().tolist() for name, tensor in rule_state(server.state_dict()).items()
    }
    assert kept == {
        f"{MOMENTUM}fc.weight": [7.0],
        f"{MOMENTUM}fc.bias": [1.0],
        f"{SECOND_MOMENT}fc.weight": [100.0],
        f"{SECOND_MOMENT}fc.bias": [4.0],
    }


def test_fedyogi_evaluates_what_it_serves() -> None:
    """S = (8, 2): m = (4, 1); 64 > 4: v = 4 + 32 = 6²; 4 = 4: v = 2²: moves (4/8, 1/4)."""
    server = Server(YOGI, state(), TRAINABLE)
    play(server, [(8.0, 2.0)])
    assert values(server.served) == values(server.evaluation) == (1.5, 2.25)


@every_rule
def test_opposite_clients_move_nothing_at_first(rule: ServerRule) -> None:
    server = Server(rule, state(), TRAINABLE)
    play(server, [(3.0, 1.0), (-3.0, -1.0)])
    assert values(server.served) == values(server.evaluation) == (1.0, 2.0)


@every_rule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@given(
    rounds=st.lists(
        st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=3),
        min_size=1,
        max_size=3,
    )
)
def test_after_extreme_updates_all_is_finite_or_it_is_said(
    rule: ServerRule, dtype: torch.dtype, rounds: list[list[float]]
) -> None:
    server = Server(rule, {"w": torch.zeros(1, dtype=dtype)}, ["w"])
    for updates in rounds:
        acc = UpdateAccumulator(server.served, ["w"])
        for update in updates:
            acc.add({"w": torch.tensor([update], dtype=dtype)}, 1.0)
        if not acc.clients:
            return
        try:
            move = server.apply(acc.finish())
        except RunError:
            return
        if not math.isfinite(move.server_update_norm):
            return  # the engine and the aggregator end the federation here
        assert server.evaluation["w"].isfinite().all()
        for name, tensor in server.state_dict().items():
            assert tensor.isfinite().all(), name


def test_an_update_whose_square_overflows_is_said() -> None:
    """10²⁰ squared is beyond float32."""
    server = Server(ADAM, state(), TRAINABLE)
    with pytest.raises(RunError, match=r"^FedAdam: v is no longer finite: .* beyond torch.float32"):
        play(server, [(1e20, 1.0)])


@every_rule
def test_saving_and_loading_goes_on_with_the_same_bits(rule: ServerRule) -> None:
    straight = Server(rule, state(), TRAINABLE)
    play(straight, [(0.1, 0.7), (0.3, -0.2)])
    stored = {name: tensor.clone() for name, tensor in straight.state_dict().items()}
    play(straight, [(0.3, 0.9), (0.2, 0.6)])

    resumed = Server(rule, state(7.0, 7.0), TRAINABLE)
    play(resumed, CLIENTS)  # other moments, to be replaced
    assert resumed.takes(stored)
    resumed.load_state_dict(stored)
    play(resumed, [(0.3, 0.9), (0.2, 0.6)])
    torch.testing.assert_close(resumed.state_dict(), straight.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(resumed.evaluation, straight.evaluation, rtol=0, atol=0)


@every_rule
def test_loading_the_start_forgets_the_moments(rule: ServerRule) -> None:
    fresh, server = Server(rule, state(), TRAINABLE), Server(rule, state(), TRAINABLE)
    start = {name: tensor.clone() for name, tensor in server.state_dict().items()}
    play(server, CLIENTS)
    server.load_state_dict(start)
    for each in (fresh, server):
        play(each, CLIENTS)
    torch.testing.assert_close(server.state_dict(), fresh.state_dict(), rtol=0, atol=0)


@every_rule
def test_the_evaluation_model_is_no_view_of_the_served_one(rule: ServerRule) -> None:
    server = Server(rule, state(), TRAINABLE)
    play(server, CLIENTS)
    evaluation = {name: tensor.clone() for name, tensor in server.evaluation.items()}
    for tensor in server.served.values():
        tensor.fill_(5)
    torch.testing.assert_close(server.evaluation, evaluation, rtol=0, atol=0)


def test_a_second_moment_of_another_shape_is_not_taken() -> None:
    server = Server(ADAM, state(), TRAINABLE)
    play(server, CLIENTS)
    stored = server.state_dict()
    assert server.takes(stored)
    assert not server.takes(stored | {f"{SECOND_MOMENT}fc.bias": torch.zeros(3)})
    assert not server.takes(stored | {f"{SECOND_MOMENT}other": torch.zeros(1)})


@pytest.mark.parametrize("method", ["FedAdam", "FedYogi"])
def test_a_missing_server_lr_is_named(method: str) -> None:
    with pytest.raises(UserError, match=rf"^{method}: server_lr is missing: set train_args\."):
        Server(ServerRule(method), state(), TRAINABLE)
