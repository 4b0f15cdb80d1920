"""The keys of a recipe whose value is a mapping, with keys of its own."""

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch.optim import lr_scheduler

from fednnnn_plugin.errors import did_you_mean, one_of, shown
from fednnnn_plugin.server.rules import Key, decay, non_negative

MOST = 2**31 - 1


class Part(NamedTuple):
    """A key of a mapping: which values it takes, and in which words."""

    check: Callable[[Any], bool]
    allowed: str


def whole(least: int) -> Part:
    """Return a part for whole numbers from the least one on."""

    def check(value: Any) -> bool:
        return type(value) is int and least <= value <= MOST

    return Part(check, f"a whole number of {least} to {MOST}")


def _are_rounds(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(whole(1).check, value))


ANY = Part(lambda value: True, "")
_ROUNDS = Part(_are_rounds, "a list of rounds")
FINITE = Part(
    lambda value: type(value) in (int, float) and abs(value) <= sys.float_info.max,
    "a finite number",
)
_UP_TO_1 = Part(
    lambda value: FINITE.check(value) and 0 < value <= 1, "a number greater than 0 and at most 1"
)
TEXT = Part(lambda value: isinstance(value, str) and bool(value), "text")


def check_parts(given: Mapping[str, object], parts: Mapping[str, Part | Key]) -> None:
    """Refuse a key that a mapping does not have, or a value out of its range."""
    for key, value in given.items():
        if key not in parts:
            hint = did_you_mean(key, parts)
            raise ValueError(f"{shown(key)} is none of its keys: {', '.join(parts)}{hint}")
        if not parts[key].check(value):
            raise ValueError(f"{key}: {shown(value)}: must be {parts[key].allowed}")


#: The schedules of the learning rate by their names, with what they take beside warmup_rounds.
SCHEDULES: dict[str, dict[str, Part | Key]] = {
    "constant": {},
    "exponential": {"decay": _UP_TO_1},
    "step": {"factor": _UP_TO_1, "every": whole(1), "after": _ROUNDS},
    "cosine": {"rounds": whole(1), "floor": decay()},
}
#: The classes of ``torch.optim.lr_scheduler`` that need numbers alone.
TORCH_SCHEDULES = {
    name: found
    for name, found in vars(lr_scheduler).items()
    if isinstance(found, type) and issubclass(found, lr_scheduler.LRScheduler)
    if name.endswith("LR") and name not in ("LambdaLR", "MultiplicativeLR", "SequentialLR")
} | {"CosineAnnealingWarmRestarts": lr_scheduler.CosineAnnealingWarmRestarts}
_OPTIONAL = {"every", "after", "rounds", "floor"}


def check_schedule(given: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Check a schedule of the learning rate in a run of so many rounds; fill in the cosine's.

    The arguments of a class of ``torch.optim.lr_scheduler`` are left to it.
    """
    name = given.get("name")
    known = (*SCHEDULES, *TORCH_SCHEDULES)
    if not isinstance(name, str) or name not in known:
        what = "missing" if name is None else shown(name)
        raise ValueError(f"name: {what}: {one_of(known, name, 'MODULE:NAME')}")
    warmup, parts = given.get("warmup_rounds", 0), SCHEDULES.get(name, {})
    own = parts if name in SCHEDULES else dict.fromkeys(given, ANY)
    check_parts(given, own | {"name": TEXT, "warmup_rounds": whole(0)})
    for key in parts.keys() - _OPTIONAL - given.keys():
        raise ValueError(f"{name}: {key}: missing; must be {parts[key].allowed}")
    if name == "step" and ("every" in given) == ("after" in given):
        raise ValueError("step: must have one of every, a number of rounds, and after, a list")
    return {"rounds": max(rounds - warmup, 1)} | given if name == "cosine" else given


_STOP: dict[str, Part | Key] = {
    "metric": TEXT,
    "target": FINITE,
    "patience": whole(1),
    "min_delta": non_negative(),
}


def check_stop(given: dict[str, Any]) -> dict[str, Any]:
    """Check when a run is to end before its last round."""
    check_parts(given, _STOP)
    if not given.keys() & {"target", "patience"}:
        raise ValueError("must have a target, or a patience in rounds")
    if "min_delta" in given and "patience" not in given:
        raise ValueError("min_delta: only patience uses it; leave it out")
    return given
