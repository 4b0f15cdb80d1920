"""The server rules: the paper's equations by hand, then one battery over all of them."""

import copy
import inspect
import io
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from fednnnn_plugin.server.optimizers import FedNNNN, Momentum, NormNorm, ServerOptimizer

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@dataclass(frozen=True)
class Rule:
    """One row of the battery: how a rule is made, and how the tests expect it to move."""

    optimizer: type[ServerOptimizer]
    arguments: dict[str, float]
    normalises: bool
    remembers: bool

    def make(self, params, **more) -> ServerOptimizer:
        return self.optimizer(params, **{**self.arguments, **more})

    def step(self, optimizer: ServerOptimizer, mean_client_norm: float) -> None:
        if self.normalises:
            optimizer.step(mean_client_norm=mean_client_norm)
        else:
            optimizer.step()


FEDNNNN = Rule(FedNNNN, {"beta": 0.5, "gamma": 0.5}, normalises=True, remembers=True)
NORMNORM = Rule(NormNorm, {"beta": 0.5}, normalises=True, remembers=False)
MOMENTUM = Rule(Momentum, {"gamma": 0.5}, normalises=False, remembers=True)
RULES = [FEDNNNN, NORMNORM, MOMENTUM]
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.optimizer.__name__)
normalising = pytest.mark.parametrize(
    "rule", [FEDNNNN, NORMNORM], ids=lambda rule: rule.optimizer.__name__
)


# Two clients in two dimensions, from w_0 = (1, 2), with β = γ = 1/2.
# Round 1: Δ = (0, 25), (24, 7): S = (12, 16), N = 20, E = (25 + 25) / 2 = 25, β E/N = 5/8.
# Round 2: Δ = (9, 12), (-3, -4): S = (3, 4), N = 5, E = (15 + 5) / 2 = 10, β E/N = 1.
ROUNDS = [((12.0, 16.0), 25.0), ((3.0, 4.0), 10.0)]
BY_HAND = [
    # d_1 = 5/8 S = (7.5, 10); d_2 = d_1 / 2 + S = (6.75, 9)
    (FEDNNNN, [(8.5, 12.0), (15.25, 21.0)]),
    (NORMNORM, [(8.5, 12.0), (11.5, 16.0)]),
    # d_1 = S = (12, 16); d_2 = d_1 / 2 + S = (9, 12)
    (MOMENTUM, [(13.0, 18.0), (22.0, 30.0)]),
]


@pytest.mark.parametrize(
    ("rule", "expected"), BY_HAND, ids=[row[0].optimizer.__name__ for row in BY_HAND]
)
def test_two_rounds_worked_by_hand(rule: Rule, expected: list[tuple[float, float]]) -> None:
    w = Parameter(torch.tensor([1.0, 2.0]))
    optimizer = rule.make([w])
    for (mean_update, mean_client_norm), served in zip(ROUNDS, expected, strict=True):
        w.grad = -torch.tensor(mean_update)
        rule.step(optimizer, mean_client_norm)
        assert w.tolist() == list(served)
        assert optimizer.degenerate is False


def test_the_learning_rate_scales_the_move_and_not_the_momentum() -> None:
    w = Parameter(torch.zeros(2))
    optimizer = FEDNNNN.make([w], lr=2.0)
    moves = []
    for mean_update, mean_client_norm in ROUNDS:
        before = w.detach().clone()
        w.grad = -torch.tensor(mean_update)
        optimizer.step(mean_client_norm=mean_client_norm)
        moves.append((w.detach() - before).tolist())
    assert moves == [[15.0, 20.0], [13.5, 18.0]]


def test_momentum_without_memory_is_the_average_of_fedavg() -> None:
    w = Parameter(torch.tensor([1.0, 2.0]))
    optimizer = Momentum([w], gamma=0.0)
    for mean_update, _ in ROUNDS:
        w.grad = -torch.tensor(mean_update)
        optimizer.step()
    assert w.tolist() == [1.0 + 12.0 + 3.0, 2.0 + 16.0 + 4.0]


