"""Learning rate schedules in runs: the record has the rate, and the clients train by it."""

import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

import fednnnn_plugin as fp
from fednnnn_plugin.assembly.rates import learning_rates, schedule_factor

from ..tiny import Content, Start, Tiny, quick_run, read_records, tiny_recipe

KEY = "train_args.learning_rate_schedule"


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
    found = [schedule_factor(s, name, **settings) for s in range(1, len(factors) + 1)]
    assert found == pytest.approx(factors)


@pytest.mark.parametrize(
    ("ours", "torch_s"),
    [
        (
            {"name": "step", "after": [2, 5], "factor": 0.1},
            {"name": "MultiStepLR", "milestones": [2, 5]},
        ),
        ({"name": "cosine", "rounds": 8}, {"name": "CosineAnnealingLR", "T_max": 8}),
    ],
)
def test_schedules_are_torch_s(ours: dict[str, Any], torch_s: dict[str, Any]) -> None:
    recipes = [tiny_recipe(comm_round=8, learning_rate_schedule=each) for each in (ours, torch_s)]
    found, expected = ([*map(learning_rates(each), range(1, 9))] for each in recipes)
    assert found == pytest.approx(expected)


def rates(folder: Path) -> list[float]:
    return [record["client_learning_rate"] for record in read_records(folder)]


def halved(number: int) -> torch.Tensor:
    return torch.tensor(0.5) ** (number - 1)


HALVED = [0.04, 0.02, 0.01]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({"name": "exponential", "decay": 0.5, "warmup_rounds": 1}, [0.02, 0.04, 0.02]),
        ("cosine", [0.04, 0.03, 0.01]),
        (
            {"name": "StepLR", "step_size": 1, "gamma": 0.5, "warmup_rounds": 2},
            [0.04 / 3, 0.08 / 3, 0.04],
        ),
        (halved, HALVED),
        (functools.partial(LambdaLR, lr_lambda=lambda t: 0.5**t), HALVED),
    ],
)
def test_record_has_the_rate(own_code: Path, schedule: Any, expected: list[float]) -> None:
    quick_run("run", comm_round=3, learning_rate=0.04, learning_rate_schedule=schedule)
    assert rates(Path("run")) == pytest.approx(expected)


def test_decay_is_the_short_form_of_the_exponential(tiny: Tiny, content: Content) -> None:
    """With the same bits, on one worker and on two."""
    tiny("short", learning_rate_decay=0.7, worker_num=1)
    tiny("long", learning_rate_schedule={"name": "exponential", "decay": 0.7}, worker_num=2)
    assert content(tiny.folder / "short") == content(tiny.folder / "long")
    assert rates(tiny.folder / "short") == pytest.approx([0.05, 0.05 * 0.7, 0.05 * 0.7**2])
    with pytest.raises(fp.UserError, match=r"^train_args\.learning_rate_decay: 1e-30: round 3: "):
        tiny("least", learning_rate_decay=1e-30)
    tiny("none")
    assert "client_learning_rate" not in tiny.records("none")[0]


def test_cosine_over_other_rounds_is_another_schedule(start: Start) -> None:
    cosine = {"name": "cosine", "floor": 0.1}
    start("cosine", comm_round=2, learning_rate_schedule=cosine)
    with pytest.raises(fp.UserError, match=f'{KEY}: .*"rounds": 4.* has .*"rounds": 2'):
        start("cosine", comm_round=4, resume=True, learning_rate_schedule=cosine)
    start("cosine", comm_round=3, resume=True, learning_rate_schedule={"rounds": 2} | cosine)
    assert rates(Path("cosine"))[2] == pytest.approx(0.1 * rates(Path("cosine"))[0])


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ("cosin", "'cosin': must be one of .*did you mean cosine"),
        ({"decay": 0.9}, "name: missing"),
        ({"name": "exponential"}, "exponential: decay: missing"),
        ({"name": "step", "factor": 0.1}, "every, .*after"),
        ({"name": "step", "factor": 2, "every": 1}, "factor: 2: "),
        ({"name": "cosine", "warmup": 3}, "'warmup' is none of its keys: .*warmup_rounds"),
        ({"name": "StepLR"}, "StepLR: raised TypeError: .*step_size"),
        ({"name": "cosine", "rounds": 1}, "round 2: a learning rate of 0: must be a number of"),
        (lambda number: 1 / (2 - number), "round 2|raised ZeroDivisionError"),
        (lambda number: "a", "round 1: 'a': "),
        (3, "3: "),
    ],
)
def test_schedule_with_a_mistake_is_one_line(own_code: Path, schedule: Any, said: str) -> None:
    with pytest.raises(fp.UserError, match=rf"{KEY}: .*({said})") as refused:
        quick_run("run", learning_rate_schedule=schedule)
    assert "\n" not in str(refused.value)
    with pytest.raises(fp.UserError, match=r"learning_rate_decay: 0\.9: "):
        quick_run("run", learning_rate_schedule="cosine", learning_rate_decay=0.9)
