"""Whether clients of a model can train side by side: tried, not told by its class."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fednnnn_plugin.client.group_sgd import GroupSGD
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.loss import CROSS_ENTROPY, Loss, value_of
from fednnnn_plugin.client.replica import Replica
from fednnnn_plugin.errors import RunError, UserError
from fednnnn_plugin.seeds import derive_seed, generators_state, isolated_generators
from fednnnn_plugin.server.layout import ModelState
from fednnnn_plugin.user_code import marks_of, user_code

_SIZES, _BATCH = (5, 2), 3  # of two clients: a batch is padded, and the first has a step more
_EPOCHS = 2
_SAME = 1e-8  # of the longest update: another order of additions makes less in float64
_SEED = 0
_MANY = 64  # samples on which a loss is tried
_NEARLY = 1 - 1e-6  # of the way to what is right: no probability becomes 0


def why_not_together(
    model: nn.Module,
    sgd: LocalSGD,
    images: Tensor,
    labels: Tensor,
    normalisation: Callable[[Tensor], Tensor] | None = None,
) -> str:
    """Say why clients of a model cannot train side by side; nothing where they can.

    Two clients take a few steps on the CPU in float64, together and one after the other: what
    comes out must be the same. The first seven of ``images`` ``[n, …]`` and ``labels`` are theirs.
    A model that draws must draw for each client what it draws for it alone, on the CPU. A loss must
    be the mean of its samples', of which there is one of each class, and keep nothing.
    """
    sgd = replace(
        sgd,
        precision="fp64",
        epochs=_EPOCHS,
        local_steps=None,
        batch_size=_BATCH,
        schedule=None,  # both at one rate: a group would take round 1's
    )
    model = copy.deepcopy(model).to("cpu", torch.float64).train()
    if len(labels) < sum(_SIZES):
        return "there are too few samples to try it"
    first = images[: sum(_SIZES)].cpu(), labels[: sum(_SIZES)].cpu()
    try:
        with user_code("a step of two clients together"):
            if sgd.loss is not CROSS_ENTROPY:
                various = _various(labels)
                tried = images[various].cpu(), labels[various].cpu()
                if not _is_mean(sgd.loss, model, *tried, normalisation):
                    return "the loss of a batch is no mean over its samples, or keeps something"
            alike = _are_alike(model, GroupSGD(sgd, model, *first, normalisation))
    except (UserError, RunError) as error:
        return str(error)
    if alike:
        return ""
    return (
        "a step of two clients together is not what each makes alone: a layer mixes channels, or "
        "draws, in a way that is not known, or a loss is no mean over samples"
    )


def _various(labels: Tensor) -> Tensor:
    """Return the positions of a sample of each class, or of some that are far apart; at most 64."""
    if labels.ndim > 1 or labels.is_floating_point():
        return torch.linspace(0, len(labels) - 1, min(len(labels), _MANY)).long()
    classes = labels.unique()
    chosen = classes[torch.linspace(0, len(classes) - 1, min(len(classes), _MANY)).long()]
    return torch.stack([(labels == label).nonzero()[0, 0] for label in chosen])


def _is_mean(
    loss: Loss,
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    normalisation: Callable[[Tensor], Tensor] | None,
) -> bool:
    """Tell whether a loss keeps nothing, and is the mean of the losses of its samples."""
    loss = loss.fresh(torch.device("cpu"))
    inputs = normalisation(images) if normalisation else images
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    with torch.no_grad(), isolated_generators(_SEED, "client"):
        outputs = copy.deepcopy(model).eval()(inputs)
        half_right = _half_right(loss, outputs, labels)
        for made in [outputs] if half_right is None else [outputs, half_right]:
            each = [loss(one[None], label[None]) for one, label in zip(made, labels, strict=True)]
            before = _kept(loss.mean)  # what the first calls keep, such as a table, may stay
            is_mean = torch.allclose(loss(made, labels), torch.stack(each).mean())
            if not is_mean or _kept(loss.mean) != before:
                return False
    return True


def _half_right(loss: Loss, outputs: Tensor, labels: Tensor) -> Tensor | None:
    """Return outputs of which every second one is nearly right, as after some training.

    None where it is not known what is right, or where it is out of the loss's range.
    """
    some = labels[::2]
    if labels.numel() == outputs.numel():
        right = some.view_as(outputs[::2])
        if bool(((labels == 0) | (labels == 1)).all()) and loss.is_on_logits(outputs, labels):
            right = 100 * right - 50
    elif _are_classes(labels, outputs):
        are_probabilities = outputs.min() >= 0 and outputs.max() <= 1
        right = F.one_hot(some.long(), outputs.shape[1]) * (1 if are_probabilities else 50)
    else:
        return None
    made = outputs.clone()
    made[::2] = made[::2].lerp(right.to(made.dtype), _NEARLY)
    value = value_of(loss.mean, made, labels)
    return made if value is not None and math.isfinite(value) else None


def _are_classes(labels: Tensor, outputs: Tensor) -> bool:
    """Tell whether each label is one of the columns of the outputs."""
    if labels.is_floating_point() or labels.ndim != 1 or outputs.ndim != 2:
        return False
    return int(labels.min()) >= 0 and int(labels.max()) < outputs.shape[1]


def _kept(function: object) -> list[object]:
    """Return what tells whether a loss has changed what it keeps."""
    while isinstance(function, partial):
        function = function.func
    function = getattr(function, "__self__", function)
    parts = function.modules() if isinstance(function, nn.Module) else [function]
    return [marks_of(getattr(each, "__dict__", {})) for each in parts]


def _are_alike(model: nn.Module, group: GroupSGD) -> bool:
    """Tell whether two clients make the same together as each makes alone."""
    places = torch.arange(len(group.labels)).split(_SIZES)
    with isolated_generators(_SEED, "client"):
        start = copy.deepcopy(Replica(copy.deepcopy(model)).state)
        seeds = [derive_seed(_SEED, "client", 1, client) for client in range(len(_SIZES))]
        before = generators_state()
        together = group.train(start, [[own] * _EPOCHS for own in places], seeds=seeds)
        if generators_state() != before:  # what is known to draw has generators of the clients
            return False
    inputs = group.normalisation(group.inputs) if group.normalisation else group.inputs
    for client, own in enumerate(places):
        batches = [(inputs[some].double(), group.labels[some]) for some in own.split(_BATCH)]
        with isolated_generators(_SEED, "client", 1, client):
            replica = Replica(copy.deepcopy(model))
            group.sgd.train(replica, [batches] * _EPOCHS)
        if not _same(together, client, replica.state, start):
            return False
    return True


def _same(together: ModelState, client: int, alone: ModelState, start: ModelState) -> bool:
    """Tell whether a client of a group has the model that it has alone, but for roundings."""
    longest = (alone.vector - start.vector).abs().max()
    apart = (together.vector[client] - alone.vector).abs().max()
    return bool(apart <= _SAME * longest) and all(
        torch.allclose(together.buffers[name][client].double(), tensor.double(), rtol=_SAME)
        for name, tensor in alone.buffers.items()
    )
