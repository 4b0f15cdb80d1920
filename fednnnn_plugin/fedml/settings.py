"""What FedML's arguments say, checked: all of a simulation, and what a silo's two sides read."""

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fednnnn_plugin.data.sets import find_dataset
from fednnnn_plugin.errors import UserError, printable, shown
from fednnnn_plugin.fedml.keys import (
    OWN_TRAINING,
    TRAINING_KEYS,
    warn_of_near_keys,
    warn_of_unused_keys,
)
from fednnnn_plugin.fedml.methods import PROXIMAL, allows_code, is_proximal, refuse_near_miss
from fednnnn_plugin.files import user_path
from fednnnn_plugin.recipe import Recipe
from fednnnn_plugin.recipe.consistency import cross_silo_keys
from fednnnn_plugin.recipe.kinds import Caller
from fednnnn_plugin.recipe.load import resolved
from fednnnn_plugin.recipe.method_keys import find_client_method, find_method, method_keys
from fednnnn_plugin.recipe.schema import SECTIONS, own_keys
from fednnnn_plugin.recipe.validation import build
from fednnnn_plugin.run_folder.server_state import read_state
from fednnnn_plugin.server.rules import RULES
from fednnnn_plugin.user_code import names_code

AUTO = "auto"  # of start_round: the rounds that the server's state has
_COUNTS = ("client_num_in_total", "client_num_per_round", "comm_round")
_SERVER_KEYS = (
    *_COUNTS,
    *("random_seed", "client_weighting", "max_client_norm", "max_client_failures"),
    *(key for key in cross_silo_keys() if key != "client_threads"),
    *("warn_norm_ratio", "warn_alignment", "warn_weight_share"),
)
_CLIENT_KEYS = (
    *("random_seed", "start_round", "epochs", "local_steps", "batch_size", "precision"),
    *("loss", "client_optimizer", "client_optimizer_args", "learning_rate", "weight_decay"),
    *("learning_rate_decay", "max_grad_norm", "prox_mu", "client_threads"),
)
# Of keys that only simulations have, what a deployment does all the same, or has instead.
_DONE_ANYWAY = {"client_sampling": "uniform", "client_method": "fedprox"}
_INSTEAD = {"learning_rate_schedule": "; see learning_rate_decay"}
_SECURE = ("LSA", "SA")  # FedML's light and plain secure aggregation

# A recipe needs these; the other side of a deployment may call them otherwise.
_STAND_INS = dict.fromkeys((*_COUNTS, *TRAINING_KEYS), 1)
# FedML sets it itself, to client_num_per_round or to the size of the MPI world.
_NOT_THE_USERS = {"worker_num"}
# Of dataset image_folder only; another data set's script may use such names for its own purposes.
_IMAGE_FOLDERS = {"data_dir", "image_size", "test_fraction"}
# A name of FedML's own: its FedOpt, SCAFFOLD and Mime read it, and our method may stand beside it.
_FEDMLS = {"server_lr"}


def script_recipe(
    args: Any, *, custom_trainer: bool = False, unread: Collection[str] = ()
) -> Recipe:
    """Make a recipe of what ``fedml.init`` returns: an attribute for each key of every section.

    Data, model and platform may be the caller's own, so their names are free. Attributes that
    are absent or None take the defaults; attributes that are not ours are ignored. Of the keys that
    a recipe needs those in ``unread`` may be absent: a user's trainer has its own. Under
    ``enable_dp`` ``max_grad_norm`` is FedML's limit of a whole model, and clips no gradient.
    """
    given: dict[str, Any] = {"dataset": "custom", "model": "custom"}
    given |= {key: _STAND_INS[key] for key in unread}
    given |= {key: value for key, value in vars(args).items() if value is not None}
    others = _NOT_THE_USERS | (_IMAGE_FOLDERS if given["dataset"] != "image_folder" else set())
    others |= OWN_TRAINING if custom_trainer else set()
    others |= {"max_grad_norm"} if given.get("enable_dp") else set()
    given = {key: value for key, value in given.items() if key not in others}
    if given.get("start_round") == AUTO:  # a server's own is a number by now
        del given["start_round"]
    if isinstance(given.get("using_mlops"), str):
        # FedML takes it from an environment variable, unparsed.
        given["using_mlops"] = given["using_mlops"].lower() in {"true", "1"}

    file, named = str(given.get("yaml_config_file", "")), given.get("federated_optimizer")
    where = printable(file) or "args"
    caller = Caller(lambda key: f"{where}: {printable(key)}", True, custom_trainer, allows_code())
    methods: set[str] = set()
    with suppress(UserError):  # which `build` reports
        rule = find_method(named, caller)
        client = find_client_method(given.get("client_method"), rule, caller)
        methods = {*rule.keys, *client.keys}
    keys = {section: set(own_keys(section)) for section in SECTIONS}
    if named_set := find_dataset(given["dataset"]):
        keys["data_args"] |= {*named_set.arguments}
    keys["train_args"] |= set(method_keys()) - (_FEDMLS - methods)
    values = {name: {key: given[key] for key in own if key in given} for name, own in keys.items()}
    return build(Path(file).stem or str(named or "args"), values, caller)


