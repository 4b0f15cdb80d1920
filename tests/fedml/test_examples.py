"""FedML's own examples, written anew with our names, run without a network."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from fednnnn_plugin.models import create_model

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).with_name("examples")


@pytest.mark.parametrize("name", ["one_line", "own_data_and_model"])
def test_single_process(name: str, scripts, tmp_path: Path) -> None:
    done = scripts.run(
        EXAMPLES / f"{name}.py", "--cf", EXAMPLES / "simulation.yaml", folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    records = (tmp_path / "runs/simulation-seed0/metrics.jsonl").read_text().splitlines()
    assert len(records) == 5
    assert json.loads(records[-1])["test_acc"] > 0.5


def test_cross_silo_with_a_trainer_of_ones_own(scripts, grpc_addresses, tmp_path: Path) -> None:
    config = yaml.safe_load((EXAMPLES / "cross_silo.yaml").read_text())
    clients = config["train_args"]["client_num_per_round"]
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    grpc_addresses(tmp_path, clients)
    script = "cross_silo_custom_trainer.py"
    processes = scripts.federate(tmp_path, "cross_silo.yaml", server=script, client=script)
    ended = [process.wait() for process in processes]
    assert [process.returncode for process in ended] == [0] * (clients + 1), ended[0].stderr
    average = load_file(tmp_path / "output" / "evaluation_model.safetensors")
    initial = create_model("nnnn_digits", 0).state_dict()
    assert average.keys() == initial.keys()
    assert not torch.equal(average["fc2.weight"], initial["fc2.weight"])
    assert ended[0].stderr.count("'test_acc'") == config["train_args"]["comm_round"]
