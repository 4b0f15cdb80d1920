"""Sort runs: data set and condition, then method and settings, then seeds."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from fednnnn_plugin.report import paper
from fednnnn_plugin.report.runs import Run
from fednnnn_plugin.report.settings import Scalar

K = TypeVar("K")
T = TypeVar("T")

DATASET_NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "digits": "digits"}
SINGLE_CLIENT = "single client"
# Sections whose settings change what a run computes, and the keys in them that do not.
_SECTIONS = ("data_args", "model_args", "train_args")
_NOT_COMPUTED = frozenset(
    {
        *("data_cache_dir", "download", "dataset", "partition_method", "partition_sizes"),
        *("client_num_in_total", "client_num_per_round", "classes_per_client"),
        *("power_law_exponent", "federated_optimizer", "start_round", "checkpoint_every"),
        *("client_batching", "max_client_failures"),
    }
)
SYMBOLS = {
    "client_num_in_total": "K",
    "client_num_per_round": "m",
    "classes_per_client": "classes",
    "power_law_exponent": "exponent",
    "beta": "β",
    "gamma": "γ",
    "prox_mu": "μ",
    "server_lr": "server η",
    "server_beta1": "β1",
    "server_beta2": "β2",
    "server_tau": "τ",
    "fedexp_epsilon": "ε",
    "learning_rate": "η",
    "weight_decay": "λ",
    "comm_round": "rounds",
    "batch_size": "batch",
}


@dataclass(frozen=True)
class Condition:
    """How a data set is dealt to the clients.

    Args:
        dataset: as in the recipe ("mnist").
        clients: "IID", "non-IID" or "single client", as the paper has it.
        sizes: "B" (balanced), "UB" (power law), or "" for a single client.
        qualifier: what tells two conditions apart that the paper calls the same ("K 20").
    """

    dataset: str
    clients: str
    sizes: str
    qualifier: str = ""

    @property
    def dataset_name(self) -> str:
        return DATASET_NAMES.get(self.dataset, self.dataset)

    @property
    def name(self) -> str:
        """The condition as in the paper's table: "non-IID, B"."""
        name = f"{self.clients}, {self.sizes}" if self.sizes else self.clients
        return f"{name} ({self.qualifier})" if self.qualifier else name

    @property
    def long_name(self) -> str:
        """The condition in words: "non-IID, unbalanced"."""
        words = {"B": "balanced", "UB": "unbalanced"}.get(self.sizes, "")
        name = f"{self.clients}, {words}" if words else self.clients
        return f"{name} ({self.qualifier})" if self.qualifier else name


@dataclass(frozen=True, eq=False)
class Group:
    """One method with one setting in one condition: runs that differ in their seed alone."""

    condition: Condition
    method: str
    variant: str
    runs: tuple[Run, ...]

    @property
    def label(self) -> str:
        return f"{self.method} ({self.variant})" if self.variant else self.method


def group_runs(runs: Iterable[Run]) -> tuple[list[Group], list[str]]:
    """Sort runs into groups, in the paper's order of data sets, conditions and methods.

    Settings that differ inside a method and condition split it, and are named in the label: a
    mean over seeds never mixes two settings. A run whose settings and seed another has too counts
    once (the one with more rounds), and is said.

    Returns:
        The groups, and one line for each run that does not count.
    """
    warnings: list[str] = []
    groups: list[Group] = []
    for base, members in _split([run for run in runs if run.records.rounds.size], _base).items():
        for qualifier, alike in _by_differences(members, partial(_deal, base)).items():
            condition = Condition(*base, qualifier)
            for method, of_method in _split(alike, lambda run: run.method).items():
                for variant, seeds in _by_differences(of_method, _settings).items():
                    kept = _one_per_seed(seeds, warnings)
                    groups.append(Group(condition, method, variant, tuple(kept)))
    groups.sort(key=_paper_order)
    return groups, warnings