def test_fednnnn_without_memory_is_normnorm() -> None:
    first, second = Parameter(torch.zeros(2)), Parameter(torch.zeros(2))
    fednnnn, normnorm = FedNNNN([first], beta=0.7, gamma=0.0), NormNorm([second], beta=0.7)
    for mean_update, mean_client_norm in ROUNDS:
        first.grad = second.grad = -torch.tensor(mean_update)
        fednnnn.step(mean_client_norm=mean_client_norm)
        normnorm.step(mean_client_norm=mean_client_norm)
    assert torch.equal(first, second)


@every_rule
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtype_and_device_stay(rule: Rule, dtype: torch.dtype, device: str) -> None:
    w = Parameter(torch.tensor([1.0, 2.0], dtype=dtype, device=device))
    optimizer = rule.make([w])
    for mean_update, mean_client_norm in ROUNDS:
        w.grad = -torch.tensor(mean_update, dtype=dtype, device=device)
        rule.step(optimizer, mean_client_norm)
    assert (w.dtype, w.device.type) == (dtype, device)
    # Every value of the example is a small multiple of 1/4: exact in each of the four dtypes.
    assert w.tolist() == list({r.optimizer: moves for r, moves in BY_HAND}[rule.optimizer][1])
    if rule.remembers:
        assert optimizer.state[w]["momentum_buffer"].dtype == dtype
        assert optimizer.state[w]["momentum_buffer"].device.type == device


@every_rule
def test_a_model_in_pieces_moves_as_one_vector(rule: Rule) -> None:
    generator = torch.Generator().manual_seed(1)
    updates = [torch.randn(30, generator=generator, dtype=torch.float64) for _ in range(3)]
    whole = Parameter(torch.zeros(30, dtype=torch.float64))
    pieces = [Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in [(4, 5), (7,), (3,)]]
    one = rule.make([whole])
    several = rule.make([{"params": pieces[:2]}, {"params": pieces[2:]}])
    for update in updates:
        whole.grad = -update
        for piece, part in zip(pieces, update.split([20, 7, 3]), strict=True):
            piece.grad = -part.view_as(piece)
        rule.step(one, 4.0)
        rule.step(several, 4.0)
    together = torch.cat([piece.detach().flatten() for piece in pieces])
    torch.testing.assert_close(together, whole.detach(), rtol=0, atol=1e-14)


def test_each_group_has_its_own_beta_and_gamma() -> None:
    first, second = Parameter(torch.zeros(1)), Parameter(torch.zeros(1))
    optimizer = FedNNNN(
        [{"params": [first], "beta": 1.0, "gamma": 0.0}, {"params": [second], "lr": 3.0}],
        beta=0.5,
        gamma=0.5,
    )
    for _ in range(2):
        first.grad, second.grad = torch.tensor([-3.0]), torch.tensor([-4.0])
        optimizer.step(mean_client_norm=10.0)  # E/N = 2
    assert first.item() == 6.0 + 6.0
    assert second.item() == 3.0 * 4.0 + 3.0 * (2.0 + 4.0)


@every_rule
def test_a_parameter_without_gradient_stays(rule: Rule) -> None:
    moved, frozen = Parameter(torch.zeros(2)), Parameter(torch.ones(2))
    optimizer = rule.make([frozen, moved])
    moved.grad = -torch.tensor([3.0, 4.0])
    rule.step(optimizer, 10.0)
    assert frozen.tolist() == [1.0, 1.0]
    assert moved.norm() > 0


@every_rule
def test_the_gradient_is_read_only(rule: Rule) -> None:
    w = Parameter(torch.zeros(2))
    optimizer = rule.make([w])
    for mean_update, mean_client_norm in ROUNDS:
        w.grad = -torch.tensor(mean_update)
        rule.step(optimizer, mean_client_norm)
        assert w.grad.tolist() == [-mean_update[0], -mean_update[1]]


