"""README: its Python runs, its numbers are the recipes'; the tutorial runs."""

import json
import re
import shlex
from pathlib import Path
from statistics import mean, stdev
from types import SimpleNamespace

import nbformat
import pytest
import torch
from click.testing import CliRunner
from nbclient import NotebookClient

import fednnnn_plugin as fp
from fednnnn_plugin.cli import main
from fednnnn_plugin.recipe.load import load_recipe
from fednnnn_plugin.reporting import build
from fednnnn_plugin.reporting.paper import PAPER

from .support.processes import WATCHDOG

PROJECT = Path(__file__).parents[1]
README = (PROJECT / "README.md").read_text()


NOT_DRAWN = """
from fednnnn_plugin.reporting import build
build.drawn = lambda *_: b""
"""


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def cells(marker: str) -> dict[str, str]:
    """The numbers of the table under a comment, by the recipe that each is of.

    Methods stand in the first line or in the first column; a data set holds for what follows it.
    A condition that was run for fewer rounds, or in another precision, says so, and each of its
    numbers with it.
    """
    [table] = re.findall(rf"<!-- {marker} -->\n((?:\|.*\n)+)", README)
    rows = [[cell.strip(" *") for cell in line[1:-1].split("|")] for line in table.splitlines()]
    found, data = {}, ""
    for left, *numbers in rows[2:]:
        for top, number in zip(rows[0][1:], numbers, strict=True):
            place, method = (top, left) if "IID" in top else (left, top)
            condition, shorter, rounds = place.partition(" for ")
            condition = condition.lower().replace("non-", "non").replace("single c", "single_c")
            before, _, split = condition.rpartition(" ")
            data = before.strip(",").replace("-", "") or data
            name = method.lower().replace("-", "").replace(" + ", "_")
            if number not in ("", "–"):  # not run
                recipe = f"{data}_{split.replace('-', '_')}_{name}"
                found[recipe.replace("client_fedavg", "client")] = number + shorter + rounds
    return found


@pytest.mark.slow
def test_quick_start_ends_with_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the published records of its two runs."""
    for marker in ("quick start", "tests"):  # the gate runs these two
        assert f"<!-- {marker} -->\n```bash\npython3 -m venv .venv && " in README
    monkeypatch.setattr(build, "drawn", lambda *_: b"")
    runs = [f"{PROJECT}/results/digits_noniid_b_{name}-seed0" for name in ("fedavg", "fednnnn")]
    printed = CliRunner().invoke(main, ["report", *runs, "--out", str(tmp_path)]).output
    for line in blocks("text")[0].splitlines():
        assert line in printed


@pytest.mark.slow
def test_python_example_runs(own_code: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = next(block for block in blocks("python") if "fp.run(" in block)
    short = example.replace('"train_args.comm_round": 10', '"comm_round": 1, "epochs": 1')
    assert short != example
    exec(short, {"__name__": "__main__"})
    assert re.search(r"^FedNNNN +0\.\d+$", capsys.readouterr().out, re.MULTILINE)
    assert Path("accuracy.svg").read_text().lstrip().startswith("<?xml")


def test_readme_rule_runs(own_code: Path) -> None:
    rule = next(block for block in blocks("python") if block.startswith("# my_rules.py\n"))
    command = next(block for block in blocks("bash") if "my_rules" in block)
    Path("my_rules.py").write_text(rule)
    Path("recipes").symlink_to(PROJECT / "recipes")
    program, *words = shlex.split(command.replace("\\\n", ""))
    assert program == "fednnnn"
    short = ("--set=train_args.comm_round=1", "--set=train_args.epochs=1")
    assert CliRunner().invoke(main, [*words, *short]).exit_code == 0
    assert json.loads(Path("runs/lion/metrics.jsonl").read_text())["evaluated"] == "served"


@pytest.mark.fedml
def test_recipes_readme_aggregation_is_recorded(own_code: Path) -> None:
    """Of Δ = (3, 0) and (0, 4), though the rule writes into the first client, as FedML's do."""
    from fedml.ml.aggregator.agg_operator import FedMLAggOperator

    class Base:
        args = SimpleNamespace(round_idx=0, federated_optimizer="FedAvg", enable_dp=False)

        def get_model_params(self) -> dict[str, torch.Tensor]:
            return {"w": torch.zeros(2)}

    *_, example = blocks("python", (PROJECT / "recipes" / "README.md").read_text())
    code = example.replace("served = ...", "served = FedMLAggOperator.agg(self.args, client_list)")
    scope = {"ServerAggregator": Base, "fednnnn_plugin": fp, "FedMLAggOperator": FedMLAggOperator}
    exec(code, scope)
    clients = [(1, {"w": torch.tensor([3.0, 0.0])}), (1, {"w": torch.tensor([0.0, 4.0])})]
    assert scope["MyAggregator"]().aggregate(clients)["w"].tolist() == [1.5, 2.0]
    record = json.loads(Path("runs/mine/metrics.jsonl").read_text())
    assert (record["mean_update_norm"], record["mean_client_norm"]) == (2.5, 3.5)


