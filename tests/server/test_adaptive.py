"""FedExP, FedAdam and FedYogi: their equations by hand, then what holds for any updates."""

import copy
import inspect
import io
import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import Parameter

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe.consistency import DEFAULTS
from fednnnn_plugin.server.adaptive import FedAdam, FedExP, FedYogi

MOMENTS = {"FedAdam": FedAdam, "FedYogi": FedYogi}
RULES = {"FedExP": FedExP, **MOMENTS}
both = pytest.mark.parametrize("rule", MOMENTS.values(), ids=MOMENTS)
all_three = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
values = st.floats(-1e3, 1e3)


def step(optimizer, update, mean_client_square: float = 60.0) -> None:
    """Step by an update; FedExP is told its mean square."""
    [group] = optimizer.param_groups
    [w] = group["params"]
    w.grad = -torch.as_tensor(update, dtype=w.dtype, device=w.device)
    if isinstance(optimizer, FedExP):
        optimizer.step(mean_client_square=mean_client_square)
    else:
        optimizer.step()


def test_fedexp_by_hand() -> None:
    """Two clients, two rounds, ε = 4.

    Round 1: Δ = (10, 0), (-2, 4): S = (4, 2), N² = 20, mean square (100 + 20) / 2 = 60,
    η_g = 60 / (2 · 24) = 5/4. Round 2: Δ = (3, 4) twice: N² = 25 = mean square, and
    25 / (2 · 29) < 1, so η_g = 1.
    """
    w = Parameter(torch.tensor([1.0, 2.0]))
    optimizer = FedExP([w], epsilon=4.0)
    step(optimizer, [4.0, 2.0], 60.0)
    assert w.tolist() == [1 + 5, 2 + 2.5]
    step(optimizer, [3.0, 4.0], 25.0)
    assert w.tolist() == [6 + 3, 4.5 + 4]
    assert not optimizer.state


def test_fedadam_by_hand() -> None:
    """β₁ = β₂ = 1/2, τ = 2, so v_{-1} = 4, and η = 12.

    Round 1, S = (14, 2): m = (7, 1), v = 2 + (98, 2) = (100, 4), moves 12 (7/12, 1/4) = (7, 3).
    Round 2, S = (10, -2): m = (8.5, -0.5), v = (50 + 50, 2 + 2), moves (8.5, -1.5).
    """
    w = Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64))
    optimizer = FedAdam([w], lr=12.0, beta1=0.5, beta2=0.5, tau=2.0)
    step(optimizer, [14.0, 2.0])
    assert w.tolist() == pytest.approx([8.0, 5.0], rel=1e-15)
    step(optimizer, [10.0, -2.0])
    assert w.tolist() == pytest.approx([16.5, 3.5], rel=1e-15)
    assert optimizer.state[w]["momentum_buffer"].tolist() == [8.5, -0.5]
    assert optimizer.state[w]["second_moment"].tolist() == [100.0, 4.0]


def test_fedyogi_by_hand() -> None:
    """β₁ = 1/2, β₂ = 1/16, τ = 2, so v_{-1} = 4, and η = 15.

    Round 1, S = (8, 1): 64 > 4, so v = 4 + 15/16 · 64 = 64; 1 < 4, so v = 4 - 15/16 = 1.75²;
    m = (4, 1/2), moves 15 (4/10, 0.5/3.75) = (6, 2). Round 2, S = 0: v stays, m halves.
    """
    w = Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64))
    optimizer = FedYogi([w], lr=15.0, beta1=0.5, beta2=1 / 16, tau=2.0)
    step(optimizer, [8.0, 1.0])
    assert optimizer.state[w]["second_moment"].tolist() == [64.0, 1.75**2]
    assert w.tolist() == pytest.approx([7.0, 4.0], rel=1e-15)
    step(optimizer, [0.0, 0.0])
    assert w.tolist() == pytest.approx([10.0, 5.0], rel=1e-15)
    assert optimizer.state[w]["second_moment"].tolist() == [64.0, 1.75**2]


@both
@given(updates=st.lists(values, min_size=1, max_size=6), beta1=st.sampled_from([0.0, 0.9]))
def test_the_moments_are_the_sources(rule, updates: list[float], beta1: float) -> None:
    """Against the equations in plain numbers; v stays positive, whatever comes."""
    w = Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = rule([w], lr=0.1, beta1=beta1)
    m, v, expected = 0.0, 1e-6, 0.0
    for update in updates:
        step(optimizer, [update])
        m = beta1 * m + (1 - beta1) * update
        if rule is FedAdam:
            v = 0.99 * v + 0.01 * update**2
        elif v > update**2:
            v -= 0.01 * update**2
        elif v < update**2:
            v += 0.01 * update**2
        expected += 0.1 * m / (math.sqrt(v) + 1e-3)
        assert optimizer.state[w]["second_moment"].item() == pytest.approx(v, rel=1e-9)
        assert optimizer.state[w]["second_moment"].item() > 0
    assert w.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(
    updates=st.lists(st.tuples(values, values), min_size=1, max_size=6),
    epsilon=st.floats(1e-6, 1e3),
)
def test_fedexp_never_steps_shorter_than_fedavg(updates, epsilon: float) -> None:
    """Along S, by η_g ≥ 1; clients that agree give η_g = 1, and S = 0 moves nothing."""
    clients = torch.tensor(updates, dtype=torch.float64)
    mean, square = clients.mean(0), clients.square().sum(1).mean().item()
    w = Parameter(torch.zeros(2, dtype=torch.float64))
    step(FedExP([w], epsilon=epsilon), mean, square)
    extrapolation = max(1.0, square / (2 * (mean.square().sum().item() + epsilon)))
    torch.testing.assert_close(w.data, mean * extrapolation, rtol=1e-9, atol=1e-12)
    if len(set(updates)) == 1:
        assert extrapolation == 1.0


