"""``fp.run``: the engine from Python, and the public names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import fednnnn_plugin as fp
from fednnnn_plugin.cli import main

QUICK = {
    "train_args.client_num_per_round": 2,
    "train_args.epochs": 1,
    "train_args.comm_round": 2,
    "device_args.using_gpu": False,
}


def test_a_run_and_its_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = fp.run("digits_noniid_b_fednnnn", overrides=QUICK, output=tmp_path / "run")
    assert run.folder == tmp_path / "run"
    assert run.summary is not None
    metrics = run.metrics()
    assert metrics["round"].tolist() == [1, 2]
    assert metrics["test_acc"].iloc[-1] == run.summary.final_test_acc
    assert (metrics["layers.fc1.mean_update_norm"] > 0).all()
    assert capsys.readouterr().out.count("\n") == 2  # a line a round

    again = fp.run(
        "digits_noniid_b_fednnnn",
        overrides=[f"{key}={str(value).lower()}" for key, value in QUICK.items()],
        output=str(tmp_path / "run"),
        resume=True,
    )
    assert again.was_finished
    assert again.summary == run.summary


def test_it_is_the_same_run_as_the_command_s(tmp_path: Path) -> None:
    fp.run("digits_noniid_b_fednnnn", overrides=QUICK, output=tmp_path / "python")
    sets = [part for k, v in QUICK.items() for part in ("--set", f"{k}={str(v).lower()}")]
    arguments = ["run", "digits_noniid_b_fednnnn", "--output", str(tmp_path / "command"), *sets]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    one, other = (tmp_path / name / "model.safetensors" for name in ("python", "command"))
    assert one.read_bytes() == other.read_bytes()


def test_mistakes_are_errors_of_the_user_s(tmp_path: Path) -> None:
    with pytest.raises(fp.UserError, match=r"train_args\.beta"):
        fp.run("digits_noniid_b_fednnnn", overrides={"train_args.beta": -1})
    with pytest.raises(fp.UserError, match="resume"):
        fp.run("digits_noniid_b_fednnnn", output=tmp_path / "typo", resume=True)
    assert not any(tmp_path.iterdir())


def test_fedml_s_service_is_left_to_fedml_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = QUICK | {"common_args.using_mlops": True, "train_args.comm_round": 1}
    fp.run("digits_noniid_b_fednnnn", overrides=overrides, output=tmp_path / "run")
    assert capsys.readouterr().err.startswith("warning: common_args.using_mlops: true: ")


def test_a_follower_of_one_s_own(tmp_path: Path) -> None:
    class Noting(fp.Follower):
        def __init__(self) -> None:
            self.seen: list[object] = []

        def begin(self, folder: Path, finished: int) -> None:
            self.seen.append((folder.name, finished))

        def client_done(self, round_number: int, done: int, of: int) -> None:
            self.seen.append((round_number, done, of))

        def round_done(self, record: object) -> None:
            self.seen.append("round")

        def end(self) -> None:
            self.seen.append("end")

    noting = Noting()
    fp.run(
        "digits_noniid_b_fednnnn",
        overrides=QUICK | {"train_args.comm_round": 1},
        output=tmp_path / "run",
        followers=[noting],
    )
    assert noting.seen == [("run", 0), (1, 1, 2), (1, 2, 2), "round", "end"]


def test_public_names_are_listed_and_load_on_use() -> None:
    names = {"run", "Run", "read_runs", "figures", "rule", "partition", "register", "NormNorm"}
    names |= {"UpdateAccumulator", "FedNNNNAggregator", "FedNNNNClientTrainer", "NWDARecorder"}
    assert names | {"UserError", "RunError", "FedExP", "FedAdam", "FedYogi"} <= set(dir(fp))
    assert fp.FedNNNN.__name__ == "FedNNNN"
    with pytest.raises(AttributeError, match="NoSuchRule"):
        _ = fp.NoSuchRule
    code = "import sys, fednnnn_plugin; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ, check=False).returncode == 0
