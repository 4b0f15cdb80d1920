"""How a data set was dealt to the clients."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from matplotlib.axes import Axes

import fednnnn_plugin as fp
from fednnnn_plugin.cli import main
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.errors import printable
from fednnnn_plugin.recipe import find_recipe, load_recipe
from fednnnn_plugin.reporting import split_figures
from fednnnn_plugin.reporting.split_figures import counts_text


def tops(ax: Axes) -> list[list[float]]:
    """Of each class where its share ends, by client."""
    return [patch.get_data().values.tolist() for patch in ax.patches]


def test_client_counts_by_hand() -> None:
    counts = fp.figures.client_counts(
        [0, 0, 1, 1, 3], [[0, 1, 2], [3, 4], []], ["a", "b", "c", "猫"]
    )
    assert list(counts.columns) == ["a", "b", "猫"]
    assert counts.to_numpy().tolist() == [[2, 1, 0], [0, 1, 1], [0, 0, 0]]
    assert list(fp.figures.client_counts([0, 4], [[0, 1]]).columns) == ["0", "4"]
    assert "smallest 0, median 2, largest 3" in counts_text(counts)
    assert "classes a client: 0 to 2" in counts_text(counts)
    sizes = pd.DataFrame({"a": (10_000.0 * np.arange(1, 101) ** -0.7).round()})
    assert "fitted exponent 0.70" in counts_text(sizes)
    assert "fitted exponent 0.00" in counts_text(sizes[:3] * 0 + 2)


@pytest.mark.parametrize(
    ("labels", "parts", "said"),
    [
        ([[0, 1], [2]], [0, 1, 1], "labels: a list: must be the class of each image"),
        (np.array([[0], [1]]), [[0]], r"labels: a ndarray of int64 with shape \[2, 1\]: "),
        ([0.5, 1.0], [[0]], "labels: a list of float64 with shape "),
        ([0, 1, 1], [0, 1], r"parts\[0\]: a int of .*: must be positions of its images, .* 0 to 2"),
        ([0, 1, 1], [[0], [2, 3]], r"parts\[1\]: has 3: "),
        ([0, 1, 1], [[-1]], r"parts\[0\]: has -1: "),
    ],
)
def test_client_counts_names_a_wrong_argument(labels: Any, parts: Any, said: str) -> None:
    with pytest.raises(fp.UserError, match=f"^{said}"):
        fp.figures.client_counts(labels, parts)


@pytest.mark.parametrize("names", [["client", "samples"], ["classes", "0"], ["a\nb", "a\\nb"]])
def test_partition_takes_any_class_names(names: list[str]) -> None:
    counts = fp.figures.client_counts([0, 1, 1, 1], [[0, 1], [2, 3]], names)
    rows = [line.split() for line in counts_text(counts).splitlines()[:3]]
    head = ["client", *map(printable, names), "samples", "classes"]
    assert rows == [head, [*"01122"], [*"1·221"]]
    assert tops(fp.figures.partition(counts)) == [[50.0, 0.0], [100.0, 100.0]]


def test_partition_shows_small_clients() -> None:
    labels = np.arange(12_000) % 10
    parts = fp.partition(labels, 100, method="n_class", sizes="power_law", seed=0)
    counts = fp.figures.client_counts(labels, parts)
    assert np.max(tops(fp.figures.partition(counts)), axis=0) == pytest.approx(np.full(100, 100.0))
    sizes = fp.figures.client_sizes(counts)
    assert len(sizes.lines[0].get_xdata()) == 100
    assert (sizes.get_xscale(), sizes.get_yscale()) == ("log", "log")


def test_partition_legend_is_between_the_panels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = list[Axes]()
    monkeypatch.setattr(split_figures, "drawn", lambda ax, _: figures.append(ax) or b"")
    for name in "{}", "a class of a long name {}":
        counts = pd.DataFrame(np.eye(10), columns=map(name.format, range(10)))
        split_figures.save_partition(counts, "title", tmp_path / "split.png")
        left, right = figures[-1].figure.axes
        left.figure.draw_without_rendering()
        legend = left.get_legend().get_window_extent()
        assert left.get_window_extent().x1 < legend.x0
        assert legend.x1 < right.get_tightbbox().x0


def test_partition_of_counts_or_shares_or_a_recipe() -> None:
    for counts in ([[1, 3], [2, 2], [0, 0]], np.array([[0.25, 0.75], [0.5, 0.5], [0.0, 0.0]])):
        assert tops(fp.figures.partition(counts)) == [[25.0, 50.0, 0.0], [100.0, 100.0, 0.0]]
    recipe = load_recipe(find_recipe("digits_noniid_b_fednnnn"))
    shares = [tops(fp.figures.partition(each)) for each in (recipe.name, recipe)]
    assert shares[0] == shares[1]
    assert set((np.diff(shares[0], axis=0, prepend=0.0) > 0.0).sum(axis=0)) == {2}


def test_partition_refuses_what_is_no_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in ([[1, -1]], [[1.0, np.nan]], [], [["a"]], [[[1]]]):
        with pytest.raises(fp.UserError, match=r"^counts: must be"):
            fp.figures.partition(wrong)
    with pytest.raises(fp.UserError, match=r"^no_such_recipe: "):
        fp.figures.partition("no_such_recipe")
    targets = torch.zeros(3, 2)
    data = FederatedData(targets, targets, (torch.arange(3),), targets, targets, 2)
    with pytest.raises(fp.UserError, match=r"^data_args.dataset: .* no classes"):
        data.class_counts()
    recipe = "mnist_iid_b_fedavg"
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    # Refused before data is read.
    for option, name in (("--plot", "p.gif"), ("--csv", "p.svg"), ("--csv", "file/p.csv")):
        ended = CliRunner().invoke(main, ["partition", recipe, option, name])
        assert (ended.exit_code, ended.output.count("\n")) == (2, 1)
        assert ended.output.startswith(f"{option}: {name}")
