"""What a FedML script calls before ``FedMLRunner``: tracking, device, data and model."""

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from fednnnn_plugin.data.sets import DATASETS, find_dataset
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.fedml import hook
from fednnnn_plugin.fedml.methods import allows_code, names_ours, simulates_ours
from fednnnn_plugin.fedml.patches import wrap
from fednnnn_plugin.fedml.uncaught import ending_in_a_line
from fednnnn_plugin.models import MODELS, RESNET, create_model, unknown_model
from fednnnn_plugin.user_code import names_code

# Partitions and keys that FedML has no other meaning for; FedML's own Dirichlet is called hetero,
# and some of its loaders read no partition_method.
_OUR_METHODS = ("n_class", "dirichlet_by_class", "natural")
_OUR_KEYS = ("partition_sizes", "classes_per_client")
# Data sets that FedML has too: its own, in a script that names none of our methods.
_FEDMLS_DATASETS = ("mnist", "cifar10")


def apply(_fedml: ModuleType) -> None:
    """Answer for our methods, models, data sets and partitions by name; the rest is FedML's."""
    wrap(("fedml.core.mlops",), "pre_setup", _pre_setup)
    wrap(("fedml",), "_manage_profiling_args", _begin_tracking)
    sys.excepthook = ending_in_a_line(sys.excepthook)
    log: Any = getattr(
        sys.modules.get("fedml.core.mlops.mlops_runtime_log"), "MLOpsRuntimeLog", None
    )
    if hasattr(log, "handle_exception"):  # which fedml.init makes the excepthook
        log.handle_exception = staticmethod(ending_in_a_line(log.handle_exception))
    wrap(("fedml.device", "fedml.device.device"), "get_device", _get_device)
    wrap(("fedml.data", "fedml.data.data_loader"), "load", _load)
    wrap(("fedml.model", "fedml.model.model_hub"), "create", _create)


def _pre_setup(original: Callable[..., Any], args: Any, *rest: Any, **named: Any) -> Any:
    """Refuse our names where FedML knows FedAvg alone, or runs it whatever is named."""
    training_type = getattr(args, "training_type", None)
    if training_type not in (None, "simulation", "cross_silo") and names_ours(args):
        instead = "; here name FedAvg, and give FedMLRunner a FedNNNNAggregator as its aggregator"
        raise UserError(
            "training_type",
            f"{training_type}: {args.federated_optimizer} runs by name under simulation and "
            f"cross_silo only{instead if training_type == 'cross_cloud' else ''}",
        )
    if getattr(args, "backend", None) == "single_process" and names_ours(args):
        raise UserError("comm_args.backend", "single_process: it is called sp")
    return original(args, *rest, **named)


def _begin_tracking(original: Callable[..., Any], args: Any, *rest: Any, **named: Any) -> Any:
    """Look for the key of Weights & Biases before ``fedml.init`` begins a run there."""
    if getattr(args, "enable_wandb", False) and names_ours(args):
        from fednnnn_plugin.followers.trackers import WeightsAndBiases

        WeightsAndBiases()  # which raises one line where there is none
        args.wandb_project = getattr(args, "wandb_project", None)  # which FedML reads
    return original(args, *rest, **named)


def _get_device(original: Callable[..., Any], args: Any, *rest: Any, **named: Any) -> Any:
    """Choose the device in simulations of our methods: FedML's own wants a mapping under MPI."""
    if not simulates_ours(args):
        return original(args, *rest, **named)
    hook.require()
    from fednnnn_plugin.assembly.from_recipe import rank_device
    from fednnnn_plugin.fedml.keys import TRAINING_KEYS
    from fednnnn_plugin.fedml.processes import simulation_ranks
    from fednnnn_plugin.fedml.settings import script_recipe
    from fednnnn_plugin.processes.job import ending_together

    # The whole recipe is checked before data is loaded, but for the counts that loading may set.
    counts = ("client_num_in_total", "client_num_per_round")
    given = SimpleNamespace(**vars(args) | dict.fromkeys(counts))
    recipe = script_recipe(given, custom_trainer=True, unread=(*TRAINING_KEYS, *counts))
    ranks = simulation_ranks(recipe.comm_args.backend)
    with ending_together(ranks):
        return rank_device(recipe, ranks)


