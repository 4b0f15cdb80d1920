"""Weights & Biases as ``fedml.init`` begins it, before any of our code sees the arguments."""

from collections.abc import Callable
from typing import Any

from fednnnn_plugin.fedml.methods import names_ours
from fednnnn_plugin.fedml.patches.wrapping import wrap


def apply() -> None:
    """Look for the key of Weights & Biases before FedML does, under our methods."""
    wrap(("fedml",), "_manage_profiling_args", _manage_profiling_args)


def _manage_profiling_args(
    original: Callable[..., Any], args: Any, *rest: Any, **named: Any
) -> Any:
    if getattr(args, "enable_wandb", False) and names_ours(args):
        from fednnnn_plugin.engine.progress import WeightsAndBiases

        WeightsAndBiases({})  # which raises one line where there is none
    return original(args, *rest, **named)
