"""The server optimizers in FedML's ``OptRepo``, of which it has three equal copies.

``OptRepo.repo`` maps lower-case names to the direct subclasses of ``torch.optim.Optimizer`` that
exist when the module is imported; FedML lowers the name that it looks up.
"""

from types import ModuleType

from fednnnn_plugin.fedml import hook


def apply(optrepo: ModuleType) -> None:
    """Register our optimizers in ``optrepo.OptRepo``."""
    if hook.why_unusable() is not None:
        return
    # Imported here: a FedML that we leave alone must not find them among torch's subclasses.
    from fednnnn_plugin.server.rules import RULES

    for rule in RULES.values():
        optrepo.OptRepo.repo.setdefault(rule.optimizer.__name__.lower(), rule.optimizer)
