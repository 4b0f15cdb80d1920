"""What a FedML script calls before ``FedMLRunner``: tracking, device and model, data aside."""

from collections.abc import Callable
from typing import Any

from fednnnn_plugin.fedml import compatibility
from fednnnn_plugin.fedml.methods import names_ours, refuse_other_platforms, simulates_ours
from fednnnn_plugin.fedml.patches.wrapping import wrap
from fednnnn_plugin.models import MODELS, create_model

CLASSES = 10  # of the paper's data sets


def apply() -> None:
    """Answer for our methods and models by name; the rest is FedML's."""
    wrap(("fedml.core.mlops",), "pre_setup", _pre_setup)
    wrap(("fedml",), "_manage_profiling_args", _begin_tracking)
    wrap(("fedml.device", "fedml.device.device"), "get_device", _get_device)
    wrap(("fedml.model", "fedml.model.model_hub"), "create", _create)


def _pre_setup(original: Callable[..., Any], args: Any, *rest: Any, **named: Any) -> Any:
    """Refuse our names on FedML's other platforms before ``fedml.init`` prepares them."""
    refuse_other_platforms(args)
    return original(args, *rest, **named)


def _begin_tracking(original: Callable[..., Any], args: Any, *rest: Any, **named: Any) -> Any:
    """Look for the key of Weights & Biases before ``fedml.init`` begins a run there."""
    if getattr(args, "enable_wandb", False) and names_ours(args):
        from fednnnn_plugin.engine.progress import WeightsAndBiases

        WeightsAndBiases()  # which raises one line where there is none
    return original(args, *rest, **named)


def _get_device(original: Callable[..., Any], args: Any, *rest: Any, **named: Any) -> Any:
    """Choose the device in simulations of our methods.

    FedML's own logs all arguments for ``sp``, and for ``MPI`` wants a mapping that is as long as
    the world, and gives the CPU without one.
    """
    if not simulates_ours(args):
        return original(args, *rest, **named)
    compatibility.require()
    from fednnnn_plugin.engine.endings import ending_together
    from fednnnn_plugin.engine.settings import rank_device
    from fednnnn_plugin.fedml.processes import simulation_ranks
    from fednnnn_plugin.fedml.settings import script_recipe

    recipe = script_recipe(args, custom_trainer=True)
    ranks = simulation_ranks(recipe)
    with ending_together(ranks):
        return rank_device(recipe, ranks)


def _create(original: Callable[..., Any], args: Any, *rest: Any, **named: Any) -> Any:
    """Build a network of ours.

    No global generator is used, so that a script and ``fedml run`` start from equal weights.
    """
    name = getattr(args, "model", None)
    if name not in MODELS:
        return original(args, *rest, **named)
    compatibility.require()
    output_dim = rest[0] if rest else named.get("output_dim", CLASSES)
    return create_model(name, int(getattr(args, "random_seed", 0)), int(output_dim))