def test_fedexp_takes_n_over_the_whole_model() -> None:
    pieces = [Parameter(torch.zeros(1)), Parameter(torch.zeros(1))]
    optimizer = FedExP([{"params": pieces[:1]}, {"params": pieces[1:]}], epsilon=4.0)
    for piece, update in zip(pieces, (4.0, 2.0), strict=True):
        piece.grad = torch.tensor([-update])
    optimizer.step(mean_client_square=60.0)
    assert [piece.item() for piece in pieces] == [5.0, 2.5]


@all_three
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
def test_dtype_and_gradient_stay(rule, dtype: torch.dtype) -> None:
    w = Parameter(torch.tensor([1.0, 2.0], dtype=dtype))
    still = Parameter(torch.ones(1))
    optimizer = rule([{"params": [w, still]}], lr=0.5)
    w.grad = torch.tensor([-4.0, -2.0], dtype=dtype)
    if rule is FedExP:
        optimizer.step(mean_client_square=60.0)
    else:
        optimizer.step()
    assert w.dtype == dtype
    assert (w > torch.tensor([1.0, 2.0])).all()
    assert w.grad.tolist() == [-4.0, -2.0]
    assert still.item() == 1.0
    assert still not in optimizer.state
    assert all(tensor.dtype == dtype for tensor in optimizer.state[w].values())


@all_three
def test_state_survives_saving_and_copying(rule) -> None:
    w = Parameter(torch.zeros(3))
    optimizer = rule([w], lr=0.5)
    step(optimizer, [1.0, -2.0, 3.0])
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other = Parameter(w.detach().clone())
    restored = rule([other], lr=0.1)
    restored.load_state_dict(torch.load(file, weights_only=True))
    twin, twins = copy.deepcopy((w, optimizer))
    for each in (optimizer, restored, twins):
        step(each, [0.5, 0.25, -1.0])
    assert w.tolist() == other.tolist() == twin.tolist()


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@all_three
@pytest.mark.usefixtures("threads")
def test_the_bits_do_not_depend_on_the_number_of_threads(rule) -> None:
    generator = torch.Generator().manual_seed(0)
    updates = torch.randn(2, 100_003, generator=generator)
    results = []
    for count in (1, 3):
        torch.set_num_threads(count)
        w = Parameter(torch.zeros(100_003))
        optimizer = rule([w], lr=0.3)
        for update in updates:
            step(optimizer, update, 1e6)
        results.append(w.detach())
    assert torch.equal(*results)


@all_three
def test_the_closure_gives_the_gradient_and_the_loss(rule) -> None:
    w = Parameter(torch.tensor([3.0, 4.0]))
    optimizer = rule([w], lr=0.5)

    def closure() -> float:
        optimizer.zero_grad()
        loss = 0.5 * w.square().sum()
        loss.backward()
        return loss.item()

    more = {"mean_client_square": 25.0} if rule is FedExP else {}
    assert optimizer.step(closure, **more) == 12.5
    assert w.norm() < 5


@both
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, bad) for name in ("lr", "tau") for bad in (0.0, -1.0, math.inf, math.nan, "1")),
        *((name, bad) for name in ("beta1", "beta2") for bad in (-0.1, 1.0, math.nan, None)),
    ],
)
def test_moments_out_of_range_are_named(rule, name: str, value: object) -> None:
    with pytest.raises(UserError, match=rf"^{name}: .*must be "):
        rule([Parameter(torch.zeros(1))], **{"lr": 1.0, name: value})


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan, "1e-3"])
def test_an_epsilon_out_of_range_is_named(epsilon: object) -> None:
    with pytest.raises(UserError, match=r"^epsilon: .*must be finite and greater than 0"):
        FedExP([Parameter(torch.zeros(1))], epsilon=epsilon)


@pytest.mark.parametrize("square", [None, -1.0, math.inf, math.nan])
def test_a_mean_square_that_is_none_moves_nothing(square: float | None) -> None:
    w = Parameter(torch.zeros(1))
    with pytest.raises(UserError, match=r"^FedExP\.step: mean_client_square"):
        step(FedExP([w]), [1.0], square)
    assert w.item() == 0


@all_three
def test_fedml_lists_the_rule_and_its_arguments(rule) -> None:
    """As OptRepo does: direct subclasses, and the locals of ``__init__`` less three."""
    assert rule in torch.optim.Optimizer.__subclasses__()
    names = set(rule.__init__.__code__.co_varnames) - {"defaults", "self", "params"}
    assert names == set(inspect.signature(rule).parameters) - {"params"}


@all_three
def test_recipes_have_the_same_defaults(rule) -> None:
    prefix = "fedexp_" if rule is FedExP else "server_"
    parameters = inspect.signature(rule).parameters.values()
    assert {
        f"{prefix}{p.name}": p.default for p in parameters if p.name not in ("params", "lr")
    } == {key: value for key, value in DEFAULTS.items() if key.startswith(prefix)}
