"""What the gradients of a training step reach: the parameters of the copy that trains, or others.

A layer that is made in ``forward()``, or that a lambda or a hook reaches through the original
model, gets gradients that no client applies: the run would end without it.
"""

from collections.abc import Iterator

from torch import Tensor, nn

from fednnnn_plugin.client.replica import Replica
from fednnnn_plugin.errors import UserError, printable, some_of

_LOSS = "train_args.loss"
_OF_LOSS = (
    "a loss must hold nothing that trains: freeze a network that it holds with "
    "requires_grad_(False), and let the model's forward() return what depends on its parameters"
)
_OF_MODEL = (
    "make it in the model's __init__ and register it there (as an nn.Parameter, a layer of a list "
    "in nn.ModuleList), or freeze it with requires_grad_(False)"
)


class Reach:
    """Sees what the first passes through a copy reach; made before them.

    Args:
        trains: the model that is to train; what it holds of itself it may reach.
        copied: its copy that is passed through, in training mode.
        given: the original that ``trains`` was copied of, which must not be reached, if any.
        where: what errors begin with.
    """

    def __init__(
        self, trains: nn.Module, copied: nn.Module, given: nn.Module | None, where: str
    ) -> None:
        self._replica, self._where = Replica(copied), where
        self._given = nn.Module() if given is None else given
        self._own, self._original = _names(trains) | _names(copied), _names(self._given)
        self._versions = _versions(self._given)

    def reaches(self, loss: Tensor) -> bool:
        """Tell whether a loss has a gradient for any parameter."""
        return any(id(leaf) in self._own for leaf in _leaves(loss))

    def check(self, outputs: Tensor, loss: Tensor, *again: Tensor) -> list[str]:
        """Refuse a pass in training whose gradients belong to no parameter that a client trains.

        ``again`` are outputs and loss of a second such pass: a tensor that both reach, and is no
        parameter, is not made in the pass, as an initial state may be.

        Returns:
            Warnings.
        """
        self._replica.check_trained(self._where)
        lasting = {id(leaf) for each in again for leaf in _leaves(each)}
        for begin, source in ((outputs, self._where), (loss, _LOSS)):
            self.check_original(begin, source)
            for leaf in _leaves(begin):
                foreign = id(leaf) not in self._own
                if foreign and (isinstance(leaf, nn.Parameter) or id(leaf) in lasting):
                    raise UserError(
                        source,
                        f"gradients reach a {type(leaf).__name__} of {list(leaf.shape)} that is "
                        "none of the model's parameters, so that no client trains it",
                        _OF_LOSS if source == _LOSS else _OF_MODEL,
                    )
        for name, version in _versions(self._given).items():
            if version != self._versions[name]:
                raise self._of_original(self._where, f"a forward pass changes {printable(name)}")
        reached = {self._own.get(id(leaf)) for leaf in _leaves(loss)}
        trained = [
            name for name, each in self._replica.model.named_parameters() if each.requires_grad
        ]
        left = [name for name in trained if name not in reached]
        if len(left) == len(trained):
            raise UserError(self._where, "its loss has no gradient for any of its parameters")
        if not left:
            return []
        named = printable(some_of(left, 3))
        return [f"{self._where}: {named}: requires a gradient and gets none in the first step"]

    def check_original(self, begin: Tensor, source: str) -> None:
        """Refuse a pass that reaches the original."""
        for leaf in _leaves(begin) if self._original else ():
            if name := self._original.get(id(leaf)):
                raise self._of_original(source, f"gradients reach {printable(name)}")

    @staticmethod
    def _of_original(source: str, what: str) -> UserError:
        return UserError(
            source,
            f"{what} of the model that was given, not of the copy that a client trains: a lambda, "
            "a hook or a loss holds the model itself",
            "use a method or a module of the model instead",
        )


def _names(model: nn.Module) -> dict[int, str]:
    return {id(parameter): name for name, parameter in model.named_parameters()}


def _versions(model: nn.Module) -> dict[str, int]:
    """Return what tells whether a model's tensors have been changed in place."""
    tensors = (*model.named_parameters(), *model.named_buffers())
    return {name: 0 if each.is_inference() else each._version for name, each in tensors}


def _leaves(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the leaves of a tensor's graph: what a gradient of it would be added to."""
    seen, stack = set[object](), [tensor.grad_fn]
    if tensor.grad_fn is None and tensor.requires_grad:
        yield tensor
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "torch::autograd::AccumulateGrad":
            yield node.variable  # type: ignore[attr-defined]
        stack.extend(following for following, _ in node.next_functions)
