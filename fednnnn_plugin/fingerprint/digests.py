"""Digests of models, functions, classes and objects: one walk through all that they reach."""

import inspect
import logging
import random
import threading
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from hashlib import blake2b
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fednnnn_plugin.fingerprint.source_text import source_of
from fednnnn_plugin.fingerprint.structure import (
    BUILT_IN,
    MADE_OF,
    PLAIN,
    VALUES,
    attributes_of,
    changed_by_use,
    is_own_value,
    names_of,
    structure_of,
    tensors_of,
    without_addresses,
)
from fednnnn_plugin.fingerprint.tensors import BYTES, tensors_digest
from fednnnn_plugin.fingerprint.variables import Unknown, Variables, variables_of
from fednnnn_plugin.user_code import is_installed

#: What of whom: ``{"model": {"layout": digest, …}, "data": {"tensors": digest}, …}``. A part whose
#: name begins with ``drawn`` follows from the run's seed: other seeds have others.
Fingerprint = Mapping[str, Mapping[str, str]]

#: The part that is no digest: what of the code no digest tells apart.
NOT_COVERED = "not_covered"

_OF_ANY_CLASS = {
    *("__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "__qualname__"),
    *("__firstlineno__", "__static_attributes__", "_abc_impl", "__annotate__"),
    *("__annotate_func__", "__annotations_cache__", "__conditional_annotations__"),
    "__slotnames__",  # which Python keeps there when it first copies an object of the class
    "_value2member_map_",  # where an enum keeps the flags that were combined
}
# No number depends on them; of generators some do, but not on where they are.
_WITHOUT_EFFECT = (
    *(logging.Logger, Executor, RemovableHandle),
    *map(type, (threading.Lock(), threading.RLock())),
)
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)


def model_digests(
    model: nn.Module, weights: str = "weights", makers: Iterable[object] = ()
) -> dict[str, str]:
    """Return the digests of a model's layout, of its ``weights``, and of its code.

    The layout is the class of each module, what it shows and has of plain values, such as a
    dropout's ``p``, and whether it is in the model's mode; and the names, dtypes and shapes of
    parameters and buffers, which are trained, and which are saved. The weights are both, as they
    are. The code is that of the classes, of hooks and attributes, and of the ``makers``.
    """
    plain, others = structure_of(model)
    return {
        **_digests("layout", plain, names_of(model)),
        weights: tensors_digest(tensors_of(model)),
        **_digests("code", [*others, *makers], names_of(model)),
    }


def code_digests(*things: object) -> dict[str, str]:
    """Return the digest of functions, classes and values, and of what their code refers to.

    It is of the text of functions that run, without comments and docstrings; of their defaults,
    closures and attributes, but for those that they change; of base classes; and of the functions,
    classes, constants and tensors of modules that they name or import, which it does. Of other
    variables of modules, and of tensors that the code changes, it is of the text that assigns or
    fills them, at the top of the module that they are imported from. It does not follow into what
    is installed. Where there is no text it is of the bytecode; so it is, with a warning, of a
    function whose file was changed since it was imported. A further part, ``not_covered``, names
    what it does not tell apart, such as a list that is read from a file. Another minor version of
    Python may have another text.
    """
    return _digests("code", things, {})


def _digests(part: str, things: Iterable[object], names: Mapping[int, str]) -> dict[str, str]:
    digest, names = blake2b(digest_size=BYTES), {**names}
    seen: dict[int, tuple[int, object]] = {}  # holds the things, so that no other gets their id
    read: set[tuple[object, ...]] = set()  # names and imports that were looked up, by module
    unknown: set[str] = set()
    waiting = [*things][::-1]
    while waiting:
        thing = waiting.pop()
        if id(thing) in names:  # a model's own module or tensor
            digest.update(f"own {names[id(thing)]};".encode())
            continue
        if id(thing) in seen:
            digest.update(f"again {seen[id(thing)][0]};".encode())
            continue
        # Whether equal constants are one object is the compiler's affair.
        if not isinstance(thing, (*PLAIN, tuple, frozenset)) or is_own_value(thing):
            seen[id(thing)] = len(seen), thing
        if isinstance(thing, Variables):
            of = thing.source
            if (key := (id(thing.module), of.names, of.imports, of.inner)) in read:
                continue
            read.add(key)
        if isinstance(thing, Unknown):
            unknown.add(thing.name)
        head, *parts = _described(thing)
        if isinstance(thing, set | frozenset):  # whose order is by address where all show the same
            parts.sort(key=lambda each: names.get(id(each), ""))
        if isinstance(thing, nn.Module):
            names |= names_of(thing)
        digest.update(f"{head}, of {len(parts)};".encode("utf-8", "backslashreplace"))
        waiting += reversed(parts)
    found = {part: digest.hexdigest()}
    return found | ({NOT_COVERED: ", ".join(sorted(unknown))} if unknown else {})


