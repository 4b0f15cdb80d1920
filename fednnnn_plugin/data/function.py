"""A user's own data: tensors from a function ``module:function``, where the user allows it."""

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fednnnn_plugin.data.images import ImageDataset, Pixels, mean_and_std
from fednnnn_plugin.data.sources import printable, reason
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.seeds import isolated_generators

MAX_CLASSES = 100_000

_PARTS = ("train", "test")
_EXPECTED = "(train_images, train_labels, test_images, test_labels)"
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def names_function(dataset: object) -> bool:
    """Tell whether a data set's name is ``module:function``: the user's code."""
    return isinstance(dataset, str) and ":" in dataset


def load_from_function(reference: str, *, allow_code: bool, seed: int) -> ImageDataset:
    """Import a module and call its function, which takes nothing and returns four tensors.

    They are ``train_images``, ``train_labels``, ``test_images`` and ``test_labels``. Images are
    uint8 [n, C, H, W], which are normalised by mean and standard deviation of the training pixels,
    or floating and finite, which are used as they are. Labels are integers [n], from 0 on; the
    largest one of both parts says how many classes there are.

    Args:
        reference: ``module:function``. The current directory is importable meanwhile, as it is for
            ``python -m``.
        allow_code: the user, not a recipe, allows to run it.
        seed: the global generators are seeded by it for the call, and restored after.

    Raises:
        UserError: it is not allowed, cannot be imported, raises, or returns something else.
    """
    where = f"data_args.dataset: {printable(reference)}"
    if not allow_code:
        raise UserError(
            f"data_args.dataset: {printable(reference)!r} is code that the recipe asks to run: add "
            "--allow-code if you trust it"
        )
    with _current_directory_importable(), isolated_generators(seed, "data"):
        function = _imported(reference, where)
        try:
            returned = function()
        except Exception as error:
            raise UserError(f"{where}: raised {_told(error)}") from error
    pixels = _checked(returned, where)
    num_classes = 1 + max(int(pixels.train_labels.max()), int(pixels.test_labels.max()))
    if not 2 <= num_classes <= MAX_CLASSES:
        raise UserError(
            f"{where}: labels up to {num_classes - 1}: there must be 2 to {MAX_CLASSES} classes"
        )
    if pixels.train_images.dtype == torch.uint8:
        mean, std = mean_and_std(pixels.train_images, 255)
    else:
        channels = pixels.train_images.shape[1]
        mean, std = (0.0,) * channels, (1.0,) * channels
    return ImageDataset(pixels, num_classes, pixel_max=255, mean=mean, std=std)


@contextmanager
def _current_directory_importable() -> Iterator[None]:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


def _imported(reference: str, where: str) -> Callable[[], Any]:
    module_name, _, name = reference.partition(":")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise UserError(
                f"{where}: no module {error.name}: it must be installed, or in the current "
                f"directory, {printable(Path.cwd())}"
            ) from error
        raise UserError(f"{where}: does not import: {_told(error)}") from error
    except Exception as error:
        raise UserError(f"{where}: does not import: {_told(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        what = "is not callable" if hasattr(module, name) else "is not there"
        raise UserError(f"{where}: {name} {what}, in module {module_name}")
    return function


def _checked(returned: object, where: str) -> Pixels:
    """Check the four tensors, and bring them to the CPU and to their dtypes."""
    if not isinstance(returned, tuple | list):
        raise UserError(f"{where}: returned {_kind(returned)}; must be four tensors {_EXPECTED}")
    if len(returned) != 4:
        raise UserError(f"{where}: returned {len(returned)} values; must be four {_EXPECTED}")
    given = dict(zip(Pixels._fields, returned, strict=True))
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise UserError(f"{where}: {name}: {_kind(value)}; must be a tensor")
    for part in _PARTS:
        _check_part(given[f"{part}_images"], given[f"{part}_labels"], part, where)
    train, test = given["train_images"], given["test_images"]
    if train.shape[1:] != test.shape[1:]:
        raise UserError(
            f"{where}: test_images: of {list(test.shape[1:])}; train_images are of "
            f"{list(train.shape[1:])}"
        )
    if train.is_floating_point() != test.is_floating_point():
        raise UserError(f"{where}: test_images: {test.dtype}; train_images are {train.dtype}")
    try:
        pixels = Pixels(*map(_staged, given.values()))
    except (RuntimeError, NotImplementedError) as error:  # a tensor without data, for instance
        raise UserError(f"{where}: a tensor cannot be used: {reason(error)}") from error
    for part in _PARTS:
        _check_values(
            getattr(pixels, f"{part}_images"), getattr(pixels, f"{part}_labels"), part, where
        )
    return pixels


def _check_part(images: Tensor, labels: Tensor, part: str, where: str) -> None:
    shape = list(images.shape)
    if images.ndim != 4 or not images.numel():
        raise UserError(f"{where}: {part}_images: of {shape}; must be [n, C, H, W], not empty")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise UserError(f"{where}: {part}_images: {images.dtype}; must be torch.uint8 or floating")
    if labels.dtype not in _INTEGERS:
        raise UserError(f"{where}: {part}_labels: {labels.dtype}; must be integers")
    if list(labels.shape) != shape[:1]:
        raise UserError(
            f"{where}: {part}_labels: of {list(labels.shape)}; must be {shape[:1]}, one an image"
        )


def _check_values(images: Tensor, labels: Tensor, part: str, where: str) -> None:
    if images.is_floating_point() and not images.isfinite().all():
        raise UserError(f"{where}: {part}_images: has NaN or infinite values (in float32)")
    if int(labels.min()) < 0:
        raise UserError(f"{where}: {part}_labels: has {int(labels.min())}; labels go from 0 on")


def _staged(tensor: Tensor) -> Tensor:
    dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
    dtype = torch.int64 if tensor.ndim == 1 else dtype
    return tensor.detach().to("cpu", dtype).contiguous()


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


def _told(error: Exception) -> str:
    """What was raised, and in which line of the user's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename != __file__ and not f.filename.startswith("<frozen")]
    place = f" ({printable(own[-1].filename)}, line {own[-1].lineno})" if own else ""
    return printable(f"{type(error).__name__}: {' '.join(str(error).split())}") + place
