"""The model of a run folder, ready to use, and what its file says beside the tensors."""

from __future__ import annotations

import copy
import logging
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor, nn

from fednnnn_plugin.assembly.inputs import recipe_model
from fednnnn_plugin.assembly.unchanged import is_of_other_code
from fednnnn_plugin.client.replica import named_tensors
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.errors import UserError, in_python, printable, reason
from fednnnn_plugin.files import checked_path
from fednnnn_plugin.models import MODEL, form_of
from fednnnn_plugin.processes.devices import tensors_made_on_cpu
from fednnnn_plugin.recipe import Recipe, load_recipe
from fednnnn_plugin.recipe.method_keys import CLIENT_METHOD, RULE
from fednnnn_plugin.rounds.loaders import LoaderData
from fednnnn_plugin.run_folder.folder import RunFolder
from fednnnn_plugin.run_folder.tensor_files import read_tensors
from fednnnn_plugin.user_code import names_code, names_object, object_name, refuse_code

_log = logging.getLogger(__name__)


class _OfData(BaseModel):
    """What a model's file says of the data."""

    num_classes: int
    image_shape: list[int] = []
    factor: list[float] = []
    shift: list[float] = []


def model_metadata(data: FederatedData | LoaderData) -> dict[str, Any]:
    """Return what a model's file says of the data: the classes, and how images are normalised."""
    found = _OfData(num_classes=data.num_classes)
    if isinstance(data, FederatedData):
        found.image_shape = [*data.train_images.shape[1:]]
        if how := data.normalisation:
            found.factor, found.shift = how.factor.flatten().tolist(), how.shift.flatten().tolist()
    return found.model_dump()


class Normalised(nn.Module):
    """``(x - mean) / std`` per channel of images ``[n, C, H, W]`` with values from 0 to 255.

    Images may be of any dtype; the result is of the model's. It moves with ``.to(device)``.
    """

    factor: Tensor
    shift: Tensor

    def __init__(self, of_data: _OfData, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        for name in ("factor", "shift"):
            values = torch.tensor(getattr(of_data, name))[:, None, None]
            self.register_buffer(name, values, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the normalised images."""
        return (images.to(torch.float32) * self.factor - self.shift).to(self.dtype)


def _with_model(recipe: Recipe, model: object) -> Recipe:
    """Return a recipe whose model is an object, with the arguments of a function's alone."""
    arguments = {} if isinstance(model, nn.Module) else recipe.model_args.arguments
    section = type(recipe.model_args).model_construct(model=object_name(model), **arguments)
    return recipe.model_copy(update={"model_args": section})


@in_python
@tensors_made_on_cpu()
def load_model(
    folder: Path | str,
    model: nn.Module | Callable[..., nn.Module] | None = None,
    *,
    allow_code: bool = False,
) -> nn.Module:
    """Load the evaluation model of a run, on which its accuracies were measured.

    The server rule says which model that is: the plain average ``w_t + S`` of the paper's methods,
    the served model ``w_{t+1}`` (FedAdam, FedYogi, FedAdagrad, FedAvgM, FedDyn), or the mean of
    ``w_t`` and ``w_{t+1}`` (FedExP).

    Args:
        folder: the run folder, or the ``folder`` of the :class:`~fednnnn_plugin.Run`.
        model: the ``model`` that was passed to :func:`~fednnnn_plugin.run`, if it was an object; it
            is not changed. Leave it out if the recipe names the model: another one whose tensors
            have the same names and shapes is used with a warning.
        allow_code: allow a ``module:name`` in the run's recipe to run.

    Returns:
        The model in evaluation mode, on the CPU. If the run normalised uint8 images, it is a
        ``Sequential`` of ``normalise`` and ``model``, which takes images ``[n, C, H, W]`` with
        values from 0 to 255. Otherwise it is the model itself, for the inputs of the run.

    Raises:
        UserError: no run in the folder, no saved model, a model that is not the run's, or code that
            is not allowed. The data set is not needed. A model of other code that has the same
            tensors is a warning.

    Example::

        import torch

        import fednnnn_plugin as fp

        run = fp.run("digits_noniid_b_fednnnn", overrides={"comm_round": 3})
        net = fp.load_model(run.folder)
        net(torch.zeros(1, 1, 8, 8, dtype=torch.uint8)).argmax(1)
    """
    files = RunFolder(checked_path("folder", folder))
    for path in (files.recipe, files.model):
        if not path.is_file():
            raise UserError(
                "folder", f"{printable(path)}: missing", "must be in the folder of a run"
            )
    without_method = [f"{RULE}=PaperFedAvg", f"{CLIENT_METHOD}=null"]  # which may be code
    recipe = load_recipe(files.recipe, without_method, foreign=True, allow_code=allow_code)
    name = recipe.model_args.model
    where = f"{printable(files.recipe)}: {MODEL}"
    if names_code(name) and model is None and not allow_code:
        raise refuse_code(where, name)
    if names_object(name) and model is None:
        raise UserError(where, f"{name}: was an object", "give it again, model=")
    if model is not None and not names_object(name):
        recipe = _with_model(recipe, model)
    try:
        state, about = read_tensors(files.model)
        of_data = _OfData.model_validate(about)
    except ValidationError:
        raise UserError(printable(files.model), "does not say what data it is of") from None
    except (ValueError, OSError) as error:
        raise UserError(printable(files.model), printable(reason(error))) from None
    form = form_of(recipe.model_args.model, of_data.image_shape)
    made, digests = recipe_model(recipe, of_data.num_classes, model, form=form)
    whose = f"model: {name}: not the model of the run in {printable(files.path)}"
    dtype = next((each.dtype for each in state.values() if each.is_floating_point()), torch.float32)
    made = copy.deepcopy(made).to("cpu", dtype)
    made.train()  # a state may follow the mode
    try:
        missing, unexpected = made.load_state_dict(state, strict=False)
    except (RuntimeError, ValueError) as error:
        raise UserError(whose, printable(reason(error))) from None
    # An extra state is no tensor of a parameter or buffer: it is the model's own.
    if others := sorted({*unexpected, *(named_tensors(made).keys() & missing)}):
        raise UserError(whose, f"not both have {printable(', '.join(others))}")
    if recipe.model_args.model != name and not names_object(name):
        _log.warning(
            "model: %s: the run in %s has %s for %s; names and shapes of its tensors fit",
            *(recipe.model_args.model, printable(files.path), name, MODEL),
        )
    elif digests and is_of_other_code(files, digests["model"]):
        _log.warning(
            "model: %s: its code is not that of the run in %s, whose tensors it takes",
            *(name, printable(files.path)),
        )
    made.eval()
    if not of_data.factor:
        return made
    layers = OrderedDict(normalise=Normalised(of_data, dtype), model=made)
    return nn.Sequential(layers).eval()