@every_rule
def test_state_survives_saving(rule: Rule) -> None:
    def run(rounds: list[tuple[tuple[float, float], float]], w: Parameter, optimizer) -> None:
        for mean_update, mean_client_norm in rounds:
            w.grad = -torch.tensor(mean_update)
            rule.step(optimizer, mean_client_norm)

    straight = Parameter(torch.tensor([1.0, 2.0]))
    optimizer = rule.make([straight])
    run(ROUNDS[:1], straight, optimizer)
    resumed = Parameter(straight.detach().clone())
    stored = io.BytesIO()
    torch.save(optimizer.state_dict(), stored)
    stored.seek(0)
    # FedOpt makes a new optimizer every round, with the learning rate alone.
    another = rule.optimizer([resumed], lr=1.0)
    another.load_state_dict(torch.load(stored, weights_only=True))
    run(ROUNDS[1:], straight, optimizer)
    run(ROUNDS[1:], resumed, another)
    assert torch.equal(straight, resumed)


@every_rule
def test_a_copy_goes_on_like_the_original(rule: Rule) -> None:
    w = Parameter(torch.tensor([1.0, 2.0]))
    optimizer = rule.make([w])
    w.grad = -torch.tensor(ROUNDS[0][0])
    rule.step(optimizer, ROUNDS[0][1])
    twin = copy.deepcopy(optimizer)
    (twin_w,) = twin.param_groups[0]["params"]
    assert twin.degenerate is False
    w.grad = twin_w.grad = -torch.tensor(ROUNDS[1][0])
    rule.step(optimizer, ROUNDS[1][1])
    rule.step(twin, ROUNDS[1][1])
    assert torch.equal(w, twin_w)


@normalising
@pytest.mark.parametrize("lr", [0.25, 1.0])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_the_first_move_has_norm_beta_e(rule: Rule, lr: float, scale: float) -> None:
    """Eq. 9, whatever the direction, the size and the number of parameters."""
    generator = torch.Generator().manual_seed(7)
    parameters = [Parameter(torch.zeros(shape)) for shape in [(40, 30), (30,), ()]]
    optimizer = rule.make(parameters, lr=lr, beta=0.7)
    for parameter in parameters:
        parameter.grad = scale * torch.randn(parameter.shape, generator=generator)
    mean_client_norm = 100.0 * scale
    optimizer.step(mean_client_norm=mean_client_norm)
    move = math.sqrt(sum(p.detach().double().square().sum().item() for p in parameters))
    assert move == pytest.approx(lr * 0.7 * mean_client_norm, rel=1e-6)


@normalising
@pytest.mark.parametrize(
    ("mean_update", "mean_client_norm"),
    [((1.0, 0.0), 1e6), ((0.0, 0.0), 5.0), ((0.0, 0.0), 0.0), ((1e-9, 0.0), 0.0)],
    ids=["N = 1e-6 E", "N = 0", "N = E = 0", "E = 0"],
)
def test_near_zero_nothing_moves_and_the_momentum_is_kept(
    rule: Rule, mean_update: tuple[float, float], mean_client_norm: float
) -> None:
    w, straight = Parameter(torch.zeros(2)), Parameter(torch.zeros(2))
    interrupted, uninterrupted = rule.make([w]), rule.make([straight])
    for gradient in ((3.0, 4.0), (4.0, 3.0)):
        w.grad = straight.grad = -torch.tensor(gradient)
        interrupted.step(mean_client_norm=10.0)
        assert interrupted.degenerate is False
        uninterrupted.step(mean_client_norm=10.0)
        before = w.detach().clone()
        w.grad = -torch.tensor(mean_update)
        interrupted.step(mean_client_norm=mean_client_norm)
        assert interrupted.degenerate is True
        assert torch.equal(w, before)
    assert torch.equal(w, straight)


