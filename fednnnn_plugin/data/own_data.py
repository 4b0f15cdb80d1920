"""A user's own data: what a function ``module:function`` returns, where the user allows it."""

import numpy as np
import torch
from torch import Tensor

from fednnnn_plugin.data.images import ImageDataset, Pixels, normalised_by_training_part
from fednnnn_plugin.errors import UserError, printable, reason
from fednnnn_plugin.seeds import isolated_generators
from fednnnn_plugin.user_code import call_code, load_code, refuse_code

MAX_CLASSES = 100_000

_KEY = "data_args.dataset"
_EXPECTED = "tensors or arrays (train_inputs, train_labels, test_inputs, test_labels)"


def load_own_data(reference: str, *, allow_code: bool, seed: int) -> ImageDataset:
    """Import a module and call its function: inputs and labels to train on, then to test on.

    Inputs are images, uint8 [n, C, H, W], normalised by the training pixels; or of any shape
    [n, …], floating and finite, used as float32, or int64, such as tokens. Labels are integers [n],
    from 0 on.
    """
    if not allow_code:
        raise refuse_code(_KEY, reference)
    where = f"{_KEY}: {printable(reference)}"
    function = load_code(reference, _KEY)
    with isolated_generators(seed, "data"):
        returned = call_code(function, where, lambda load: load())
    pixels = _checked(returned, where)
    num_classes = 1 + int(torch.maximum(pixels.train_labels.max(), pixels.test_labels.max()))
    if not 2 <= num_classes <= MAX_CLASSES:
        raise UserError(
            f"{where}: labels up to {num_classes - 1}: there must be 2 to {MAX_CLASSES} classes"
        )
    names = tuple(map(str, range(num_classes)))
    if pixels.train_images.dtype == torch.uint8:
        return normalised_by_training_part(pixels, names)
    return ImageDataset(pixels, names)


def _checked(returned: object, where: str) -> Pixels:
    """Check the four tensors, and bring them to the CPU and to their dtypes."""
    if not isinstance(returned, tuple | list) or len(returned) != 4:
        raise UserError(f"{where}: returned a {type(returned).__name__}; must be four {_EXPECTED}")
    parts = []
    for part, inputs, labels in (("train", *returned[:2]), ("test", *returned[2:])):
        x = _inputs(inputs, f"{where}: {part}_inputs")
        y = _labels(labels, f"{where}: {part}_labels")
        if len(x) != len(y):
            raise UserError(f"{where}: {part}_labels: {len(y)}, for {len(x)} {part}_inputs")
        parts += [x, y]
    train, test = parts[0], parts[2]
    if (train.dtype, train.shape[1:]) != (test.dtype, test.shape[1:]):
        raise UserError(f"{where}: test_inputs: {_kind(test)}; train_inputs are {_kind(train)}")
    return Pixels(*parts)


def _inputs(value: object, where: str) -> Tensor:
    tensor = _tensor(value, where)
    if not tensor.ndim or not tensor.numel():
        raise UserError(f"{where}: {_kind(tensor)}; must be [n, ...], not empty")
    if tensor.is_floating_point():
        tensor = tensor.float()
        if not tensor.isfinite().all():
            raise UserError(f"{where}: has NaN or infinite values (in float32)")
    elif tensor.dtype != torch.int64 and (tensor.dtype != torch.uint8 or tensor.ndim != 4):
        raise UserError(
            f"{where}: {_kind(tensor)}; must be floating, int64, or images: uint8 [n, C, H, W]"
        )
    return tensor


def _labels(value: object, where: str) -> Tensor:
    tensor = _tensor(value, where)
    integers = torch.can_cast(tensor.dtype, torch.int64) and tensor.dtype != torch.bool
    if not integers or tensor.ndim != 1 or not len(tensor):
        raise UserError(f"{where}: {_kind(tensor)}; must be integers [n], not empty")
    labels = tensor.to(torch.int64)
    if int(labels.min()) < 0:
        raise UserError(f"{where}: has {int(labels.min())}; labels go from 0 on")
    return labels


def _tensor(value: object, where: str) -> Tensor:
    """Bring a tensor or an array to the CPU."""
    if not isinstance(value, Tensor | np.ndarray):
        raise UserError(f"{where}: a {type(value).__name__}; must be a tensor or a NumPy array")
    try:
        if isinstance(value, Tensor):
            if value.is_nested or value.is_quantized:
                raise TypeError("must be neither nested nor quantised")
            return value.detach().to("cpu").contiguous()
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError("must not be masked")
        return torch.from_numpy(np.require(value, value.dtype.newbyteorder("="), ["C", "W"]))
    except (RuntimeError, NotImplementedError, TypeError) as error:  # one without data, for example
        raise UserError(f"{where}: cannot be used: {reason(error)}") from error


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype} of {list(tensor.shape)}"
