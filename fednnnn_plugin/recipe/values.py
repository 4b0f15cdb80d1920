"""The kinds of value that a recipe key takes.

Ranges are pydantic's constraints; `problems` words them. A kind whose check is a function has the
words, as they follow "must be", for its description.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from fednnnn_plugin.recipe.wording import either
from fednnnn_plugin.user_code import names_code

PAPER_MODELS = ("nnnn_mnist", "nnnn_cifar10", "nnnn_digits")
DATASETS = ("mnist", "cifar10", "digits", "image_folder")
LARGEST = 2**31 - 1

_LARGEST_SIDE = 4096
_DECIMAL = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")


@dataclass(frozen=True)
class Caller:
    """Who has a recipe validated: pydantic's context.

    Attributes:
        where: ``section.key`` to what starts its line of a message.
        foreign: data, model and platform are the caller's own, so their names are free.
        custom_trainer: the caller's trainer trains the clients, with its own optimizer.
        allow_code: a rule ``module:Class`` may be imported.
    """

    where: Callable[[str], str]
    foreign: bool = False
    custom_trainer: bool = False
    allow_code: bool = False


def refused(text: str) -> PydanticCustomError:
    """The error of a value that is ``text``, such as "must be a or b"."""
    return PydanticCustomError("refused", "refused", {"text": text})


def decimal(value: Any) -> Any:
    """Read ``5e-4``, which PyYAML and so FedML take for text, as the number it is."""
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        return float(value)
    return value


def _path(value: str) -> str:
    if not value or "\0" in value or len(value) > 4096:
        raise ValueError("not a path")
    try:
        Path(value).expanduser()
    except RuntimeError as error:
        raise ValueError("no such home directory") from error
    return value


def _batching(value: object) -> object:
    # YAML 1.1 reads a bare off as false.
    return "off" if value is False else value


def _batch_size(value: int) -> int:
    if value == 0:
        raise ValueError("no batch")
    return value


def _ours(*names: str) -> AfterValidator:
    def check(value: str, info: ValidationInfo[Caller]) -> str:
        if value not in names and not info.context.foreign:
            raise ValueError("not one of ours")
        return value

    return AfterValidator(check)


def _dataset(value: str, info: ValidationInfo[Caller]) -> str:
    if value not in DATASETS and not names_code(value) and not info.context.foreign:
        raise ValueError("not one of ours")
    return value


def _model(value: str, info: ValidationInfo[Caller]) -> str:
    if value in PAPER_MODELS or names_code(value) or info.context.foreign:
        return value
    from fednnnn_plugin.models import unknown_model  # torchvision takes seconds

    if problem := unknown_model(value):
        raise refused(problem)
    return value


def _client_optimizer(value: str, info: ValidationInfo[Caller]) -> str:
    if value != "sgd" and not info.context.custom_trainer:
        raise ValueError("not ours")
    return value


def _height_and_width(value: object) -> object:
    if isinstance(value, list):
        if len(value) != 2:
            raise ValueError("not a height and a width")
        return tuple(value)
    return (value, value) if isinstance(value, int) and not isinstance(value, bool) else value


def _gpu_list(value: str) -> str:
    if not re.fullmatch(r"[^:;]+:\d+(,\d+)*(;[^:;]+:\d+(,\d+)*)*", value):
        raise ValueError("not FedML's format")
    return value


PathText = Annotated[str, AfterValidator(_path), Field(description="a path")]
Anything = Annotated[object, Field(description="anything")]

Count = Annotated[int, Field(ge=1, le=LARGEST)]
Natural = Annotated[int, Field(ge=0, le=LARGEST)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
BatchSize = Annotated[
    int,
    Field(ge=-1, le=LARGEST, description="a whole number of at least 1, or -1 for all images"),
    AfterValidator(_batch_size),
]

_READ = BeforeValidator(decimal)
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), _READ]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), _READ]
Fraction = Annotated[float, Field(ge=0, lt=1), _READ]
OpenFraction = Annotated[float, Field(gt=0, lt=1), _READ]

_Side = Annotated[int, Field(ge=1, le=_LARGEST_SIDE)]
ImageSize = Annotated[
    tuple[_Side, _Side],
    BeforeValidator(_height_and_width),
    Field(description=f"a whole number of 1 to {_LARGEST_SIDE}, or [height, width]"),
]
GpuList = Annotated[
    str,
    AfterValidator(_gpu_list),
    Field(description="FedML's host:processes on each GPU, as in gpu1:0,1,1,2;gpu2:3"),
]

Dataset = Annotated[
    str, AfterValidator(_dataset), Field(description=f"{either(DATASETS)}, or MODULE:FUNCTION")
]
Model = Annotated[
    str,
    AfterValidator(_model),
    Field(
        description=f"{either(PAPER_MODELS)}, the name of a torchvision classification model, or "
        "MODULE:FUNCTION"
    ),
]
_PARTITIONS = ("iid", "n_class", "dirichlet")
PartitionMethod = Annotated[str, _ours(*_PARTITIONS), Field(description=either(_PARTITIONS))]
_TRAINING = ("simulation", "cross_silo")
TrainingType = Annotated[str, _ours(*_TRAINING), Field(description=either(_TRAINING))]
ClientOptimizer = Annotated[str, AfterValidator(_client_optimizer), Field(description="sgd")]
ClientBatching = Annotated[Literal["auto", "off"] | Count, BeforeValidator(_batching)]
