"""Whether a model can be copied and averaged, and in which order of memory it takes images."""

import copy
from collections import defaultdict
from contextlib import suppress

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fednnnn_plugin.client.replica import named_tensors
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.seeds import isolated_generators
from fednnnn_plugin.server.admission import AVERAGED, OF_AVERAGED, check_dense
from fednnnn_plugin.user_code import user_code

_SAME = 1e-3  # of the largest logit: another order of additions makes less


def own_copy(model: nn.Module, name: str, dtype: torch.dtype) -> nn.Module:
    """Return a copy of a model to train in ``dtype``, or say why it cannot be, and averaged."""
    where = f"model_args.model: {name}"
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise UserError(where, "is TorchScript", "give the module that it was made of")
    if any(hasattr(module, "_orig_mod") for module in model.modules()):
        raise UserError(where, "is made by torch.compile", "give the module that it was made of")
    for key, parameter in model.named_parameters():
        if parameter.requires_grad and _has_own_hook(parameter):  # a mask of the gradient is one
            raise UserError(
                where,
                f"{key}: has a hook of its gradient, which no copy of the model has",
                "remove() it; forward() or a parametrization can detach() what is to stay",
            )
    return averaged_copy(model, where, dtype)


def _has_own_hook(parameter: nn.Parameter) -> bool:
    """Tell whether code of the user's changes a gradient; wandb.watch() only looks at it."""
    every = (parameter._backward_hooks, parameter._post_accumulate_grad_hooks)
    hooks = [hook for of in every for hook in (of or {}).values()]
    return not all(str(getattr(hook, "__module__", "")).startswith("wandb") for hook in hooks)


def averaged_copy(model: nn.Module, where: str, dtype: torch.dtype) -> nn.Module:
    """Return a copy of a model, or say why an average of its like in ``dtype`` is none."""
    if any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        raise UserError(
            where,
            "has layers without a size yet",
            "pass a batch of inputs through it before the run, or give them their sizes",
        )
    trained = [key for key, parameter in model.named_parameters() if parameter.requires_grad]
    if not trained:
        raise UserError(
            where,
            "has no parameter that requires a gradient: where forward() makes its layers, pass a "
            "batch through it before the run, or make them in __init__",
        )
    if hidden := set(trained) - model.state_dict().keys():
        raise UserError(
            where,
            f"{min(hidden)}: requires a gradient, and its state_dict() does not have it: it must "
            "have all that is trained, under the names of named_parameters()",
        )
    for key, buffer in model.named_buffers():
        if buffer.is_complex():  # model.to() would keep the real parts alone
            raise UserError(where, f"{key}: {buffer.dtype}", "keep it as torch.view_as_real has it")
    for key, tensor in named_tensors(model).items():
        check_dense(tensor, f"{where}: {key}")
        if tensor.dtype not in AVERAGED:
            raise UserError(where, f"{key}: {tensor.dtype}", f"must be {OF_AVERAGED}")
        if tensor.is_floating_point() and not tensor.to(dtype).isfinite().all():
            raise UserError(
                where,
                f"{key}: not finite in {dtype}: no average is either; a buffer may be registered "
                "with persistent=False",
            )
    if names := _sharing_memory(model):
        raise UserError(
            where,
            f"{names[1]}: has the memory of {names[0]}, and is another Parameter",
            "make it one Parameter, or use weight.t() in forward()",
        )
    try:
        with user_code(f"{where}: cannot be copied"):
            # A state may follow the mode, as weights merged for a test: w_0 is of training.
            copied = copy.deepcopy(model)
            copied.train()
            return copied
    except UserError as error:
        if computed := _computed_tensor(model):
            raise UserError(
                where,
                f"cannot be copied: {computed} is computed of other tensors",
                "use torch.nn.utils.parametrizations for torch.nn.utils.weight_norm or "
                "spectral_norm, torch.nn.utils.prune.remove() or a parametrization for pruning, "
                "or detach() it",
            ) from error
        raise


def _sharing_memory(model: nn.Module) -> tuple[str, str] | None:
    """Return the names of two trained parameters that overlap: a step of one moves the other."""
    stored = defaultdict[tuple[int, torch.dtype], list[tuple[str, Tensor]]](list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.numel():
            place = parameter.untyped_storage().data_ptr()
            stored[place, parameter.dtype].append((name, parameter))
    for beside in (several for several in stored.values() if len(several) > 1):
        first = beside[0][1]
        count = first.untyped_storage().nbytes() // first.element_size()
        owners = torch.full((count,), -1, dtype=torch.int32)
        for number, (name, each) in enumerate(beside):
            own = owners.as_strided(each.shape, each.stride(), each.storage_offset())
            if (other := int(own.max())) >= 0:
                return beside[other][0], name
            own.fill_(number)
    return None


def _computed_tensor(model: nn.Module) -> str:
    """Return the name of an attribute that was computed, and so cannot be copied."""
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                return ".".join(filter(None, [name, key]))
    return ""


def takes_any_order(model: nn.Module, images: Tensor) -> bool:
    """Tell whether a model computes the same from images whose channels are the last in memory.

    As it is tested it gives the same logits; as it is trained, a gradient. A model that views
    activations as the rows of a matrix, ``x.view(len(x), -1)``, takes one order only; so may a
    loss or a metric of outputs that are images.
    """
    if images.ndim != 4 or not images.is_floating_point():
        return False

    def logits(order: torch.memory_format) -> Tensor:
        with isolated_generators(0, "model check"):
            return model(images.to(memory_format=order, copy=True))

    with suppress(UserError), user_code("model"):
        model = copy.deepcopy(model)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        images = images.to(trained[0].device, trained[0].dtype)
        model.eval()
        with torch.no_grad():
            usual, last = logits(torch.contiguous_format), logits(torch.channels_last)
            same = (usual - last).abs().max() <= _SAME * usual.abs().max()
        model.train()
        torch.autograd.grad(logits(torch.channels_last).sum(), trained, allow_unused=True)
        return bool(same) and last.is_contiguous()
    return False
