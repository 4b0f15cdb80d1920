"""The kinds of value that a recipe key takes.

Each kind carries, as its description, the words that an error message says after "must be".
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError

FOREIGN = "foreign"
"""Validation context flag: data, model and platform are the caller's, so their names are free."""

CUSTOM_TRAINER = "custom_trainer"
"""Validation context flag: the caller's trainer trains the clients, with its own optimizer."""

PAPER_MODELS = ("nnnn_mnist", "nnnn_cifar10", "nnnn_digits")

_LARGEST = 2**31 - 1
_LARGEST_SIDE = 4096
_FUNCTION = re.compile(r"(?=.{3,200}\Z)[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_DECIMAL = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")


def _decimal(value: object) -> object:
    """Read ``5e-4``, which YAML 1.1 and so PyYAML take for text, as the number it is."""
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        return float(value)
    return value


def _path(value: str | None) -> str | None:
    if value is None:
        return None
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


def _one_of(*names: str, unless: str = FOREIGN) -> Callable[[str, ValidationInfo], str]:
    def check(value: str, info: ValidationInfo) -> str:
        if value not in names and not (info.context or {}).get(unless):
            raise ValueError("not one of ours")
        return value

    return check


def _dataset(value: str, info: ValidationInfo) -> str:
    return value if _FUNCTION.fullmatch(value) else _DATASET(value, info)


def _model(value: str, info: ValidationInfo) -> str:
    if value in PAPER_MODELS or (info.context or {}).get(FOREIGN):
        return value
    from fednnnn_plugin.models import unknown_model  # torchvision takes seconds

    if problem := unknown_model(value):
        raise PydanticCustomError("unknown_name", "unknown name", {"text": problem})
    return value


def _height_and_width(value: object) -> object:
    if isinstance(value, list):
        if len(value) != 2:
            raise ValueError("not a height and a width")
        return tuple(value)
    return (value, value) if isinstance(value, int) and not isinstance(value, bool) else value


def _gpu_list(value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r"[^:;]+:\d+(,\d+)*(;[^:;]+:\d+(,\d+)*)*", value):
        raise ValueError("not FedML's format")
    return value


_DATASET = _one_of("mnist", "cifar10", "digits", "image_folder")

Flag = Annotated[bool, Field(description="true or false")]
OptFlag = Annotated[bool | None, Field(description="true, false or null")]
Text = Annotated[str, Field(description="text (quote what YAML reads otherwise)")]
OptText = Annotated[str | None, Field(description="text (quote what YAML reads otherwise) or null")]
PathText = Annotated[str, AfterValidator(_path), Field(description="a path")]
OptPathText = Annotated[str | None, AfterValidator(_path), Field(description="a path or null")]
Anything = Annotated[object, Field(description="anything")]

Count = Annotated[int, Field(ge=1, le=_LARGEST, description="a whole number of at least 1")]
OptCount = Annotated[
    int | None, Field(ge=1, le=_LARGEST, description="a whole number of at least 1, or null")
]
Natural = Annotated[int, Field(ge=0, le=_LARGEST, description="a whole number of at least 0")]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1, description="a whole number from 0 to 2^32 - 1")]

# The ranges stand inside: a range beside a reader of 5e-4 would be checked on null as well.
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Decay = Annotated[float, Field(ge=0, lt=1)]
_READ = BeforeValidator(_decimal)

_Side = Annotated[int, Field(ge=1, le=_LARGEST_SIDE)]

Positive = Annotated[_Positive, _READ, Field(description="a finite number greater than 0")]
OptPositive = Annotated[
    _Positive | None, _READ, Field(description="a finite number greater than 0, or null")
]
NonNegative = Annotated[_NonNegative, _READ, Field(description="a finite number of at least 0")]
OptNonNegative = Annotated[
    _NonNegative | None, _READ, Field(description="a finite number of at least 0, or null")
]
OpenFraction = Annotated[
    Annotated[float, Field(gt=0, lt=1)],
    _READ,
    Field(description="a number greater than 0 and less than 1"),
]
OptImageSize = Annotated[
    tuple[_Side, _Side] | None,
    BeforeValidator(_height_and_width),
    Field(description=f"a whole number of 1 to {_LARGEST_SIDE}, or [height, width], or null"),
]
Fraction = Annotated[_Decay, _READ, Field(description="a number of at least 0 and less than 1")]
OptDecay = Annotated[
    _Decay | None, _READ, Field(description="a number of at least 0 and less than 1, or null")
]

Dataset = Annotated[
    str,
    AfterValidator(_dataset),
    Field(description="one of mnist, cifar10, digits, image_folder, or MODULE:FUNCTION"),
]
Model = Annotated[
    str,
    AfterValidator(_model),
    Field(
        description="one of nnnn_mnist, nnnn_cifar10, nnnn_digits, or the name of a torchvision "
        "classification model"
    ),
]
PartitionMethod = Annotated[
    str, AfterValidator(_one_of("iid", "n_class")), Field(description="iid or n_class")
]
TrainingType = Annotated[
    str,
    AfterValidator(_one_of("simulation", "cross_silo")),
    Field(description="simulation or cross_silo"),
]
ClientOptimizer = Annotated[
    str, AfterValidator(_one_of("sgd", unless=CUSTOM_TRAINER)), Field(description="sgd")
]
Precision = Annotated[
    Literal["fp32", "tf32", "bf16", "fp64"], Field(description="one of fp32, tf32, bf16, fp64")
]
PartitionSizes = Annotated[
    Literal["balanced", "power_law"], Field(description="balanced or power_law")
]
ClientWeighting = Annotated[Literal["uniform", "samples"], Field(description="uniform or samples")]
ClientBatching = Annotated[
    Literal["auto", "off"] | Count,
    BeforeValidator(_batching),
    Field(description="auto, off or a whole number of clients of at least 1"),
]
OptGpuList = Annotated[
    str | None,
    AfterValidator(_gpu_list),
    Field(description="FedML's host:processes on each GPU, as in gpu1:0,1,1,2;gpu2:3, or null"),
]
OptDeviceType = Annotated[
    Literal["cpu", "gpu", "mps"] | None, Field(description="one of cpu, gpu, mps, or null")
]
