"""Digests of what a user brings: tensors, models, and the code that runs."""

import dis
import functools
import inspect
import logging
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from importlib.util import resolve_name
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fednnnn_plugin.user_code import is_installed, own_module

#: What of whom: ``{"model": {"layout": digest, …}, "data": {"tensors": digest}, …}``. A part whose
#: name begins with ``drawn`` follows from the run's seed: other seeds have others.
Fingerprint = Mapping[str, Mapping[str, str]]

_BYTES = 16
_PLAIN = (type(None), type(...), bool, int, float, complex, str, bytes)
_OF_ANY_MODULE = {*vars(nn.Module()), "__annotations__"}
_OF_ANY_CLASS = {
    *("__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "__qualname__"),
    *("__firstlineno__", "__static_attributes__", "_abc_impl", "__annotate__"),
    *("__annotate_func__", "__annotations_cache__", "__conditional_annotations__"),
}
# What others that can be called are made of.
_MADE_OF: dict[type, tuple[str, ...]] = {
    types.MethodType: ("__func__", "__self__"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    functools.cached_property: ("func",),
    functools.partial: ("func", "args", "keywords"),
    type(functools.cache(len)): ("__wrapped__",),
    np.vectorize: ("pyfunc", "otypes", "signature"),
    logging.Logger: ("name",),
}
# Packages whose objects are values: what a copy of one has does not change with its use.
_OF_VALUES = (
    *("collections", "functools", "operator", "re", "types"),
    *("pandas", "scipy", "sklearn", "torchvision"),
)
# Functions and attributes of classes that are written in C, or made by Python for slots.
_BUILT_IN = (
    *(types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType),
    *(types.MethodDescriptorType, types.ClassMethodDescriptorType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType),
)


def tensors_digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return a digest of tensors: their names, dtypes, shapes and bytes."""
    digest = blake2b(digest_size=_BYTES)
    for name, tensor in tensors:
        for part in _dense(tensor):
            digest.update(f"{name} {part.dtype} {list(part.shape)};".encode())
            flat = part.cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _dense(tensor: Tensor) -> Sequence[Tensor]:
    """Return what a tensor is made of, as a graph's adjacency is of indices and values."""
    if is_lazy(tensor) or tensor.is_meta:  # no values
        return ()
    tensor = tensor.detach()
    if tensor.is_nested:
        return tensor.unbind()
    size = torch.tensor(tensor.shape)
    match tensor.layout:
        case torch.sparse_coo:
            tensor = tensor.coalesce()
            return size, tensor.indices(), tensor.values()
        case torch.sparse_csr | torch.sparse_bsr:
            return size, tensor.crow_indices(), tensor.col_indices(), tensor.values()
        case torch.sparse_csc | torch.sparse_bsc:
            return size, tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)


def model_digests(
    model: nn.Module, weights: str = "weights", makers: Iterable[object] = ()
) -> dict[str, str]:
    """Return the digests of a model's layout, of its ``weights``, and of its code.

    The layout is the class and the attributes of each module, such as a dropout's ``p``, and the
    names, dtypes and shapes of parameters and buffers, and which are trained. The weights are both,
    as they are. The code is that of the classes, and of the ``makers``.
    """
    named = [*model.named_parameters(), *model.named_buffers()]
    shapes = [
        (name, str(t.dtype), () if is_lazy(t) or t.is_nested else tuple(t.shape), t.requires_grad)
        for name, t in named
    ]
    return {
        "layout": code_digest(shapes, *_layout(model)),
        weights: tensors_digest(named),
        "code": code_digest(*dict.fromkeys(map(type, model.modules())), *makers),
    }


def code_digest(*things: object) -> str:
    """Return a digest of functions, classes and values, and of what their code refers to.

    It is of the code as Python runs it: of a class from a file, a notebook or ``exec`` alike, and
    of a file that was edited since as it was imported; comments and places do not count. It
    follows base classes, defaults, closures, globals and imports, which it makes, but not into what
    is installed. Another minor version of Python compiles to other code.
    """
    digest = blake2b(digest_size=_BYTES)
    seen: dict[int, tuple[int, object]] = {}  # holds the things, so that no other gets their id
    waiting = [*reversed(things)]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            digest.update(f"again {seen[id(thing)][0]};".encode())
            continue
        # Whether equal constants are one object is the compiler's affair.
        if not isinstance(thing, (*_PLAIN, tuple, frozenset, types.CodeType)):
            seen[id(thing)] = len(seen), thing
        head, *parts = _told(thing)
        digest.update(f"{head}, of {len(parts)};".encode("utf-8", "backslashreplace"))
        waiting += reversed(parts)
    return digest.hexdigest()


def _layout(model: nn.Module) -> Iterator[object]:
    named = (*model.named_parameters(), *model.named_buffers(), *model.named_modules())
    names = {id(thing): name for name, thing in named}
    for name, module in model.named_modules():
        has = vars(module).items()
        own = {key: _by_names(value, names) for key, value in has if key not in _OF_ANY_MODULE}
        yield from (name, type(module).__qualname__, own)


def _by_names(value: object, names: Mapping[int, str]) -> object:
    """Return an attribute with the model's own tensors and modules by their names."""
    if isinstance(value, list | tuple):  # as an LSTM's of its weights
        return [_by_names(each, names) for each in value]
    return names.get(id(value), value)


def _told(thing: object) -> Iterator[object]:
    """Yield what a thing is, in words, and then what it is made of."""
    kind = type(thing).__name__
    match thing:
        case None | bool() | int() | float() | complex() | str() | bytes():
            yield f"{kind} {thing!r}"
        case tuple() | list():
            yield kind
            yield from thing
        case set() | frozenset():
            yield kind
            yield from sorted(thing, key=repr)
        case Mapping():
            yield kind
            for item in thing.items():
                yield from item
        case _:
            yield from _told_of_code(thing)


def _told_of_code(thing: object) -> Iterator[object]:
    kind = type(thing).__name__
    match thing:
        case Tensor():
            yield f"{kind} {tensors_digest([('', thing)])}"
        case np.ndarray():
            yield f"{kind} {thing.dtype} {thing.shape}"
            objects = thing.dtype.hasobject
            yield thing.tolist() if objects else blake2b(thing.tobytes()).hexdigest()
        case types.CodeType():
            names = thing.co_varnames, thing.co_names, thing.co_freevars, thing.co_cellvars
            yield f"{kind} {thing.co_argcount} {thing.co_flags} {names} {thing.co_code.hex()}"
            yield from thing.co_consts
        case types.FunctionType():
            yield from _told_of_function(thing)
        case type() | types.ModuleType():
            yield f"{kind} {thing.__name__}"
            if not is_installed(thing):
                yield from getattr(thing, "__bases__", ())
                for name, value in sorted(vars(thing).items()):
                    own = name not in _OF_ANY_CLASS and not _is_of_import(thing, name, value)
                    if own and not _is_wrapped_again(thing, name, value):
                        yield from (name, value)
        case nn.Module():
            yield kind
            yield from (type(thing), *_layout(thing), *thing.parameters(), *thing.buffers())
        case _ if isinstance(thing, _BUILT_IN):
            yield f"{kind} {thing.__qualname__}"
            of = getattr(thing, "__self__", None)
            yield of.__name__ if isinstance(of, types.ModuleType) else of
        case _:
            yield from _told_of_object(thing)


def _is_of_import(thing: object, name: str, value: object) -> bool:
    """Tell whether a module has an attribute by imports: its file, loader …, its submodules."""
    if not isinstance(thing, types.ModuleType):
        return False
    return name.startswith("__") or value is sys.modules.get(f"{thing.__name__}.{name}", thing)


def _is_wrapped_again(thing: object, name: str, value: object) -> bool:
    """Tell whether a class has what it inherits in a wrapper.

    As torch puts ``step`` into an optimizer's class when one is first made.
    """
    if not isinstance(thing, type) or not callable(value) or not hasattr(value, "__wrapped__"):
        return False
    inherited = (vars(base).get(name) for base in thing.__mro__[1:])
    return any(callable(of) and inspect.unwrap(of) is inspect.unwrap(value) for of in inherited)


def _told_of_function(function: types.FunctionType) -> Iterator[object]:
    while is_installed(function) and isinstance(
        wrapped := getattr(function, "__wrapped__", None), types.FunctionType
    ):
        function = wrapped  # torch wraps an optimizer's step when one is first made
    if is_installed(function):
        yield f"function {function.__module__}.{function.__qualname__}"
        return
    yield "function"
    yield from (function.__code__, function.__defaults__, function.__kwdefaults__)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # empty
            yield None
    codes = [*_codes(function.__code__)]
    for name in sorted(set().union(*map(_globals_of, codes))):
        if name in function.__globals__:
            yield from (name, function.__globals__[name])
    package = function.__globals__.get("__package__") or ""
    for level, name, attribute in sorted(set().union(*map(_imports_of, codes))):
        yield from (name, attribute, _imported(level, name, attribute, package))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code and all that are in it, as of lambdas and classes."""
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes(const)


def _globals_of(code: types.CodeType) -> set[str]:
    """Names that are looked for in the module; a class's body looks there for its own, too."""
    loads = ("LOAD_GLOBAL", "LOAD_NAME")
    named = {each.argval for each in dis.get_instructions(code) if each.opname in loads}
    return {name for name in named if not (name.startswith("__") and name.endswith("__"))}


def _imports_of(code: types.CodeType) -> set[tuple[int, str, str]]:
    """Level, module and attribute, or none, of each import; ``from . import x`` has level 1."""
    steps = [each for each in dis.get_instructions(code) if each.opname != "EXTENDED_ARG"]
    return {
        (steps[place - 2].argval, step.argval, attribute)
        for place, step in enumerate(steps)
        if step.opname == "IMPORT_NAME"
        for attribute in steps[place - 1].argval or ("",)
    }


def _imported(level: int, name: str, attribute: str, package: str) -> object:
    """Return what a function imports, if it is the user's."""
    with suppress(ImportError):  # it is beyond the package
        name = resolve_name("." * level + name, package)
    module = own_module(name)
    if not attribute or module is None:
        return module
    return getattr(module, attribute, None) or own_module(f"{name}.{attribute}")


def _told_of_object(thing: object) -> Iterator[object]:
    """Yield an object's class and what it has; of others' classes its text, if that is no place."""
    kind = type(thing)
    if kind in _MADE_OF:
        yield kind.__name__
        yield from (getattr(thing, name) for name in _MADE_OF[kind])
    elif is_installed(kind):
        made: Any = None
        if kind.__module__.partition(".")[0] in _OF_VALUES:
            with suppress(Exception):  # some cannot be copied
                made = thing.__reduce_ex__(2)
        if isinstance(made, tuple):
            yield kind.__qualname__
            yield from ([*part] if isinstance(part, Iterator) else part for part in made)
        else:
            text = repr(thing)
            text = getattr(thing, "__qualname__", "") if " at 0x" in text else text
            yield f"{kind.__qualname__} {text}"
    else:
        yield from ("object", kind, getattr(thing, "__dict__", None))
        slots = (item for base in kind.__mro__ if not is_installed(base) for item in _slots(base))
        for name, slot in slots:
            with suppress(AttributeError):  # it has no value
                yield from (name, slot.__get__(thing))


def _slots(kind: type) -> Iterator[tuple[str, types.MemberDescriptorType]]:
    for name, value in vars(kind).items():
        if isinstance(value, types.MemberDescriptorType):
            yield name, value
