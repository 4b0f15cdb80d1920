"""Whether a model takes the images of a data set, before any client trains."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.errors import UserError, printable, reason
from fednnnn_plugin.seeds import isolated_generators


def check_model(model: nn.Module, name: str, data: FederatedData, batch_size: int) -> None:
    """Pass one training image through the model, and say of a problem what it is in one line.

    Batch normalisation over a single value has no variance: where a client's last batch is one
    image, the model must train on that as well.

    Args:
        model: it is left as it is.
        name: ``model_args.model``.
        data: whose images.
        batch_size: ``train_args.batch_size``; -1 is all of a client's images.

    Raises:
        UserError: it does not take such images, or gives something else than a logit a class.
    """
    like = next(model.parameters(), data.train_images)
    image = data.train_images[:1].to(like.device)
    if image.is_floating_point():
        image = image.to(like.dtype)
    wanted = [1, data.num_classes, *data.train_labels.shape[1:]]
    shape = list(image.shape[1:])
    training = model.training
    try:
        logits = _output(model.eval(), image)
    except Exception as error:
        raise UserError(
            f"model_args.model: {name}: does not take images of {shape}: {printable(reason(error))}"
        ) from error
    finally:
        model.train(training)
    if not isinstance(logits, Tensor) or list(logits.shape) != wanted:
        kind = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(
            f"model_args.model: {name}: gives {kind} for an image, not {wanted}: the logits of the "
            "classes"
        )
    alone = [k for k in range(data.num_clients) if _ends_with_one(data.client_size(k), batch_size)]
    if not alone:
        return
    try:
        _output(copy.deepcopy(model).train(), image)
    except Exception as error:
        size = data.client_size(alone[0])
        raise UserError(
            f"train_args.batch_size: {batch_size}: leaves client {alone[0]}, which has {size} "
            f"images, a batch of one image, on which {name} cannot train "
            f"({printable(reason(error))}): choose another batch_size, or larger images"
        ) from error


def _ends_with_one(samples: int, batch_size: int) -> bool:
    """Tell whether the last batch of an epoch is a single image."""
    return samples == 1 if batch_size == -1 else samples % batch_size == 1 % batch_size


@torch.no_grad()
def _output(model: nn.Module, image: Tensor) -> object:
    with isolated_generators(0, "model check"):
        return model(image)
