"""A trial of a model and a loss on some samples of the data, before any client trains."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fednnnn_plugin.assembly.gradient_reach import Reach
from fednnnn_plugin.assembly.outputs_check import outputs_warnings
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.loss import CROSS_ENTROPY, LOSSES, Loss
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.rounds.batches import Batch
from fednnnn_plugin.rounds.loaders import LoaderData, PairLoader
from fednnnn_plugin.seeds import isolated_generators
from fednnnn_plugin.user_code import exception_text, user_code

_SAME = 1e-3  # of the largest value: merging and its undoing round
_FEW, _MANY = 32, 256  # samples that are looked at, of arrays and of a loader's batch


def check_model(
    model: nn.Module,
    name: str,
    data: FederatedData | LoaderData,
    sgd: LocalSGD,
    given: nn.Module | None = None,
    scorers: Sequence[str] = (),
) -> list[str]:
    """Pass some samples through a copy of the model, and refuse what could not train.

    As it is tested, and as it is trained; the loss is computed of what comes out. What the loss
    reaches must be parameters of the copy, and none of the model that was ``given``; ``scorers``
    must be of such outputs. Batch normalisation over a single value has no variance: where a
    client's last batch is one sample, the model must train on that as well.

    Returns:
        Warnings: what trains, but perhaps not as it was meant.
    """
    loss, batch_size = sgd.loss, sgd.batch_size
    batch = _samples(data)
    if batch is None:  # what such batches are is for the first step of a client to say
        return []
    where = f"model_args.model: {name}"
    copied = copy.deepcopy(model)
    inputs, labels = _staged(batch, model)
    trial = _Trial(copied, loss, inputs, labels, data.num_classes)
    reach = Reach(model, copied, given, where)
    sizes = [data.client_size(client) for client in range(data.num_clients)]
    trains_on = 1 if batch_size == 1 or max(sizes) == 1 else min(2, len(inputs))
    tests_on = 1
    if isinstance(data, LoaderData):  # whose batches may be of a form of their own
        trains_on = tests_on = len(inputs)
    tried = trial.passed(tests_on, training=False)
    if not tried.problem:
        tried = trial.passed(trains_on, training=True)
        if tried.problem and trains_on == 1 and not trial.passed(2, training=True).problem:
            raise _of_single(tried, name, data, batch_size)
    if tried.problem:
        raise UserError(where, tried.problem) from tried.cause
    # A loss of pairs may find none among two samples.
    count = trains_on if reach.reaches(tried.loss) else len(inputs)
    passes = [trial.passed(count, training=True) for _ in range(2)]
    passes = [each for each in passes if not each.problem] or [tried]
    warnings = reach.check(*(of for each in passes for of in (each.outputs, each.loss)))
    warnings += _moved_frozen(model, copied, where)
    with_graph = trial.passed(tests_on, training=False, graph=True)  # which a test does not have
    if not with_graph.problem:
        reach.check_test(with_graph.outputs)
    warnings += outputs_warnings(loss, tried.outputs, labels, data.num_classes, scorers)
    if trains_on > 1 and next(_single_batches(data, batch_size), None):
        tried = trial.passed(1, training=True)
        if tried.problem:
            raise _of_single(tried, name, data, batch_size)
    return warnings


def _moved_frozen(model: nn.Module, copied: nn.Module, where: str) -> list[str]:
    """Say where passes in training changed what is not trained: it may have been merged before."""
    after = dict(copied.named_parameters())
    for name, given in model.named_parameters():
        if given.requires_grad or not given.numel() or not given.is_floating_point():
            continue
        scale = float(given.abs().max())
        if not torch.allclose(given, after[name], rtol=0, atol=_SAME * scale):
            return [
                f"{where}: {printable(name)}: requires no gradient, and changes in a forward pass "
                "in training: where it is merged with others for a test, pass a batch through the "
                "model in training mode before the run"
            ]
    return []


def _of_single(
    tried: "_Pass", name: str, data: FederatedData | LoaderData, batch_size: int
) -> UserError:
    """Return the error of a model that cannot train on a batch of one sample."""
    client, key = next(_single_batches(data, batch_size), (0, "train_args.batch_size"))
    error = UserError(
        key,
        f"leaves client {client}, which has {data.client_size(client)} samples, a batch of one "
        f"sample, on which {name} cannot train ({tried.problem})",
        "choose another batch_size, a DataLoader with drop_last=True, or larger inputs",
    )
    error.__cause__ = tried.cause
    return error


def _samples(data: FederatedData | LoaderData) -> Batch | None:
    """Return some samples of arrays, or the first batch of loaders, as a model takes them."""
    if isinstance(data, FederatedData):  # which may be sorted by class
        step = -(-len(data.train_labels) // _FEW)
        return data.normalised(data.train_images[::step]), data.train_labels[::step]
    with suppress(UserError), user_code("data"), isolated_generators(0, "model check"):
        for loader in data.train_loaders.values():
            for inputs, labels in loader:
                if len(inputs) and isinstance(inputs, Tensor) and isinstance(labels, Tensor):
                    return inputs[:_MANY].clone(), labels[:_MANY].clone()
    return None


def _staged(batch: Batch, model: nn.Module) -> Batch:
    inputs, labels = batch
    like = next(model.parameters(), inputs)
    kind = like.dtype if labels.is_floating_point() else torch.int64
    inputs = inputs.to(like.device, like.dtype if inputs.is_floating_point() else inputs.dtype)
    return inputs, labels.to(like.device, kind)


def _single_batches(data: FederatedData | LoaderData, batch_size: int) -> Iterator[tuple[int, str]]:
    """Yield the clients of which an epoch's last batch is a single sample, and the key for it."""
    for client in range(data.num_clients):
        size, key = batch_size, f"train_args.batch_size: {batch_size}"
        count = data.client_size(client)
        if isinstance(data, LoaderData):
            loader: Any = data.train_loaders[client]
            loader = loader.loader if isinstance(loader, PairLoader) else loader
            if not isinstance(loader, DataLoader):  # a list of batches, if its length is known
                last = loader[-1:] if isinstance(loader, list | tuple) else ()
                if any(len(inputs) == 1 for inputs, _ in last):
                    yield client, f"{key}: its data"
                continue
            cuts: Any = loader if loader.batch_sampler is None else loader.batch_sampler
            if getattr(cuts, "batch_size", None) is None or cuts.drop_last:
                continue
            size = cuts.batch_size
            if size != batch_size:
                key = f"data_args.dataset: a DataLoader's batch_size: {size}"
            with suppress(TypeError):  # a sampler without a length
                count = len(cuts.sampler)
        if count == 1 if size == -1 else count % size == 1 % size:
            yield client, key


