"""The served model follows the rule, the evaluation model is the average."""

import math

import pytest
import torch
from torch import Tensor

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.server.average import UpdateAccumulator
from fednnnn_plugin.server.server import Server, ServerMove, ServerRule

TRAINABLE = ["fc.weight", "fc.bias"]
RULES = [
    ServerRule("FedNNNN", beta=0.5, gamma=0.5),
    ServerRule("NormNorm", beta=0.5),
    ServerRule("Momentum", gamma=0.5),
    ServerRule("PaperFedAvg"),
    ServerRule("PaperFedProx"),
]
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.method)

# The two rounds of tests/server/test_optimizers.py, on a model of a weight and a bias.
START = (1.0, 2.0)
DELTAS = [[(0.0, 25.0), (24.0, 7.0)], [(9.0, 12.0), (-3.0, -4.0)]]
MEANS = [(12.0, 16.0), (3.0, 4.0)]
SERVED = {
    "FedNNNN": [(8.5, 12.0), (15.25, 21.0)],
    "NormNorm": [(8.5, 12.0), (11.5, 16.0)],
    "Momentum": [(13.0, 18.0), (22.0, 30.0)],
    "PaperFedAvg": [(13.0, 18.0), (16.0, 22.0)],
    "PaperFedProx": [(13.0, 18.0), (16.0, 22.0)],
}


