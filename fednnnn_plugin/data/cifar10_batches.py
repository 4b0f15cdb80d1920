"""CIFAR-10's own Python batches: pickles, read without letting them run or build anything.

The official files were written by Python 2: a dictionary of strings, numbers and one NumPy array.
Only the pickle instructions that they contain are admitted, few enough that memory stays bounded,
and the three NumPy names that they mention stand for inert placeholders of ours.
"""

import io
import math
import pickle
import pickletools
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IMAGE_SHAPE = (3, 32, 32)
NUM_CLASSES = 10
MAX_BATCH_BYTES = 40_000_000  # the official ones have 31 million

_MAX_IMAGES = 10_000
_MAX_INSTRUCTIONS = 200_000  # the official ones have some 30 thousand
_INSTRUCTIONS = frozenset({
    "PROTO", "STOP", "MARK", "GLOBAL", "REDUCE", "BUILD", "NONE", "NEWFALSE", "NEWTRUE",
    "BININT", "BININT1", "BININT2", "LONG1", "BINSTRING", "SHORT_BINSTRING",
    "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "APPEND", "APPENDS",
    "EMPTY_DICT", "SETITEM", "SETITEMS", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT",
})  # fmt: skip


def read_batch(file: IO[bytes]) -> tuple[Tensor, Tensor]:
    """Read images uint8 [n, 3, 32, 32] and labels int64 [n] of one batch.

    Raises:
        ValueError: it is not a batch; says why.
        OSError: it cannot be read.
    """
    content = file.read(MAX_BATCH_BYTES + 1)
    if len(content) > MAX_BATCH_BYTES:
        raise ValueError(f"more than {MAX_BATCH_BYTES} bytes")
    _admit(content)
    try:
        batch = _BatchUnpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle raises nearly anything
        raise ValueError(f"not a CIFAR-10 batch: {error}") from error
    return _tensors(batch)


def _admit(content: bytes) -> None:
    """Refuse what the official files do not contain, before anything is unpickled."""
    for count, (instruction, argument, _) in enumerate(pickletools.genops(content)):
        if instruction.name not in _INSTRUCTIONS:
            raise ValueError(f"pickle instruction {instruction.name} is not allowed")
        # The unpickler makes room for all memo indices up to the one named.
        index = argument if instruction.name == "LONG_BINPUT" and argument is not None else 0
        if max(count, index) > _MAX_INSTRUCTIONS:
            raise ValueError("more pickle instructions than a CIFAR-10 batch has")


class _Array:
    """Where the file rebuilds its array: keeps the parts, makes no array."""

    __slots__ = ("state",)

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _DType:
    """Where the file names the type of its array's elements."""

    __slots__ = ("name",)

    def __init__(self, name: Any, align: Any, copy: Any) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like: a single byte has none."""


class _Reconstruct:
    """``numpy.core.multiarray._reconstruct``."""

    __slots__ = ()

    def __call__(self, kind: Any, shape: Any, code: Any) -> _Array:
        return _Array()


class _MakeDType:
    """``numpy.dtype``."""

    __slots__ = ()

    def __call__(self, name: Any, align: Any, copy: Any) -> _DType:
        return _DType(name, align, copy)


class _BatchUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        stand_ins = {
            ("numpy.core.multiarray", "_reconstruct"): _Reconstruct(),
            ("numpy", "ndarray"): None,
            ("numpy", "dtype"): _MakeDType(),
        }
        if (module, name) not in stand_ins:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        return stand_ins[module, name]


def _tensors(batch: Any) -> tuple[Tensor, Tensor]:
    """Check the dictionary that a batch should be, and turn it into tensors."""
    labels = batch.get(b"labels") if isinstance(batch, dict) else None
    array = batch.get(b"data") if isinstance(batch, dict) else None
    if not isinstance(labels, list) or not isinstance(array, _Array):
        raise ValueError("not a CIFAR-10 batch: no 'data' and 'labels'")
    if not 1 <= len(labels) <= _MAX_IMAGES:
        raise ValueError(f"{len(labels)} labels; a batch has 1 to {_MAX_IMAGES}")
    if any(type(label) is not int or not 0 <= label < NUM_CLASSES for label in labels):
        raise ValueError("a label is not a whole number from 0 to 9")
    rows = _rows(getattr(array, "state", None), len(labels))
    images = np.ascontiguousarray(rows).reshape(len(labels), *IMAGE_SHAPE)
    return torch.from_numpy(images.copy()), torch.tensor(labels, dtype=torch.int64)


def _rows(state: Any, num_images: int) -> NDArray[np.uint8]:
    """The array that the placeholder stands for, [num_images, 3072], from NumPy's own fields."""
    shape = (num_images, math.prod(IMAGE_SHAPE))
    match state:
        case (int(), tuple(found), _DType(name=b"u1"), int(by_column), bytes(content)) if (
            found == shape and len(content) == math.prod(shape)
        ):
            flat = np.frombuffer(content, dtype=np.uint8)
            return flat.reshape(shape, order="F" if by_column else "C")
    raise ValueError(f"'data' is not {shape[0]} rows of {shape[1]} unsigned bytes")
