"""A model with buffers of all kinds, clients of it, and what a round has to make of them."""

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.testing import assert_close

import fednnnn_plugin as fp

BETA = 0.5
WEIGHTS = ("0.weight", "0.bias", "1.weight", "1.bias")
STATISTICS = ("0.running_mean", "0.running_var")
COUNTS = ("0.num_batches_tracked", "positions")

State = Mapping[str, Tensor]
Client = tuple[int, OrderedDict[str, Tensor]]


def net() -> nn.Module:
    """Batch normalisation's statistics, a count of batches, and a table of positions."""
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    model.register_buffer("positions", torch.arange(3))
    return model


def clients(
    aggregator: fp.FedNNNNAggregator, count: int, seed: int = 1, scale: float = 0.1
) -> list[Client]:
    """Clients near the served model; client k has seen k more batches, of 10 (k + 1) samples."""
    generator = torch.Generator().manual_seed(seed)

    def near(name: str, tensor: Tensor, client: int) -> Tensor:
        if name in COUNTS:
            return tensor + client * (name == COUNTS[0])
        draw = torch.randn if name in WEIGHTS else torch.rand
        return tensor + scale * draw(tensor.shape, generator=generator)

    w_t = aggregator.get_model_params()
    return [
        (10 * (k + 1), OrderedDict((name, near(name, t, k)) for name, t in w_t.items()))
        for k in range(count)
    ]


def send_away(given: list[Client], client: int, distance: float) -> None:
    """Put a client far off, with a count to match."""
    samples, state = given[client]
    moved = ((n, t + distance if t.is_floating_point() else t + 1000) for n, t in state.items())
    given[client] = samples, OrderedDict(moved)


def norm(update: State) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in update.values()))


def assert_average(
    aggregator: fp.FedNNNNAggregator,
    w_t: State,
    models: Sequence[State],
    weights: Sequence[float] | None = None,
) -> None:
    """The evaluation model is the weighted mean of ``models``, the served one moved by βE."""
    weights = weights or [1.0] * len(models)
    shares = [w / sum(weights) for w in weights]
    evaluation, served = aggregator.evaluation_state_dict(), aggregator.get_model_params()
    for name in (*WEIGHTS, *STATISTICS):
        terms = [a * model[name].double() for a, model in zip(shares, models, strict=True)]
        assert_close(evaluation[name].double(), torch.stack(terms).sum(0), rtol=1e-5, atol=1e-6)
    for name in COUNTS:
        assert torch.equal(evaluation[name], torch.stack([m[name] for m in models]).amax(0)), name
    for name in (*STATISTICS, *COUNTS):
        assert torch.equal(served[name], evaluation[name]), name
    norms = [norm({n: model[n] - w_t[n] for n in WEIGHTS}) for model in models]
    expected = BETA * sum(a * x for a, x in zip(shares, norms, strict=True))
    moved = norm({n: served[n] - w_t[n] for n in WEIGHTS})
    assert math.isclose(moved, expected, rel_tol=1e-4)
