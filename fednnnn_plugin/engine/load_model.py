"""The model of a run folder, ready to use."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.data.images import Normalisation
from fednnnn_plugin.engine.folder import RunFolder
from fednnnn_plugin.engine.inputs import DATA, MODEL, recipe_data, recipe_model
from fednnnn_plugin.engine.ranks import Ranks
from fednnnn_plugin.engine.unchanged import is_of_other_code
from fednnnn_plugin.errors import UserError, printable, reason
from fednnnn_plugin.recipe import load_recipe
from fednnnn_plugin.user_code import names_code, names_object, refuse_code

if TYPE_CHECKING:
    from fednnnn_plugin.engine.start import Data


class Normalised(nn.Module):
    """``(x - mean) / std`` per channel of images ``[n, C, H, W]`` with values from 0 to 255.

    Images may be of any dtype; the result is of the model's. It moves with ``.to(device)``.
    """

    factor: Tensor
    shift: Tensor

    def __init__(self, normalisation: Normalisation, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.register_buffer("factor", normalisation.factor.clone(), persistent=False)
        self.register_buffer("shift", normalisation.shift.clone(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the normalised images."""
        return (images.to(torch.float32) * self.factor - self.shift).to(self.dtype)


def load_model(
    folder: Path | str,
    model: nn.Module | Callable[..., nn.Module] | None = None,
    *,
    data: Data | Callable[..., Data] | None = None,
    allow_code: bool = False,
) -> nn.Module:
    """Load the evaluated model of a run: the plain average that its accuracies are of.

    Args:
        folder: the run folder, or the ``folder`` of the :class:`~fednnnn_plugin.Run`.
        model: what was given to :func:`~fednnnn_plugin.run`, where that was an object; it is not
            changed.
        data: the same for the data, where they were an object: images are normalised by their
            training part.
        allow_code: allow a ``module:name`` in the run's recipe to run.

    Returns:
        The model in evaluation mode on the CPU. It takes inputs as the data set has them: images
        uint8 ``[n, C, H, W]``, which a first module ``normalise`` normalises as the run did, in a
        ``Sequential`` with ``model``. Where inputs were used as they are, it is the model alone.

    Raises:
        UserError: no run in the folder, no saved model, a model or data that are not the run's, or
            code that is not allowed. The data set of the recipe must be present, as for a run.

    Example::

        net = fp.load_model(run.folder)
        net(images).argmax(1)
    """
    files = RunFolder(Path(folder).expanduser())
    for path in (files.recipe, files.model):
        if not path.is_file():
            raise UserError(f"folder: {printable(path)}: missing: must be in the folder of a run")
    recipe = load_recipe(files.recipe, foreign=True, allow_code=allow_code)
    names = {MODEL: recipe.model_args.model, DATA: recipe.data_args.dataset}
    for (key, name), given, argument in zip(
        names.items(), (model, data), ("model", "data"), strict=True
    ):
        where = f"{printable(files.recipe)}: {key}"
        if names_object(name) and given is None:
            raise UserError(f"{where}: {name}: was an object: give it again, {argument}=")
        if given is not None and not names_object(name):
            raise UserError(f"{argument}: the run in {printable(files.path)} has {name} for {key}")
        if names_code(name) and not allow_code:
            raise UserError(
                str(refuse_code(where, name)).replace("--allow-code", "allow_code=True")
            )
    try:
        state = safetensors.torch.load_file(files.model)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{printable(files.model)}: damaged: {reason(error)}") from None
    loaded, _ = recipe_data(recipe, Ranks(), data, allow_code=allow_code)
    made, digests = recipe_model(recipe, loaded.num_classes, model, allow_code=allow_code)
    whose = f"model: {names[MODEL]}: not the model of the run in {printable(files.path)}"
    dtype = next((each.dtype for each in state.values() if each.is_floating_point()), torch.float32)
    made = copy.deepcopy(made).to("cpu", dtype)
    try:
        made.load_state_dict(state)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"{whose}: {printable(reason(error))}") from None
    if digests and is_of_other_code(files, digests["model"]):
        raise UserError(f"{whose}: its code is another")
    made.eval()
    if not isinstance(loaded, FederatedData) or loaded.normalisation is None:
        return made
    first = Normalised(loaded.normalisation, dtype)
    return nn.Sequential(OrderedDict(normalise=first, model=made)).eval()
