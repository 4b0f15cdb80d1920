"""The learning rate of each round, as a recipe says it, or by a user's function or scheduler."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from fednnnn_plugin.client.local_sgd import Rates
from fednnnn_plugin.errors import UserError, printable, shown
from fednnnn_plugin.recipe import Recipe
from fednnnn_plugin.recipe.mappings import TORCH_SCHEDULES
from fednnnn_plugin.seeds import isolated_generators
from fednnnn_plugin.user_code import user_code

SCHEDULE = "train_args.learning_rate_schedule"
_LEAST, _MOST = 2.0**-126, 3.4e38  # as a recipe's learning_rate


def learning_rates(recipe: Recipe, own: Callable[..., Any] | None = None) -> Rates | None:
    """Return the clients' learning rates, None where all rounds have the recipe's.

    ``own`` is what the recipe's ``module:name`` is: a function of the round, which returns the
    factor of ``learning_rate``, or a scheduler of torch's, or a ``functools.partial`` of one.

    Raises:
        UserError: it raised, or a rate is not a finite number greater than 0.
    """
    train = recipe.train_args
    rate, given = train.learning_rate, train.learning_rate_schedule
    if given is None:
        decay = train.learning_rate_decay or 1.0
        if decay == 1:
            return None
        last = train.comm_round
        where = f"train_args.learning_rate_decay: {decay:g}"
        _check_rate(rate * decay ** (last - 1), last, where)
        # Of any round: a silo's client may not know how many there are.
        return lambda number: rate * decay ** (number - 1)
    settings: dict[str, Any] = {"name": given} if isinstance(given, str) else dict(given)
    name, warmup = settings.pop("name"), settings.pop("warmup_rounds", 0)
    warm = [rate * r / (warmup + 1) for r in range(1, min(warmup, train.comm_round) + 1)]
    left, where = train.comm_round - len(warm), f"{SCHEDULE}: {printable(name)}"
    make = own or TORCH_SCHEDULES.get(name)
    with user_code(where), isolated_generators(recipe.common_args.random_seed, "schedule"):
        if make is not None and _is_scheduler(make):
            found = _torch_rates(partial(make, **settings), rate, left)
        else:
            factors = own if own is not None else lambda s: schedule_factor(s, name, **settings)
            found = [
                rate * _number(factors(number), f"{where}: round {number}")
                for number in range(1, left + 1)
            ]
    rates = (*warm, *found)
    for number, each in enumerate(rates, start=1):
        _check_rate(each, number, where)
    return lambda number: rates[number - 1]


def schedule_factor(
    s: int,
    name: str,
    decay: float = 1.0,
    factor: float = 1.0,
    every: int | None = None,
    after: Sequence[int] = (),
    rounds: int = 1,
    floor: float = 0.0,
) -> float:
    r"""Return by what a schedule of this name multiplies η in its own round s = 1, 2, …

    - ``constant``: 1, after a warm-up, which has :math:`η r/(W + 1)` in round r of W.
    - ``exponential``, ``decay`` d: :math:`d^{s-1}`.
    - ``step``, ``factor`` f: :math:`f^k`, where k is how many times ``every`` rounds have passed,
      or how many of the rounds ``after`` have.
    - ``cosine``, ``rounds`` T, ``floor`` b: :math:`b + (1-b) (1 + \cos(π t/T)) / 2` with t = s - 1,
      and b from round T + 1 on (Loshchilov, Hutter 2017, without restarts).
    """
    if name == "exponential":
        return float(decay ** (s - 1))
    if name == "step":
        passed = (s - 1) // every if every else sum(each < s for each in after)
        return float(factor**passed)
    if name == "cosine":
        part = min((s - 1) / rounds, 1.0)
        return float(floor + (1 - floor) * (1 + math.cos(math.pi * part)) / 2)
    return 1.0


def _torch_rates(make: Callable[..., LRScheduler], rate: float, rounds: int) -> list[float]:
    """Return the rates of a scheduler of torch's, which is stepped once after each round."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=rate)
    scheduler, found = make(optimizer), []
    for _ in range(rounds):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return found


def _check_rate(rate: float, number: int, where: str) -> None:
    if not _LEAST <= rate <= _MOST:
        raise UserError(
            where,
            f"round {number}: a learning rate of {rate:g}",
            "must be a number of 1.2e-38 to 3.4e38",
        )


def _is_scheduler(found: object) -> bool:
    made = found.func if isinstance(found, partial) else found
    return isinstance(made, type) and issubclass(made, LRScheduler)


def _number(value: Any, where: str) -> float:
    """Return a factor as a number."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(where, shown(value), "must be a number, the factor of learning_rate")
    return float(value)
