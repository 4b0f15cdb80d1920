"""A trial of a model and a loss on some samples of the data, before any client trains."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fednnnn_plugin.assembly.gradient_reach import Reach
from fednnnn_plugin.assembly.outputs_check import outputs_warnings
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.loss import CROSS_ENTROPY, LOSSES, Loss
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.errors import StartError, UserError, printable
from fednnnn_plugin.rounds.augmentation import TRANSFORM, Augmentation, Transform
from fednnnn_plugin.rounds.batches import Batch, Batches
from fednnnn_plugin.rounds.evaluation import Metric
from fednnnn_plugin.rounds.loaders import LoaderData, PairLoader
from fednnnn_plugin.seeds import isolated_generators
from fednnnn_plugin.user_code import exception_text, user_code

_SAME = 1e-3  # of the largest value: merging and its undoing round
_FEW, _MANY = 32, 256  # samples that are looked at, of arrays and of a loader's batch
_OFTEN = 8  # passes of two samples through a transform that may change only some of them


def check_model(
    model: nn.Module,
    name: str,
    data: FederatedData | LoaderData,
    sgd: LocalSGD,
    given: nn.Module | None = None,
    scorers: Sequence[str] = (),
    metrics: Mapping[str, Metric] = MappingProxyType({}),
) -> list[str]:
    """Pass some samples through a copy of the model, and refuse what could not train.

    As it is tested, and as it is trained; the loss is computed of what comes out. What the loss
    reaches must be parameters of the copy, and none of the model that was ``given``; ``scorers``
    must be of such outputs, and ``metrics`` are tried on them. Batch normalisation over a single
    value has no variance: where a client's last batch is one sample, the model must train on that
    as well.

    Returns:
        Warnings: what trains, but perhaps not as it was meant.
    """
    batch = samples_of(data)
    if batch is None:  # what such batches are is for the first step of a client to say
        return []
    where, copied = f"model_args.model: {name}", copy.deepcopy(model)
    device = next(model.parameters(), batch[0]).device
    inputs, labels = Batches(data, sgd, device).staged(batch)
    trial = _Trial(where, copied, sgd.loss.fresh(device), inputs, labels, data.num_classes)
    reach = Reach(model, copied, given, where)
    trains_on, tests_on = min(2, len(inputs)), 1
    if isinstance(data, LoaderData):  # whose batches may be of a form of their own
        trains_on = tests_on = len(inputs)
    elif sgd.batch_size == 1 or max(map(len, data.client_indices)) == 1:
        trains_on = 1
    trial.passed(tests_on, training=False)
    if single := next(_single_batches(data, sgd), None):
        _check_single(trial, max(2, trains_on), *single)
    outputs, loss = trial.passed(trains_on, training=True)
    # A loss of pairs may find none among two samples.
    count = trains_on if reach.reaches(loss) else len(inputs)
    first, second = (trial.passed(count, training=True) for _ in range(2))
    warnings = reach.check(*first, *second) + _moved_frozen(model, copied, where)
    with_graph = None  # which a test does not have, and may not be able to
    with suppress(UserError):
        with_graph, _ = trial.passed(tests_on, training=False, graph=True)
    if with_graph is not None:
        reach.check_original(with_graph, where)
    return warnings + outputs_warnings(
        sgd.loss, outputs, labels, data.num_classes, scorers, metrics
    )


def _check_single(trial: "_Trial", others: int, key: str, whose: str) -> None:
    """Refuse a model that trains on ``others`` samples, but not on the one of a client's batch."""
    try:
        trial.passed(1, training=True)
    except UserError as error:
        trial.passed(others, training=True)
        raise StartError(
            key,
            f"leaves {whose}, a batch of one sample, on which the model cannot train "
            f"({error.problem})",
            "choose another batch_size, a DataLoader with drop_last=True, or larger inputs",
        ) from error.__cause__


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