def _described(thing: object) -> Iterator[object]:
    """Yield what a thing is, in words, and then what it is made of."""
    match thing:
        case Variables():
            yield type(thing).__name__
            yield from variables_of(thing)
        case _ if isinstance(thing, VALUES) and not is_own_value(thing):
            yield from _told_of_value(thing)
        case types.FunctionType():
            yield from _told_of_function(thing)
        case type():
            yield from _told_of_class(thing)
        case nn.Module():
            yield f"module {tensors_digest(tensors_of(thing))}"
            yield [*structure_of(thing)]
        case types.ModuleType():
            yield f"file {thing.__name__}"
        case _ if isinstance(thing, BUILT_IN):
            yield f"built in {getattr(thing, '__qualname__', repr(thing))}"
            of = getattr(thing, "__self__", None)
            yield of.__name__ if isinstance(of, types.ModuleType) else of
        case _:
            yield from _told_of_object(thing)


def _told_of_value(thing: object) -> Iterator[object]:
    kind = type(thing).__name__
    match thing:
        case _ if isinstance(thing, PLAIN):
            yield f"{kind} {thing!r}"
        case tuple() | list():  # also what is unknown
            yield from (kind, *thing)
        case set() | frozenset():
            yield kind
            yield from sorted(thing, key=lambda each: without_addresses(repr(each)))
        case Mapping():
            yield from (kind, *chain(*thing.items()))
        case Tensor():
            yield f"{kind} {thing.requires_grad} {tensors_digest([('', thing)])}"
        case np.ndarray():
            yield f"{kind} {thing.dtype} {thing.shape}"
            objects = thing.dtype.hasobject
            yield thing.tolist() if objects else blake2b(thing.tobytes()).hexdigest()


def _told_of_function(function: types.FunctionType) -> Iterator[object]:
    while is_installed(function) and isinstance(
        wrapped := getattr(function, "__wrapped__", None), types.FunctionType
    ):
        function = wrapped  # torch wraps an optimizer's step when one is first made
    if is_installed(function):
        yield f"function {function.__module__}.{function.__qualname__}"
        return
    code, source = function.__code__, source_of(function)
    yield "function"
    yield source.text
    names = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    given = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    for cell, name in zip(function.__closure__ or (), code.co_freevars, strict=True):
        with suppress(ValueError):  # it is empty
            given[name] = cell.cell_contents
    given |= (function.__kwdefaults__ or {}) | vars(function)
    yield {name: value for name, value in given.items() if name not in source.changed}
    yield Variables(source, function.__globals__, code.co_filename)


def _told_of_class(kind: type) -> Iterator[object]:
    yield f"class {kind.__name__}"
    if is_installed(kind):  # perhaps made of a user's, as by a parametrization
        yield from (base for base in kind.__mro__[1:] if not is_installed(base))
        return
    yield from kind.__bases__
    if not is_installed(type(kind)):
        yield type(kind)
    changed = changed_by_use(kind) | _OF_ANY_CLASS
    for name, value in sorted(vars(kind).items()):
        if name not in changed and not _is_wrapped_again(kind, name, value):
            yield from (name, value)


def _is_wrapped_again(kind: type, name: str, value: Any) -> bool:
    """Tell whether a class has what it inherits in a wrapper.

    As torch puts ``step`` into an optimizer's class when one is first made.
    """
    if not callable(value) or not hasattr(value, "__wrapped__"):  # others may answer to any name
        return False
    inherited = (vars(base).get(name) for base in kind.__mro__[1:])
    return any(callable(of) and inspect.unwrap(of) is inspect.unwrap(value) for of in inherited)


def _told_of_object(thing: object) -> Iterator[object]:
    """Yield an object's class and what it has; of others' classes what a copy is made of."""
    kind = type(thing)
    yield f"object {kind.__qualname__}"
    for of in MADE_OF:
        if isinstance(thing, of):
            yield from (getattr(thing, name) for name in MADE_OF[of])
    if kind in MADE_OF:
        return
    if isinstance(thing, torch.optim.Optimizer):
        yield from (kind, thing.defaults)
    elif isinstance(thing, _GENERATORS):
        yield Unknown(f"{kind.__module__}.{kind.__qualname__}")
    elif not is_installed(kind):
        yield from (kind, *attributes_of(thing))
        if isinstance(thing, VALUES):
            yield [*_told_of_value(thing)]
        elif isinstance(thing, Sequence):
            yield [*thing]
    elif not isinstance(thing, _WITHOUT_EFFECT):
        made: Any = None
        with suppress(Exception):  # some cannot be copied
            made = thing.__reduce_ex__(2)
        if isinstance(made, tuple):
            yield from ([*part] if isinstance(part, Iterator) else part for part in made)
        else:
            yield made or Unknown(f"{kind.__module__}.{kind.__qualname__}")
