"""A server rule of the user's own, ``support/server_lion.py``, in each of the ways to run one.

Others: ``fedml/test_own_code.py``, and on ranks ``processes/test_mpi_processes.py``.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
import yaml
from click.testing import CliRunner, Result

import fednnnn_plugin as fp
from fednnnn_plugin.cli import main
from fednnnn_plugin.recipe import find_recipe
from fednnnn_plugin.reporting import build

# Not imported: the rule would be known to all tests of this process.
RULE = (Path(__file__).parent / "support" / "server_lion.py").read_text()
BROKEN = """

@rule(wide=positive(default=1.0), rounds=positive(default=1.0))
class Narrow(torch.optim.SGD):
    def __init__(self, params, wide=1.0, rounds=1.0):
        super().__init__(params)
        assert wide <= 1

@rule()
class Leaving(torch.optim.SGD):
    def step(self, closure=None):
        raise SystemExit(0)

@rule()
class Forgetting(torch.optim.SGD):
    def step(self, closure=None):
        self.state[self.param_groups[0]["params"][0]]["all"] = [1, 2]

@rule()
class Shrinking(torch.optim.SGD):
    def step(self, closure=None):
        [p] = self.param_groups[0]["params"]
        p.data = p.data[:1]
"""
TRAIN_ARGS = {"federated_optimizer": "my_rules:ServerLion", "server_lion_lr": 0.002}
TRAIN_ARGS |= {"client_num_per_round": 4, "comm_round": 3, "epochs": 1, "checkpoint_every": 1}


@pytest.fixture(autouse=True)
def _a_users_folder(own_code: Path) -> None:
    Path("my_rules.py").write_text(RULE + BROKEN)
    settings = yaml.safe_load(find_recipe("digits_noniid_b_fedavg").read_text())
    settings["train_args"] |= TRAIN_ARGS
    settings["device_args"]["using_gpu"] = False
    Path("lion.yaml").write_text(yaml.safe_dump(settings))


def fednnnn(command: str, *words: str) -> Result:
    return CliRunner().invoke(main, [command, "--allow-code", *words])


def test_rule_runs_the_same_in_each_way(content: Callable[[Path], object]) -> None:
    """From the command and from Python; resumed, though not with code that is not the recipe's."""
    assert fednnnn("run", "lion.yaml", "--output=whole").exit_code == 0
    fp.run("lion.yaml", output="python", allow_code=True)
    words = ("run", "lion.yaml", "--output=resumed")
    assert fednnnn(*words, "--set=comm_round=2").exit_code == 0
    Path("spy.py").write_text("open('was-here', 'w')")
    stored = Path("resumed") / "recipe.yaml"
    text = stored.read_text()
    stored.write_text(text.replace("my_rules:ServerLion", "spy:Rule"))
    ended = fednnnn(*words, "--resume")
    assert (ended.exit_code, "federated_optimizer" in ended.stderr) == (2, True)
    assert not Path("was-here").exists()
    stored.write_text(text)
    assert fednnnn(*words, "--resume").exit_code == 0

    whole = Path("whole")
    for folder in (Path("python"), Path("resumed")):
        assert content(folder) == content(whole)
        assert (folder / "recipe.yaml").read_bytes() == (whole / "recipe.yaml").read_bytes()
    kept = safetensors.torch.load_file(max((whole / "checkpoint").iterdir()))
    assert kept["..number.step"].item() == 3
    assert kept["..number.rate"].item() == 0.9 * (0.9 * 0.9)
    model = safetensors.torch.load_file(whole / "model.safetensors")
    for name, tensor in model.items():  # as the rule says, what is tested is what is served
        assert torch.equal(tensor, kept[name])
        assert kept[f".m.{name}"].dtype == torch.float64
    runs = fp.read_runs(whole)
    assert runs["evaluated"].tolist() == ["served"] * 3
    moves = runs["server_update_norm"]
    # w + η 0.9^t sign(m) / t: each move beside the first, whose S still has zeros
    assert moves[2] / moves[1] == pytest.approx(0.9 * 2 / 3, rel=0.02)


@pytest.mark.parametrize(
    ("method", "command", "named"),
    [
        ("Leaving", ["run"], "federated_optimizer: my_rules:Leaving"),
        ("Forgetting", ["run"], "federated_optimizer: my_rules:Forgetting"),
        ("Shrinking", ["check"], "my_rules:Shrinking: "),
        ("Narrow", ["tune", "--grid=wide=0.5,1.5"], "--grid wide 1.5: "),
        ("Narrow", ["tune", "--grid=rounds=1"], "--grid: rounds: "),
    ],
)
def test_rule_that_raises_is_one_line(method, command, named: str) -> None:
    recipe = Path("lion.yaml").read_text().replace("server_lion_lr: 0.002", "")
    Path("own.yaml").write_text(recipe.replace("ServerLion", method))
    ended = fednnnn(*command, "own.yaml")
    assert ended.exit_code == 2, ended.output
    [line] = ended.stderr.splitlines()
    assert named in line
    assert not Path("studies").exists()
    assert not Path("runs").exists()


@pytest.mark.slow
def test_tune_and_report_know_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    found = fp.tune("lion.yaml", rounds=1, study="study", allow_code=True)
    tried = found.trials["server_lion_lr"].dropna().tolist()
    assert tried == [0.001, 0.002]
    best = fp.run(found.recipe, output="run", allow_code=True)
    train = yaml.safe_load((best.folder / "recipe.yaml").read_text())["train_args"]
    assert train["federated_optimizer"] == "my_rules:ServerLion"
    assert train["server_lion_beta"] == 0.9
    assert train["server_lion_lr"] == found.best["server_lion_lr"] in tried
    monkeypatch.setattr(build, "drawn", lambda *_: b"")
    assert fp.report("run", found.folder, out="report") == Path("report/index.html")
    table = Path("report/accuracy.csv").read_text()
    assert "ServerLion" in table
    assert "my_rules" not in table
