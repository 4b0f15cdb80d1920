"""The clients' learning rate over the rounds."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

#: Returns η_r, the learning rate of round r, from 1.
Rates = Callable[[int], float]
#: Returns by what η is multiplied in round r, from 1.
Factors = Callable[[int], float]
#: Makes a scheduler of torch's of an optimizer.
MakeScheduler = Callable[[Optimizer], LRScheduler]

#: The classes of ``torch.optim.lr_scheduler`` that need numbers alone.
TORCH_SCHEDULES = {
    name: found
    for name, found in vars(torch.optim.lr_scheduler).items()
    if isinstance(found, type) and issubclass(found, LRScheduler) and name.endswith("LR")
    if name not in ("LambdaLR", "MultiplicativeLR", "SequentialLR")
} | {"CosineAnnealingWarmRestarts": torch.optim.lr_scheduler.CosineAnnealingWarmRestarts}


def schedule_factors(name: str, settings: Mapping[str, Any]) -> Factors:
    r"""Return the factors of a schedule by its name, of its own rounds s = 1, 2, …

    - ``constant``: 1, after a warm-up.
    - ``exponential``, ``decay`` d: :math:`d^{s-1}`.
    - ``step``, ``factor`` f: :math:`f^k`, where k is how many times ``every`` rounds have passed,
      or how many of the rounds ``after`` have.
    - ``cosine``, ``rounds`` T, ``floor`` b: :math:`b + (1-b) (1 + \cos(π t/T)) / 2` with t = s - 1,
      and b from round T + 1 on (Loshchilov, Hutter 2017, without restarts).
    """
    if name == "exponential":
        decay = settings["decay"]
        return lambda s: float(decay ** (s - 1))
    if name == "step":
        every, after, factor = settings.get("every"), settings.get("after"), settings["factor"]
        if every is not None:
            return lambda s: float(factor ** ((s - 1) // every))
        return lambda s: float(factor ** sum(each < s for each in after or ()))
    if name == "cosine":
        rounds, floor = settings["rounds"], settings.get("floor", 0.0)

        def cosine(s: int) -> float:
            part = min((s - 1) / rounds, 1.0)
            return float(floor + (1 - floor) * (1 + math.cos(math.pi * part)) / 2)

        return cosine
    return lambda s: 1.0


def warm_up_rates(rate: float, rounds: int) -> list[float]:
    """Return the rates of a warm-up of W rounds: ``η r/(W + 1)`` in round r."""
    return [rate * number / (rounds + 1) for number in range(1, rounds + 1)]


def torch_rates(make: MakeScheduler, rate: float, rounds: int) -> list[float]:
    """Return the rates of a scheduler of torch's, which is stepped once after each round."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=rate)
    scheduler, found = make(optimizer), []
    for _ in range(rounds):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return found
