"""What a FedML script calls before ``FedMLRunner``: tracking, device and model, data aside."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.fedml import compatibility
from fednnnn_plugin.fedml.methods import names_ours, require_code_allowed, simulates_ours
from fednnnn_plugin.fedml.patches import wrap
from fednnnn_plugin.models import MODELS, create_model, unknown_model
from fednnnn_plugin.user_code import names_code


def apply(_fedml: ModuleType) -> None:
    """Answer for our methods and models by name; the rest is FedML's."""
    wrap(("fedml.core.mlops",), "pre_setup", _pre_setup)
    wrap(("fedml",), "_manage_profiling_args", _begin_tracking)
    wrap(("fedml.device", "fedml.device.device"), "get_device", _get_device)
    wrap(("fedml.model", "fedml.model.model_hub"), "create", _create)


def _pre_setup(original: Callable[..., Any], args: Any, *rest: Any, **named: Any) -> Any:
    """Refuse our names where FedML knows FedAvg alone, or runs it whatever is named."""
    training_type = getattr(args, "training_type", None)
    if training_type not in (None, "simulation", "cross_silo") and names_ours(args):
        instead = "; here name FedAvg, and give FedMLRunner a FedNNNNAggregator as its aggregator"
        raise UserError(
            f"training_type: {training_type}: {args.federated_optimizer} runs by name under "
            f"simulation and cross_silo only{instead if training_type == 'cross_cloud' else ''}"
        )
    return original(args, *rest, **named)


def _begin_tracking(original: Callable[..., Any], args: Any, *rest: Any, **named: Any) -> Any:
    """Look for the key of Weights & Biases before ``fedml.init`` begins a run there."""
    if getattr(args, "enable_wandb", False) and names_ours(args):
        from fednnnn_plugin.engine.progress import WeightsAndBiases

        WeightsAndBiases()  # which raises one line where there is none
        args.wandb_project = getattr(args, "wandb_project", None)  # which FedML reads
    return original(args, *rest, **named)


def _get_device(original: Callable[..., Any], args: Any, *rest: Any, **named: Any) -> Any:
    """Choose the device in simulations of our methods: FedML's own wants a mapping under MPI."""
    if not simulates_ours(args):
        return original(args, *rest, **named)
    compatibility.require()
    from fednnnn_plugin.engine.ranks import ending_together
    from fednnnn_plugin.engine.settings import rank_device
    from fednnnn_plugin.fedml.processes import simulation_ranks
    from fednnnn_plugin.fedml.settings import TRAINING_KEYS, script_recipe

    recipe = script_recipe(args, custom_trainer=True, unread=TRAINING_KEYS)
    ranks = simulation_ranks(recipe)
    with ending_together(ranks):
        return rank_device(recipe, ranks)


def _create(original: Callable[..., Any], args: Any, *rest: Any, **named: Any) -> Any:
    """Build a model by the seed alone: a script starts from ``fedml run``'s weights."""
    name: Any = getattr(args, "model", None)
    # All that ``fedml run`` has; FedML has none of torchvision's names.
    known = isinstance(name, str) and names_ours(args) and not unknown_model(name)
    if name not in MODELS and not known:
        return original(args, *rest, **named)
    compatibility.require()
    own_code = names_code(name)
    if own_code:
        require_code_allowed("model_args.model", name)
    output_dim = rest[0] if rest else named.get("output_dim", 10)
    seed = int(getattr(args, "random_seed", 0))
    return create_model(name, seed, int(output_dim), allow_code=own_code)