def condition_of(run: Run) -> Condition:
    """A run's condition as the paper names it, without what tells it from others like it."""
    return Condition(*_base(run))


def conditions(groups: Sequence[Group]) -> dict[Condition, list[Group]]:
    """The groups by condition, both in order."""
    return _split(groups, lambda group: group.condition)


def single_clients(groups: Sequence[Group], dataset: str) -> list[Group]:
    """The single-client references of a data set."""
    return [
        group
        for group in groups
        if group.condition.dataset == dataset and group.condition.clients == SINGLE_CLIENT
    ]


def value_text(value: Scalar) -> str:
    """A setting as a reader writes it."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "–"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _split(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    parts: dict[K, list[T]] = {}
    for item in items:
        parts.setdefault(key(item), []).append(item)
    return parts


def _base(run: Run) -> tuple[str, str, str]:
    dataset = run.setting("dataset")
    if not run.settings or dataset is None:
        return ("data not recorded", "no recipe", "")
    if run.number("client_num_in_total") == 1:
        return (str(dataset), SINGLE_CLIENT, "")
    method, sizes = str(run.setting("partition_method")), str(run.setting("partition_sizes"))
    return (
        str(dataset),
        {"iid": "IID", "n_class": "non-IID"}.get(method, method),
        {"balanced": "B", "power_law": "UB"}.get(sizes, sizes),
    )


def _deal(base: tuple[str, str, str], run: Run) -> dict[str, Scalar]:
    _, clients, sizes = base
    keys = ["client_num_in_total", "client_num_per_round"]
    keys += ["classes_per_client"] * (clients == "non-IID")
    keys += ["power_law_exponent"] * (sizes == "UB")
    return {key: _number_or_text(run, key) for key in keys}


def _settings(run: Run) -> dict[str, Scalar]:
    return {
        key: _number_or_text(run, key)
        for section, _, key in (name.partition(".") for name in run.settings)
        if section in _SECTIONS and key not in _NOT_COMPUTED
    }


def _number_or_text(run: Run, key: str) -> Scalar:
    number = run.number(key)
    return run.setting(key) if number is None else number


def _by_differences(
    runs: Sequence[Run], settings: Callable[[Run], Mapping[str, Scalar]]
) -> dict[str, list[Run]]:
    """Runs by the settings that differ among them; the key names those ("β 0.6, γ 0.7")."""
    found = [settings(run) for run in runs]
    keys = dict.fromkeys(key for values in found for key in values)
    differing = [key for key in keys if len({repr(values.get(key)) for values in found}) > 1]
    labels = [
        ", ".join(f"{SYMBOLS.get(key, key)} {value_text(values.get(key))}" for key in differing)
        for values in found
    ]
    parts: dict[str, list[Run]] = {}
    for label, run in zip(labels, runs, strict=True):
        parts.setdefault(label, []).append(run)
    return parts


def _one_per_seed(runs: Sequence[Run], warnings: list[str]) -> list[Run]:
    kept: dict[Scalar, Run] = {}
    for run in runs:
        if run.seed is None:
            kept[run.name] = run
            continue
        other = kept.setdefault(run.seed, run)
        if other is not run:
            longer, dropped = sorted((other, run), key=lambda r: r.last_round, reverse=True)
            kept[run.seed] = longer
            warnings.append(
                f"{dropped.name}: settings and seed are {longer.name}'s; "
                "only the latter counts in tables and figures"
            )
    return list(kept.values())


def _paper_order(group: Group) -> tuple[object, ...]:
    condition = group.condition
    where = (condition.clients, condition.sizes)
    return (
        _position(condition.dataset, tuple(DATASET_NAMES)),
        condition.dataset,
        condition.clients == SINGLE_CLIENT,
        _position(where, paper.CONDITIONS),
        where,
        condition.qualifier,
        _position(group.method, paper.METHODS),
        group.method,
        group.variant,
    )


def _position(item: object, order: Sequence[object]) -> int:
    return order.index(item) if item in order else len(order)
