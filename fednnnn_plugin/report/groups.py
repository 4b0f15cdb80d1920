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
_CLIENTS = {"iid": "IID", "n_class": "non-IID", "dirichlet": "Dirichlet"}
_SIZES = {"balanced": "B", "power_law": "UB"}
SYMBOLS = {"client_num_in_total": "K", "client_num_per_round": "m", "comm_round": "rounds"}
SYMBOLS |= {"classes_per_client": "classes", "power_law_exponent": "exponent"}
SYMBOLS |= {"partition_alpha": "α", "validation_fraction": "held out", "batch_size": "batch"}
SYMBOLS |= {"beta": "β", "gamma": "γ", "prox_mu": "μ", "learning_rate": "η", "weight_decay": "λ"}
SYMBOLS |= {"server_lr": "server η", "server_beta1": "β1", "server_beta2": "β2"}
SYMBOLS |= {"server_tau": "τ", "fedexp_epsilon": "ε"}
# Settings that say which data is dealt how, and judged on what: no method is ranked across them.
# With each, the partition that it belongs to.
_DEAL = {
    **dict.fromkeys(("data_dir", "image_size", "test_fraction", "validation_fraction")),
    **dict.fromkeys(("client_num_in_total", "client_num_per_round")),
    "classes_per_client": "non-IID",
    "partition_alpha": "Dirichlet",
    "power_law_exponent": "UB",
    "min_samples": "UB",
}
_NO_VARIANT = frozenset(
    {
        *("run", "folder", "finished", "method", "seed", "federated_optimizer"),
        *("dataset", "partition_method", "partition_sizes", "data", "dealt", "sizes", "condition"),
        *_DEAL,
    }
)
# A method's own settings: told apart within the method, not across methods.
_OWN = ("comm_round", "beta", "gamma", "prox_mu")

LINE = ["data", "condition", "label"]  # what one line of a figure or of a table is

Heads = list[dict[str, Any]]


def arrange(runs: pd.DataFrame, problems: list[str] | None = None) -> pd.DataFrame:
    """Name each run's data, condition and line, and sort into the paper's order.

    Settings that differ inside a condition split a method into lines, and are named in them: a
    mean over seeds never mixes two settings. Of two runs of one line and seed, the longer counts.

    Args:
        runs: as ``read_runs`` gives them.
        problems: takes a line for each run that does not count.

    Returns:
        The rounds with the columns ``data``, ``dealt``, ``sizes``, ``condition``, ``label``, which
        names a line of a figure, and ``nth`` ``of`` its method's lines with their ``values``.
    """
    if "label" in runs:
        return runs
    table = runs.drop_duplicates("run")[setting_columns(runs)].astype(object)
    heads: Heads = table.where(table.notna(), None).to_dict("records")
    for head in heads:
        head.update(_base(head))
    for members in _split(heads, "data", "dealt", "sizes"):
        _name_condition(members)
    for members in _split(heads, "data", "condition"):
        _name_lines(members)
    last = runs.groupby("run")["round"].max()
    for members in _split([h for h in heads if h["seed"] is not None], *LINE, "seed"):
        longest, *others = sorted(members, key=lambda head: -last[head["run"]])
        for head in others:
            heads.remove(head)
            if problems is not None:
                problems.append(
                    f"{head['run']}: settings and seed are {longest['run']}'s; "
                    "only the latter counts in tables and figures"
                )
    added = ["data", "dealt", "sizes", "condition", "values", "label", "nth", "of"]
    names = pd.DataFrame(sorted(heads, key=_paper_order))[["run", *added]]
    return names.merge(runs, on="run", how="left")[[*runs.columns, *added]]


def value_text(value: object) -> str:
    """A setting as a reader writes it, to the last digit that matters."""
    if value is None or isinstance(value, bool):
        return {None: "–", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return short if float(short := f"{value:g}") == value else repr(value)
    return str(value)


def differing(heads: Sequence[Mapping[str, Any]], keys: Iterable[str]) -> list[str]:
    """The keys that do not have one value everywhere."""
    return [key for key in keys if len({head.get(key) for head in heads}) > 1]


def _base(head: Mapping[str, Any]) -> dict[str, str]:
    data = head.get("dataset")
    if data is None:
        return {"data": "data not recorded", "dealt": "no recipe", "sizes": ""}
    name = DATASET_NAMES.get(data, str(data))
    if head.get("data_dir"):
        name = f"{PurePath(str(head['data_dir'])).name} ({name})"
    if head.get("client_num_in_total") == 1:
        return {"data": name, "dealt": SINGLE_CLIENT, "sizes": ""}
    method, sizes = str(head.get("partition_method")), str(head.get("partition_sizes"))
    return {"data": name, "dealt": _CLIENTS.get(method, method), "sizes": _SIZES.get(sizes, sizes)}


def _name_condition(members: Heads) -> None:
    dealt, sizes = members[0]["dealt"], members[0]["sizes"]
    told = [key for key in differing(members, _DEAL) if _DEAL[key] in (None, dealt, sizes)]
    told += ["partition_alpha"] * (dealt == "Dirichlet" and "partition_alpha" not in told)
    for head in members:
        held_out = bool(head.get("validation_fraction")) and "validation_fraction" not in told
        what = _named(head, [*told, *["validation_fraction"] * held_out])
        head["condition"] = (f"{dealt}, {sizes}" if sizes else dealt) + f" ({what})" * bool(what)


def _name_lines(members: Heads) -> None:
    keys = [key for key in dict.fromkeys(k for h in members for k in h) if key not in _NO_VARIANT]
    common = [k for k in keys if k not in _OWN and all(h.get(k) is not None for h in members)]
    told = differing(members, common)
    for of_method in _split(members, "method"):
        shown = [key for key in keys if key in {*told, *differing(of_method, keys)}]
        for head in of_method:
            what = _named(head, shown)
            head["label"] = head["method"] + f" ({what})" * bool(what)
            numbers = (head.get(key) for key in shown)
            head["values"] = tuple(v if isinstance(v, int | float) else 0.0 for v in numbers)
        lines = sorted({(head["values"], head["label"]) for head in of_method})
        for head in of_method:
            head |= {"nth": lines.index((head["values"], head["label"])), "of": len(lines)}
    if members[0]["dealt"] == SINGLE_CLIENT:
        several = len({head["label"] for head in members}) > 1
        for head in members:
            head["label"] = SINGLE_CLIENT + f", {head['label']}" * several


def _named(head: Mapping[str, Any], keys: Iterable[str]) -> str:
    return ", ".join(f"{SYMBOLS.get(key, key)} {value_text(head.get(key))}" for key in keys)


def _split(heads: Heads, *keys: str) -> list[Heads]:
    parts: dict[tuple[Any, ...], Heads] = {}
    for head in heads:
        parts.setdefault(tuple(head.get(key) for key in keys), []).append(head)
    return list(parts.values())


def _paper_order(head: Mapping[str, Any]) -> tuple[object, ...]:
    def position(item: object, order: Sequence[object]) -> int:
        return order.index(item) if item in order else len(order)

    return (
        position(head.get("dataset"), tuple(DATASET_NAMES)),
        head["data"],
        head["dealt"] == SINGLE_CLIENT,
        position((head["dealt"], head["sizes"]), CONDITIONS),
        head["condition"],
        position(head["method"], METHODS),
        head["method"],
        head["values"],
        head["label"],
        str(head["seed"]),
    )
