"""``fednnnn recipes``, ``partition`` and ``report``: what they print, and how they refuse."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from fednnnn_plugin import __version__
from fednnnn_plugin.cli import main


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(arguments))
    return result.exit_code, result.output


def test_the_version() -> None:
    assert __version__ in run("--version")[1]


def test_recipes_are_listed_with_their_data() -> None:
    status, output = run("recipes")
    assert status == 0
    assert output.count("present") + output.count("missing") == 51
    rows = {line.split()[-1]: line.split() for line in output.splitlines() if line}
    row = rows["digits_noniid_ub_fednnnn"]
    assert row[:3] + row[6:-1] == ["digits", "2", "a", "FedNNNN", "20", "30", "present"]
    assert rows["digits_noniid_b_normnorm"][:-1] == ["NormNorm", "20", "30", "present"]


def test_recipes_are_copied_once(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    assert run("recipes", "copy", str(folder)) == (0, f"51 recipes copied to {folder}\n")
    changed = folder / "digits_noniid_b_fedavg.yaml"
    changed.write_text("mine")

    status, output = run("recipes", "copy", str(folder))
    assert status == 2
    assert output.count("\n") == 1
    assert changed.read_text() == "mine"


def test_partition_shows_a_recipe_s_clients(tmp_path: Path) -> None:
    picture = tmp_path / "clients.png"
    words = ("--set", "classes_per_client=3", "--plot", str(picture))
    status, output = run("partition", "digits_noniid_ub_fednnnn", *words)
    assert status == 0
    assert "classes a client: 3 to 3" in output
    assert "fitted exponent 0.70" in output
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["partition", "digits_noniid_ub_fednnnn", "--set", "data_args.power_law_exponent=3"],
            "data_args.power_law_exponent",
        ),
        (["partition", "no_such_recipe"], "no_such_recipe"),
        (["partition", "digits_noniid_b_fedavg", "--plot", "picture.gif"], ".gif"),
        (["report", "no_such_folder"], "no_such_folder"),
        (["report", ".", "--target", "2"], "--target"),
    ],
)
def test_mistakes_are_said_in_a_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, output = run(*arguments)
    assert status == 2
    assert said in output
    assert "Traceback" not in output
    assert not list(tmp_path.iterdir())
