"""``fednnnn check`` of a cross-silo server's YAML: a line for each mistake, and nothing written."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from click.testing import CliRunner, Result
from fedml.core.security.fedml_defender import FedMLDefender
from fedml.cross_silo.server import server_initializer

from fednnnn_plugin.cli import main
from fednnnn_plugin.fedml import hook

from .rounds import clients, net, play, refused, silo, silo_args

CONFIG = "fedml_config.yaml"
EXAMPLE = Path(__file__).parents[2] / "launch" / "cross_silo"


@pytest.fixture(autouse=True)
def federation(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (CONFIG, "grpc_ipconfig.csv"):
        shutil.copy(EXAMPLE / name, own_folder)
    monkeypatch.setattr(FedMLDefender, "_defender_instance", None)
    return own_folder


def check(*words: str, **keys: object) -> Result:
    """Check the example with other values of its keys; a key that it lacks is of ``train_args``."""
    content = yaml.safe_load(Path(CONFIG).read_text())
    for key, value in keys.items():
        homes = [name for name, section in content.items() if key in section]
        content[homes[0] if homes else "train_args"][key] = value
    Path(CONFIG).write_text(yaml.safe_dump(content))
    before = sorted(Path().rglob("*"))
    result = CliRunner().invoke(main, ["check", CONFIG, *words], catch_exceptions=False)
    assert sorted(Path().rglob("*")) == before
    return result


def test_good_one_is_a_line() -> None:
    result = check()
    assert (result.exit_code, result.stderr) == (0, "")
    [line] = result.stdout.splitlines()
    for part in ("FedNNNN: beta 0.7, gamma 0.8, ", "rounds 1 to 3, 3 of 3 clients"):
        assert part in line


def test_method_may_be_named_by_its_server() -> None:
    for method, beta in (("Momentum", None), ("FedNNNN", 0.7)):
        result = check(federated_optimizer=method, beta=beta)
        assert (result.exit_code, result.stderr) == (0, "")
        assert f"a server of {method}: " in result.stdout
    result = check(federated_optimizer="fednnnn")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.endswith("did you mean FedNNNN?\n")


def test_option_that_would_not_count_is_refused() -> None:
    result = check("--seed", "0", "--set", "beta=0.5")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "--seed, --set: a FedML server's YAML is checked without options\n"


def test_file_is_read_as_fedml_reads_it() -> None:
    """By PyYAML: an alias is a value, 010 is 8, and 1e-5 a text, which FedML's privacy refuses."""
    text, rounds = Path(CONFIG).read_text(), "comm_round: &rounds 010\n  own: *rounds"
    Path(CONFIG).write_text(text.replace("comm_round: 3", rounds))
    result = CliRunner().invoke(main, ["check", CONFIG], catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "rounds 1 to 8" in result.stdout
    privacy = "enable_dp: true, dp_solution_type: cdp, mechanism_type: gaussian, epsilon: 1.0"
    Path(CONFIG).write_text(f"{text}\ndp_args: {{{privacy}, delta: 1e-5, sensitivity: 1.0}}\n")
    result = CliRunner().invoke(main, ["check", CONFIG], catch_exceptions=False)
    assert result.exit_code == 2
    assert "must be numeric" in result.stderr
    Path(CONFIG).write_text(f"{text}\nown_args: {{on: 1}}\n")
    result = CliRunner().invoke(main, ["check", CONFIG], catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (
        2,
        f"{CONFIG}: own_args: true: a key must be text\n",
    )


@pytest.mark.parametrize(
    ("keys", "start"),
    [
        ({"enable_defense": True, "defense_type": "rfa"}, "defense_type: rfa: "),
        ({"enable_dp": "false"}, "enable_dp: 'false': must be true or false"),
        ({"grpc_ipconfig_path": CONFIG}, f"comm_args.grpc_ipconfig_path: '{CONFIG}': no column "),
        ({"save_path": f"{CONFIG}/model"}, f"save_path: {CONFIG}/model: "),
        ({"prometheus_path": "."}, "prometheus_path: .: "),
        *(
            ({"frequency_of_the_test": every}, "validation_args.frequency_of_the_test: ")
            for every in (0, -1, "5", None)
        ),
        ({"start_round": "auto", "server_state_path": None}, "train_args.start_round: auto: "),
    ],
)
def test_mistake_is_a_line(keys: dict, start: str) -> None:
    result = check(**keys)
    lines = result.stderr.splitlines()
    assert (result.exit_code, result.stdout) == (2, "")
    assert [line for line in lines if line.startswith(start)], lines


def test_server_refuses_tests_that_fail_before_its_clients_train() -> None:
    aggregator = SimpleNamespace(aggregator=silo())
    with refused("validation_args.frequency_of_the_test: 0: must be "):
        server_initializer.FedMLServerManager(silo_args(frequency_of_the_test=0), aggregator)


def test_all_mistakes_are_said_together() -> None:
    said = check(beta=-1, worker_num=2, grpc_ipconfig_path="none").stderr
    assert said.count("\n") == 3
    for named in (f"{CONFIG}: train_args.beta: -1: ", "device_args.worker_num: 2: "):
        assert f"\n{named}" in f"\n{said}"


def test_state_and_records_must_be_of_start_round() -> None:
    paths = {"server_state_path": "output/server_state.safetensors", "metrics_path": "output"}
    server = silo(net(), "FedNNNN", client_num_per_round=2, worker_num=2, **paths)
    play(server, clients(server, 2, 1))
    assert check(start_round=1, comm_round=2).exit_code == 0
    assert "rounds 2 to 3" in check(start_round="auto", comm_round=3).stdout
    said = check(start_round="auto", comm_round=1).stderr
    assert ("all rounds are done" in said, said.count("\n")) == (True, 1)
    result = check(start_round=0)
    assert result.exit_code == 2
    assert "the state is of round 1, start_round is 0" in result.stderr
    assert "output: has records of 1 rounds" in result.stderr


def test_options_and_a_missing_fedml_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    result = check("--set=beta=1")
    assert (result.exit_code, result.stderr[:7], result.stderr.count("\n")) == (2, "--set: ", 1)
    monkeypatch.setattr(hook, "_version", lambda: None)
    result = check()
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "pip install '.[fedml]'" in result.stderr
