"""The ways to compute in fp32 on MNIST: as far apart as another shuffle at most."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from fednnnn_plugin.data.federated import load_federated
from fednnnn_plugin.engine.progress import Follower
from fednnnn_plugin.engine.records import RoundRecord
from fednnnn_plugin.engine.run import run_federation
from fednnnn_plugin.engine.settings import data_spec
from fednnnn_plugin.models import NNNNMnist, create_model
from fednnnn_plugin.recipe import find_recipe, load_recipe

pytestmark = [pytest.mark.real_data, pytest.mark.slow]
ROUNDS = 3
PART = {"comm_round": ROUNDS, "client_num_per_round": 10, "epochs": 2}


class Foreign(NNNNMnist):
    """The same network as somebody else's: one client at a time, in PyTorch's own layout."""


def accuracies(folder: Path, data_dir: Path, network: nn.Module, **settings: object) -> list[float]:
    """Run three rounds; initial weights and partition are those of seed 0, shuffles vary."""
    keys = {"data_args.data_cache_dir": str(data_dir), "data_args.download": "false"}
    keys |= {f"train_args.{key}": value for key, value in (PART | settings).items()}
    seed = keys.pop("train_args.seed", 0)
    overrides = [f"{key}={value}" for key, value in keys.items()]
    overrides.append(f"common_args.random_seed={seed}")
    recipe = load_recipe(find_recipe("mnist_noniid_b_fednnnn"), overrides)
    found: list[float] = []

    class Accuracy(Follower):
        def round_done(self, record: RoundRecord) -> None:
            found.append(record.test_acc or 0.0)

    run_federation(
        recipe,
        model=network,
        data=load_federated(replace(data_spec(recipe), seed=0)),
        device=torch.device("cpu"),
        folder=folder,
        followers=[Accuracy()],
    )
    return found


def test_the_paths_agree_within_the_spread_of_two_shuffles(
    tmp_path: Path, real_data_dir: Path
) -> None:
    ours = create_model("nnnn_mnist", 0)
    foreign = Foreign()
    foreign.load_state_dict(ours.state_dict())
    paths = {
        "one by one": accuracies(tmp_path / "a", real_data_dir, ours, client_batching="off"),
        "together": accuracies(tmp_path / "b", real_data_dir, ours, client_batching=5),
        "foreign": accuracies(tmp_path / "c", real_data_dir, foreign),
    }
    # The same clients in every round, so that only their shuffles differ.
    other = accuracies(tmp_path / "d", real_data_dir, ours, client_batching="off", seed=1)
    reference = paths.pop("one by one")
    spread = max(abs(a - b) for a, b in zip(reference, other, strict=True))
    assert 0 < spread < 0.2
    assert reference[-1] > 0.3  # it learns
    for name, found in paths.items():
        assert max(abs(a - b) for a, b in zip(reference, found, strict=True)) <= spread, name
