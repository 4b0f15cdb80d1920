"""The server rules, one file each; the decorator on its class puts each into :data:`RULES`."""

import copy
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Literal, TypeVar, get_args

from torch import Tensor
from torch.optim import Optimizer

from fednnnn_plugin.errors import UserError, printable, shown
from fednnnn_plugin.server.update import Update
from fednnnn_plugin.user_code import load_code, user_code

#: What is tested and reported: the plain average ``w_t + S``, ``w_{t+1}``, or the mean of ``w_t``
#: and ``w_{t+1}``.
Evaluated = Literal["average", "served", "midpoint"]
Class = TypeVar("Class", bound=type[Optimizer])
_MEASURED = [*Update.__annotations__, "mean_update"]

# The first optimizer of a process has PyTorch import its compiler, only to mark this method as not
# to be compiled: 1.6 s of each start and rank, if it is not marked already.
_add_param_group = inspect.unwrap(Optimizer.add_param_group)
vars(_add_param_group).setdefault("__dynamo_disable", _add_param_group)


@dataclass(frozen=True)
class Key:
    """A setting of a rule: a recipe's key in ``train_args``.

    Keys of the same range and default are equal.

    Attributes:
        allowed: the range in words.
        zero: whether 0 is allowed.
        below: all values must be less than this.
        default: the value if a recipe does not set the key; None if it must.
        argument: the name of the optimizer's argument, if it is not that of the key.
        grid: the values that ``fednnnn tune`` tries if ``--grid`` does not name the key.
    """

    allowed: str
    zero: bool = True
    below: float = math.inf
    default: float | None = None
    argument: str | None = field(default=None, compare=False)
    grid: tuple[float, ...] = field(default=(), compare=False)

    def check(self, value: Any) -> bool:
        """Tell whether a value is a number in the range."""
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            return False  # PyYAML, and so FedML, reads 5e-4 as a string
        try:
            number = float(value)
        except OverflowError:  # 10**400
            return False
        return 0 <= number < self.below and (number > 0 or self.zero)

    def checked(self, name: str, value: float | None) -> float | None:
        """Return an optimizer's argument in the range; without a default it may be None.

        FedML's FedOpt gives no more than ``lr``: what else is missing, the step asks for.
        """
        if not (self.check(value) or (value is None and self.default is None)):
            raise UserError(name, f"{value!r}", f"must be {self.allowed}")
        return value


def positive(**options: Any) -> Key:
    """Return a key for finite numbers greater than 0; the options are :class:`Key`'s."""
    return Key("a finite number greater than 0", zero=False, **options)


def non_negative(**options: Any) -> Key:
    """Return a key for finite numbers of at least 0; the options are :class:`Key`'s."""
    return Key("a finite number of at least 0", **options)


def decay(**options: Any) -> Key:
    """Return a key for numbers of at least 0 and less than 1; the options are :class:`Key`'s."""
    return Key("a number of at least 0 and less than 1", below=1.0, **options)


#: η, where a rule's own is 1.
LR = positive(default=1.0)


@dataclass(frozen=True)
class Rule:
    """A server rule, as :func:`rule` declares it; ``name`` is its ``federated_optimizer``."""

    name: str
    optimizer: type[Optimizer]
    keys: Mapping[str, Key]
    wants: tuple[str, ...]
    evaluated: Evaluated
    place: int | None
    client_method: str | None = None

    def settings(self, given: Mapping[str, Any]) -> dict[str, float]:
        """Return the values of the rule's keys, defaults filled in, or raise ``UserError``."""
        settings = {}
        for name, key in self.keys.items():
            value = key.default if given.get(name) is None else given[name]
            if value is None or not key.check(value):
                what = "missing" if value is None else shown(value)
                raise UserError(self.name, f"{name}: {what}", f"must be {key.allowed}")
            settings[name] = float(value)
        return settings

    def make(self, parameters: Iterable[Tensor], settings: Mapping[str, float]) -> Optimizer:
        """Return the server's optimizer, given the values of the rule's keys."""
        given: dict[str, Any] = {
            key.argument or name: settings.get(name, key.default) for name, key in self.keys.items()
        }
        with self._called():
            return self.optimizer(parameters, **given)

    def step(self, optimizer: Optimizer, update: Update) -> None:
        """Make a step with a round's update; a custom rule gets a copy of it."""
        given = update if self.is_ours else copy.deepcopy(update)
        with self._called():
            optimizer.step(**{name: getattr(given, name) for name in self.wants})

    @property
    def is_ours(self) -> bool:
        """Tell whether it is this package's, not a user's."""
        return self.optimizer.__module__.startswith("fednnnn_plugin.")

    def _called(self) -> AbstractContextManager[None]:
        """Call a custom class on one thread, and say on one line what it raises."""
        where = f"federated_optimizer: {self.name}"
        return nullcontext() if self.is_ours else user_code(where)


#: Every registered rule by its name: the paper's in the order of its table, then the others.
RULES: dict[str, Rule] = {}
_decorated: list[Rule] = []  # the users' too, whether or not a recipe may name them


