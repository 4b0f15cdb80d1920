"""FedExP, FedAdam and FedYogi in the engine: what is tested and saved, and resuming."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

COEFFICIENTS = {
    "FedExP": {"fedexp_epsilon": 1e-6},
    "FedAdam": {"server_lr": 0.01},
    "FedYogi": {"server_lr": 0.01, "server_beta2": 0.5},
}
every_method = pytest.mark.parametrize("method", COEFFICIENTS)


def settings(method: str) -> dict[str, Any]:
    return {"federated_optimizer": method, "beta": None, "gamma": None} | COEFFICIENTS[method]


@every_method
def test_resuming_gives_the_bytes_of_an_uninterrupted_run(
    method: str, example: Any, content: Callable[..., Any], tmp_path: Path
) -> None:
    def keep(record: Any) -> None:
        if record.round == 2:
            shutil.copytree(tmp_path / "run", tmp_path / "copy")

    ours = settings(method) | {"comm_round": 3}
    example.follow(example.every_round(), on_round=keep, **ours)
    example.follow(example.every_round(), "copy", mode="resume", **ours)
    # The accuracies are the trainer's count of its tests.
    assert content(tmp_path / "copy")[:2] == content(tmp_path / "run")[:2]


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
