"""What clients that are broken or hostile can do to the paper's rule, and what stops them."""

import math
from itertools import pairwise

import pytest
import torch

import fednnnn_plugin as fp
from fednnnn_plugin.server.rules import RULES

#: Beside FedAvg the paper's FedNNNN of CIFAR-10, IID-B.
SETTINGS = {"PaperFedAvg": {}, "FedNNNN": {"beta": 0.7, "gamma": 0.8}}
#: Four clients that pull in opposite directions, as those of two classes do; a fifth.
HONEST = [(1.0, 0.0), (-1.0, 0.0), (1.0, 0.0), (-1.0, 0.0)]
FIFTH = (0.0, 1.0)


def path(rule: str, *rounds: list, clip: float | None = None) -> list[list[float]]:
    """Return where the served model is, from the origin on, in rounds of these updates."""
    w = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer, seen = RULES[rule].optimizer([w], **SETTINGS[rule]), [w.tolist()]
    for updates in rounds:
        acc = fp.UpdateAccumulator({"w": w}, ["w"], clip)
        for update in updates:
            acc.add({"w": w + torch.tensor(update, dtype=torch.float64)}, 1.0)
        w.grad = -(total := acc.finish()).vector
        RULES[rule].step(optimizer, total)
        seen.append(w.tolist())
    return seen


def test_huge_update_is_repeated_by_momentum() -> None:
    """S = (0, H/5), N = H/5, E = (4 + H)/5: FedAvg moves by N, FedNNNN by β E.

    The rounds after it move by γ of it, γ² of it, …: by β/(1 - γ) = 3.5 times E in all.
    """
    attack, calm = [*HONEST, (0.0, 1e6)], [*HONEST, FIFTH]
    assert path("PaperFedAvg", attack)[-1] == pytest.approx([0.0, 2e5])
    attacked, honest = (path("FedNNNN", first, *[calm] * 60) for first in (attack, calm))
    assert attacked[1] == pytest.approx([0.0, 0.7 * (4 + 1e6) / 5])
    assert attacked[-1][1] - honest[-1][1] == pytest.approx(3.5 * (1e6 - 1) / 5, rel=1e-5)


@pytest.mark.parametrize(
    ("updates", "clip", "by_fedavg", "by_fednnnn"),
    [
        # A pair ± H: FedAvg does not see it, S = (0, 1/7), but E = (4 + 1 + 2H)/7.
        ([*HONEST, FIFTH, (1e4, 0.0), (-1e4, 0.0)], None, 1 / 7, 0.7 * (5 + 2e4) / 7),
        ([*HONEST, FIFTH, (1e4, 0.0), (-1e4, 0.0)], 1.0, 1 / 7, 0.7),
        # N is below 10⁻⁶ E: near 0, and the model stays.
        ([*HONEST, FIFTH, (1e6, 0.0), (-1e6, 0.0)], None, 1 / 7, 0.0),
        # S = (0, ε/5) is all that is left, and is given the length β E: no limit helps.
        ([*HONEST, (0.0, 1e-3)], None, 2e-4, 0.7 * 4.001 / 5),
        ([*HONEST, (0.0, 1e-3)], 1.0, 2e-4, 0.7 * 4.001 / 5),
    ],
)
def test_cancelling_updates_choose_length_and_direction(
    updates: list, clip: float | None, by_fedavg: float, by_fednnnn: float
) -> None:
    assert path("PaperFedAvg", updates, clip=clip)[-1] == pytest.approx([0.0, by_fedavg])
    assert path("FedNNNN", updates, clip=clip)[-1] == pytest.approx([0.0, by_fednnnn])


@pytest.mark.parametrize("clip", [1e-3, 1e3])
def test_clipping_bounds_the_step(clip: float) -> None:
    """N ≤ E ≤ c, so a round moves FedNNNN by β c and what momentum repeats, FedAvg by c."""
    rounds = [[(1e150, -1e150), (1e100, 2.0)], [(1e150, 1e150)] * 3, [(0.0, 0.0), (-2.0, 1e-9)]]
    for rule, bound in (("PaperFedAvg", clip), ("FedNNNN", 0.7 * clip / (1 - 0.8))):
        for before, after in pairwise(path(rule, *rounds, clip=clip)):
            assert math.dist(before, after) <= bound * (1 + 1e-6) + 1e-9
