"""FedML's flat arguments to a `Recipe`."""

from contextlib import suppress
from pathlib import Path

from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.recipe.build import build
from fednnnn_plugin.recipe.kinds import Caller
from fednnnn_plugin.recipe.method import find_method, rule_keys
from fednnnn_plugin.recipe.schema import SECTIONS, Recipe, own_keys

# FedML sets it itself, to client_num_per_round or to the size of the MPI world.
_NOT_THE_USERS = {"worker_num"}
# Of dataset image_folder only; another data set's script may use such names for its own purposes.
_IMAGE_FOLDERS = {"data_dir", "image_size", "test_fraction"}
# A name of FedML's own: its FedOpt, SCAFFOLD and Mime read it, and our method may stand beside it.
_FEDMLS = {"server_lr"}


def recipe_from_args(
    args: object,
    *,
    method: str | None = None,
    custom_trainer: bool = False,
    allow_code: bool = False,
) -> Recipe:
    """Make a recipe of what ``fedml.init`` returns: an attribute for each key of every section.

    Data, model and platform may be the caller's own, so their names are free. Attributes that
    are absent or None take the defaults; attributes that are not ours are ignored. A ``method``
    replaces ``federated_optimizer``, and the keys of other methods are then dropped.
    """
    file = str(getattr(args, "yaml_config_file", None) or "")
    where = printable(file) or "args"
    caller = Caller(lambda key: f"{where}: {printable(key)}", True, custom_trainer, allow_code)

    others = _NOT_THE_USERS
    if getattr(args, "dataset", None) != "image_folder":
        others = others | _IMAGE_FOLDERS
    values = {section: _given(args, set(own_keys(section)) - others) for section in SECTIONS}
    values["data_args"].setdefault("dataset", "custom")
    values["model_args"].setdefault("model", "custom")
    train = values["train_args"]
    if method is not None:
        train["federated_optimizer"] = method
    own: set[str] = set()
    with suppress(UserError):  # which `build` reports
        own = set(find_method(train.get("federated_optimizer"), caller).keys)
    train |= _given(args, own if method else set(rule_keys()) - (_FEDMLS - own))
    using_mlops = values["common_args"].get("using_mlops")
    if isinstance(using_mlops, str):
        # FedML takes it from an environment variable, unparsed.
        values["common_args"]["using_mlops"] = using_mlops.lower() in {"true", "1"}

    name = Path(file).stem or str(train.get("federated_optimizer", "args"))
    return build(name, values, caller)


def _given(args: object, keys: set[str]) -> dict[str, object]:
    given = {key: getattr(args, key, None) for key in keys}
    return {key: value for key, value in given.items() if value is not None}