def samples_of(data: FederatedData | LoaderData) -> Batch | None:
    """Return some samples of arrays, or the first batch of loaders, as a model takes them.

    None where loaders give no batch of two tensors.
    """
    if isinstance(data, FederatedData):  # which may be sorted by class
        step = -(-len(data.train_labels) // _FEW)
        return data.normalised(data.train_images[::step]), data.train_labels[::step]
    with suppress(UserError), user_code("data"), isolated_generators(0, "model check"):
        for loader in data.train_loaders.values():
            for inputs, labels in loader:
                if len(inputs) and isinstance(inputs, Tensor) and isinstance(labels, Tensor):
                    return inputs[:_MANY].clone(), labels[:_MANY].clone()
    return None


def own_generators(
    data: FederatedData | LoaderData, batch: Batch, transform: Transform | None = None
) -> list[str]:
    """Warn of what gives others under the same seeds, as by a random generator of its own.

    The engine does not seed it: each fork begins with the same state of it, in all rounds. Compared
    are the first client's first ``batch`` with another reading of it, and several transforms of two
    samples by a copy of the transform. What it raises is left to round 1.
    """
    differs = (
        "gives others under the same seeds, as by a random generator or a count of its own: "
        "clients may get the same in each round, and others in a resumed run"
    )
    found = list[str]()
    loader = data.train_loaders[0] if isinstance(data, LoaderData) else None
    # Other iterables may give their batches once.
    is_read_again = isinstance(loader, PairLoader | DataLoader)
    if is_read_again and not all(map(_same, batch, samples_of(data) or batch)):
        found.append(f"data_args.dataset: {differs}: draw from the global generators")
    if transform is None:
        return found
    inputs = (data.train_images if isinstance(data, FederatedData) else batch[0])[:2]
    with suppress(Exception):
        own = Augmentation(copy.deepcopy(transform), 0)
        first, *others = (own(inputs, 0, 0, 0) for _ in range(_OFTEN))
        if not all(_same(first, other) for other in others):
            draw = "draw from the global generators, or from the parameter generator"
            found.append(f"{TRANSFORM}: {differs}: {draw}")
    return found


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())


def _single_batches(data: FederatedData | LoaderData, sgd: LocalSGD) -> Iterator[tuple[str, str]]:
    """Yield the key by which an epoch's last batch is a single sample, and for which clients."""
    for client in range(data.num_clients):
        size, key = sgd.batch_size, f"train_args.batch_size: {sgd.batch_size}"
        count = data.client_size(client)
        if isinstance(data, LoaderData):
            loader: Any = data.train_loaders[client]
            loader = loader.loader if isinstance(loader, PairLoader) else loader
            if isinstance(loader, list | tuple):  # of batches
                if any(len(inputs) == 1 for inputs, _ in loader[-1:]):
                    yield f"{key}: its data", _named(client, count)
                continue
            if not isinstance(loader, DataLoader):
                continue  # nothing is known of its batches
            cuts: Any = loader if loader.batch_sampler is None else loader.batch_sampler
            if getattr(cuts, "batch_size", None) is None or getattr(cuts, "drop_last", True):
                continue
            with suppress(AttributeError, NotImplementedError, TypeError):  # of unknown length
                count = len(cuts.sampler)
            size = cuts.batch_size
            if size != sgd.batch_size:
                key = f"data_args.dataset: a DataLoader's batch_size: {size}"
        batches = 1 if size == -1 else -(-count // size)
        if size != 1 and sgd.steps(batches) < batches:
            continue  # it makes no whole pass
        if count == 1 if size == -1 else count % size == 1 % size:
            yield key, _named(client, count)


def _named(client: int, count: int) -> str:
    return f"client {client}, which has {count} samples"


@dataclass(frozen=True)
class _Trial:
    """A model that may be changed, a loss, and what they are tried on."""

    where: str
    model: nn.Module
    loss: Loss
    inputs: Tensor
    labels: Tensor
    num_classes: int

    def passed(self, count: int, *, training: bool, graph: bool = False) -> tuple[Tensor, Tensor]:
        """Pass so many samples through the model; return the outputs and their loss."""
        self.model.train(training)
        inputs, labels = self.inputs[:count], self.labels[:count]
        when, does = "in training, " if training else "", "does not take"
        try:
            with isolated_generators(0, "model check"), torch.set_grad_enabled(graph or training):
                outputs = self.model(inputs.clone())  # which it may change in place
                does = "gives outputs that have no loss, for"
                if problem := self._form_problem(outputs, inputs, labels):
                    raise UserError(self.where, f"{when}gives {problem}")
                return outputs, self._loss(outputs, labels)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            of = f"inputs of {list(inputs.shape[1:])}: {exception_text(error)}"
            raise UserError(self.where, f"{when}{does} {of}") from error

    def _form_problem(self, outputs: object, inputs: Tensor, labels: Tensor) -> str:
        """Say what the outputs of samples are where their form is wrong, else nothing."""
        batch = f"for a batch of {list(inputs.shape)}"
        if not isinstance(outputs, Tensor):
            several = "return one, or join several outputs, which your loss then takes apart"
            return f"{type(outputs).__name__} {batch}, not a tensor: {several}"
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
        return f"{given} {batch}, not {wanted}: {labelled}{hint}"

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
