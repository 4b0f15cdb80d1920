"""Whether a model takes the inputs of a data set, before any client trains."""

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fednnnn_plugin.client.loss import CROSS_ENTROPY, LOSSES, Loss
from fednnnn_plugin.client.replica import named_tensors
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.seeds import isolated_generators
from fednnnn_plugin.server.admission import AVERAGED, OF_AVERAGED, check_dense
from fednnnn_plugin.user_code import exception_text

_SAME = 1e-3  # of the largest logit: another order of additions makes less


def own_copy(model: nn.Module, name: str, dtype: torch.dtype) -> nn.Module:
    """Return a copy of a model to train in ``dtype``, or say why it cannot be, and averaged."""
    where = f"model_args.model: {name}:"
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise UserError(f"{where} is TorchScript: give the module that it was made of")
    if any(hasattr(module, "_orig_mod") for module in model.modules()):
        raise UserError(f"{where} is made by torch.compile: give the module that it was made of")
    return averaged_copy(model, where, dtype)


def averaged_copy(model: nn.Module, where: str, dtype: torch.dtype) -> nn.Module:
    """Return a copy of a model, or say why an average of its like in ``dtype`` is none."""
    if any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        raise UserError(f"{where} has layers without a size yet: give them their sizes")
    trained = [key for key, parameter in model.named_parameters() if parameter.requires_grad]
    if not trained:
        raise UserError(f"{where} has no parameter that requires a gradient")
    if hidden := set(trained) - model.state_dict().keys():
        raise UserError(
            f"{where} {min(hidden)} requires a gradient, and its state_dict() does not have it: it "
            "must have all that is trained, under the names of named_parameters()"
        )
    for key, buffer in model.named_buffers():
        if buffer.is_complex():  # model.to() would keep the real parts alone
            raise UserError(
                f"{where} {key} is {buffer.dtype}: keep it as torch.view_as_real has it"
            )
    for key, tensor in named_tensors(model).items():
        check_dense(tensor, f"{where} {key}:")
        if any(
            size > 1 and not stride
            for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        ):
            raise UserError(f"{where} {key} is expanded: its values share memory: give its clone()")
        if tensor.dtype not in AVERAGED:
            raise UserError(f"{where} {key} is {tensor.dtype}: must be {OF_AVERAGED}")
        if tensor.is_floating_point() and not tensor.to(dtype).isfinite().all():
            raise UserError(
                f"{where} {key} is not finite in {dtype}: no average is either; a buffer may be "
                "registered with persistent=False"
            )
    try:
        return copy.deepcopy(model)
    except (Exception, SystemExit) as error:
        raise UserError(f"{where} cannot be copied: {exception_text(error)}") from error


def check_model(
    model: nn.Module, name: str, data: FederatedData, batch_size: int, loss: Loss = CROSS_ENTROPY
) -> None:
    """Pass training inputs through a copy of the model, and say of a problem what it is.

    As it is tested, and as it is trained; the loss is computed of what comes out. Batch
    normalisation over a single value has no variance: where a client's last batch is one sample,
    the model must train on that as well.
    """
    model = copy.deepcopy(model)
    inputs = data.normalised(data.train_images[:2])
    like = next(model.parameters(), inputs)
    inputs = inputs.to(like.device)
    if inputs.is_floating_point():
        inputs = inputs.to(like.dtype)
    labels = data.train_labels[:2].to(like.device)
    if labels.is_floating_point():
        labels = labels.to(like.dtype)

    def wrong_of(count: int) -> Callable[[object], str]:
        return partial(_wrong, labels=labels[:count], num_classes=data.num_classes, loss=loss)

    sizes = [data.client_size(client) for client in range(data.num_clients)]
    # The last batch of an epoch is a single sample.
    alone = [n == 1 if batch_size == -1 else n % batch_size == 1 % batch_size for n in sizes]
    problem, cause = _problem(model.eval(), inputs[:1], wrong_of(1))
    if not problem and batch_size != 1 and max(sizes) > 1:
        problem, cause = _problem(model.train(), inputs, wrong_of(2))
    if problem:
        raise UserError(f"model_args.model: {name}: {problem}") from cause
    if any(alone):
        problem, cause = _problem(model.train(), inputs[:1], wrong_of(1))
    if problem:
        client = alone.index(True)
        raise UserError(
            f"train_args.batch_size: {batch_size}: leaves client {client}, which has "
            f"{sizes[client]} samples, a batch of one sample, on which {name} cannot train "
            f"({problem}): choose another batch_size, or larger inputs"
        ) from cause