def rule(
    *,
    wants: Sequence[str] = (),
    evaluated: Evaluated = "average",
    place: int | None = None,
    client_method: str | None = None,
    **keys: Key,
) -> Callable[[Class], Class]:
    """Register a server rule: put it on a subclass of ``torch.optim.Optimizer``.

    The optimizer gets the served model as one flat parameter ``p`` with ``p.grad = -S``. It is
    created anew in each round, so it must keep its state in ``self.state[p]``, as tensors or
    numbers; this state is stored in checkpoints. If its attribute ``degenerate`` is true after a
    step, the record says that the model did not change. Before round 1 a step with a synthetic
    update is tried; a warning names what else it changes, such as ``self.t``, ``group["t"]`` or a
    generator of its own: these are lost. Draw from the global generators, which follow the seed and
    the round.

    Args:
        wants: attributes of :class:`~fednnnn_plugin.server.update.Update` that are passed to
            ``step`` by name, such as ``mean_client_norm``.
        evaluated: which model is tested and reported: the plain average ``w_t + S``, the served
            model ``w_{t+1}``, or the mean of ``w_t`` and ``w_{t+1}``.
        place: row in the paper's table of results, for the paper's methods only.
        client_method: name of the client method that the rule needs, such as ``"fedprox"`` or
            ``"my_methods:Mine"``; None allows any. They may share keys, of one range and default:
            the recipe says the value once.
        **keys: the rule's settings, which a recipe sets in ``train_args``, each with its range:
            :func:`positive`, :func:`non_negative` or :func:`decay`. They are passed to
            ``__init__`` by keyword, under the same name or that of ``argument=``.

    Raises:
        UserError: the class is no ``torch.optim.Optimizer``, or has the name of one of ours; a
            name in ``wants`` that :class:`~fednnnn_plugin.server.update.Update` does not have or
            ``step`` does not take; another ``evaluated`` or another kind of key.

    Example:
        >>> import torch
        >>> from fednnnn_plugin.server.rules import positive, rule
        >>> @rule(server_scale=positive(default=1.0))
        ... class Scaled(torch.optim.Optimizer):
        ...     def __init__(self, params, server_scale):
        ...         super().__init__(params, {"scale": server_scale})
        ...
        ...     @torch.no_grad()
        ...     def step(self, closure=None):
        ...         for group in self.param_groups:
        ...             for p in group["params"]:
        ...                 p.sub_(p.grad, alpha=group["scale"])
    """

    def register(optimizer: Class) -> Class:
        name = printable(getattr(optimizer, "__name__", repr(optimizer)))
        registered = RULES.get(name)
        if Optimizer not in getattr(optimizer, "__mro__", ()):
            problem = "must be a subclass of torch.optim.Optimizer"
        elif registered and registered.is_ours:
            problem = "one of ours has this name; call it otherwise"
        elif evaluated not in get_args(Evaluated):
            problem = f"evaluated: {evaluated!r}: must be one of {', '.join(get_args(Evaluated))}"
        elif not isinstance(wants, tuple | list) or any(each not in _MEASURED for each in wants):
            problem = f"wants: {wants!r}: must be a tuple of some of {', '.join(sorted(_MEASURED))}"
        elif {type(key) for key in keys.values()} - {Key}:
            problem = f"{', '.join(keys)}: must be positive(), non_negative() or decay()"
        elif mismatch := _mismatch(optimizer.step, wants):
            named = ", ".join(wants) or "nothing"
            problem = f"step: {mismatch}; it gets what wants names: {named}"
        else:
            RULES[name] = Rule(name, optimizer, keys, tuple(wants), evaluated, place, client_method)
            _decorated.append(RULES[name])
            return optimizer
        raise UserError("rule", f"{name}: {problem}")

    return register


def _mismatch(step: Callable[..., Any], wants: Sequence[str]) -> str:
    """Say why a class's ``step`` does not take what it wants by name; empty where it does."""
    try:
        inspect.signature(step).bind(None, **dict.fromkeys(wants))
    except TypeError as error:
        return str(error)
    return ""


def load_rule(reference: str, where: str) -> Rule:
    """Import a custom rule ``module:Class``, and register it under that name alone.

    Whoever calls this has made sure that the user allows the code to run.
    """
    before = dict(RULES)
    try:
        found = load_code(reference, where)
    finally:
        RULES.clear()
        RULES.update(before)  # else its class's name would be a method, in this process alone
    return name_rule(reference, found, where)


def name_rule(name: str, optimizer: object, where: str) -> Rule:
    """Register a custom rule under a name of its own: the decorated class's place."""
    declared = next((rule for rule in reversed(_decorated) if rule.optimizer is optimizer), None)
    if declared is None:
        raise UserError(where, name, "must be a class with @fednnnn_plugin.rule(...)")
    RULES[name] = replace(declared, name=name)
    return RULES[name]


for _file in iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")
for _rule in sorted(RULES.values(), key=lambda rule: (rule.place is None, rule.place, rule.name)):
    RULES[_rule.name] = RULES.pop(_rule.name)
