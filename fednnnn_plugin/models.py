"""The paper's two networks, a small one for digits, and models by name.

Layer names are the paper's. Each block pools before the activation: max-pooling and ReLU commute,
so the function is the paper's and ReLU handles a quarter of the elements.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fednnnn_plugin.errors import UserError, did_you_mean, printable
from fednnnn_plugin.seeds import isolated_generators
from fednnnn_plugin.user_code import call_code, check_arguments, find_code, is_own

MODEL = "model_args.model"


class NNNNMnist(nn.Module):
    """The paper's MNIST network (table 3, ``tab:cnn_MN``): 431,080 parameters.

    Input float ``[n, 1, 28, 28]``, output logits ``[n, num_classes]``.
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.fc1 = nn.Linear(50 * 4 * 4, 500)
        self.fc2 = nn.Linear(500, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        x = F.relu(F.max_pool2d(self.conv1(images), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


class NNNNCifar10(nn.Module):
    """The paper's CIFAR-10 network (table 4, ``tab:cnn_C10``): 1,146,088 parameters.

    Input float ``[n, 3, 32, 32]``, output logits ``[n, num_classes]``. Convolutions are padded by
    one pixel, as the table's sizes ask for. Batch normalisation follows each of them.
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        for block, (inputs, outputs) in enumerate([(3, 32), (32, 64), (64, 128)], start=1):
            for layer, width in ((1, inputs), (2, outputs)):
                self.add_module(f"conv{block}{layer}", nn.Conv2d(width, outputs, 3, padding=1))
                self.add_module(f"bn{block}{layer}", nn.BatchNorm2d(outputs))
        self.fc1 = nn.Linear(128 * 4 * 4, 382)
        self.fc2 = nn.Linear(382, 192)
        self.fc3 = nn.Linear(192, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        x = images
        for block in (1, 2, 3):
            x = F.relu(self._normalised(f"{block}1", x))
            x = F.relu(F.max_pool2d(self._normalised(f"{block}2", x), 2))
        x = F.relu(self.fc1(x.flatten(1)))
        x = F.relu(self.fc2(x))
        return self.fc3(x)

    def _normalised(self, layer: str, x: Tensor) -> Tensor:
        normalise: nn.Module = self.get_submodule(f"bn{layer}")
        return normalise(self.get_submodule(f"conv{layer}")(x))


class NNNNDigits(nn.Module):
    """A small network of the MNIST one's shape for 8 × 8 digits: 6,058 parameters.

    Input float ``[n, 1, 8, 8]``, output logits ``[n, num_classes]``.
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc1 = nn.Linear(16 * 2 * 2, 64)
        self.fc2 = nn.Linear(64, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        x = F.relu(F.max_pool2d(self.conv1(images), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "nnnn_mnist": NNNNMnist,
    "nnnn_cifar10": NNNNCifar10,
    "nnnn_digits": NNNNDigits,
}


_WITHOUT_AUXILIARY: dict[str, dict[str, Any]] = {
    # They would return a tuple in training; and torchvision warns where init_weights is not given.
    name: {"aux_logits": False, "init_weights": True}
    for name in ("googlenet", "inception_v3")
}


def is_built_in(model: nn.Module) -> bool:
    """Tell whether a model is one of ``MODELS``, with no module of it replaced, added or hooked."""
    kind = type(model)
    if kind not in MODELS.values():
        return False
    with torch.device("meta"):  # which draws nothing
        as_made = [*map(type, kind().modules())]
    hooks = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    changed = any(
        "forward" in vars(module) or any(getattr(module, name) for name in hooks)
        for module in model.modules()
    )
    return as_made == [*map(type, model.modules())] and not changed


def create_model(
    name: str,
    seed: int,
    num_classes: int = 10,
    *,
    given: object = None,
    arguments: Mapping[str, object] | None = None,
    allow_code: bool = False,
) -> nn.Module:
    """Make a model whose initial weights depend on ``seed`` alone; the generators are restored.

    It is one of ``MODELS``, a classification model of torchvision's, or the user's: what a function
    makes that was ``given``, or is a ``module:function`` that the user, not a recipe, allows to
    run; it gets the ``arguments`` too. A model that was given is returned as it is.
    """
    if is_own(name):
        function = find_code(MODEL, name, given, allow_code=allow_code)
        check_arguments(function, "model_args", arguments or {})
        if isinstance(given, nn.Module):
            return given
        return _own_model(
            function, f"{MODEL}: {printable(name)}", seed, num_classes, arguments or {}
        )
    if problem := unknown_model(name):
        raise UserError(f"{MODEL}: {name[:60]!r}: {problem}")
    with _drawing_from(seed):
        if name in MODELS:
            return MODELS[name](num_classes)
        options = _WITHOUT_AUXILIARY.get(name, {})
        model: nn.Module = _torchvision().get_model(
            name, weights=None, num_classes=num_classes, **options
        )
    return model


@contextmanager
def _drawing_from(seed: int) -> Iterator[None]:
    """Draw initial weights by the seed, in float32, whatever the caller's program has set."""
    default = torch.get_default_dtype()
    with isolated_generators(seed, "model"):
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(default)


def _own_model(
    function: object, where: str, seed: int, num_classes: int, arguments: Mapping[str, object]
) -> nn.Module:
    if isinstance(function, nn.Module):
        raise UserError(f"{where}: is a model; must be a function that makes one")
    with _drawing_from(seed):
        model = call_code(function, where, lambda make: _made(make, num_classes, arguments))
    if not isinstance(model, nn.Module):
        raise UserError(f"{where}: returned a {type(model).__name__}; must be a torch.nn.Module")
    return model


def _made(
    function: Callable[..., object], num_classes: int, arguments: Mapping[str, object]
) -> object:
    """Call it with the arguments and the number of classes.

    That is ``num_classes``, unless it is among the arguments, or else the first that it requires.
    """
    signature = inspect.signature(function)
    single = {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    required = [
        name
        for name, default in single.items()
        if default is signature.empty and name not in arguments
    ]
    given = {name: value for name, value in arguments.items() if name in single}
    for name in ["num_classes"] if "num_classes" in single else required[:1]:
        given.setdefault(name, num_classes)
    bound = signature.bind_partial()
    bound.arguments |= given
    bound.apply_defaults()  # those before one that is given by its position
    others = {name: value for name, value in arguments.items() if name not in single}
    return function(*bound.args, **bound.kwargs | others)


def unknown_model(name: str) -> str:
    """Say why there is no model of this name, and which ones are near; empty where there is one.

    A name ``module:function`` may stand for one: nothing is imported to find out.
    """
    if name in MODELS or is_own(name):
        return ""
    try:
        models = _torchvision()
    except (ImportError, RuntimeError) as error:  # a torchvision that is of another torch
        reason = " ".join(str(error).split())
        return f"not one of {', '.join(MODELS)}, and torchvision does not import ({reason})"
    known = [*MODELS, *models.list_models(module=models)]
    if name in known:
        return ""
    return (
        f"must be one of {', '.join(MODELS)}, the name of a torchvision classification model, or "
        f"module:function{did_you_mean(name, known)}"
    )


def _torchvision() -> Any:
    return import_module("torchvision.models")
