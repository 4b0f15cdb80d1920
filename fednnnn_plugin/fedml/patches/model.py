"""The paper's networks in ``fedml.model.create``."""

from collections.abc import Callable
from typing import Any

from fednnnn_plugin.fedml import compatibility
from fednnnn_plugin.fedml.patches.wrapping import wrap
from fednnnn_plugin.models import MODELS, create_model

CLASSES = 10  # of the paper's data sets


def apply() -> None:
    """Let ``fedml.model.create`` build a network of ours by its name."""
    wrap(("fedml.model", "fedml.model.model_hub"), "create", _create)


def _create(original: Callable[..., Any], args: Any, *rest: Any, **named: Any) -> Any:
    name = getattr(args, "model", None)
    if name not in MODELS:
        return original(args, *rest, **named)
    compatibility.require()
    output_dim = rest[0] if rest else named.get("output_dim", CLASSES)
    # FedML's default seed is 0 as well. No global generator is used, so a script and ``fedml run``
    # start from equal weights.
    return create_model(name, int(getattr(args, "random_seed", 0)), int(output_dim))
