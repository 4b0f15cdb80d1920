"""README: its Python runs, its numbers are the recipes', its links lead somewhere."""

import json
import re
import shlex
import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fednnnn_plugin.cli import main

PROJECT = Path(__file__).parents[1]
README = (PROJECT / "README.md").read_text()
PAGES = [PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += [PROJECT / folder / "README.md" for folder in ("recipes", "launch", "tests")]


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def table(marker: str) -> dict[str, list[str]]:
    """The rows of the first table after a marker, by their first cell."""
    lines = README.split(f"<!-- {marker} -->", 1)[1].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return {name: cells for name, *cells in rows if not name.startswith("---")}


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 200


@pytest.mark.parametrize("marker", ["quick start", "tests"])
def test_the_gate_finds_the_two_command_blocks(marker: str) -> None:
    [after] = README.split(f"<!-- {marker} -->\n")[1:]
    assert after.startswith("```bash\npython3 -m venv .venv && ")


@pytest.mark.slow
def test_the_python_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = next(block for block in blocks("python") if "fp.run(" in block)
    code = example.replace('"train_args.comm_round": 10', '"train_args.comm_round": 2')
    assert code != example
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=DeprecationWarning, module="__main__")
        exec(code, {"__name__": "__main__"})
    assert re.search(r"^FedNNNN +0\.\d+$", capsys.readouterr().out, re.MULTILINE)
    assert (tmp_path / "accuracy.svg").read_text().lstrip().startswith("<?xml")
    assert len(example.splitlines()) <= 10


def test_the_rule_of_ones_own(own_code: Path) -> None:
    rule = next(block for block in blocks("python") if block.startswith("# my_rules.py\n"))
    command = next(block for block in blocks("bash") if "my_rules" in block)
    assert len(rule.splitlines()) <= 20
    (own_code / "my_rules.py").write_text(rule)
    (own_code / "recipes").symlink_to(PROJECT / "recipes")
    program, *words = shlex.split(command.replace("\\\n", ""))
    assert program == "fednnnn"

    def run(rounds: int, *more: str, allowed: bool = True) -> Result:
        short = [f"--set=train_args.{key}" for key in (f"comm_round={rounds}", "epochs=1")]
        given = [word for word in words if allowed or word != "--allow-code"]
        return CliRunner().invoke(main, [*given, *short, *more])

    refused = run(2, allowed=False)
    assert refused.exit_code == 2
    assert "--allow-code" in refused.stderr
    assert not Path("runs").exists()
    for rounds, more in ((2, ()), (3, ("--resume",))):
        assert run(rounds, *more).exit_code == 0
    metrics = Path("runs/lion/metrics.jsonl").read_text()
    assert [json.loads(line)["evaluated"] for line in metrics.splitlines()] == ["served"] * 3


def test_the_papers_table_is_that_of_the_recipes() -> None:
    head, *rows = table("paper").items()
    columns = []
    for cell in head[1]:
        data, _, condition = cell.rpartition(" ")
        columns.append((data or columns[-1][0], condition))
    assert len(columns) == 8
    for method, accuracies in rows:
        for (data, condition), accuracy in zip(columns, accuracies, strict=True):
            split = condition.replace("non-", "non").replace("-", "_")
            recipe = f"{data.replace('-', '')}_{split}_{method.replace('-', '')}.yaml".lower()
            first = (PROJECT / "recipes" / recipe).read_text().splitlines()[0]
            assert first == f"# {method} on {data}, {condition}: the paper reports {accuracy} %."


def test_the_digits_accuracies_are_those_of_the_records() -> None:
    (_, methods), (_, accuracies) = table("digits").items()
    shown = {
        method.replace("-", "").lower(): accuracy
        for method, accuracy in zip(methods, accuracies, strict=True)
    }
    for method in ("fedavg", "fedprox", "normnorm", "momentum", "fednnnn"):
        folder = PROJECT / "results" / f"digits_noniid_b_{method}-seed0"
        best = json.loads((folder / "summary.json").read_text())["best_test_acc"]
        assert f"{100 * best:.1f}" == shown[method]


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
