"""The kinds of value that a recipe key takes.

A kind's description has the words for what it allows, as they follow "must be".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import torch
from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from fednnnn_plugin.data.dirichlet import LEAST_ALPHA
from fednnnn_plugin.data.sets import DATASETS, find_dataset
from fednnnn_plugin.errors import one_of
from fednnnn_plugin.files import user_path
from fednnnn_plugin.models import unknown_model
from fednnnn_plugin.recipe.mappings import MOST, check_schedule, check_stop
from fednnnn_plugin.server.rules import decay, non_negative, positive
from fednnnn_plugin.user_code import is_own

#: The classes of ``torch.optim`` that need one gradient a step, by their names in lower case.
OPTIMIZERS = {
    name.lower(): name
    for name, found in vars(torch.optim).items()
    if isinstance(found, type) and issubclass(found, torch.optim.Optimizer)
    if name not in ("Optimizer", "LBFGS", "SparseAdam")
}
_DECIMAL = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")


@dataclass(frozen=True)
class Caller:
    """Who has a recipe validated: pydantic's context."""

    where: Callable[[str], str]  # section.key to what starts its line of a message
    foreign: bool = False  # data, model and platform are the caller's own: their names are free
    custom_trainer: bool = False  # the caller's trainer trains the clients, with its own optimizer
    allow_code: bool = False  # what is named module:name may be imported
    objects: frozenset[str] = frozenset()  # keys that name objects, which the caller gave
    left: frozenset[str] = frozenset()  # keys of a method that the caller has replaced


def decimal(value: Any) -> Any:
    """Read ``5e-4``, which PyYAML and so FedML take for text, as the number it is."""
    return float(value) if isinstance(value, str) and _DECIMAL.fullmatch(value) else value


def _numbers_of(value: Any) -> Any:
    """Read the numbers of a mapping."""
    if not isinstance(value, dict):
        return value
    return {key: decimal(each) for key, each in value.items()}


def _schedule(value: dict[str, Any] | str, info: ValidationInfo[Caller]) -> dict[str, Any] | str:
    if isinstance(value, str) and is_own(value):
        return value
    given = {"name": value} if isinstance(value, str) else value
    return check_schedule(given, info.data.get("comm_round", 1))


def _path(value: str) -> str:
    if not value or "\0" in value or len(value) > 4096:
        raise ValueError
    if value.startswith("~") and user_path(value) == Path(value):
        raise ValueError("there is no such home directory; write the path without ~")
    return value


def _model(value: str, info: ValidationInfo[Caller]) -> str:
    if not info.context.foreign and (problem := unknown_model(value)):
        raise ValueError(problem)
    return value


def _dataset(value: str, info: ValidationInfo[Caller]) -> str:
    if not find_dataset(value) and not is_own(value) and not info.context.foreign:
        raise ValueError(one_of(DATASETS, value, "MODULE:FUNCTION"))
    return value


def _only(allowed: Callable[[str, Caller], bool]) -> AfterValidator:
    def check(value: str, info: ValidationInfo[Caller]) -> str:
        if not allowed(value, info.context):
            raise ValueError
        return value

    return AfterValidator(check)


def _height_and_width(value: object) -> object:
    if isinstance(value, list):
        return tuple(value) if len(value) == 2 else value
    return (value, value) if isinstance(value, int) and not isinstance(value, bool) else value


Label = Annotated[
    str, Field(min_length=1, max_length=100, description="a text of 1 to 100 characters")
]
PathText = Annotated[str, AfterValidator(_path), Field(description="a path")]

Count = Annotated[int, Field(ge=1, le=MOST, description=f"a whole number of 1 to {MOST}")]
Natural = Annotated[int, Field(ge=0, le=MOST, description=f"a whole number of 0 to {MOST}")]
Seed = Annotated[int, Field(ge=0, lt=2**32, description="a whole number of 0 to 4294967295")]
FullBatch = Annotated[Literal[-1], Field(description="-1 for all of a client's samples")]

