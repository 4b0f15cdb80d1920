"""A user's own data: what a function ``module:function`` returns, where the user allows it."""

import numpy as np
import torch
from torch import Tensor

from fednnnn_plugin.data.images import ImageDataset, Pixels, normalised_by_training_part
from fednnnn_plugin.errors import UserError, printable, reason
from fednnnn_plugin.seeds import isolated_generators
from fednnnn_plugin.user_code import load_code, refuse_code, told

MAX_CLASSES = 100_000

_KEY = "data_args.dataset"
_NAMES = ("train_inputs", "train_labels", "test_inputs", "test_labels")
_EXPECTED = f"tensors or arrays ({', '.join(_NAMES)})"


def load_own_data(reference: str, *, allow_code: bool, seed: int) -> ImageDataset:
    """Import a module and call its function, which takes nothing and returns four tensors.

    They, or NumPy arrays, are the training inputs and labels, and the test inputs and labels.
    Inputs are uint8 [n, C, H, W]: images, normalised by mean and standard deviation of the training
    pixels; floating and finite, of any shape [n, …], used as float32 without a change; or int64 of
    any shape [n, …], such as tokens, used as they are. Labels are integers [n], from 0 on; the
    largest one of both parts says how many classes there are.

    Args:
        reference: ``module:function``, see `load_code`.
        allow_code: the user, not a recipe, allows to run it.
        seed: the global generators are seeded by it for the call, and restored after.

    Raises:
        UserError: it is not allowed, cannot be imported, raises, or returns something else.
    """
    if not allow_code:
        raise refuse_code(_KEY, reference)
    where = f"{_KEY}: {printable(reference)}"
    with isolated_generators(seed, "data"):
        function = load_code(reference, _KEY)
        if not callable(function):
            raise UserError(f"{where}: is not callable")
        try:
            returned = function()
        except Exception as error:
            raise UserError(f"{where}: raised {told(error)}") from error
    pixels = _checked(returned, where)
    num_classes = 1 + max(int(pixels.train_labels.max()), int(pixels.test_labels.max()))
    if not 2 <= num_classes <= MAX_CLASSES:
        raise UserError(
            f"{where}: labels up to {num_classes - 1}: there must be 2 to {MAX_CLASSES} classes"
        )
    names = tuple(map(str, range(num_classes)))
    if pixels.train_images.dtype == torch.uint8:
        return normalised_by_training_part(pixels, names)
    return ImageDataset(pixels, names, pixel_max=1, mean=(), std=())


def _checked(returned: object, where: str) -> Pixels:
    """Check the four tensors, and bring them to the CPU and to their dtypes."""
    if not isinstance(returned, tuple | list):
        kind = type(returned).__name__
        raise UserError(f"{where}: returned a {kind}; must be four {_EXPECTED}")
    if len(returned) != 4:
        raise UserError(f"{where}: returned {len(returned)} values; must be four {_EXPECTED}")
    tensors = [_tensor(value, f"{where}: {n}") for n, value in zip(_NAMES, returned, strict=True)]
    checks = (_inputs, _labels) * 2
    train_inputs, train_labels, test_inputs, test_labels = (
        check(tensor, f"{where}: {name}")
        for check, tensor, name in zip(checks, tensors, _NAMES, strict=True)
    )
    for part, inputs, labels in (
        ("train", train_inputs, train_labels),
        ("test", test_inputs, test_labels),
    ):
        if len(labels) != len(inputs):
            raise UserError(
                f"{where}: {part}_labels: {len(labels)}; must be {len(inputs)}, one an input"
            )
    if (test_inputs.dtype, *test_inputs.shape[1:]) != (train_inputs.dtype, *train_inputs.shape[1:]):
        raise UserError(
            f"{where}: test_inputs: {_kind(test_inputs)}; train_inputs are {_kind(train_inputs)}"
        )
    return Pixels(train_inputs, train_labels, test_inputs, test_labels)


def _tensor(value: object, where: str) -> Tensor:
    """Bring a tensor or an array to the CPU."""
    try:
        if isinstance(value, np.ndarray):
            native = value.dtype.newbyteorder("=")
            if value.dtype.kind == "u" and value.itemsize > 1:  # which torch hardly knows
                native = np.dtype(np.int64)
            return torch.from_numpy(np.require(value, native, ["C", "W"]))
        if isinstance(value, Tensor):
            return value.detach().to("cpu").contiguous()
    except (RuntimeError, NotImplementedError, TypeError) as error:  # one without data, for example
        raise UserError(f"{where}: cannot be used: {reason(error)}") from error
    raise UserError(f"{where}: a {type(value).__name__}; must be a tensor or a NumPy array")


def _inputs(tensor: Tensor, where: str) -> Tensor:
    if not tensor.ndim or not tensor.numel():
        raise UserError(f"{where}: of {list(tensor.shape)}; must be [n, ...], not empty")
    if tensor.is_floating_point():
        tensor = tensor.float()
        if not tensor.isfinite().all():
            raise UserError(f"{where}: has NaN or infinite values (in float32)")
    elif tensor.dtype not in (torch.uint8, torch.int64):
        raise UserError(f"{where}: {tensor.dtype}; must be floating, int64, or images of uint8")
    if tensor.dtype == torch.uint8 and tensor.ndim != 4:
        raise UserError(f"{where}: {_kind(tensor)}; images of uint8 must be [n, C, H, W]")
    return tensor


def _labels(tensor: Tensor, where: str) -> Tensor:
    is_other = tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool
    if is_other or tensor.ndim != 1 or not len(tensor):
        raise UserError(f"{where}: {_kind(tensor)}; must be integers [n], not empty")
    labels = tensor.to(torch.int64)
    if int(labels.min()) < 0:
        raise UserError(f"{where}: has {int(labels.min())}; labels go from 0 on")
    return labels


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype} of {list(tensor.shape)}"
