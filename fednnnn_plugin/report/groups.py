"""Which runs belong together: data set and condition, then method and settings, then seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import pandas as pd

from fednnnn_plugin.report.runs import setting_columns

DATASET_NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "digits": "digits"}
METHODS = ("FedAvg", "FedProx", "Norm-Norm", "Momentum", "FedNNNN")
CONDITIONS = (("IID", "B"), ("non-IID", "B"), ("IID", "UB"), ("non-IID", "UB"))
SINGLE_CLIENT = "single client"
SYMBOLS = {
    "client_num_in_total": "K",
    "client_num_per_round": "m",
    "classes_per_client": "classes",
    "power_law_exponent": "exponent",
    "partition_alpha": "α",
    "validation_fraction": "held out",
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
# Settings that say which data is dealt how, and judged on what: no method is ranked across them.
_DEAL = (
    *("data_dir", "image_size", "test_fraction", "validation_fraction", "min_samples"),
    *("client_num_in_total", "client_num_per_round", "classes_per_client"),
    *("power_law_exponent", "partition_alpha"),
)
_ONLY_WITH = {
    "classes_per_client": ("partition_method", "n_class"),
    "partition_alpha": ("partition_method", "dirichlet"),
    "power_law_exponent": ("partition_sizes", "power_law"),
    "min_samples": ("partition_sizes", "power_law"),
}
_NAMED = ("dataset", "partition_method", "partition_sizes", "federated_optimizer")
_OF_RUN = ("run", "folder", "finished", "method", "seed")
# A method's own settings: told apart within the method, not across methods.
_OWN = ("comm_round", "beta", "gamma", "prox_mu")

Values = Mapping[str, Any]


def arrange(runs: pd.DataFrame, problems: list[str] | None = None) -> pd.DataFrame:
    """Name each run's data, condition and line, and sort into the paper's order.

    Settings that differ inside a condition split a method into lines, and are named in them: a
    mean over seeds never mixes two settings. Of two runs of one line and seed, the longer counts.

    Args:
        runs: as ``read_runs`` gives them.
        problems: takes a line for each run that does not count.

    Returns:
        The rounds with the columns ``data``, ``dealt``, ``sizes``, ``condition``, ``variant``,
        ``label``, which names a line of a figure, and which of its method's lines it is.
    """
    if "label" in runs:
        return runs
    last = runs.groupby("run")["round"].max()
    heads = runs.drop_duplicates("run")[setting_columns(runs)].astype(object)
    settings = heads.where(heads.notna(), None).to_dict("records")
    for head in settings:
        head |= _base(head)
    for members in _split(settings, ("data", "dealt", "sizes")):
        _name_conditions(members)
    conditions = _split(settings, ("data", "condition"))
    for members in conditions:
        _name_variants(members)
        if members[0]["dealt"] == SINGLE_CLIENT:
            several = len({head["label"] for head in members}) > 1
            for head in members:
                head["label"] = SINGLE_CLIENT + f", {head['label']}" * several
    dropped = _doubles(settings, last, problems)
    kept = [head for head in sorted(settings, key=_paper_order) if head["run"] not in dropped]
    added = ["data", "dealt", "sizes", "condition", "variant", "label", "nth", "of"]
    order = pd.DataFrame([{key: head[key] for key in ("run", *added)} for head in kept])
    return order.merge(runs, on="run", how="left", sort=False)[[*runs.columns, *added]]


def value_text(value: object) -> str:
    """A setting as a reader writes it, to the last digit that matters."""
    if value is None or isinstance(value, bool):
        return {None: "–", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return short if float(short := f"{value:g}") == value else repr(value)
    return str(value)


def differing(settings: Sequence[Values], keys: Iterable[str]) -> list[str]:
    """The keys that do not have one value everywhere."""
    return [key for key in keys if len({values.get(key) for values in settings}) > 1]


def _base(head: Values) -> dict[str, Any]:
    data = head.get("dataset")
    if data is None:
        return {"data": "data not recorded", "dealt": "no recipe", "sizes": ""}
    name = DATASET_NAMES.get(data, str(data))
    if head.get("data_dir"):
        name = f"{PurePath(str(head['data_dir'])).name} ({name})"
    if head.get("client_num_in_total") == 1:
        return {"data": name, "dealt": SINGLE_CLIENT, "sizes": ""}
    method, sizes = str(head.get("partition_method")), str(head.get("partition_sizes"))
    clients = {"iid": "IID", "n_class": "non-IID", "dirichlet": "Dirichlet"}.get(method, method)
    return {
        "data": name,
        "dealt": clients,
        "sizes": {"balanced": "B", "power_law": "UB"}.get(sizes, sizes),
    }


def _name_conditions(members: Sequence[dict[str, Any]]) -> None:
    deals = [
        {
            key: head.get(key)
            for key in _DEAL
            if key not in _ONLY_WITH or head.get(_ONLY_WITH[key][0]) == _ONLY_WITH[key][1]
        }
        for head in members
    ]
    told = differing(deals, _DEAL)
    told += ["partition_alpha"] * (members[0]["dealt"] == "Dirichlet")
    for head, deal in zip(members, deals, strict=True):
        keys = [*told, *(["validation_fraction"] if deal.get("validation_fraction") else [])]
        name = f"{head['dealt']}, {head['sizes']}" if head["sizes"] else head["dealt"]
        what = ", ".join(_named(key, deal.get(key)) for key in dict.fromkeys(keys))
        head["condition"] = f"{name} ({what})" if what else name


def _name_variants(members: Sequence[dict[str, Any]]) -> None:
    other = {*_DEAL, *_NAMED, *_OF_RUN, "data", "dealt", "sizes", "condition"}
    keys = [k for k in dict.fromkeys(k for head in members for k in head) if k not in other]
    common = [
        k for k in keys if k not in _OWN and all(head.get(k) is not None for head in members)
    ]
    told = differing(members, common)
    for method in dict.fromkeys(head["method"] for head in members):
        of_method = [head for head in members if head["method"] == method]
        shown = [k for k in keys if k in told or k in differing(of_method, keys)]
        for head in of_method:
            head["variant"] = ", ".join(_named(key, head.get(key)) for key in shown)
            head["values"] = tuple(
                value if isinstance(value := head.get(key), int | float) else 0.0 for key in shown
            )
            head["label"] = method + (f" ({head['variant']})" if head["variant"] else "")
        order = sorted({(head["values"], head["label"]) for head in of_method})
        for head in of_method:
            head["nth"] = order.index((head["values"], head["label"]))
            head["of"] = len(order)


def _named(key: str, value: object) -> str:
    return f"{SYMBOLS.get(key, key)} {value_text(value)}"


def _split(settings: Sequence[dict[str, Any]], keys: Sequence[str]) -> list[list[dict[str, Any]]]:
    parts: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for head in settings:
        parts.setdefault(tuple(head.get(key) for key in keys), []).append(head)
    return list(parts.values())


def _doubles(
    settings: Sequence[dict[str, Any]], last: pd.Series[int], problems: list[str] | None
) -> set[str]:
    dropped = set()
    for members in _split(settings, ("data", "condition", "label", "seed")):
        if members[0]["seed"] is None:
            continue
        longest, *others = sorted(members, key=lambda head: -last[head["run"]])
        for head in others:
            dropped.add(head["run"])
            if problems is not None:
                problems.append(
                    f"{head['run']}: settings and seed are {longest['run']}'s; "
                    "only the latter counts in tables and figures"
                )
    return dropped


def _paper_order(head: Values) -> tuple[object, ...]:
    where = (head["dealt"], head["sizes"])
    return (
        _position(head.get("dataset"), tuple(DATASET_NAMES)),
        head["data"],
        head["dealt"] == SINGLE_CLIENT,
        _position(where, CONDITIONS),
        head["condition"],
        _position(head["method"], METHODS),
        head["method"],
        head["values"],
        head["label"],
        str(head["seed"]),
    )


def _position(item: object, order: Sequence[object]) -> int:
    return order.index(item) if item in order else len(order)