_READ = BeforeValidator(decimal)
Epochs: TypeAlias = (
    Count
    | Annotated[float, Field(gt=0, le=MOST, description="a fraction greater than 0, such as 0.5")]
)
_IN_FLOAT32 = Field(  # smaller ones are 0 to some devices
    ge=2.0**-126, le=3.4e38, description="a number of 1.2e-38 to 3.4e38, as float32 holds"
)
_FROM_LEAST = Field(
    ge=LEAST_ALPHA, allow_inf_nan=False, description=f"a finite number of at least {LEAST_ALPHA}"
)
_BETWEEN = Field(gt=0, lt=1, description="a number greater than 0 and less than 1")
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, description=positive().allowed), _READ]
Decay = Annotated[
    float, Field(gt=0, le=1, description="a number greater than 0 and at most 1"), _READ
]
Rate = Annotated[float, _IN_FLOAT32, _READ]
Concentration = Annotated[float, _FROM_LEAST, _READ]
NonNegative = Annotated[
    float, Field(ge=0, allow_inf_nan=False, description=non_negative().allowed), _READ
]
Fraction = Annotated[float, Field(ge=0, lt=1, description=decay().allowed), _READ]
OpenFraction = Annotated[float, _BETWEEN, _READ]

_Side = Annotated[int, Field(ge=1, le=4096)]
ImageSize = Annotated[
    tuple[_Side, _Side],
    BeforeValidator(_height_and_width),
    Field(description="a whole number of 1 to 4096, or [height, width]"),
]

_Code = Annotated[str, _only(lambda value, _: is_own(value)), Field(description="MODULE:FUNCTION")]
# Names that are not ours; no message offers them.
_Foreign = Annotated[str, _only(lambda _, caller: caller.foreign), Field(description="")]
Dataset = Annotated[
    str,
    AfterValidator(_dataset),
    Field(description=f"one of {', '.join(DATASETS)}, or MODULE:FUNCTION"),
]
Model = Annotated[
    str,
    AfterValidator(_model),
    Field(description="the name of a model, such as nnnn_mnist, or MODULE:FUNCTION"),
]
PartitionMethod: TypeAlias = (
    Literal["iid", "n_class", "dirichlet", "dirichlet_by_class", "natural"] | _Foreign
)
Column = Annotated[str, Field(min_length=1, description="the name of a column")]
TrainingType: TypeAlias = Literal["simulation"] | _Foreign
Backend: TypeAlias = Literal["sp", "MPI"] | _Foreign
ClientOptimizer = Annotated[
    str,
    _only(
        lambda value, caller: value.lower() in OPTIMIZERS or is_own(value) or caller.custom_trainer
    ),
    Field(description="sgd, a class of torch.optim but LBFGS and SparseAdam, or MODULE:CLASS"),
]
ClientSampling: TypeAlias = Literal["uniform", "by_size", "round_robin"] | _Code
Availability = Annotated[
    str, AfterValidator(_path), Field(description="a CSV file, or MODULE:FUNCTION")
]
Transform: TypeAlias = _Code
LossName: TypeAlias = Literal["cross_entropy", "bce_with_logits", "mse"] | _Code
Metrics = Annotated[
    list[str], Field(min_length=1, description="a list of metrics, such as [f1_macro]")
]
Stop = Annotated[
    dict[str, Any],
    AfterValidator(check_stop),
    Field(description="a mapping such as {target: 0.97}, or {patience: 20, min_delta: 0.001}"),
    BeforeValidator(_numbers_of),
]
RateSchedule = Annotated[
    dict[str, Any] | str,
    AfterValidator(_schedule),
    Field(
        description="the name of a schedule, such as cosine, a mapping such as {name: step, every: "
        "30, factor: 0.1}, or MODULE:FUNCTION"
    ),
    BeforeValidator(_numbers_of),
]
PerClient = Annotated[
    bool | Literal["end"],
    Field(description="true, false, or end, which is after the last round alone"),
]
OptimizerArgs = Annotated[
    dict[str, Any], Field(description="a mapping of an optimizer's arguments to their values")
]
# YAML 1.1 reads a bare off as false.
_OFF = BeforeValidator(lambda value: "off" if value is False else value)
ClientBatching = Annotated[Literal["auto", "off"] | Count, _OFF]
