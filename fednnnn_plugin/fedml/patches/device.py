"""``fedml.device.get_device`` under one of our methods.

FedML's own logs all arguments for ``sp``, and for ``MPI`` wants a mapping that is as long as the
world, and gives the CPU without one.
"""

from collections.abc import Callable
from typing import Any

from fednnnn_plugin.fedml import compatibility
from fednnnn_plugin.fedml.patches.runner import is_ours
from fednnnn_plugin.fedml.patches.wrapping import wrap


def apply() -> None:
    """Choose the device ourselves in simulations of our methods."""
    wrap(("fedml.device", "fedml.device.device"), "get_device", _get_device)


def _get_device(original: Callable[..., Any], args: Any, *rest: Any, **named: Any) -> Any:
    if not is_ours(args):
        return original(args, *rest, **named)
    compatibility.require()
    from fednnnn_plugin.engine.endings import ending_together
    from fednnnn_plugin.engine.settings import rank_device
    from fednnnn_plugin.fedml.processes import simulation_ranks
    from fednnnn_plugin.recipe import recipe_from_args

    recipe = recipe_from_args(args, custom_trainer=True)
    ranks = simulation_ranks(recipe)
    with ending_together(ranks):
        return rank_device(recipe, ranks)
