from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fednnnn_plugin.data.partition import partition
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.report.partition_figure import plot_partition
from fednnnn_plugin.report.partition_view import partition_summary


def test_by_hand() -> None:
    labels = [0, 0, 1, 1, 2, 2]
    summary = partition_summary(
        labels, [[0, 2], [1, 3], [4, 5]], dataset="toy", method="n_class", sizes="balanced"
    )
    assert summary.counts.tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 2]]
    assert summary.sizes.tolist() == [2, 2, 2]
    assert summary.exponent == pytest.approx(0.0, abs=1e-12)
    assert [check.kept for check in summary.checks] == [True, False, True]
    assert not summary.kept
    assert summary.text() == (
        "toy: n_class, balanced, 3 clients, 6 images\n"
        "\n"
        "client  images  classes  0  1  2\n"
        "──────  ──────  ───────  ─  ─  ─\n"
        "     0       2        2  1  1  ·\n"
        "     1       2        2  1  1  ·\n"
        "     2       2        1  ·  ·  2\n"
        "\n"
        "images a client: smallest 2, median 2, largest 2\n"
        "\n"
        "ok  every image is dealt to one client: 6 of 6 images\n"
        "NO  every client holds 2 classes: 1 to 2 classes at 2 clients\n"
        "ok  all clients are of one size, up to 1 image: 0 apart\n"
    )


def test_images_lost_or_dealt_twice_are_found() -> None:
    lost = partition_summary([0, 1, 0], [[0], [1]])
    assert (lost.checks[0].kept, lost.checks[0].found) == (False, "2 of 3 images")
    twice = partition_summary([0, 1, 0], [[0, 1], [1, 2]])
    assert (twice.checks[0].kept, twice.checks[0].found) == (
        False,
        "3 of 3 images, 1 more than once",
    )


def test_exponent_of_exact_sizes() -> None:
    sizes = [5040 // rank for rank in range(1, 8)]
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    labels = np.zeros(sum(sizes), dtype=int)
    summary = partition_summary(labels, parts, sizes="power_law")
    assert summary.exponent == pytest.approx(1.0, abs=1e-12)
    assert summary.checks[2].kept
    other = partition_summary(labels, parts, sizes="power_law", power_law_exponent=0.8)
    assert not other.checks[2].kept
    assert other.checks[2].found == "fitted exponent 1.000 over the 7 largest clients"


@pytest.mark.parametrize(
    ("method", "sizes", "clients"),
    [
        ("iid", "balanced", 7),
        ("iid", "power_law", 7),
        ("iid", "power_law", 200),
        ("n_class", "balanced", 10),
        ("n_class", "power_law", 40),
    ],
)
def test_the_partitioners_own_promises_hold(method: str, sizes: str, clients: int) -> None:
    labels = np.repeat(np.arange(10), 300)
    options = {"method": method, "sizes": sizes, "power_law_exponent": 0.2}
    summary = partition_summary(labels, partition(labels, clients, **options), **options)
    assert [check for check in summary.checks if not check.kept] == []


@given(st.lists(st.integers(0, 12), min_size=1, max_size=60), st.integers(1, 8))
def test_counts_add_up(labels: list[int], clients: int) -> None:
    parts = np.array_split(np.arange(len(labels)), clients)
    summary = partition_summary(labels, parts)
    assert summary.counts.sum() == len(labels)
    assert summary.sizes.tolist() == [len(part) for part in parts]
    assert summary.counts.sum(axis=0).tolist() == [labels.count(label) for label in summary.classes]
    assert summary.checks[0].kept


def test_many_clients_are_shown_by_the_first_and_the_last() -> None:
    labels = np.repeat(np.arange(10), 100)
    lines = partition_summary(labels, partition(labels, 100)).text().splitlines()
    clients = [line.split()[0] for line in lines[4:23]]
    assert clients == [*map(str, range(12)), "…", *map(str, range(94, 100))]


@pytest.mark.parametrize(("method", "clients"), [("iid", 60), ("n_class", 8)])
@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_plot(tmp_path: Path, method: str, clients: int, kind: str) -> None:
    labels = np.repeat(np.arange(10), 100)
    parts = partition(labels, clients, method, "power_law", power_law_exponent=0.2)
    path = tmp_path / "new" / f"plot.{kind}"
    plot_partition(partition_summary(labels, parts, method=method, sizes="power_law"), path)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    if kind == "png":
        # All ten classes are there, in their colours.
        colors = {color for _, color in Image.open(path).convert("RGB").getcolors(1 << 20)}
        assert {(68, 1, 84), (253, 231, 37), (31, 158, 137)} <= colors
    else:
        assert path.stat().st_size > 5000


def test_plot_to_another_format(tmp_path: Path) -> None:
    summary = partition_summary([0, 1], [[0], [1]])
    with pytest.raises(UserError, match=r"--plot: .*plot.jpg is not allowed; it must end in"):
        plot_partition(summary, tmp_path / "plot.jpg")
    with pytest.raises(UserError, match=r"--plot: .* cannot be written"):
        plot_partition(summary, Path("/proc/none/plot.svg"))
    assert list(tmp_path.iterdir()) == []


def test_clients_without_images_and_a_single_one(tmp_path: Path) -> None:
    for parts in ([[0, 1, 2], []], [[0, 1, 2]]):
        summary = partition_summary([0, 1, 1], parts)
        assert summary.checks[0].kept
        plot_partition(summary, tmp_path / "plot.svg")
