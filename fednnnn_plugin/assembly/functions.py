"""The functions of a run's training and test: those that its recipe names, or objects for them."""

import inspect
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from fednnnn_plugin.assembly.availability import AvailabilityFile
from fednnnn_plugin.assembly.rates import SCHEDULE, learning_rates
from fednnnn_plugin.client.local_sgd import MakeOptimizer, Rates
from fednnnn_plugin.client.loss import CROSS_ENTROPY, LOSSES, Loss
from fednnnn_plugin.client.method import ClientMethod
from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.fingerprint import code_digests
from fednnnn_plugin.recipe import Recipe
from fednnnn_plugin.recipe.consistency import metric_names
from fednnnn_plugin.recipe.kinds import OPTIMIZERS
from fednnnn_plugin.recipe.method_keys import CLIENT_METHOD
from fednnnn_plugin.rounds.augmentation import TRANSFORM, Transform
from fednnnn_plugin.rounds.evaluation import Metric
from fednnnn_plugin.rounds.sampling import AVAILABILITY, SAMPLING, Available, Sampler
from fednnnn_plugin.seeds import isolated_generators
from fednnnn_plugin.user_code import call_code, check_arguments, find_code, is_own, user_code

LOSS, OPTIMIZER = "train_args.loss", "train_args.client_optimizer"
METRICS = "validation_args.metrics"
_ARGUMENTS = f"{OPTIMIZER}_args"
_GIVEN = {"params": "the model", "lr": "learning_rate", "weight_decay": "weight_decay"}


class Functions(NamedTuple):
    """The loss, what makes a client's optimizer (None for plain SGD), and the metrics by name.

    The sampler draws the cohorts, None uniformly. The method is what clients do beside SGD.
    ``digests`` are those of what is the user's. The rates are those of the clients' optimizer,
    None for one in all rounds.
    """

    loss: Loss = CROSS_ENTROPY
    optimizer: MakeOptimizer | None = None
    metrics: Mapping[str, Metric] = MappingProxyType({})
    sampler: Sampler | None = None
    method: ClientMethod = ClientMethod()
    digests: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    rates: Rates | None = None
    available: Available | None = None
    transform: Transform | None = None


def find_functions(
    recipe: Recipe,
    objects: Mapping[str, object] = MappingProxyType({}),
    *,
    custom_trainer: bool = False,
) -> Functions:
    """Return what a recipe names, or the ``objects`` by ``section.key``.

    With a ``custom_trainer`` the sampler alone, as that trains and tests by its own.
    """
    code, train = _OwnCode(objects, allow_code=recipe.allow_code), recipe.train_args
    named, method = train.client_method or recipe.rule.client_method or "", recipe.client_method
    sampler = code.find(SAMPLING, train.client_sampling, "sampler")
    available = _available(recipe, code)
    method = code.find(CLIENT_METHOD, named, "client_method") or method
    if custom_trainer:
        if asked := train.client_method:
            why = "a custom trainer trains by its own; leave it out"
            raise UserError(CLIENT_METHOD, f"{printable(asked)}: {why}")
        return Functions(sampler=sampler, digests=code.digests, available=available)
    loss = _loss(recipe, code)
    maker = code.find(OPTIMIZER, train.client_optimizer, "optimizer")
    metrics = _metrics(recipe, objects, code, loss)
    rates = learning_rates(recipe, code.find(SCHEDULE, train.learning_rate_schedule, "schedule"))
    transform = code.find(TRANSFORM, train.train_transform, "transform")
    settings = {key: recipe.rule_settings[key] for key in method.keys}
    where = f"{CLIENT_METHOD}: {printable(named)}"
    with isolated_generators(recipe.common_args.random_seed, "client method"):
        made = call_code(method, where, **settings)
    optimizer = _optimizer(recipe, maker)
    return Functions(
        loss, optimizer, metrics, sampler, made, code.digests, rates, available, transform
    )


class _OwnCode:
    """What a recipe names of the user's: imported, or the ``objects``; with the digests by kind."""

    def __init__(self, objects: Mapping[str, object], *, allow_code: bool) -> None:
        self._objects, self._allow_code = objects, allow_code
        self._things: dict[str, list[object]] = {}
        self.digests: dict[str, dict[str, str]] = {}

    def find(self, where: str, name: Any, kind: str) -> Any:
        """Return the class or function of a key; None where its name is none of the user's."""
        return self.take(where, name, kind, self._objects.get(where)) if is_own(name) else None

    def take(self, where: str, name: str, kind: str, given: object) -> Any:
        """Return the object that was given, else what the name imports."""
        found = find_code(where, name, given, allow_code=self._allow_code)
        if not callable(found):
            of = printable(type(found).__name__)
            must = "must be a class or a function"
            raise UserError(where, f"{printable(name)}: an instance of {of}", must)
        self._things[kind] = [*self._things.get(kind, ()), found]
        self.digests[kind] = code_digests(*self._things[kind])
        return found


