"""Which executor trains a run's clients: on threads, on forks, in groups, or a custom trainer."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from fednnnn_plugin.assembly.inputs import Inputs
from fednnnn_plugin.client.group_probe import why_not_together
from fednnnn_plugin.client.group_sgd import GroupSGD
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.loss import CROSS_ENTROPY
from fednnnn_plugin.client.replica import layout_of, named_tensors
from fednnnn_plugin.client.step_graphs import CudaCapture, StepGraphs
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.data.images import IGNORED
from fednnnn_plugin.errors import printable
from fednnnn_plugin.processes.forks import Forks, why_not_forked
from fednnnn_plugin.processes.workers import Failure, Step, Threads, Workers, all_of
from fednnnn_plugin.rounds.augmentation import Augmentation
from fednnnn_plugin.rounds.batches import LoaderBatches, TensorBatches
from fednnnn_plugin.rounds.executor import Executor, Training
from fednnnn_plugin.rounds.loaders import LoaderData
from fednnnn_plugin.rounds.method_probe import why_not_in_groups
from fednnnn_plugin.rounds.training import TrainTogether, train_alone, train_by


def why_alone(inputs: Inputs, sgd: LocalSGD) -> str:
    """Say why several clients cannot train in one set of kernels; nothing where they can."""
    model, data, *_ = inputs
    if inputs.trainer is not None:
        return "a custom trainer trains one client at a time"
    if not isinstance(data, FederatedData):
        return "the data are a program's own loaders, one for each client"
    if sgd.optimizer is not None:
        return "a custom optimizer steps one client at a time"
    labels = data.train_labels
    if sgd.loss is CROSS_ENTROPY and (labels.ndim > 1 or bool((labels == IGNORED).any())):
        return "the loss counts labels, of which samples may have different numbers"
    if why := why_not_together(model, sgd, data.train_images, labels, data.normalisation):
        return why
    start = layout_of(model).gather(named_tensors(model)).vector
    return why_not_in_groups(inputs.functions.method, sgd, start)


def make_workers(inputs: Inputs, count: int, *, forked: bool) -> Workers:
    """Return what trains clients side by side, and tries a user's code out: ``count`` workers.

    On a CPU what is not ours may draw, and needs processes, where it may be ``forked``. One worker
    alone does not, but for loaders: what they keep, each client is to find as it was.
    """
    device = inputs.device
    if inputs.trainer is not None:
        return Threads(why="a custom trainer may keep something from round to round", device=device)
    if inputs.are_ours or (not forked and isinstance(inputs.data, FederatedData)):
        return Threads(count, device=device)
    if device.type != "cpu":
        return Threads(device=device)
    model, data, *_ = inputs
    own = inputs.functions
    why = why_not_forked((model, data, own.loss, own.optimizer, own.transform, own.method))
    # What a loader keeps, such as a generator of its data set's, each client finds as it was.
    anew = isinstance(data, LoaderData)
    forks = Forks(count, layout_of(model).gather(named_tensors(model)), anew=anew)
    try:
        all_of(forks, [] if why else [_differentiate])
    except (Failure, OSError) as error:
        why = printable(error)
    return Threads(why=f"they cannot be used in another process: {why}") if why else forks


def _differentiate(_: Step) -> None:
    """Do what a fork cannot where its parent has, on a machine with a GPU."""
    one = torch.ones((), requires_grad=True)
    torch.autograd.grad(one * one, one)


def make_executor(
    inputs: Inputs,
    sgd: LocalSGD,
    seed: int,
    workers: Workers,
    *,
    together: bool,
    any_order: bool,
    test_batch: int,
    classes: int,
) -> Executor:
    """Return what trains clients: in groups if ``together``, of which one may be a single client.

    What is not the package's own trains with the global generators seeded for it. The model takes
    images in ``any_order`` of memory. Of so many ``classes`` the test counts each.
    """
    model, data, device, trainer, _, functions, _ = inputs
    if trainer is not None:
        by_it = partial(train_by, trainer)
        return Executor(model, by_it, workers=workers, seed=seed, in_steps=False)
    own_seed = None if inputs.are_ours else seed
    augmentation = Augmentation(functions.transform, seed) if functions.transform else None
    of_both: dict[str, Any] = {"any_order": any_order, "augmentation": augmentation}
    batches = (
        TensorBatches(data, sgd, device, seed=seed, test_batch=test_batch, **of_both)
        if isinstance(data, FederatedData)
        else LoaderBatches(data, sgd, device, **of_both)
    )
    training: Training = partial(train_alone, sgd, batches)
    give_back: Callable[[], None] | None = None
    if together:
        assert isinstance(batches, TensorBatches)
        workers = Threads(device=device)  # groups train in one memory, one after another
        training = in_groups = make_together(inputs, sgd, batches, own_seed, augmentation)
        give_back = in_groups.give_back_memory
    return Executor(
        model,
        training,
        batches,
        workers=workers,
        seed=own_seed,
        loss=sgd.loss,
        metrics=functions.metrics,
        classes=classes,
        give_back=give_back,
    )


def make_together(
    inputs: Inputs,
    sgd: LocalSGD,
    batches: TensorBatches,
    seed: int | None,
    augmentation: Augmentation | None,
) -> TrainTogether:
    """Return what trains several clients in one set of kernels, by CUDA graphs on a GPU.

    A ``seed`` is of a model that may draw.
    """
    on_gpu = inputs.device.type == "cuda"
    graphs = StepGraphs(partial(CudaCapture, torch.cuda.Stream(inputs.device))) if on_gpu else None
    images, labels, normalise = batches.images, batches.labels, batches.normalisation
    groups = GroupSGD(sgd, inputs.model, images, labels, normalise, graphs, augmentation)
    return TrainTogether(groups, batches, seed, ahead=on_gpu)
