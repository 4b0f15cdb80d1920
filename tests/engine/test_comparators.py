"""FedExP, FedAdam and FedYogi in the engine: what is tested and saved, and resuming."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from fednnnn_plugin.engine.records import RoundRecord

COEFFICIENTS = {
    "FedExP": {"fedexp_epsilon": 1e-6},
    "FedAdam": {"server_lr": 0.01},
    "FedYogi": {"server_lr": 0.01, "server_beta2": 0.5},
}
every_method = pytest.mark.parametrize("method", COEFFICIENTS)


def settings(method: str) -> dict[str, Any]:
    unused = {"beta": None, "gamma": None}
    return {"federated_optimizer": method} | unused | COEFFICIENTS[method]


def content(folder: Path) -> tuple[object, ...]:
    """The saved model, the newest checkpoint's tensors, and the records but for their times."""
    newest = max((folder / "checkpoint").iterdir())
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return (
        (folder / "model.safetensors").read_bytes(),
        safetensors.torch.save(safetensors.torch.load_file(newest)),
        [json.loads(line) | {"seconds": None} for line in lines],
    )


@every_method
def test_resuming_gives_the_bytes_of_an_uninterrupted_run(
    method: str, run: Callable[..., Any], recipe: Callable[..., Any], tmp_path: Path
) -> None:
    whole, copy = tmp_path / "run", tmp_path / "after-3"

    def keep(record: RoundRecord) -> None:
        if record.round == 3:
            shutil.copytree(whole, copy)

    ours = recipe(comm_round=5, checkpoint_every=2, **settings(method))
    run(ours, whole, on_round=keep)
    rounds: list[int] = []
    run(ours, copy, mode="resume", on_round=lambda record: rounds.append(record.round))
    assert rounds == [3, 4, 5]
    assert content(copy) == content(whole)


@every_method
def test_what_is_tested_and_saved(method: str, example: Any) -> None:
    """From w_0 = (1, 2), S = (12, 16) each round, mean square 625, N² = 400: η_g = 1.

    FedExP serves (13, 18), then (25, 34), and tests the mean of the last two. Adam and Yogi, from
    v = 10⁻⁶, move every element by η m / (√v + τ), and test what they serve.
    """
    trainer = example.every_round()
    example.follow(trainer, **settings(method))
    served = example.served()
    if method == "FedExP":
        assert trainer.tested == [[7.0, 10.0], [19.0, 26.0]]
        assert served == {"w": [25.0, 34.0]}
        assert example.records()[0]["server_update_norm"] == 20.0
    else:
        assert set(served) == {"w", ".momentum.w", ".second_moment.w"}
        assert trainer.tested[1] == served["w"]
        assert served[".momentum.w"] == pytest.approx([0.19 * 12, 0.19 * 16])
    assert example.evaluation() == trainer.tested[1]
