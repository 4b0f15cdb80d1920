"""The server optimizers in FedML's ``OptRepo``, of which it has three equal copies.

``OptRepo.repo`` maps lower-case names to the direct subclasses of ``torch.optim.Optimizer`` that
exist when the module is imported. ``get_opt_names()`` rebuilds it with the names as they are
written, after which FedML's ``name2cls``, which lowers the name that it is given, finds
nothing, and without those that derive from another optimizer.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from fednnnn_plugin.fedml import hook
from fednnnn_plugin.fedml.patches import wrapper


def apply(optrepo: ModuleType) -> None:
    """Register our optimizers in ``optrepo.OptRepo`` and let ``name2cls`` ignore the case."""
    if hook.why_unusable() is not None:
        return
    registry = optrepo.OptRepo
    _add_ours(registry, str.lower)
    registry.name2cls = classmethod(wrapper(registry.name2cls.__func__, _name2cls))
    registry._update_repo = classmethod(wrapper(registry._update_repo.__func__, _update_repo))


def _name2cls(original: Callable[..., Any], registry: Any, name: str) -> Any:
    by_lower_name = {known.lower(): optimizer for known, optimizer in registry.repo.items()}
    found = by_lower_name.get(name.lower())
    return original(registry, name) if found is None else found


def _update_repo(original: Callable[..., Any], registry: Any) -> None:
    original(registry)
    _add_ours(registry, str)


def _add_ours(registry: Any, written: Callable[[str], str]) -> None:
    # Imported here: a FedML that we leave alone must not find them among torch's subclasses.
    from fednnnn_plugin.server.rules import RULES

    for rule in RULES.values():
        registry.repo.setdefault(written(rule.optimizer.__name__), rule.optimizer)
