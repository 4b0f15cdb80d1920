"""The kinds of value that a recipe key takes.

Ranges are pydantic's constraints, which :mod:`.build` words. A kind whose check is a function has
the words, as they follow "must be", for its description.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from fednnnn_plugin.recipe.wording import either, shown
from fednnnn_plugin.user_code import names_code

PAPER_MODELS = ("nnnn_mnist", "nnnn_cifar10", "nnnn_digits")
LARGEST = 2**31 - 1
_DATASETS = ("mnist", "cifar10", "digits", "image_folder")
_PARTITIONS = ("iid", "n_class", "dirichlet")
_TRAINING_TYPES = ("simulation", "cross_silo")
_DECIMAL = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")


@dataclass(frozen=True)
class Caller:
    """Who has a recipe validated: pydantic's context."""

    where: Callable[[str], str]  # section.key to what starts its line of a message
    foreign: bool = False  # data, model and platform are the caller's own: their names are free
    custom_trainer: bool = False  # the caller's trainer trains the clients, with its own optimizer
    allow_code: bool = False  # a rule module:Class may be imported


def refused(problems: Mapping[str, str]) -> PydanticCustomError:
    """The error of a validator that words itself what is wrong with each ``section.key``."""
    return PydanticCustomError("refused", "refused", {"problems": problems})


def decimal(value: Any) -> Any:
    """Read ``5e-4``, which PyYAML and so FedML take for text, as the number it is."""
    return float(value) if isinstance(value, str) and _DECIMAL.fullmatch(value) else value


def _path(value: str) -> str:
    if not value or "\0" in value or len(value) > 4096:
        raise ValueError("not a path")
    try:
        Path(value).expanduser()
    except RuntimeError as error:
        raise ValueError("no such home directory") from error
    return value


def _ours(*names: str, unless: str = "foreign", code: bool = False) -> AfterValidator:
    def check(value: str, info: ValidationInfo[Caller]) -> str:
        known = value in names or (code and names_code(value))
        if not (known or getattr(info.context, unless)):
            raise ValueError("not one of ours")
        return value

    return AfterValidator(check)


def _model(value: str, info: ValidationInfo[Caller]) -> str:
    if value in PAPER_MODELS or names_code(value) or info.context.foreign:
        return value
    from fednnnn_plugin.models import unknown_model  # torchvision takes seconds

    if problem := unknown_model(value):
        raise refused({"model_args.model": f"{shown(value)}: {problem}"})
    return value


def _height_and_width(value: object) -> object:
    if isinstance(value, list):
        return tuple(value) if len(value) == 2 else value
    return (value, value) if isinstance(value, int) and not isinstance(value, bool) else value


PathText = Annotated[str, AfterValidator(_path), Field(description="a path")]

Count = Annotated[int, Field(ge=1, le=LARGEST)]
Natural = Annotated[int, Field(ge=0, le=LARGEST)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
FullBatch = Annotated[Literal[-1], Field(description="-1 for all of a client's images")]

_READ = BeforeValidator(decimal)
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), _READ]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), _READ]
Fraction = Annotated[float, Field(ge=0, lt=1), _READ]
OpenFraction = Annotated[float, Field(gt=0, lt=1), _READ]

_Side = Annotated[int, Field(ge=1, le=4096)]
ImageSize = Annotated[
    tuple[_Side, _Side],
    BeforeValidator(_height_and_width),
    Field(description="a whole number of 1 to 4096, or [height, width]"),
]
GpuList = Annotated[
    str,
    Field(
        pattern=r"^[^:;]+:\d+(,\d+)*(;[^:;]+:\d+(,\d+)*)*$",
        description="FedML's host:processes on each GPU, as in gpu1:0,1,1,2;gpu2:3",
    ),
]
Dataset = Annotated[
    str,
    _ours(*_DATASETS, code=True),
    Field(description=f"{either(_DATASETS)}, or MODULE:FUNCTION"),
]
Model = Annotated[
    str,
    AfterValidator(_model),
    Field(description=f"{either(PAPER_MODELS)}, a model of torchvision's, or MODULE:FUNCTION"),
]
PartitionMethod = Annotated[str, _ours(*_PARTITIONS), Field(description=either(_PARTITIONS))]
TrainingType = Annotated[str, _ours(*_TRAINING_TYPES), Field(description=either(_TRAINING_TYPES))]
ClientOptimizer = Annotated[str, _ours("sgd", unless="custom_trainer"), Field(description="sgd")]
# YAML 1.1 reads a bare off as false.
_OFF = BeforeValidator(lambda value: "off" if value is False else value)
ClientBatching = Annotated[Literal["auto", "off"] | Count, _OFF]
