"""README: its Python runs, its numbers are the recipes', its links lead somewhere."""

import json
import re
import shlex
import warnings
from pathlib import Path
from statistics import mean
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

import fednnnn_plugin as fp
from fednnnn_plugin.cli import main
from fednnnn_plugin.recipe.load import load_recipe
from fednnnn_plugin.report.paper import PAPER

PROJECT = Path(__file__).parents[1]
README = (PROJECT / "README.md").read_text()
PAGES = [PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += [PROJECT / folder / "README.md" for folder in ("recipes", "launch", "tests", "results")]
PAGES += [PROJECT / "results" / "CLAIMS.md"]


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def cells(marker: str) -> dict[str, str]:
    """The numbers of the table under a comment, if it is there, by the recipe that each is of.

    Methods stand in the first line or in the first column; a data set holds for what follows it.
    A condition that was run for fewer rounds says so, and each of its numbers with it.
    """
    table = re.search(rf"<!-- {marker} -->(?:.|\n)*?\n((?:\|.*\n)+)", README)
    lines = table[1].splitlines() if table else []
    rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]
    found: dict[str, str] = {}
    data = ""
    for left, *numbers in rows[2:]:
        for top, number in zip(rows[0][1:], numbers, strict=True):
            place, method = (top, left) if "IID" in top else (left, top)
            condition, shorter, rounds = place.partition(" for ")
            before, _, split = condition.lower().replace("non-", "non").rpartition(" ")
            data = before.strip(",").replace("-", "") or data
            name = method.lower().replace("-", "").replace(" + ", "_")
            recipe = f"{data}_{split.replace('-', '_')}_{name}"
            assert (PROJECT / "recipes" / f"{recipe}.yaml").exists(), recipe
            if number not in ("", "–"):  # not run
                found[recipe] = number + shorter + rounds
    return found


@pytest.mark.parametrize("marker", ["quick start", "tests"])
def test_readme_blocks_are_found_by_the_gate(marker: str) -> None:
    [after] = README.split(f"<!-- {marker} -->\n")[1:]
    assert after.startswith("```bash\npython3 -m venv .venv && ")


@pytest.mark.slow
def test_quick_start_ends_with_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the records of its two runs, which took another time."""
    monkeypatch.setattr("fednnnn_plugin.report.build.drawn", lambda *_: b"")
    runs = [PROJECT / "results" / f"digits_noniid_b_{name}-seed0" for name in ("fedavg", "fednnnn")]
    words = ["report", *map(str, runs), "--out", str(tmp_path / "report")]
    printed = CliRunner().invoke(main, words).output
    for line in blocks("text")[0].splitlines():
        assert re.sub(r" +\d+\.\d$", "", line) in printed


@pytest.mark.slow
def test_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = next(block for block in blocks("python") if "fp.run(" in block)
    short = '"train_args.comm_round": 2, "train_args.epochs": 1'
    code = example.replace('"train_args.comm_round": 10', short)
    assert code != example
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=DeprecationWarning, module="__main__")
        exec(code, {"__name__": "__main__"})
    assert re.search(r"^FedNNNN +0\.\d+$", capsys.readouterr().out, re.MULTILINE)
    assert (tmp_path / "accuracy.svg").read_text().lstrip().startswith("<?xml")


def test_readme_rule_runs(own_code: Path) -> None:
    rule = next(block for block in blocks("python") if block.startswith("# my_rules.py\n"))
    command = next(block for block in blocks("bash") if "my_rules" in block)
    (own_code / "my_rules.py").write_text(rule)
    (own_code / "recipes").symlink_to(PROJECT / "recipes")
    program, *words = shlex.split(command.replace("\\\n", ""))
    assert program == "fednnnn"

    short = ("--set=train_args.comm_round=2", "--set=train_args.epochs=1")
    assert CliRunner().invoke(main, [*words, *short]).exit_code == 0
    metrics = Path("runs/lion/metrics.jsonl").read_text()
    assert [json.loads(line)["evaluated"] for line in metrics.splitlines()] == ["served"] * 2


@pytest.mark.fedml
def test_recipes_readme_aggregation_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of Δ = (3, 0) and (0, 4), though the rule writes into the first client, as FedML's do."""
    from fedml.ml.aggregator.agg_operator import FedMLAggOperator

    *_, example = blocks("python", (PROJECT / "recipes" / "README.md").read_text())
    code = example.replace("served = ...", "served = FedMLAggOperator.agg(self.args, client_list)")
    assert code != example

    class Base:
        args = SimpleNamespace(round_idx=0, federated_optimizer="FedAvg", enable_dp=False)

        def get_model_params(self) -> dict[str, torch.Tensor]:
            return {"w": torch.zeros(2)}

    scope = {"ServerAggregator": Base, "fednnnn_plugin": fp, "FedMLAggOperator": FedMLAggOperator}
    exec(code, scope)
    monkeypatch.chdir(tmp_path)
    clients = [(1, {"w": torch.tensor([3.0, 0.0])}), (1, {"w": torch.tensor([0.0, 4.0])})]
    served = scope["MyAggregator"]().aggregate(clients)
    assert served["w"].tolist() == [1.5, 2.0]
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
    """Each number is a record's, the mean of several seeds'; only digits may stand in no table."""
    records: dict[str, list[float]] = {}
    lengths: dict[str, str] = {}
    for path in PROJECT.glob("results/*/summary.json"):
        summary = json.loads(path.read_text())
        recipe, rounds = summary["recipe"], summary["rounds"]
        assert path.parent.name == f"{recipe}-seed{summary['seed']}"
        whole = load_recipe(PROJECT / "recipes" / f"{recipe}.yaml").train_args.comm_round == rounds
        lengths[recipe] = "" if whole else f" for {rounds} rounds"
        records.setdefault(recipe, []).append(100 * summary["best_test_acc"])
    best = {recipe: f"{mean(of):.1f}{lengths[recipe]}" for recipe, of in records.items()}
    digits, measured = cells("digits"), cells("measured")
    assert digits == {recipe: best.get(recipe, "no record") for recipe in digits}
    assert digits
    assert measured == {recipe: number for recipe, number in best.items() if "digits" not in recipe}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r'(?:\]\(|src="|srcset=")(?!https?:)([^)"]+)', text):
        path, _, heading = target.partition("#")
        found = page.parent / path if path else page
        assert found.exists(), target
        titles = re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE)
        slugs = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
        assert not heading or heading in slugs, target
