"""Models by name: the package's networks, torchvision's, and the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from fednnnn_plugin.errors import UserError, did_you_mean, printable, reason
from fednnnn_plugin.networks import NNNNCifar10, NNNNDigits, NNNNMnist, resnet18_gn
from fednnnn_plugin.seeds import isolated_generators
from fednnnn_plugin.user_code import check_arguments, find_code, is_own, user_code

MODEL = "model_args.model"


Network = type[NNNNMnist] | type[NNNNCifar10] | type[NNNNDigits]
MODELS: dict[str, Network] = {
    "nnnn_mnist": NNNNMnist,
    "nnnn_cifar10": NNNNCifar10,
    "nnnn_digits": NNNNDigits,
}
RESNET = "resnet18_gn"


def form_of(name: str, image_shape: Sequence[int]) -> dict[str, int]:
    """Return the arguments of a network of this name for images ``[C, H, W]``; none of others."""
    if len(image_shape) != 3:
        return {}
    channels, height, width = image_shape
    if name == RESNET:
        return {"channels": channels}
    if name not in MODELS:
        return {}
    if not (places := MODELS[name].places(height, width)):
        raise UserError(MODEL, f"{name}: images of {height} x {width} are too small for it")
    return {"channels": channels, "places": places}


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
    form: Mapping[str, int] = MappingProxyType({}),
    given: object = None,
    arguments: Mapping[str, object] = MappingProxyType({}),
    allow_code: bool = False,
) -> nn.Module:
    """Make a model whose initial weights depend on ``seed`` alone; the generators are restored.

    It is one of ``MODELS`` or ``resnet18_gn``, for images of the ``form`` that `form_of` returns; a
    classification model of torchvision's; or the user's: what a function makes that was ``given``,
    or is a ``module:function`` that the user, not a recipe, allows to run; it gets the
    ``arguments`` too. A model that was given is returned as it is.
    """
    if is_own(name):
        function = find_code(MODEL, name, given, allow_code=allow_code)
        check_arguments(function, "model_args", arguments)
        if isinstance(given, nn.Module):
            return given
        return _own_model(function, f"{MODEL}: {printable(name)}", seed, num_classes, arguments)
    if problem := unknown_model(name):
        raise UserError(MODEL, f"{name[:60]!r}: {problem}")
    with _drawing_from(seed):
        if name in MODELS:
            return MODELS[name](num_classes, **form)
        if name == RESNET:
            return resnet18_gn(num_classes, **form)
        options: dict[str, Any] = {}
        if name in ("googlenet", "inception_v3"):
            # They would return a tuple in training, and warn where init_weights is not given.
            options = {"aux_logits": False, "init_weights": True}
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
    if isinstance(function, nn.Module) or not callable(function):
        kind = "a model" if isinstance(function, nn.Module) else "not callable"
        raise UserError(where, f"is {kind}", "must be a function that makes a model")
    with _drawing_from(seed), user_code(where):
        model = _made(function, num_classes, arguments)
    if not isinstance(model, nn.Module):
        raise UserError(where, f"returned a {type(model).__name__}", "must be a torch.nn.Module")
    return model


def _made(
    function: Callable[..., object], num_classes: int, arguments: Mapping[str, object]
) -> object:
    """Call it with the arguments and the number of classes.

    A ``num_classes`` among the arguments, or among a ``partial``'s keywords, stays. Otherwise the
    number of classes is passed as ``num_classes`` where the function takes it, as torchvision's do,
    and elsewhere as the first argument that it requires.
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
    partly = function if isinstance(function, partial) else partial(function)
    is_fixed = "num_classes" in {*partly.keywords, *arguments}
    given = {name: value for name, value in arguments.items() if name in single}
    for name in ["num_classes"] if "num_classes" in single else required[:1]:
        if name not in partly.keywords:
            given.setdefault(name, num_classes)
    bound = signature.bind_partial()
    bound.arguments |= given
    bound.apply_defaults()  # those before one that is given by its position
    others = bound.kwargs | {k: value for k, value in arguments.items() if k not in single}
    is_torchvisions = str(getattr(partly.func, "__module__", "")).startswith("torchvision.models")
    # Trained weights are of their own number of classes.
    if is_torchvisions and not (is_fixed or "num_classes" in single or others.get("weights")):
        others["num_classes"] = num_classes
    return function(*bound.args, **others)


def unknown_model(name: str) -> str:
    """Say why there is no model of this name, and which ones are near; empty where there is one.

    A name ``module:function`` may stand for one: nothing is imported to find out.
    """
    if name in MODELS or name == RESNET or is_own(name):
        return ""
    try:
        models = _torchvision()
    except (ImportError, RuntimeError) as error:  # a torchvision that is of another torch
        why = f"torchvision does not import ({reason(error)})"
        return f"not one of {', '.join(MODELS)}, and {why}"
    known = [*MODELS, RESNET, *models.list_models(module=models)]
    if name in known:
        return ""
    return (
        f"must be one of {', '.join(MODELS)}, {RESNET}, the name of a torchvision classification "
        f"model, or module:function{did_you_mean(name, known)}"
    )


def _torchvision() -> Any:
    return import_module("torchvision.models")