def _create(original: Callable[..., Any], args: Any, *rest: Any, **named: Any) -> Any:
    """Build a model by the seed alone: a script starts from ``fedml run``'s weights."""
    name: Any = getattr(args, "model", None)
    # All that ``fedml run`` has; FedML has none of torchvision's names.
    known = isinstance(name, str) and names_ours(args) and not unknown_model(name)
    known = known and name != RESNET  # which is a model of FedML's too
    if name not in MODELS and not known:
        return original(args, *rest, **named)
    hook.require()
    output_dim = rest[0] if rest else named.get("output_dim", 10)
    seed = int(getattr(args, "random_seed", 0))
    return create_model(name, seed, int(output_dim), allow_code=allows_code())


def _load(original: Callable[..., Any], args: Any, *rest: Any, **named: Any) -> Any:
    reason = _why_ours(args)
    if reason is None:
        return original(args, *rest, **named)
    hook.require()
    dataset = getattr(args, "dataset", None)
    if not find_dataset(dataset) and not names_code(dataset):
        raise UserError(
            "data_args.dataset",
            f"{dataset!r}: {reason} splits one of {', '.join(DATASETS)}; for another data set "
            "name one of FedML's partition methods",
        )
    return _own_data(args)


def _why_ours(args: Any) -> str | None:
    """Return what says that the data is ours to load, or None where it is FedML's.

    Under FedML's own optimizers that is a name or key that only we have: ``iid`` FedML has too,
    and by a name that it does not know it would train on CIFAR-10.
    """
    dataset = getattr(args, "dataset", None)
    method = getattr(args, "partition_method", None)
    named = find_dataset(dataset)
    if (named and dataset not in _FEDMLS_DATASETS) or names_code(dataset):
        return f"dataset {dataset}"
    ours = names_ours(args)
    if not ours and not named:
        return None  # FedML may not even read how it is to be split
    if method in _OUR_METHODS or (ours and method == "dirichlet"):
        return f"partition_method {method}"
    if ours and named and method is None:
        method = "iid"  # a recipe's default
    if method != "iid":
        return None
    keys = [key for key in _OUR_KEYS if getattr(args, key, None) is not None]
    if keys:
        return keys[0]
    return f"partition_method {method}" if ours and named else None


def _own_data(args: Any) -> tuple[list[Any], int]:
    from fednnnn_plugin.assembly.from_recipe import load_data
    from fednnnn_plugin.fedml.loaders import fedml_dataset
    from fednnnn_plugin.fedml.processes import end_federation_together, simulation_ranks
    from fednnnn_plugin.fedml.settings import part_recipe
    from fednnnn_plugin.processes.devices import tensors_made_on_cpu
    from fednnnn_plugin.processes.job import ending_together
    from fednnnn_plugin.processes.ranks import Ranks
    from fednnnn_plugin.recipe.schema import own_keys

    end_federation_together(args)
    named = find_dataset(args.dataset)
    # A deployment has no test of each client, for which it would hold samples out.
    held_out = ("per_client", "holdout") if simulates_ours(args) else ()
    of_data = (*own_keys("data_args"), *held_out, "client_num_in_total")
    of_named = named.arguments if named else ()
    keys = ("backend", "random_seed", "batch_size", *of_data, *of_named)
    recipe = part_recipe(args, keys, federated_optimizer="PaperFedAvg")
    ranks = simulation_ranks(recipe.comm_args.backend) if simulates_ours(args) else Ranks()
    seed, batch_size = recipe.common_args.random_seed, recipe.train_args.batch_size
    with tensors_made_on_cpu(), ending_together(ranks):
        data = load_data(recipe, ranks, any_labels=True)
        return fedml_dataset(data, batch_size, seed), data.num_classes