def test_papers_table_is_that_of_the_recipes() -> None:
    shown = cells("paper")
    assert len(shown) == 40
    assert shown == {
        "_".join(place).lower().replace("-", "").replace(", ", "_"): str(accuracy)
        for place, accuracy in PAPER.items()
    }
    for recipe, accuracy in shown.items():
        first = (PROJECT / "recipes" / f"{recipe}.yaml").read_text().splitlines()[0]
        assert first.endswith(f": the paper reports {accuracy} %."), recipe


def test_measured_tables_are_those_of_the_records() -> None:
    """Mean ± s.d. (number of seeds) of the records; digits stand in no table."""
    records: dict[str, list[float]] = {}
    lengths: dict[str, str] = {}
    for path in PROJECT.glob("results/*/summary.json"):
        summary = json.loads(path.read_text())
        recipe, rounds = summary["recipe"], summary["rounds"]
        assert path.parent.name == f"{recipe}-seed{summary['seed']}"
        planned = load_recipe(PROJECT / "recipes" / f"{recipe}.yaml").train_args
        precision = load_recipe(path.with_name("recipe.yaml")).train_args.precision
        lengths[recipe] = "" if rounds == planned.comm_round else f" for {rounds} rounds"
        lengths[recipe] += "" if precision == planned.precision else f" in {precision}"
        records.setdefault(recipe, []).append(100 * summary["best_test_acc"])
    spread = {name: f" ± {stdev(of):.1f}" for name, of in records.items() if len(of) > 1}
    best = {
        name: f"{mean(of):.1f}{spread.get(name, '')} ({len(of)}){lengths[name]}"
        for name, of in records.items()
    }
    assert cells("measured") == {name: best[name] for name in best if "digits" not in name}


@pytest.mark.slow
def test_tutorial_runs_and_shows_its_figures() -> None:
    def kinds(cell: nbformat.NotebookNode) -> set[str]:
        outputs = (output.get("data", {}).keys() for output in cell.get("outputs", ()))
        return set().union(*outputs) & {"image/png", "text/html"}

    notebook = PROJECT / "docs" / "tutorial.ipynb"
    stored, again = (nbformat.read(notebook, as_version=4) for _ in range(2))
    for cell in again.cells:  # shorter runs show the same
        cell["source"] = re.sub(r'"(comm_round|epochs)": \d+', r'"\1": 1', cell["source"])
        cell["source"] = cell["source"].replace("(0, 1, 2)", "(0, 1)").replace("0.4, 0.8", "0.8,")
    again.cells[1]["source"] += NOT_DRAWN
    NotebookClient(again, timeout=WATCHDOG).execute()
    for before, after in zip(stored.cells, again.cells, strict=True):
        assert kinds(before) == kinds(after), after["source"]
        assert ("image/png" in kinds(after)) == ("fp.figures." in after["source"]), after["source"]
