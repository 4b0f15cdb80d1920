"""FedML's flat arguments to a `Recipe`."""

from pathlib import Path

from fednnnn_plugin.recipe.consistency import COEFFICIENTS
from fednnnn_plugin.recipe.problems import build
from fednnnn_plugin.recipe.schema import SECTIONS, Recipe
from fednnnn_plugin.recipe.values import CUSTOM_TRAINER, FOREIGN
from fednnnn_plugin.recipe.wording import printable

# FedML sets it itself, to client_num_per_round or to the size of the MPI world.
_NOT_THE_USERS = {"worker_num"}
# Of dataset image_folder only; another data set's script may use such names for its own purposes.
_IMAGE_FOLDERS = {"data_dir", "image_size", "test_fraction"}
# A name of FedML's own: its FedOpt, SCAFFOLD and Mime read it, and our method may stand beside it.
_FEDMLS = {"server_lr"}


def recipe_from_args(
    args: object, *, method: str | None = None, custom_trainer: bool = False
) -> Recipe:
    """Make a recipe of the namespace that ``fedml.init`` returns.

    Data, model and platform may be the caller's own, so their names are free. Attributes that
    are absent or None take the defaults; attributes that are not ours are ignored.

    Args:
        args: FedML's ``Arguments``, one attribute for each key of every section.
        method: one of our methods in place of ``federated_optimizer``; coefficients that it does
            not use are then dropped.
        custom_trainer: clients train with the caller's own trainer, so that ``client_optimizer``
            is free.

    Raises:
        UserError: a line for each problem: file, key, value, what is allowed.
    """
    others = _NOT_THE_USERS
    if getattr(args, "dataset", None) != "image_folder":
        others = others | _IMAGE_FOLDERS
    values = {
        section: _given(args, set(model.__annotations__) - others)
        for section, model in SECTIONS.items()
        if section != "environment_args"
    }
    values["data_args"].setdefault("dataset", "custom")
    values["model_args"].setdefault("model", "custom")
    train, unused = values["train_args"], _FEDMLS
    if method is not None:
        train["federated_optimizer"] = method
        unused = {key for keys in COEFFICIENTS.values() for key in keys}
    for key in unused.difference(COEFFICIENTS.get(str(train.get("federated_optimizer")), ())):
        train.pop(key, None)
    using_mlops = values["common_args"].get("using_mlops")
    if isinstance(using_mlops, str):
        # FedML takes it from an environment variable, unparsed.
        values["common_args"]["using_mlops"] = using_mlops.lower() in {"true", "1"}

    file = getattr(args, "yaml_config_file", None) or ""
    named = Path(str(file)).stem or str(values["train_args"].get("federated_optimizer", "args"))
    where = printable(str(file)) or "args"
    context = {FOREIGN: True, CUSTOM_TRAINER: custom_trainer}
    return build({"name": named, **values}, lambda key: f"{where}: {key}", context)


def _given(args: object, keys: set[str]) -> dict[str, object]:
    given = {key: getattr(args, key, None) for key in keys}
    return {key: value for key, value in given.items() if value is not None}
