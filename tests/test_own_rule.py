"""A server rule of the user's own: in each of the ways to run one, without another line of theirs.

In FedML's scripts, cross-silo among them: ``fedml/test_own_code.py``.
On ranks: ``engine/test_mpi_processes.py``. What it is: ``support/server_lion.py``.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch
import yaml
from click.testing import CliRunner, Result

import fednnnn_plugin as fp
from fednnnn_plugin.cli import main
from fednnnn_plugin.recipe import find_recipe
from fednnnn_plugin.server.rules import RULES

PROJECT = Path(__file__).parents[1]
# Not imported: the rule would be known to all tests of this process.
RULE = (Path(__file__).parent / "support" / "server_lion.py").read_text()
MEMORY = 'self.state[self.param_groups[0]["params"][0]]["all"]'
STEPS = {
    "Raising": "1 / 0",
    "Leaving": "raise SystemExit(0)",
    "Forgetting": f"{MEMORY} = [1, 2]",
    "Dreaming": f"{MEMORY} = torch.tensor(1j)",
}
OTHERS = """
@rule(wide=positive(default=1.0), rounds=positive(default=1.0))
class Narrow(torch.optim.SGD):
    def __init__(self, params, wide=1.0, rounds=1.0):
        super().__init__(params)
        assert wide <= 1


@rule()
class Greedy(torch.optim.SGD):
    def __init__(self, params, size):
        super().__init__(params)
"""
for _name, _body in STEPS.items():
    OTHERS += f"""

@rule()
class {_name}(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {{}})

    def step(self, closure=None):
        {_body}
"""
SMALL = {"client_num_per_round": 4, "comm_round": 3, "epochs": 1, "checkpoint_every": 1}
RECIPE = "lion.yaml"


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current directory, with ``my_rules.py`` and a recipe that names it."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "my_rules.py").write_text(RULE + OTHERS)
    (folder / "spy.py").write_text("open('was-here', 'w')")
    write_recipe(folder / "spy.yaml", "spy:Rule", server_lion_lr=0.002)
    write_recipe(folder / RECIPE, "my_rules:ServerLion", server_lion_lr=0.002)
    before = dict(RULES)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])
        yield folder
    RULES.clear()
    RULES.update(before)
    sys.modules.pop("my_rules", None)


def write_recipe(path: Path, method: str, **keys: float) -> None:
    settings = yaml.safe_load(find_recipe("digits_noniid_b_fedavg").read_text())
    settings["train_args"] |= SMALL | {"federated_optimizer": method} | keys
    settings["device_args"]["using_gpu"] = False
    path.write_text(yaml.safe_dump(settings))


def fednnnn(*words: str | Path) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(main, list(map(str, words)))


@pytest.fixture(scope="module")
def whole(place: Path) -> Path:
    """The folder of an uninterrupted run."""
    ended = fednnnn("run", RECIPE, "--allow-code", "--output", "whole")
    assert ended.exit_code == 0, ended.output
    return place / "whole"


def refused(ended: Result, *named: str, status: int = 2) -> None:
    """It was the user's mistake, in one line that names them; nothing was written."""
    assert ended.exit_code == status, ended.output
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert not [text for text in named if text not in ended.stderr], ended.stderr
    assert not Path("runs").exists()
    assert not Path("studies").exists()


def test_rule_state_is_kept(whole: Path) -> None:
    runs = fp.read_runs(whole)
    assert runs["evaluated"].tolist() == ["served"] * 3
    train = yaml.safe_load((whole / "recipe.yaml").read_text())["train_args"]
    assert train["federated_optimizer"] == "my_rules:ServerLion"
    assert (train["server_lion_lr"], train["server_lion_beta"]) == (0.002, 0.9)
    kept = safetensors.torch.load_file(max((whole / "checkpoint").iterdir()))
    assert kept["..number.step"].item() == 3
    assert kept["..number.rate"].item() == 0.9 * (0.9 * 0.9)
    model = safetensors.torch.load_file(whole / "model.safetensors")
    for name, tensor in model.items():  # as the rule says, what is tested is what is served
        assert torch.equal(tensor, kept[name])
        assert kept[f".m.{name}"].dtype == torch.float64
    moves = runs["server_update_norm"]
    # w + η 0.9^t sign(m) / t: each move beside the first, whose S still has zeros
    assert moves[2] / moves[1] == pytest.approx(0.9 * 2 / 3, rel=0.02)


def from_python(output: str) -> None:
    fp.run(RECIPE, output=output, allow_code=True)


