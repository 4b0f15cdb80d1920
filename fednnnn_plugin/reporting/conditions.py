"""Which runs belong together: data set and condition, then method and settings, then seeds."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from pathlib import PurePath
from typing import Any

import pandas as pd

from fednnnn_plugin.data.titles import TITLES, dataset_title
from fednnnn_plugin.errors import UserError, check_known, shown
from fednnnn_plugin.reporting.arguments import HUE, checked_names
from fednnnn_plugin.reporting.runs import (
    ARRANGED,
    FINGERPRINT_SUFFIX,
    IDENTITY,
    OWN_SPLIT,
    PARTITION,
    PARTITION_ARGS,
    setting_columns,
)

METHODS = ("FedAvg", "FedProx", "Norm-Norm", "Momentum", "FedNNNN")
CONDITIONS = ("IID, B", "non-IID, B", "IID, UB", "non-IID, UB")
SINGLE_CLIENT, UNRECORDED = "single client", "data not recorded"
_CLIENTS = {"iid": "IID", "n_class": "non-IID", "dirichlet": "Dirichlet"}
_FREE = {
    "dirichlet_by_class": "Dirichlet by class",
    "natural": "natural",
}  # which leave the sizes free
_SIZES = {"balanced": "B", "power_law": "UB"}
SYMBOLS = {"client_num_in_total": "K", "client_num_per_round": "m", "comm_round": "rounds"}
SYMBOLS |= {"classes_per_client": "classes", "power_law_exponent": "exponent"}
SYMBOLS |= {"partition_alpha": "α", "validation_fraction": "held out", "batch_size": "batch"}
SYMBOLS |= {"beta": "β", "gamma": "γ", "prox_mu": "μ", "learning_rate": "η", "weight_decay": "λ"}
SYMBOLS |= {"server_lr": "server η", "server_beta1": "β1", "server_beta2": "β2"}
SYMBOLS |= {"max_client_norm": "clipped to", "federated_optimizer": "is"}
SYMBOLS |= {"client_weighting": "weights"}
SYMBOLS |= {"server_tau": "τ", "fedexp_epsilon": "ε"}
# Which data is partitioned how, and judged on what: no method is ranked across these settings.
_DATA = (
    *("data_dir", "image_size", "test_fraction", "validation_fraction", "holdout"),
    *("split", "test_split", "subset", "revision", "input_column", "label_column"),
    "data_fingerprint",
)
_CLIENT_NUMBERS = ("client_num_in_total", "client_num_per_round")
_PARTITION = (*_DATA, *_CLIENT_NUMBERS, *PARTITION_ARGS, "split_fingerprint")
_UNLESS_ZERO = ("partition_alpha", "validation_fraction")  # of these, what is named unless it is 0
# The metric judges a line.
_NO_VARIANT = {*IDENTITY, "dataset", *PARTITION, *_PARTITION, *ARRANGED} - {"metric"}
# A method's own settings: told apart within the method, not across methods.
_OWN = (
    *("federated_optimizer", "client_method", "comm_round", "beta", "gamma", "prox_mu"),
    *("rule_fingerprint", "client_method_fingerprint"),
)
# Where null is a value, not a key that the method does not have.
_CODE = (
    *("model", "loss", "optimizer", "schedule", "transform", "sampler", "availability"),
    *("trainer", "tester"),
)
_OFF = (
    *("metric", "epochs", "local_steps", "loss", "train_transform", "client_optimizer_args"),
    *("learning_rate_decay", "learning_rate_schedule", "max_grad_norm", "max_client_norm"),
    *("client_sampling", "client_availability", *(f"{of}{FINGERPRINT_SUFFIX}" for of in _CODE)),
)
_PAPER_ORDER = (*TITLES.values(), *CONDITIONS, *METHODS)

_PLACE = ("data", "condition")
LINE = [*_PLACE, "label"]  # what one line of a figure or of a table is
_UNNAMED = ("run", "method", *_PLACE)  # columns whose values tell what they are


def arrange(
    runs: pd.DataFrame,
    problems: list[str] | None = None,
    hue: str | Sequence[str] | None = None,
) -> pd.DataFrame:
    """Name each run's data, condition and line, and sort into the paper's order.

    Settings that differ inside a condition split a method into lines, and are named in them: a
    mean over seeds never mixes two settings. Of two runs of one line and seed, the longer counts;
    ``problems`` takes a line for the other, which is a warning without it. Where ``hue`` names the
    columns that tell lines apart, a line is all runs of a condition with their values, whatever
    else differs.

    New columns are ``data``, ``partition`` and ``condition``, ``label``, which names a line of a
    figure, and its ``shade``.

    Raises:
        UserError: there is no run, or the table is not of ``read_runs``.
    """
    check_runs(runs)
    by = [] if hue is None else checked_names(HUE, hue)
    if set(ARRANGED) <= set(runs) and not by:
        return runs
    if runs.empty:
        raise UserError("runs", "no round is left; there must be at least one")
    runs = _apart(runs)
    for column in by:
        check_known(HUE, column, map(str, (*_PLACE, *runs.columns)))
    heads = _heads(runs, [column for column in by if column not in _PLACE])
    if by:
        heads["label"] = _values(heads, by)
    else:
        ranked = [part for _, part in heads.groupby([*_PLACE])]
        heads["label"] = pd.concat(map(_labels, ranked))
        # Whether runs without a seed, as of Flower, repeat each other no record says.
        alone = heads["seed"].isna() & heads.duplicated(LINE, keep=False)
        heads["label"] += (" (" + heads["run"] + ")").where(alone, "")
        heads["rounds"] = heads["run"].map(runs.groupby("run")["round"].max())
        by_length = heads.sort_values("rounds", ascending=False, kind="stable")
        twice = by_length[by_length.duplicated([*LINE, "seed"]) & by_length["seed"].notna()]
        heads = heads.drop(index=twice.index)
        why = "another run has its settings, its seed and no fewer rounds; only that one counts"
        say = partial(warnings.warn, stacklevel=2) if problems is None else problems.append
        for run in twice["run"]:
            say(f"{run}: {why}")
    ordered = heads.sort_values(
        ["data", "partition", "condition", "method"],
        key=lambda of: of.map(_paper_place),
        kind="stable",
    )
    ordered["shade"] = shades(ordered, ["data", "condition", "method"])
    names = ordered[["run", *ARRANGED]]
    return names.merge(runs, on="run", how="left")[[*runs.columns, *ARRANGED]].copy()


def check_runs(given: object) -> None:
    """Refuse what is no table of ``read_runs``."""
    must = "must be a table of read_runs"
    if not isinstance(given, pd.DataFrame):
        raise UserError("runs", shown(given), must)
    if missing := [name for name in (*IDENTITY, "round") if name not in given]:
        raise UserError("runs", f"no column {', '.join(missing)}", must)


def placed(runs: pd.DataFrame) -> pd.DataFrame:
    """Name each run's ``data`` and ``condition``, in new columns behind its name."""
    runs = _apart(runs)
    return _heads(runs)[["run", "data", "condition"]].merge(runs, on="run", how="right")