def takes_any_order(model: nn.Module, images: Tensor) -> bool:
    """Tell whether a model computes the same from images whose channels are the last in memory.

    As it is tested it gives the same logits; as it is trained, a gradient. A model that views
    activations as the rows of a matrix, ``x.view(len(x), -1)``, takes one order only.
    """
    if images.ndim != 4 or not images.is_floating_point():
        return False

    def logits(order: torch.memory_format) -> Tensor:
        with isolated_generators(0, "model check"):
            return model(images.to(memory_format=order, copy=True))

    try:
        model = copy.deepcopy(model)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        images = images.to(trained[0].device, trained[0].dtype)
        model.eval()
        with torch.no_grad():
            usual, last = logits(torch.contiguous_format), logits(torch.channels_last)
            same = (usual - last).abs().max() <= _SAME * usual.abs().max()
        model.train()
        torch.autograd.grad(logits(torch.channels_last).sum(), trained, allow_unused=True)
    except (Exception, SystemExit):
        return False
    return bool(same)


@torch.no_grad()
def _problem(
    model: nn.Module, inputs: Tensor, wrong: Callable[[object], str]
) -> tuple[str, BaseException | None]:
    """Say what is wrong with the model's outputs of these, and what it raised; else nothing."""
    when, does = "in training, " if model.training else "", "does not take"
    try:
        with isolated_generators(0, "model check"):
            outputs = model(inputs.clone())  # which it may change in place
            does = "gives outputs that have no loss, for"
            problem = wrong(outputs)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        return f"{when}{does} inputs of {list(inputs.shape[1:])}: {exception_text(error)}", error
    if not problem:
        return "", None
    given = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    return f"{when}gives {given} for a batch of {list(inputs.shape)}, {problem}", None


def _wrong(outputs: object, labels: Tensor, num_classes: int, loss: Loss) -> str:
    """Say what is wrong with the outputs of samples, else nothing."""
    if loss is CROSS_ENTROPY and not labels.is_floating_point():
        wanted = [len(labels), num_classes, *labels.shape[1:]]
        given = list(outputs.shape) if isinstance(outputs, Tensor) else []
        if labels.ndim > 1 and len(given) > 1:  # a vocabulary, of which some may not occur
            wanted[1] = max(num_classes, given[1])
        labelled = f"the logits of the classes, whose labels go from 0 to {num_classes - 1}"
        return "" if given == wanted else f"not {wanted}: {labelled}"
    if not isinstance(outputs, Tensor):
        return "not a tensor"
    try:
        value = loss(outputs, labels)
    except (Exception, SystemExit) as error:
        if loss in LOSSES.values():
            raise
        of = f"outputs of {list(outputs.shape)} and targets of {list(labels.shape)}"
        raised = exception_text(error)
        raise UserError(f"train_args.loss: {loss.name}: of {of}: raised {raised}") from error
    if isinstance(value, Tensor) and not value.ndim and value.is_floating_point():
        return ""
    kind = f"{value.dtype} of {list(value.shape)}" if isinstance(value, Tensor) else type(value)
    must = "must give a floating scalar, the mean of a batch"
    raise UserError(f"train_args.loss: {loss.name}: gives {kind}: {must}")