@normalising
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_ratio_beyond_half_precision(rule: Rule, dtype: torch.dtype) -> None:
    """E/N = 2^18 does not fit into float16; the move, of norm βE, does."""
    w = Parameter(torch.zeros(2, dtype=dtype))
    optimizer = rule.make([w])
    w.grad = torch.tensor([-(2.0**-14), 0.0], dtype=dtype)
    optimizer.step(mean_client_norm=16.0)
    assert w.tolist() == [8.0, 0.0]


@normalising
def test_just_above_near_zero_the_update_is_normalised(rule: Rule) -> None:
    w = Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = rule.make([w])
    w.grad = torch.tensor([-1.001e-6, 0.0], dtype=torch.float64)
    optimizer.step(mean_client_norm=1.0)
    assert optimizer.degenerate is False
    assert w[0].item() == pytest.approx(0.5, rel=1e-12)


def test_momentum_goes_on_through_a_zero_update() -> None:
    """The near-zero rule concerns the rules that divide by N."""
    w = Parameter(torch.zeros(2))
    optimizer = MOMENTUM.make([w])
    w.grad = -torch.tensor([8.0, 4.0])
    optimizer.step()
    w.grad = torch.zeros(2)
    optimizer.step()
    assert optimizer.degenerate is False
    assert w.tolist() == [12.0, 6.0]


@every_rule
def test_the_closure_gives_the_gradient_and_the_loss(rule: Rule) -> None:
    w = Parameter(torch.tensor([3.0, 4.0]))
    optimizer = rule.make([w])
    calls = []

    def closure() -> float:
        optimizer.zero_grad()
        loss = 0.5 * w.square().sum()
        loss.backward()
        calls.append(loss.item())
        return loss.item()

    with torch.no_grad():
        loss = (
            optimizer.step(closure, mean_client_norm=5.0)
            if rule.normalises
            else optimizer.step(closure)
        )
    assert loss == 12.5
    assert calls == [12.5]
    # The gradient is w: N = E, so the rules with β = 1/2 go half of the way.
    assert w.tolist() == ([1.5, 2.0] if rule.normalises else [0.0, 0.0])


@every_rule
def test_federated_gradient_steps_minimise_a_quadratic(rule: Rule) -> None:
    """Three clients that share a minimum and disagree on the way to it (so that N < E)."""
    target = torch.tensor([1.0, -2.0, 3.0])
    curvatures = torch.tensor([[1.0, 0.1, 0.3], [0.3, 1.0, 0.1], [0.1, 0.3, 1.0]])
    w = Parameter(torch.zeros(3))
    optimizer = rule.make([w])

    def local_update(curvature: Tensor) -> Tensor:
        local = w.detach().clone()
        for _ in range(5):
            local -= 0.1 * curvature * (local - target)
        return local - w.detach()

    start = (w.detach() - target).norm()
    for _ in range(150):
        updates = torch.stack([local_update(curvature) for curvature in curvatures])
        mean_client_norm = updates.norm(dim=1).mean().item()
        w.grad = -updates.mean(dim=0)
        assert not rule.normalises or w.grad.norm() < mean_client_norm
        rule.step(optimizer, mean_client_norm)
        if (w.detach() - target).norm() < 1e-4 * start:
            return
    pytest.fail(f"still at {w.tolist()}")


@every_rule
def test_fedml_lists_the_rule_and_its_arguments(rule: Rule) -> None:
    """As OptRepo does: direct subclasses, and the locals of ``__init__`` less three."""
    assert rule.optimizer in torch.optim.Optimizer.__subclasses__()
    names = list(rule.optimizer.__init__.__code__.co_varnames)
    for name in ("defaults", "self", "params"):
        names.remove(name)
    assert names == list(inspect.signature(rule.optimizer).parameters)[1:]
    expected = {
        FedNNNN: ["lr", "beta", "gamma", "momentum"],
        NormNorm: ["lr", "beta"],
        Momentum: ["lr", "gamma", "momentum"],
    }
    assert names == expected[rule.optimizer]