def state(weight: float, bias: float, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return {
        "fc.weight": torch.tensor([[weight]], dtype=dtype),
        "fc.bias": torch.tensor([bias], dtype=dtype),
        "bn.running_var": torch.tensor([1.0], dtype=dtype),
        "bn.num_batches_tracked": torch.tensor(0),
    }


def play(server: Server, deltas: list[tuple[float, float]], scale: float = 1.0) -> ServerMove:
    """Give the server a round of two clients; their buffers are 2 and 4, 10 and 12 batches."""
    acc = UpdateAccumulator(server.served, TRAINABLE)
    for k, delta in enumerate(deltas, start=1):
        client = {name: tensor.clone() for name, tensor in server.served.items()}
        for name, change in zip(TRAINABLE, delta, strict=True):
            client[name] += scale * change
        client["bn.running_var"].fill_(2.0 * k)
        client["bn.num_batches_tracked"].fill_(8 + 2 * k)
        assert acc.add(client, 1.0)
    return server.apply(acc.finish())


def values(model: dict[str, Tensor]) -> tuple[float, float]:
    return model["fc.weight"].item(), model["fc.bias"].item()


@every_rule
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
def test_two_rounds_worked_by_hand(rule: ServerRule, dtype: torch.dtype) -> None:
    server = Server(rule, state(*START, dtype), TRAINABLE)
    before = START
    for deltas, mean, served in zip(DELTAS, MEANS, SERVED[rule.method], strict=True):
        move = play(server, deltas)
        assert values(server.served) == served
        assert values(server.evaluation) == (before[0] + mean[0], before[1] + mean[1])
        for model in (server.served, server.evaluation):
            assert list(model) == list(state(*START))
            assert {t.dtype for name, t in model.items() if "tracked" not in name} == {dtype}
            assert model["bn.running_var"].tolist() == [3.0]
            assert model["bn.num_batches_tracked"].item() == 12
        moved = math.dist(served, before)
        assert move.server_update_norm == pytest.approx(moved, rel=1e-12)
        assert move.layers == {"fc": pytest.approx(moved, rel=1e-12)}
        assert move.degenerate is False
        before = served


@pytest.mark.parametrize("rule", RULES[:2], ids=lambda rule: rule.method)
def test_opposite_clients_leave_the_served_model_where_it_is(rule: ServerRule) -> None:
    """w_{t+1} = w_t, and the buffers and the average still move on."""
    server = Server(rule, state(*START), TRAINABLE)
    play(server, DELTAS[0])
    before = values(server.served)
    momentum = {k: t.clone() for k, t in server.state_dict().items() if k not in server.served}
    move = play(server, [(3.0, 1.0), (-3.0, -1.0)])
    assert move == ServerMove(0.0, {"fc": 0.0}, degenerate=True)
    assert values(server.served) == values(server.evaluation) == before
    assert server.served["bn.running_var"].tolist() == [3.0]
    after = {k: t for k, t in server.state_dict().items() if k not in server.served}
    torch.testing.assert_close(after, momentum, rtol=0, atol=0)


@pytest.mark.parametrize("method", ["PaperFedAvg", "PaperFedProx"])
def test_fedavg_is_plain_averaging(method: str) -> None:
    """w_{t+1} = Σ n_k/n w_k (eq. 1), in both models, with the same bits."""
    generator = torch.Generator().manual_seed(6)
    start = {"a.weight": torch.randn(20, 30, generator=generator), "mean": torch.zeros(4)}
    server = Server(ServerRule(method), start, ["a.weight"])
    for _ in range(3):
        clients = [
            {name: torch.randn(t.shape, generator=generator) for name, t in start.items()}
            for _ in range(5)
        ]
        sizes = [10, 20, 30, 40, 50]
        acc = UpdateAccumulator(server.served, ["a.weight"])
        for client, size in zip(clients, sizes, strict=True):
            acc.add(client, size)
        server.apply(acc.finish())
        for name in start:
            average = sum(n / 150 * c[name].double() for n, c in zip(sizes, clients, strict=True))
            torch.testing.assert_close(server.served[name].double(), average, rtol=0, atol=1e-6)
            assert torch.equal(server.served[name], server.evaluation[name])


def test_normnorm_moves_by_beta_e() -> None:
    """Eq. 9, in a model whose weights are larger than the move, to 1e-5."""
    generator = torch.Generator().manual_seed(8)
    start = {"a.weight": torch.randn(300, 100, generator=generator)}
    server = Server(ServerRule("NormNorm", beta=0.9), start, ["a.weight"])
    acc = UpdateAccumulator(server.served, ["a.weight"])
    for _ in range(6):
        noise = 0.01 * torch.randn(300, 100, generator=generator)
        acc.add({"a.weight": start["a.weight"] + noise}, 1.0)
    update = acc.finish()
    move = server.apply(update)
    assert update.mean_update_norm < 0.5 * update.mean_client_norm
    assert move.server_update_norm == pytest.approx(0.9 * update.mean_client_norm, rel=1e-5)


@every_rule
def test_saving_and_loading_goes_on_with_the_same_bits(rule: ServerRule) -> None:
    straight = Server(rule, state(*START), TRAINABLE)
    play(straight, DELTAS[0], scale=0.1)
    stored = {name: tensor.clone() for name, tensor in straight.state_dict().items()}
    play(straight, DELTAS[1], scale=0.1)

    resumed = Server(rule, state(7.0, 7.0), TRAINABLE)
    play(resumed, [(1.0, 5.0), (2.0, -7.0)])  # another momentum, to be replaced
    assert resumed.takes(stored)
    resumed.load_state_dict(stored)
    play(resumed, DELTAS[1], scale=0.1)
    torch.testing.assert_close(resumed.state_dict(), straight.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(resumed.evaluation, straight.evaluation, rtol=0, atol=0)


def test_loading_the_start_forgets_the_momentum() -> None:
    server = Server(RULES[2], state(*START), TRAINABLE)
    start = {name: tensor.clone() for name, tensor in server.state_dict().items()}
    play(server, DELTAS[1])
    server.load_state_dict(start)
    play(server, DELTAS[0])
    assert values(server.served) == SERVED["Momentum"][0]


def test_what_was_loaded_is_copied() -> None:
    server = Server(RULES[2], state(*START), TRAINABLE)
    play(server, DELTAS[0])
    stored = {name: tensor.clone() for name, tensor in server.state_dict().items()}
    kept = {name: tensor.clone() for name, tensor in stored.items()}
    server.load_state_dict(stored)
    play(server, DELTAS[1])
    torch.testing.assert_close(stored, kept, rtol=0, atol=0)


def test_a_module_named_momentum_keeps_its_weights() -> None:
    """As in a momentum encoder: its name must not be taken for the server's d."""
    start = {"weight": torch.zeros(1), "momentum.weight": torch.full((1,), 100.0)}
    server = Server(RULES[2], start, list(start))
    acc = UpdateAccumulator(server.served, list(start))
    acc.add({"weight": torch.ones(1), "momentum.weight": torch.full((1,), 101.0)}, 1.0)
    server.apply(acc.finish())
    stored = {name: tensor.clone() for name, tensor in server.state_dict().items()}
    other = Server(RULES[2], start, list(start))
    assert other.takes(stored)
    other.load_state_dict(stored)
    assert other.served["momentum.weight"].item() == 101.0
    assert len(stored) == 4


def test_states_of_another_model_are_not_taken() -> None:
    server = Server(RULES[2], state(*START), TRAINABLE)
    play(server, DELTAS[0])
    stored = server.state_dict()
    assert server.takes(stored)
    (momentum, *_) = [name for name in stored if name not in server.served]
    for change in (
        {"fc.weight": torch.zeros(1)},
        {"fc.weight": torch.zeros(1, 1, dtype=torch.float64)},
        {"other": torch.zeros(1)},
        {momentum: torch.zeros(3)},
    ):
        assert not server.takes({**stored, **change})
    assert not server.takes({name: t for name, t in stored.items() if name != "fc.bias"})


def test_the_state_that_was_given_is_left_alone() -> None:
    given = state(*START)
    server = Server(RULES[0], given, TRAINABLE)
    play(server, DELTAS[0])
    torch.testing.assert_close(given, state(*START), rtol=0, atol=0)


def test_the_evaluation_model_is_no_view_of_the_served_one() -> None:
    server = Server(RULES[0], state(*START), TRAINABLE)
    play(server, DELTAS[0])
    average = {name: tensor.clone() for name, tensor in server.evaluation.items()}
    for tensor in server.served.values():
        tensor.fill_(5)
    torch.testing.assert_close(server.evaluation, average, rtol=0, atol=0)


def test_an_unknown_method_is_named() -> None:
    with pytest.raises(UserError, match=r"federated_optimizer: 'FedAvg': must be FedNNNN"):
        Server(ServerRule("FedAvg"), state(*START), TRAINABLE)


@pytest.mark.parametrize(
    ("rule", "missing"),
    [
        (ServerRule("FedNNNN", gamma=0.5), "beta"),
        (ServerRule("FedNNNN", beta=0.5), "gamma"),
        (ServerRule("NormNorm"), "beta"),
        (ServerRule("Momentum"), "gamma"),
    ],
)
def test_a_missing_hyperparameter_is_named(rule: ServerRule, missing: str) -> None:
    server = Server(rule, state(*START), TRAINABLE)
    with pytest.raises(UserError, match=rf"{missing} is missing: set train_args\.{missing}"):
        play(server, DELTAS[0])
    assert values(server.served) == START