def resumed(output: str) -> None:
    for words in (["--set", "comm_round=2"], ["--resume"]):
        ended = fednnnn("run", RECIPE, "--allow-code", "--output", output, *words)
        assert ended.exit_code == 0, ended.output


def by_fedml(output: str) -> None:
    from fedml.cli.cli import cli

    fp.register()
    refused(CliRunner().invoke(cli, ["run", "spy.yaml"]), "spy:", "--allow-code")
    ended = CliRunner().invoke(cli, ["run", RECIPE, "--allow-code", "--output", output])
    assert ended.exit_code == 0, ended.output


@pytest.mark.parametrize(
    "way",
    [
        from_python,
        resumed,
        pytest.param(by_fedml, marks=[pytest.mark.slow, pytest.mark.fedml]),
    ],
)
def test_rule_runs_the_same_in_each_way(
    way: Callable[[str], None], whole: Path, content: Callable[[Path], object]
) -> None:
    way(way.__name__)
    folder = Path(way.__name__)
    assert content(folder) == content(whole)
    assert (folder / "recipe.yaml").read_bytes() == (whole / "recipe.yaml").read_bytes()


def test_resume_runs_no_rule_but_the_recipes(tmp_path: Path) -> None:
    one = ("run", RECIPE, "--allow-code", "--output", str(tmp_path / "run"))
    assert fednnnn(*one, "--set=train_args.comm_round=1").exit_code == 0
    stored = tmp_path / "run" / "recipe.yaml"
    stored.write_text(stored.read_text().replace("my_rules:ServerLion", "spy:Rule"))
    refused(fednnnn(*one, "--resume"), "train_args.federated_optimizer", "spy:Rule")
    assert not Path("was-here").exists()


@pytest.mark.parametrize(
    ("method", "status"),
    [*((name, 1) for name in STEPS), ("Greedy", 2)],
)
def test_rule_that_raises_is_one_line(method: str, status: int, tmp_path: Path) -> None:
    """In a step, in what it remembers, in its constructor."""
    write_recipe(tmp_path / "own.yaml", f"my_rules:{method}")
    ended = fednnnn("run", tmp_path / "own.yaml", "--allow-code", "--output", tmp_path / "run")
    refused(ended, "federated_optimizer", f"my_rules:{method}", status=status)


@pytest.mark.parametrize(
    ("grid", "named"), [("wide=0.5,1.5", "--grid wide 1.5: "), ("rounds=1", "--grid: rounds: ")]
)
def test_tune_refuses_a_grid_the_rule_refuses(grid: str, named: str, tmp_path: Path) -> None:
    write_recipe(tmp_path / "own.yaml", "my_rules:Narrow")
    refused(fednnnn("tune", tmp_path / "own.yaml", "--allow-code", "--grid", grid), named)


@pytest.mark.slow
def test_tune_and_report_know_the_rule(whole: Path) -> None:
    found = fp.tune(RECIPE, rounds=1, study="study", allow_code=True)
    tried = found.trials["server_lion_lr"].dropna().tolist()
    assert found.best["server_lion_lr"] in tried
    assert tried == [0.001, 0.002]
    best = yaml.safe_load(found.recipe.read_text())["train_args"]
    assert best["federated_optimizer"] == "my_rules:ServerLion"
    assert best["server_lion_lr"] == found.best["server_lion_lr"]
    page = fp.report(whole, found.folder, out="report")
    assert page == Path("report/index.html")
    table = Path("report/accuracy.csv").read_text()
    assert "ServerLion" in table
    assert "my_rules" not in table


NEW_FILE = """
import fednnnn_plugin as fp

fp.run("lion.yaml", output="run")
print(fp.__file__, fp.ServerLion.__name__, *set(fp.read_runs("run")["method"]))
"""


@pytest.mark.slow
def test_rule_of_the_package_is_one_file(tmp_path: Path) -> None:
    """What lists rules reads the registry, as each room's tests of :data:`RULES` show."""
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("fednnnn_plugin", "recipes"):
        shutil.copytree(PROJECT / name, tmp_path / name, ignore=ignored)
    (tmp_path / "fednnnn_plugin" / "server" / "rules" / "lion.py").write_text(RULE)
    write_recipe(tmp_path / RECIPE, "ServerLion", server_lion_lr=0.002)
    ended = subprocess.run(
        [sys.executable, "-c", NEW_FILE],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    package = tmp_path / "fednnnn_plugin" / "__init__.py"
    assert ended.stdout.splitlines()[-1] == f"{package} ServerLion ServerLion"
    train = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())["train_args"]
    assert (train["server_lion_lr"], train["server_lion_beta"]) == (0.002, 0.9)
