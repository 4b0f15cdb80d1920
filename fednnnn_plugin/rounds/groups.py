"""Which clients of a round train in one set of kernels, on which rank, and how many: the width.

A change of width changes the order of additions, and so the bits. Therefore the width follows from
model, device and setting by a fixed rule; where a GPU's memory ends all the same it is halved from
that round on; and a resumed run begins with the width of its last checkpoint: its summary has it.
"""

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from fednnnn_plugin.client.group_sgd import Group
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.method import ClientMethod, has_vectors, length, replaces
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.user_code import exception_text

_log = logging.getLogger(__name__)

#: The part of a GPU's memory, less what the run itself needs, that a group's clients may take.
MEMORY = 0.8
#: The widest group that is planned: in wider ones nothing is gained.
WIDEST = 512
_MOST_ELEMENTS = 2**31 - 1  # of a layer's output, which some kernels count in 32 bits


class GroupTooWide(Exception):
    """A group needs more memory than its GPU has left."""


def room_on(model: nn.Module, data: object, memory: int) -> int:
    """Return the bytes that clients in training may take of a GPU's ``memory``; 0 of none.

    What the run itself needs is left out: the data, and ten models (the served one and that to be
    tested, the rule's, a replica and its gradient in float32; a sum and a difference in 64 bits).
    It does not depend on what is free at the moment, so that every start of a run gets the same.
    """
    if not memory:
        return 0
    needs = 64 * sum(parameter.numel() for parameter in model.parameters())
    if isinstance(data, FederatedData):
        parts = (data.train_images, data.train_labels, data.test_images, data.test_labels)
        needs += sum(tensor.nbytes for tensor in parts)
    return max(1, memory - needs)


def widest_group(
    model: nn.Module,
    data: object,
    sgd: LocalSGD,
    method: ClientMethod,
    setting: Literal["auto", "off"] | int,
    room: int,
    why_alone: Callable[[], str],
) -> int:
    """Return how many clients train together at most: a fixed rule on model and device.

    ``auto`` is one by one on a CPU: on one thread each, a client keeps the bits of every other way
    to run, and that is the faster for the paper's networks. On a GPU, where small kernels leave
    most of it idle, it is as many as fit in ``MEMORY`` of ``room`` bytes, with fewer than 2³¹
    elements in a layer's output, and at most ``WIDEST``. ``why_alone`` says why clients of this
    kind cannot train together; nothing where they can.
    """
    if setting in ("off", 1) or (setting == "auto" and not room):
        return 1
    if why := why_alone():
        if isinstance(setting, int):
            raise UserError("train_args.client_batching", setting, f"must be auto or off: {why}")
        _log.warning("clients train one after another: %s", why)
        return 1
    if isinstance(setting, int):
        return setting
    assert isinstance(data, FederatedData)
    largest = max(map(data.client_size, range(data.num_clients)))
    one = data.normalised(data.train_images[:1]).to("meta")
    batch = one.new_empty(min(sgd.batch_of(largest), largest), *one.shape[1:])
    try:
        needs, largest_output = client_needs(model, sgd, batch, method)
    except Exception as error:  # a user's model may look at the values
        why = exception_text(error)
        _log.warning("clients train one after another: their memory is not known: %s", why)
        return 1
    return max(1, min(WIDEST, int(MEMORY * room) // needs, _MOST_ELEMENTS // largest_output))


def client_needs(
    model: nn.Module, sgd: LocalSGD, batch: Tensor, method: ClientMethod
) -> tuple[int, int]:
    """Return the bytes that a client of a group takes, at most, and the elements of one tensor.

    For each parameter its weight, its gradient in parts and as a whole, a kernel's copy, and the
    difference to ``w_t`` in float64, twice. Of a method with vectors the correction and the update;
    of one that gives gradients each of them, a point and a result, and of one that uploads ``Δ'``;
    what a client keeps, before and after, and what it returns, as the method gave it and as it
    counts. The tensors of a user's loss. For the largest ``batch`` ``[B, …]``, on PyTorch's
    ``meta`` device, four times what autograd keeps of a forward pass, of which only the shapes are
    computed: forwards and backwards, in the memory of CUDA graphs, and beside it in steps that are
    not captured.
    """
    trial = copy.deepcopy(model).to("meta", sgd.dtype)
    trial.train()
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        trial(batch.to(sgd.dtype) if batch.is_floating_point() else batch)
    weights = sum(parameter.numel() for parameter in trial.parameters())
    numbers = weights * (4 + 2 * has_vectors(method) + replaces(method, "upload"))
    numbers += weights * replaces(method, "gradient") * (2 + method.evaluations)
    numbers += length(method, [*method.keeps * 3, *method.returns * 2], weights)
    differences = 2 * weights * torch.float64.itemsize
    loss = sgd.loss.mean
    held = [*loss.parameters(), *loss.buffers()] if isinstance(loss, nn.Module) else []
    of_loss = sum(tensor.nbytes for tensor in held)
    of_passes = 4 * sum(tensor.nbytes for tensor in kept)
    largest = max(tensor.numel() for tensor in (batch, *kept))
    return numbers * sgd.dtype.itemsize + differences + of_loss + of_passes, largest


def plan_groups(
    clients: Sequence[int], sizes: Sequence[int], most: int, least: int = 1
) -> list[Group]:
    """Group at most ``most`` clients that train together: neighbours in size, the largest first.

    There are ``least`` groups, so that no rank goes without, where there are as many clients, and
    about equally many samples in each as far as ``most`` allows. With ``most`` 1 each is alone, in
    the order given. ``sizes`` are the numbers of samples of every client, by its number, at least 1
    each: then no group takes a client that a later one needs, as none of those is larger.
    """
    if most == 1:
        return [(client,) for client in clients]
    ordered = sorted(clients, key=lambda client: (-sizes[client], client))
    samples, lacking = sum(sizes[client] for client in ordered), least
    groups: list[Group] = []
    start = 0
    while start < len(ordered):
        end, taken = start + 1, sizes[ordered[start]]
        share = samples / max(lacking, 1)
        last = min(start + most, len(ordered))
        while end < last and taken + sizes[ordered[end]] / 2 <= share:
            taken += sizes[ordered[end]]
            end += 1
        groups.append(tuple(ordered[start:end]))
        start, samples, lacking = end, samples - taken, lacking - 1
    return groups


def assign(groups: Sequence[Group], work: Sequence[int], ranks: int) -> list[list[Group]]:
    """Assign groups of clients, heaviest first, each to the rank with the least work so far.

    No rank then has more than 4/3 of the best possible maximum (Graham 1969). It is the same on
    every rank; of a rank the groups that run last are short.
    """
    assignment: list[list[Group]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for cost, group in sorted(zip(work, groups, strict=True), key=lambda pair: (-pair[0], pair[1])):
        least = loads.index(min(loads))
        assignment[least].append(group)
        loads[least] += cost
    return assignment
