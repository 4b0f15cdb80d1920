"""Learning rates by round, worked by hand and against torch's schedulers."""

import math
from typing import Any

import pytest
import torch

from fednnnn_plugin.client.rate_schedule import schedule_factors, torch_rates, warm_up_rates


@pytest.mark.parametrize(
    ("name", "settings", "factors"),
    [
        ("constant", {}, [1, 1, 1]),
        ("exponential", {"decay": 0.5}, [1, 0.5, 0.25, 0.125]),
        ("step", {"every": 2, "factor": 0.1}, [1, 1, 0.1, 0.1, 0.01]),
        ("step", {"after": [1, 3], "factor": 0.5}, [1, 0.5, 0.5, 0.25, 0.25]),
        # cos(π/4) is 1/√2; from the fifth round on it is the floor.
        ("cosine", {"rounds": 4}, [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0]),
        ("cosine", {"rounds": 2, "floor": 0.2}, [1, 0.6, 0.2, 0.2]),
    ],
)
def test_factors_by_hand(name: str, settings: dict[str, Any], factors: list[float]) -> None:
    found = schedule_factors(name, settings)
    assert [found(s) for s in range(1, len(factors) + 1)] == pytest.approx(factors)


def test_warm_up_by_hand() -> None:
    assert warm_up_rates(0.4, 3) == pytest.approx([0.1, 0.2, 0.3])


@pytest.mark.parametrize(
    ("ours", "settings", "scheduler", "arguments"),
    [
        ("step", {"after": [2, 5], "factor": 0.1}, "MultiStepLR", {"milestones": [2, 5]}),
        ("cosine", {"rounds": 8}, "CosineAnnealingLR", {"T_max": 8}),
    ],
)
def test_schedules_are_torch_s(
    ours: str, settings: dict[str, Any], scheduler: str, arguments: dict[str, Any]
) -> None:
    cls, factors = getattr(torch.optim.lr_scheduler, scheduler), schedule_factors(ours, settings)
    found = torch_rates(lambda optimizer: cls(optimizer, **arguments), 0.05, 8)
    assert found == pytest.approx([0.05 * factors(s) for s in range(1, 9)])
