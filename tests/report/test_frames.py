"""Runs as tables for a notebook."""

from pathlib import Path

import pandas as pd
import pytest

import fednnnn_plugin as fp

from .conftest import maker
from .test_tables import curve


def test_read_runs_finds_patterns_lists_and_nested_folders(tmp_path: Path) -> None:
    make_run = maker(tmp_path / "runs")
    for name in ("n-1", "n-2", "deep/er/still"):
        make_run("FedNNNN", name=name, seed=len(name))
    runs = tmp_path / "runs"
    for given, found in (
        ([runs], {"n-1", "n-2", "still"}),
        ([str(runs / "n-*")], {"n-1", "n-2"}),
        ([[runs / "n-1", str(runs / "n-2")]], {"n-1", "n-2"}),
        ([runs / "n-1", runs / "deep"], {"n-1", "still"}),
    ):
        assert set(fp.read_runs(*given)["run"]) == found


def test_read_runs_columns_have_types(make_run) -> None:
    runs = fp.read_runs(make_run("FedNNNN", dataset="mnist", seed=3, using=True, beta=0.7))
    assert {*runs["data"], *runs["condition"], *runs["method"]} == {
        "MNIST",
        "non-IID, B",
        "FedNNNN",
    }
    types = {"finished": "boolean", "degenerate": "boolean", "using": "boolean", "seed": "Int64"}
    types |= {"epochs": "Int64", "clients": "Int64", "rejected": "Int64", "beta": "float64"}
    assert {name: str(runs[name].dtype) for name in types} == types


def test_summary_by_hand(make_run) -> None:
    for seed, reached in ((0, (0.5, 0.9, 0.7, 0.8)), (1, (0.5, 0.6, 0.7, 0.6))):
        folder = make_run("FedNNNN", seed=seed, change=curve(*reached))
    runs = fp.read_runs(folder.parent)
    (row,) = fp.summary(runs, target=0.65).to_dict("records")
    assert (row["label"], row["seeds"], row["rounds"]) == ("FedNNNN", 2, 4)
    assert (row["best"], row["final"]) == pytest.approx((0.8, 0.7))
    assert row["best_sd"] == pytest.approx(0.02**0.5)
    assert (row["reached"], row["rounds_to_target"]) == (2, 2.5)
    (row,) = fp.summary(runs, target=0.85).to_dict("records")
    assert row["reached"] == 1
    assert pd.isna(row["rounds_to_target"])


def test_layer_norms_have_a_row_per_layer_and_round(make_run) -> None:
    runs = fp.read_runs(make_run("FedNNNN"))
    norms = fp.layer_norms(runs)
    assert len(norms) == 4 * 4
    fc2 = norms[norms["layer"] == "fc2"]
    assert list(fc2["mean_client_norm"]) == list(runs["layers.fc2.mean_client_norm"])
    bare = runs.drop(columns=list(runs.filter(like="layers.")))
    assert fp.layer_norms(bare).empty


def test_column_of_the_users_is_no_setting(make_run) -> None:
    """``runs.assign(final=...)`` made three lines without a band of three seeds."""
    for seed in range(3):
        folder = make_run("FedNNNN", seed=seed)
    runs = fp.read_runs(folder.parent)
    runs = runs.assign(final=runs.groupby("run")["test_acc"].transform("last"), label="mine")
    ax = fp.figures.accuracy(pd.concat([runs, runs.iloc[:0]]))
    assert len(ax.lines) == len(ax.collections) == 1
    assert len(fp.summary(runs)) == 1


def test_palette_colours_a_renamed_method(make_run) -> None:
    runs = fp.read_runs(make_run("FedNNNN"))
    ours = runs.assign(method="ours")
    (before,), (after,) = (fp.figures.accuracy(each).lines for each in (runs, ours))
    assert after.get_label() == "ours"
    assert before.get_color() == after.get_color()
    (line,) = fp.figures.accuracy(ours, palette={"ours": "red"}).lines
    assert line.get_color() == "red"
