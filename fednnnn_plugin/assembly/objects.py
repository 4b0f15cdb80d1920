"""What a program gives in the place of what a recipe names, and the settings it changes."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from fednnnn_plugin.assembly.functions import LOSS, METRICS, OPTIMIZER
from fednnnn_plugin.assembly.rates import SCHEDULE
from fednnnn_plugin.client.method import ClientMethod
from fednnnn_plugin.client.methods import METHODS, name_client_method
from fednnnn_plugin.data.own_data import DATA
from fednnnn_plugin.errors import UserError, did_you_mean, shown
from fednnnn_plugin.models import MODEL
from fednnnn_plugin.recipe.method_keys import CLIENT_METHOD, RULE
from fednnnn_plugin.rounds.augmentation import TRANSFORM, Transform
from fednnnn_plugin.rounds.sampling import AVAILABILITY, SAMPLING, Available, Sampler
from fednnnn_plugin.rounds.stopping import STOP
from fednnnn_plugin.server.rules import RULES, name_rule
from fednnnn_plugin.user_code import object_name

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler
    from torch.utils.data import DataLoader, Dataset

    Array: TypeAlias = Tensor | np.ndarray[Any, Any]
    Part: TypeAlias = tuple[Array, Array] | Dataset[Any] | DataLoader[Any]
    RateSchedule: TypeAlias = (
        str | Mapping[str, object] | Callable[[int], float] | Callable[[Optimizer], LRScheduler]
    )
    Data: TypeAlias = (
        tuple[Array, Array, Array, Array]
        | tuple[Array, Array, Array, Array, Sequence[Array | Sequence[int]]]
        | tuple[Array, Array, Array, Array, Array | Sequence[str], Array | Sequence[str]]
        | tuple[Array, Array, Array | Sequence[str]]
        | tuple[Sequence[Part] | Mapping[Any, Part], Part | Sequence[Part] | Mapping[Any, Part]]
    )


class Objects(TypedDict, total=False):
    """What a program gives in the place of what a recipe names; `fp.run` describes each."""

    model: "nn.Module | Callable[..., nn.Module] | str | None"
    data: "Data | Callable[..., Data] | str | None"
    rule: "type[Optimizer] | str | None"
    client_method: "type[ClientMethod] | str | None"
    loss: "Callable[[Tensor, Tensor], Tensor] | str | None"
    client_optimizer: "Callable[..., Optimizer] | str | None"
    metrics: "Sequence[Callable[[Tensor, Tensor], float] | str] | None"
    client_sampling: "Sampler | str | None"
    client_availability: "Available | str | None"
    train_transform: "Transform | str | None"
    learning_rate_schedule: "RateSchedule | None"
    stop: Mapping[str, object] | None


_KEYS = {
    "model": MODEL,
    "data": DATA,
    "rule": RULE,
    "client_method": CLIENT_METHOD,
    "loss": LOSS,
    "client_optimizer": OPTIMIZER,
    "metrics": METRICS,
    "client_sampling": SAMPLING,
    "client_availability": AVAILABILITY,
    "train_transform": TRANSFORM,
    "learning_rate_schedule": SCHEDULE,
    "stop": STOP,
}


def names_and_objects(given: Objects) -> tuple[list[str], dict[str, object]]:
    """Divide what a program gives into overrides, of names, and objects by ``section.key``."""
    if unknown := sorted(given.keys() - _KEYS.keys()):
        raise UserError(unknown[0], f"unknown argument{did_you_mean(unknown[0], _KEYS)}")
    things = {_KEYS[name]: thing for name, thing in given.items() if thing is not None}
    if not isinstance(metrics := things.get(METRICS, []), Sequence):
        things[METRICS] = [metrics]
    settings = {key: x for key, x in things.items() if _is_setting(key, x)}
    return as_options(settings), {k: x for k, x in things.items() if k not in settings}


def _is_setting(key: str, thing: object) -> bool:
    """Tell whether a thing is a name, or what a recipe has itself."""
    if isinstance(thing, str | os.PathLike):
        return True
    if key == METRICS and isinstance(thing, Sequence):
        return all(isinstance(each, str) for each in thing)
    return key in (SCHEDULE, STOP) and (isinstance(thing, Mapping) or not callable(thing))


def object_names(key: str, thing: object) -> str | list[str]:
    """Return what a recipe has in the place of an object; a list of metrics has several."""
    if key == METRICS and isinstance(thing, Sequence):
        return [each if isinstance(each, str) else object_name(each) for each in thing]
    return object_name(thing)


@contextmanager
def registered(objects: Mapping[str, object]) -> Iterator[dict[str, str | list[str]]]:
    """Name objects as a recipe does; those of a rule and of a client method are known so long."""
    names = {key: object_names(key, thing) for key, thing in objects.items()}
    try:
        if RULE in objects:
            name_rule(str(names[RULE]), objects[RULE], RULE)
        if CLIENT_METHOD in objects:
            name_client_method(str(names[CLIENT_METHOD]), objects[CLIENT_METHOD], CLIENT_METHOD)
        yield names
    finally:
        RULES.pop(str(names.get(RULE)), None)
        METHODS.pop(str(names.get(CLIENT_METHOD)), None)


def as_options(overrides: Mapping[str, object] | Sequence[str]) -> list[str]:
    """Return a caller's overrides as the command's ``--set`` has them."""
    if isinstance(overrides, Mapping):  # JSON is YAML
        as_json = partial(json.dumps, ensure_ascii=False, default=_plain)
        return [f"{key}={as_json(value)}" for key, value in overrides.items()]
    if not isinstance(overrides, Sequence) or not all(isinstance(x, str) for x in overrides):
        raise UserError(
            "overrides",
            shown(overrides),
            "must be a mapping of section.key to values, or a list of section.key=value",
        )
    return [overrides] if isinstance(overrides, str) else list(overrides)


def _plain(value: object) -> object:
    """Return what JSON has of a path, or of numbers of NumPy's or torch's."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
