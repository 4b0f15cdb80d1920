"""Augmentation: a user's transform of the batches that clients train on."""

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

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
        self._draws = "generator" in _parameters(transform)

    def __call__(self, inputs: Tensor, round_number: int, client: int, step: int) -> Tensor:
        """Return the inputs of a step transformed, of the same shape and dtype.

        Raises:
            UserError: the function raised, or returned another form.
        """
        purpose = f"transform, step {step}"
        with isolated_generators(self._seed, purpose, round_number, client):
            if self._by_image:
                images = [call_code(self._transform, TRANSFORM, image) for image in inputs]
                same = {(image.shape, image.dtype) for image in images} == {
                    (inputs.shape[1:], inputs.dtype)
                }
                found: Any = torch.stack(images) if same else images[0].unsqueeze(0)
            else:
                own = torch_generator(self._seed, purpose, round_number, client)
                more = {"generator": own} if self._draws else {}
                # A copy: the function may change it in place.
                found = call_code(self._transform, TRANSFORM, inputs.clone(), **more)
        if isinstance(found, Tensor) and (found.shape, found.dtype) == (inputs.shape, inputs.dtype):
            return found
        form = "a " + printable(type(found).__name__)
        if isinstance(found, Tensor):
            form = f"{found.dtype} of {list(found.shape)}"
        raise UserError(
            TRANSFORM,
            f"gives {form} for a batch of {inputs.dtype} of {list(inputs.shape)}",
            "must keep shape and dtype",
        )


def _parameters(transform: object) -> tuple[str, ...]:
    """Return the names of a function's parameters, as far as they are known."""
    try:
        return tuple(inspect.signature(transform).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ()