@dataclass(frozen=True)
class _Pass:
    """What a pass gave, or what is wrong with it and what it raised."""

    outputs: Any = None
    loss: Any = None
    problem: str = ""
    cause: BaseException | None = None


@dataclass(frozen=True)
class _Trial:
    """A model that may be changed, a loss, and what they are tried on."""

    model: nn.Module
    loss: Loss
    inputs: Tensor
    labels: Tensor
    num_classes: int

    def passed(self, count: int, *, training: bool, graph: bool = False) -> _Pass:
        """Pass so many samples through the model, and say of a problem what it is."""
        self.model.train(training)
        inputs, labels = self.inputs[:count], self.labels[:count]
        when, does = "in training, " if training else "", "does not take"
        try:
            with isolated_generators(0, "model check"), torch.set_grad_enabled(graph or training):
                outputs = self.model(inputs.clone())  # which it may change in place
                does = "gives outputs that have no loss, for"
                problem = self._form_problem(outputs, labels)
                value = None if problem else self._loss(outputs, labels)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            of = f"inputs of {list(inputs.shape[1:])}: {exception_text(error)}"
            return _Pass(problem=f"{when}{does} {of}", cause=error)
        if problem:
            given = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            problem = f"{when}gives {given} for a batch of {list(inputs.shape)}, {problem}"
        return _Pass(outputs, value, problem)

    def _form_problem(self, outputs: object, labels: Tensor) -> str:
        """Say what is wrong with the form of the outputs of samples, else nothing."""
        if not isinstance(outputs, Tensor):
            return "not a tensor"
        if self.loss is not CROSS_ENTROPY or labels.is_floating_point():
            return ""
        given, wanted = list(outputs.shape), [len(labels), self.num_classes, *labels.shape[1:]]
        if len(given) > 1:  # of its classes some may not occur
            wanted[1] = max(self.num_classes, given[1])
        if given == wanted:
            return ""
        hint = ""
        if self.labels.min() > 0 and given[1:2] == [self.num_classes - 1]:
            hint = "; where they begin at 1, give y - 1"
        elif self.num_classes == 2 and given in ([len(labels), 1], [len(labels)]):
            hint = "; for one logit of yes or no set loss: bce_with_logits"
        labelled = f"the logits of the classes, whose labels go from 0 to {self.num_classes - 1}"
        return f"not {wanted}: {labelled}{hint}"

    def _loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        loss = self.loss
        of = f"outputs of {list(outputs.shape)} and targets of {list(labels.shape)}"
        own = user_code(f"train_args.loss: {loss.name}: of {of}")
        with nullcontext() if loss in LOSSES.values() else own:
            value: object = loss(outputs, labels)
        if isinstance(value, Tensor) and not value.ndim and value.is_floating_point():
            return value
        kind = f"{value.dtype} of {list(value.shape)}" if isinstance(value, Tensor) else type(value)
        must = "must give a floating scalar, the mean of a batch"
        raise UserError("train_args.loss", f"{loss.name}: gives {kind}", must)
