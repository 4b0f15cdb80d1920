"""Whether clients of a model can train side by side: tried, not told by its class."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from fednnnn_plugin.client.group_sgd import GroupSGD
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.loss import LOSSES, LossFunction
from fednnnn_plugin.client.replica import Replica
from fednnnn_plugin.errors import RunError, UserError
from fednnnn_plugin.seeds import derive_seed, generators_state, isolated_generators
from fednnnn_plugin.server.layout import ModelState
from fednnnn_plugin.user_code import user_code

# Of two clients: a batch is padded, and the first has a step more. Batch normalisation of fewer
# samples, of one element each, divides by next to nothing: it makes much of a rounding.
_SIZES, _BATCH = (13, 5), 8
_EPOCHS = 2
_SAME = 1e-8  # of the longest update: another order of additions makes less in float64
_SAME_IN_ITS_DTYPE = 1e-5  # of a user's loss, which may round to float32
_SEED = 0


def why_not_together(
    model: nn.Module,
    sgd: LocalSGD,
    images: Tensor,
    labels: Tensor,
    normalisation: Callable[[Tensor], Tensor] | None = None,
) -> str:
    """Say why clients of a model cannot train side by side; nothing where they can.

    Two clients take a few steps on the CPU in float64, together and one after the other: what
    comes out must be the same. The first 18 of ``images`` ``[n, …]`` and ``labels`` are theirs.
    A model that draws must draw for each client what it draws for it alone, on the CPU and of
    images in the usual order of memory.
    """
    loss, same = sgd.loss, _SAME
    if loss not in LOSSES.values():
        mean, same = loss.fresh(torch.device("cpu")).mean, _SAME_IN_ITS_DTYPE
        loss = replace(loss, mean=partial(_in_dtype, sgd.dtype, mean))
    sgd = replace(
        sgd,
        loss=loss,
        precision="fp64",
        epochs=_EPOCHS,
        local_steps=None,
        batch_size=_BATCH,
        schedule=None,  # both at one rate: a group would take round 1's
    )
    model = copy.deepcopy(model).to("cpu", torch.float64)
    model.train()
    some = torch.arange(sum(_SIZES)) % len(labels)
    first = images[some.to(images.device)].cpu(), labels[some.to(labels.device)].cpu()
    try:
        with user_code("a step of two clients together"):
            alike = _are_alike(model, GroupSGD(sgd, model, *first, normalisation), same)
    except (UserError, RunError) as error:
        return str(error)
    if alike:
        return ""
    return (
        "a step of two clients together is not what each makes alone: a layer mixes channels or "
        "draws in a way that is not known, or a parameter gets no gradient and decays"
    )


def _in_dtype(dtype: torch.dtype, mean: LossFunction, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return a user's loss, which may hold tensors, of outputs in the run's dtype."""
    return mean(outputs.to(dtype), targets)


def _are_alike(model: nn.Module, group: GroupSGD, same: float) -> bool:
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
        if not _same(together, client, replica.state, start, same):
            return False
    return True


def _same(
    together: ModelState, client: int, alone: ModelState, start: ModelState, same: float
) -> bool:
    """Tell whether a client of a group has the model that it has alone, but for roundings."""
    longest = (alone.vector - start.vector).abs().max()
    apart = (together.vector[client] - alone.vector).abs().max()
    return bool(apart <= same * longest) and all(
        torch.allclose(together.buffers[name][client].double(), tensor.double(), rtol=same)
        for name, tensor in alone.buffers.items()
    )
