"""What models and other objects are made of: the parts that a digest is of."""

import functools
import inspect
import re
import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fednnnn_plugin.fingerprint.source_text import source_of
from fednnnn_plugin.user_code import is_installed

# What others that can be called are made of.
MADE_OF: dict[type, tuple[str, ...]] = {
    types.MethodType: ("__func__", "__self__"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    functools.cached_property: ("func",),
    functools.partial: ("func", "args", "keywords"),
    type(functools.cache(len)): ("__wrapped__",),
    np.vectorize: ("pyfunc", "otypes", "signature"),
}
# Functions and attributes of classes that are written in C, or made by Python for slots.
BUILT_IN = (
    *(types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType),
    *(types.MethodDescriptorType, types.ClassMethodDescriptorType, np.ufunc),
    *(types.GetSetDescriptorType, types.MemberDescriptorType, type(np.mean)),
)
PLAIN = (type(None), type(...), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
VALUES = (*PLAIN, list, tuple, set, frozenset, Mapping, Tensor, np.ndarray)
# A recurrent layer refers weakly to its weights.
_OF_ANY_MODULE = {*vars(nn.Module()), "__annotations__", "_flat_weight_refs"}
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
# The methods that a run calls of an object; others are for those who make it.
_USED = ("forward", "__call__", "step", "__getitem__", "__iter__", "__next__", "__len__")
_MAKING = ("__new__", "__init__")  # of a metaclass, which may keep the classes that it makes


def without_addresses(shown: str) -> str:
    """Return what an object shows without what it shows by default, its place in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", shown)


def is_own_value(thing: object) -> bool:
    """Tell whether a thing is a value, such as a list, of a class of the user's."""
    kind = type(thing)
    builtin = kind in (*PLAIN, types.MappingProxyType)
    return not builtin and isinstance(thing, VALUES) and not is_installed(kind)


def is_plain(value: object, *, of_own: bool = True) -> bool:
    """Tell whether a value has no code; values ``of_own`` classes may be taken for such."""
    waiting, seen = [value], dict[int, object]()
    while waiting:
        part = waiting.pop()
        if not of_own and is_own_value(part):
            return False
        if isinstance(part, list | tuple | set | frozenset | Mapping):
            if id(part) not in seen:  # it may contain itself
                seen[id(part)] = part
                waiting += chain(*part.items()) if isinstance(part, Mapping) else part
        elif not isinstance(part, (*PLAIN, Tensor, np.ndarray)):
            return False
    return True


def tensors_of(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def names_of(model: nn.Module) -> dict[int, str]:
    """Return the names of a model's tensors and modules, by their ids."""
    return {id(thing): name for name, thing in (*tensors_of(model), *model.named_modules())}


def structure_of(model: nn.Module) -> tuple[list[object], list[object]]:
    """Return what a model is made of beside values: what is plain, and what may be code."""
    plain: list[object] = [
        (name, str(t.dtype), () if is_lazy(t) or t.is_nested else tuple(t.shape), t.requires_grad)
        for name, t in tensors_of(model)
    ]
    others: list[object] = [*dict.fromkeys(map(type, model.modules()))]
    for name, module in model.named_modules():
        shown = ""
        with suppress(Exception):  # it is a user's
            shown = without_addresses(module.extra_repr())
        unsaved = sorted(getattr(module, "_non_persistent_buffers_set", ()))
        is_as_model = module.training == model.training
        plain.append((name, type(module).__qualname__, is_as_model, unsaved, shown))
        for key, value in attributes_of(module):
            (plain if is_plain(value, of_own=False) else others).append((name, key, value))
        hooks = (
            (kind, number in getattr(module, f"{kind}_with_kwargs", ()), hook)
            for kind in _HOOKS
            for number, hook in getattr(module, kind, {}).items()
        )
        others.append((name, *hooks))
    return plain, others


def attributes_of(thing: object) -> Iterator[tuple[str, object]]:
    """Yield what an object has of its own, but for what its methods change or keep."""
    kind = type(thing)
    members = [item for base in kind.__mro__ for item in vars(base).items()]
    kept = changed_by_use(kind)
    kept |= {name for name, value in members if isinstance(value, functools.cached_property)}
    if isinstance(thing, nn.Module):
        kept |= _OF_ANY_MODULE
    if isinstance(thing, torch.jit.ScriptModule):
        yield "code", [*_script_of(thing)]
    elif isinstance(thing, torch.fx.GraphModule):
        yield "code", thing.code
        yield from ((name, v) for name, v in vars(thing).items() if isinstance(v, Tensor))
    elif not kind.__module__.startswith("torch._dynamo"):
        for name, value in getattr(thing, "__dict__", {}).items():
            if name not in kept and not _is_computed(thing, name, value):
                yield name, value
    for name, value in members:
        is_slot = isinstance(value, types.MemberDescriptorType)
        if is_slot and name not in kept and not is_installed(value.__objclass__):
            with suppress(AttributeError):  # it has no value
                yield name, value.__get__(thing)


def _is_computed(thing: object, name: str, value: object) -> bool:
    """Tell whether an attribute is computed, as ``weight`` of ``weight_g`` and ``weight_v``.

    By a hook, as in ``weight_norm``, or by a wrapper's forward, from which it has a gradient; or
    is what a layer of torch's has beside such parameters, as the ``bias`` of an LSTM.
    """
    parameters = thing._parameters if isinstance(thing, nn.Module) else ()
    if not any(each.startswith(f"{name}_") for each in parameters):
        return False
    hooks = getattr(thing, "_forward_pre_hooks", None)
    computed = isinstance(value, Tensor) and bool(value.grad_fn or hooks)
    return computed or is_installed(type(thing))


def _script_of(script: torch.jit.ScriptModule) -> Iterator[object]:
    """Yield what a traced or scripted module computes, as its file would have it."""
    scripts: Any = script.modules()
    for each in scripts:
        with suppress(Exception):  # it has no forward
            text, constants = each.code_with_constants
            yield re.sub(r"___torch_mangle_\d+\.", "", text), constants.const_mapping


def changed_by_use(kind: type) -> set[str]:
    """Return the attributes that the methods change which a run calls, and those that they call."""
    own = [base for base in reversed(kind.__mro__) if not is_installed(base)]
    methods = {name: value for base in own for name, value in vars(base).items()}
    used = (*_USED, *_MAKING) if issubclass(kind, type) else _USED
    waiting, changed = [name for name in used if name in methods], set[str]()
    while waiting:
        method = methods.pop(waiting.pop(), None)
        function = inspect.unwrap(method) if callable(method) else getattr(method, "fget", None)
        if isinstance(function, types.FunctionType):
            source = source_of(function)
            changed |= source.changed
            waiting += source.names & methods.keys()
    return changed