def _available(recipe: Recipe, code: _OwnCode) -> Available | None:
    """Return which clients are available in a round, by a file or a function."""
    name, train = recipe.train_args.client_availability, recipe.train_args
    if name is None or is_own(name):
        return code.find(AVAILABILITY, name, "availability")
    found = AvailabilityFile(name, train.client_num_in_total, train.comm_round)
    code.digests["availability"] = {"file": found.digest}
    return found


def _loss(recipe: Recipe, code: _OwnCode) -> Loss:
    name = recipe.train_args.loss
    if name is None:
        return CROSS_ENTROPY
    loss = LOSSES.get(name) or Loss(name, code.find(LOSS, name, "loss"))
    if isinstance(loss.mean, type):
        raise UserError(LOSS, f"{printable(name)}: a class", "give an instance of it")
    own = loss.mean.named_parameters() if isinstance(loss.mean, torch.nn.Module) else ()
    for key, parameter in own:  # clients train and send those of the model
        if parameter.requires_grad:
            raise UserError(
                LOSS,
                f"{printable(name)}: its parameter {printable(key)} would not be trained",
                "make it a parameter of the model, whose forward() returns what the loss needs "
                "of it, or freeze it with requires_grad_(False)",
            )
    return loss


def _metrics(
    recipe: Recipe, objects: Mapping[str, object], code: _OwnCode, loss: Loss
) -> dict[str, Metric]:
    metrics: dict[str, Metric] = {}
    names = recipe.validation_args.metrics or ()
    things: Any = objects.get(METRICS, names)  # each an object, or its name
    shown_as = metric_names(names)
    if twice := next((each for each in shown_as if shown_as.count(each) > 1), ""):
        raise UserError(METRICS, f"two are called {printable(twice)}: each needs its own name")
    for shown, name, thing in zip(shown_as, names, things, strict=True):
        if is_own(name):
            given = None if isinstance(thing, str) else thing
            metrics[shown] = code.take(METRICS, name, "metrics", given)
        else:
            with isolated_generators(0, "import"):  # of which scikit-learn's draws
                from fednnnn_plugin.rounds.scorer import Scorer, unknown_metric

            if problem := unknown_metric(name):
                raise UserError(METRICS, f"{printable(name)}: {problem}")
            metrics[name] = Scorer(name, loss)
    return metrics


def _optimizer(recipe: Recipe, maker: MakeOptimizer | None) -> MakeOptimizer | None:
    """Return what makes the optimizer, with its arguments; None for plain SGD.

    One is made and tried here, before workers are forked: torch takes seconds for its first.
    """
    train = recipe.train_args
    arguments, decay = train.client_optimizer_args or {}, train.weight_decay
    name = train.client_optimizer
    if name.lower() == "sgd" and not arguments and train.max_grad_norm is None:
        return None
    make = maker or getattr(torch.optim, OPTIMIZERS[name.lower()])
    for key in _GIVEN.keys() & arguments.keys():
        raise UserError(f"{_ARGUMENTS}.{key}", f"leave it out: {_GIVEN[key]} gives it")
    for key in _GIVEN.keys() & getattr(make, "keywords", {}).keys():  # of a partial
        raise UserError(OPTIMIZER, key, f"leave it out: {_GIVEN[key]} gives it")
    check_arguments(make, _ARGUMENTS, arguments)
    takes = inspect.signature(make).parameters.values()
    if any(each.name == "weight_decay" or each.kind is each.VAR_KEYWORD for each in takes):
        arguments = arguments | {"weight_decay": decay}
    elif decay:
        raise UserError("train_args.weight_decay", f"{decay}: {printable(name)} takes none")
    make = partial(make, **arguments)
    trial = torch.nn.Parameter(torch.zeros(2, 2))  # Muon takes matrices alone
    trial.grad = torch.ones_like(trial)
    with user_code(f"{OPTIMIZER}: {printable(name)}"), isolated_generators(0, "optimizer"):
        make([trial], lr=train.learning_rate).step()
    return make