def server_recipe(args: Any, method: str | None = None) -> Recipe:
    """Return what a silo's server reads.

    ``method`` is ours, or a custom one; None takes ``federated_optimizer`` if that is one, else
    FedNNNN. Any other method than FedAvg and ours is refused, and so is a sampler of the user's.
    """
    named = getattr(args, "federated_optimizer", None)
    refuse_near_miss(args)
    if named not in (None, "FedAvg", *RULES) and not names_code(named):
        why = "FedML's cross-silo server does not run it"
        if named in _SECURE:
            why = "norms cannot be taken of models that the server does not see"
        raise UserError(
            "federated_optimizer", f"{shown(named)}: {why}", "must be FedAvg, or one of our methods"
        )
    _refuse(args, "client_sampling", "client_availability", "client_method")
    if method is None:
        method = str(named) if named in RULES or names_code(named) else "FedNNNN"
    elif not isinstance(method, str) or (method not in RULES and not names_code(method)):
        raise UserError("method", f"{method!r}", f"must be one of {', '.join(RULES)}")
    rule = find_method(method, Caller(str, allow_code=allows_code()))
    if rule.client_method not in (None, "fedprox"):
        raise UserError(
            "federated_optimizer",
            f"{rule.name}: its clients train by {rule.client_method}, and a deployment carries "
            "models alone",
            "must be another rule",
        )
    warn_of_near_keys(args)
    warn_of_unused_keys(args, simulation=False)
    keys = (*_SERVER_KEYS, *(key for other in RULES.values() for key in other.keys))
    clients = {"prox_mu": 0.0} if rule.client_method else {}
    return part_recipe(args, keys, federated_optimizer=method, **clients)


def recorded_settings(recipe: Recipe, args: Any) -> dict[str, Any]:
    """Return a server's settings as a run folder has them: those it reads, and others it has.

    ``comm_round`` is the number of the last round: FedML's counts from ``start_round`` on.
    """
    read = {"federated_optimizer", *_SERVER_KEYS, *recipe.rule.keys}
    sections: dict[str, Any] = {}
    for path, known in resolved(recipe).items():
        section, _, key = path.partition(".")
        # Of what it does not read the recipe has a default, which no client may have.
        value = known if key in read else getattr(args, key, None)
        if isinstance(value, str | int | float | dict | list):
            sections.setdefault(section, {})[key] = value
    train = sections["train_args"]
    train["comm_round"] += train.pop("start_round", 0)
    for section, key in (("data_args", "dataset"), ("model_args", "model")):
        sections[section] = {key: str(getattr(args, key, "custom"))}
    return sections


def continue_from_state(args: Any) -> bool:
    """Set a server's ``start_round: auto`` to the rounds that its state has; tell if it was.

    ``comm_round``, which FedML counts from the start of the process, becomes what is left of it.

    Raises:
        UserError: no state is kept, or all rounds are done.
    """
    if getattr(args, "start_round", None) != AUTO:
        return False
    path = getattr(args, "server_state_path", None)
    if not isinstance(path, str):
        raise UserError("train_args.start_round", "auto: needs tracking_args.server_state_path")
    state = user_path(path).resolve()
    done = read_state(state, "server_state_path")[1]["round"] if state.exists() else 0
    args.start_round, total = done, getattr(args, "comm_round", None)
    if isinstance(total, int) and done >= total:
        raise UserError(
            "train_args.comm_round",
            f"{total}: all rounds are done (start_round: auto): raise it to continue from "
            f"{printable(path)}",
        )
    if isinstance(total, int):
        args.comm_round = total - done
    return True


def client_recipe(args: Any) -> Recipe:
    """Return what a silo's client reads; ``prox_mu`` may stand beside any method; one needs it."""
    if getattr(args, "scenario", None) == "hierarchical":
        raise UserError(
            "scenario",
            "hierarchical: the processes of a silo would train apart with FedNNNNClientTrainer",
            "must be horizontal, or another client_trainer",
        )
    _refuse(args, "learning_rate_schedule", "train_transform", "client_method")
    needed = is_proximal(args) or getattr(args, "prox_mu", None) is not None
    absent = {} if needed else {"prox_mu": 0.0}
    return part_recipe(args, _CLIENT_KEYS, federated_optimizer=PROXIMAL, **absent)


def _refuse(args: Any, *keys: str) -> None:
    """Refuse what only simulations have."""
    for key in keys:
        given, allowed = getattr(args, key, None), _DONE_ANYWAY.get(key)
        if given not in (None, allowed):
            must = f"{allowed}, or left out" if allowed else f"left out{_INSTEAD.get(key, '')}"
            raise UserError(key, f"{shown(given)}: only simulations have it", f"must be {must}")


def part_recipe(args: Any, keys: tuple[str, ...], **fixed: object) -> Recipe:
    """Return a recipe of some of a script's keys, with the ``fixed`` ones as they are given."""
    read = {key: getattr(args, key, None) for key in (*keys, "enable_dp", "yaml_config_file")}
    return script_recipe(SimpleNamespace(**read | fixed), unread=_STAND_INS.keys() - keys)
