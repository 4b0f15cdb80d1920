"""Augmentation: a user's transform of the batches that clients train on."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fednnnn_plugin.data.arrays import kind_of
from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.seeds import isolated_generators, torch_generator
from fednnnn_plugin.user_code import call_code

TRANSFORM = "train_args.train_transform"
#: A user's function of a batch's inputs, ``[b, ...]``; with a parameter ``generator`` it gets a
#: ``torch.Generator`` on the CPU.
Transform: TypeAlias = Callable[..., Tensor]


class Augmentation:
    """Transforms the inputs of each step, with generators of (seed, round, client, step).

    So what is drawn depends neither on the worker nor on what trained before. The function's own
    generator and the global ones are seeded alike; the latter are restored. One of torchvision's
    transforms draws once for all that it is given: it gets one image after another.
    """

    def __init__(self, transform: Transform, seed: int) -> None:
        self._transform, self._seed = transform, seed
        self._by_image = type(transform).__module__.startswith("torchvision.transforms")
        self._draws = False
        with suppress(TypeError, ValueError):  # some that are written in C
            self._draws = "generator" in inspect.signature(transform).parameters

    def __call__(self, inputs: Tensor, round_number: int, client: int, step: int) -> Tensor:
        """Return the inputs of a step transformed, of the same shape and dtype.

        Raises:
            UserError: the function raised, or returned another form.
        """
        purpose = f"transform, step {step}"
        with isolated_generators(self._seed, purpose, round_number, client):
            if self._by_image:
                return torch.stack([self._transformed(image) for image in inputs])
            own = torch_generator(self._seed, purpose, round_number, client)
            return self._transformed(inputs, **({"generator": own} if self._draws else {}))

    def _transformed(self, given: Tensor, **more: torch.Generator) -> Tensor:
        # A copy: the function may change it in place.
        found: Any = call_code(self._transform, TRANSFORM, given.clone(), **more)
        is_tensor = isinstance(found, Tensor)
        if is_tensor and (found.shape, found.dtype) == (given.shape, given.dtype):
            return found
        form = kind_of(found) if is_tensor else printable(type(found).__name__)
        raise UserError(
            TRANSFORM, f"gives {form} for {kind_of(given)}", "must keep shape and dtype"
        )