def shades(lines: pd.DataFrame, by: Sequence[str]) -> pd.Series[float]:
    """The opacity of each line: those of a group go from pale to full, in their order."""
    labels = lines.groupby([*by])["label"]
    nth = labels.transform(lambda own: pd.factorize(own)[0]).astype(float)
    return 0.25 + 0.75 * (nth + 1.0) / labels.transform("nunique")


def references(runs: pd.DataFrame, members: pd.DataFrame) -> pd.DataFrame:
    """The single-client runs on the data of a condition's ``members``, of a model of theirs."""
    keys = ["data", *(key for key in _DATA if key in runs)]
    alike = runs[keys].astype(str).eq(members[keys].astype(str).iloc[0]).all(axis=1)
    if "model" in runs:
        alike &= runs["model"].astype(str).isin(members["model"].astype(str))
    return runs[alike & (runs["partition"] == SINGLE_CLIENT)]


def value_text(value: object) -> str:
    """A setting as a reader writes it, to the last digit that matters; 0.1666… is 1/6."""
    if value is None or isinstance(value, bool):
        return {None: "–", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        if float(short := f"{value:g}") == value:
            return short
        share = Fraction(value).limit_denominator(100) if math.isfinite(value) else 0
        return str(share if float(share) == value else value)
    return str(value)


def judged(runs: pd.DataFrame) -> str:
    """What accuracies were measured on: test images, or validation images held out of training."""
    share = runs.get("validation_fraction", pd.Series(0.0, runs.index))
    held_out = pd.to_numeric(share, errors="coerce") > 0.0
    return "validation" if held_out.all() else "test and validation" if held_out.any() else "test"


def differing(heads: pd.DataFrame, keys: Iterable[str]) -> list[str]:
    """The columns that do not have one value everywhere."""
    return [key for key in keys if key in heads and len(set(heads[key])) > 1]


def _apart(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs by names of their own: tables read apart may share folders, or names of folders."""
    runs = runs.drop(columns=ARRANGED, errors="ignore")
    runs = runs.drop_duplicates(["folder", "round"], ignore_index=True)  # one index of several
    of_one_name = runs.groupby("run")["folder"].transform("nunique") > 1
    return runs.assign(run=runs["run"].mask(of_one_name, runs["folder"]))


def _heads(runs: pd.DataFrame, more: Sequence[str] = ()) -> pd.DataFrame:
    """A line a run, by the values of its settings: these, its data, partition and condition.

    ``more`` are further columns, which may be the caller's own; they sort first.
    """
    columns = dict.fromkeys([*more, *setting_columns(runs)])
    heads = runs.drop_duplicates("run")[[*columns]].astype(object)
    heads = heads.where(heads.notna(), None)
    settings = [key for key in columns if key not in IDENTITY]
    can_differ = [key for key in settings if heads[key].map(pd.api.types.is_hashable).all()]
    by_value = [*differing(heads, can_differ), "seed"]
    heads = heads.sort_values(by_value, key=lambda of: pd.to_numeric(of, errors="coerce"))
    heads[["data", "partition"]] = [_place(head) for head in heads.to_dict("records")]
    alike = [part for _, part in heads.groupby(["data", "partition"])]
    return heads.assign(condition=pd.concat(map(_conditions, alike)))


def _paper_place(name: str) -> str:
    """What sorts the paper's names as the paper does, and before others."""
    return f"{_PAPER_ORDER.index(name):02}" if name in _PAPER_ORDER else f"~{name}"


def _place(head: Mapping[str, Any]) -> tuple[str, str]:
    """The name of a run's data, and how it was partitioned."""
    data = head.get("dataset")
    if data is None:
        return UNRECORDED, "no recipe"
    name = dataset_title(str(data))
    if head.get("data_dir"):
        name = f"{PurePath(str(head['data_dir'])).name} ({name})"
    if head.get("client_num_in_total") == 1:
        return name, SINGLE_CLIENT
    if head.get("partition_method") is None:  # loaders of a script's own
        return name, "own data"
    if head["partition_method"] == OWN_SPLIT:
        return name, OWN_SPLIT
    method, sizes = str(head["partition_method"]), str(head.get("partition_sizes"))
    if method in _FREE:
        return name, _FREE[method]
    return name, f"{_CLIENTS.get(method, method)}, {_SIZES.get(sizes, sizes)}"


def _conditions(members: pd.DataFrame) -> pd.Series[str]:
    """The names of conditions of one partition, by the settings of it that differ."""
    named = {
        *differing(members, _PARTITION),
        *(key for key in _UNLESS_ZERO if any(members.get(key, []))),
    }
    if "Dirichlet" not in members["partition"].iloc[0]:  # recipes of other partitions hold an α too
        named -= {"partition_alpha"}
    return members["partition"] + _named(members, [key for key in _PARTITION if key in named])


def _labels(members: pd.DataFrame) -> pd.Series[str]:
    """The names of a condition's lines, by the settings that differ."""
    keys = [key for key in members if key not in _NO_VARIANT]
    everywhere = [key for key in keys if key in _OFF or members[key].notna().all()]
    shared = [key for key in everywhere if key not in _OWN]
    named = differing(members, shared)
    found = []
    for _, part in members.groupby("method"):
        shown = [key for key in keys if key in (*named, *differing(part, keys))]
        found.append(part["method"] + _named(part, shown))
    labels = pd.concat(found)
    if members["partition"].iloc[0] == SINGLE_CLIENT:
        return SINGLE_CLIENT + (", " + labels) * int(labels.nunique() > 1)
    return labels


def _named(heads: pd.DataFrame, keys: Sequence[str]) -> pd.Series[str]:
    """For each run its values of these settings, in brackets."""
    if not keys:
        return pd.Series("", heads.index, dtype=object)
    return " (" + _values(heads, keys) + ")"


def _values(heads: pd.DataFrame, keys: Sequence[str]) -> pd.Series[str]:
    """For each run its values of these columns, with their names."""
    words = {key: key.replace(FINGERPRINT_SUFFIX, " fingerprint") for key in keys}
    names = ["" if key in _UNNAMED else f"{SYMBOLS.get(key, words[key])} " for key in keys]
    texts = [name + heads[key].map(value_text) for name, key in zip(names, keys, strict=True)]
    return texts[0].str.cat(texts[1:], sep=", ")
