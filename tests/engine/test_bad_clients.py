"""Clients that send nonsense: dropped, counted, clipped, or the end of the run."""

import logging
from typing import Any

import pytest
import torch

from fednnnn_plugin.errors import RunError

NAN = (float("nan"), 0.0)
INFINITE = (0.0, float("inf"))


@pytest.mark.parametrize("update", [NAN, INFINITE])
def test_a_client_that_is_not_finite_is_dropped_counted_and_warned_about(
    example: Any, caplog: pytest.LogCaptureFixture, update: tuple[float, float]
) -> None:
    with caplog.at_level(logging.WARNING):
        example.follow(example.every_round(update, (24.0, 7.0)), comm_round=1)
    assert example.evaluation() == [25.0, 9.0]
    record = example.records()[0]
    assert (record["clients"], record["rejected"]) == (1, 1)
    assert "round 1: client 0: update rejected: not finite" in caplog.text


def test_a_round_without_any_update_ends_the_run_at_the_last_good_checkpoint(example: Any) -> None:
    settings = {"comm_round": 4, "checkpoint_every": 10}
    with pytest.raises(RunError, match=r"^round 3: .*2"):
        example.follow(example.in_round(3, NAN, INFINITE), **settings)
    assert example.evaluation() == [20.5, 28.0]
    assert example.served() == {"w": [19.75, 27.0], ".momentum.w": [11.25, 15.0]}
    assert [record["round"] for record in example.records()] == [1, 2]

    example.follow(example.every_round(), mode="resume", **settings)
    example.follow(example.every_round(), "healthy", **settings)
    assert example.served() == example.served("healthy")
    assert len(example.records()) == 4


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (ZeroDivisionError("no\nsamples"), "ZeroDivisionError: no samples"),
        ({"w": torch.zeros(3)}, r"client model: w: shape \(3,\): must be \(2,\)"),
        ({}, "client model: missing entries"),
        ({"w": torch.zeros(2), "v": torch.zeros(2)}, "client model: .*unknown entries"),
        ({"w": torch.zeros(2, dtype=torch.int64)}, "client model: w: torch.int64"),
    ],
)
def test_a_failing_client_ends_the_run_unless_failures_are_allowed(
    example: Any, failure: Any, reason: str
) -> None:
    with pytest.raises(
        RunError, match=rf"^round 1: client 0 failed \({reason}.*max_client_failures allows 0$"
    ) as error:
        example.follow(example.every_round(failure, (24.0, 7.0)))
    assert "\n" not in str(error.value)
    example.follow(
        example.every_round(failure, (24.0, 7.0)), "allowed", comm_round=1, max_client_failures=1
    )
    assert example.evaluation("allowed") == [25.0, 9.0]
    assert example.records("allowed")[0]["rejected"] == 1
    with pytest.raises(RunError, match=r"client . failed.*: 2 of its .* allows 1$"):
        example.follow(example.every_round(failure, failure), "both", max_client_failures=1)


def test_non_finite_updates_do_not_count_as_failures(example: Any) -> None:
    updates = (NAN, INFINITE, NAN, (24.0, 7.0))
    example.follow(example.every_round(*updates), clients=4, comm_round=1)
    assert example.evaluation() == [25.0, 9.0]
    assert example.records()[0]["rejected"] == 3


def test_a_served_model_that_overflows_ends_the_run(example: Any) -> None:
    """d = 0.8, 1.52, 2.168 × 10³⁸ under γ = 0.9: round 3 passes the largest float32."""
    settings = {"federated_optimizer": "Momentum", "beta": None, "gamma": 0.9, "comm_round": 5}
    with pytest.raises(RunError, match=r"^round 3: the served model is no longer finite"):
        example.follow(example.every_round((8e37, 0.0), (8e37, 0.0)), **settings)
    assert [record["round"] for record in example.records()] == [1, 2]
    assert example.served()["w"][0] == pytest.approx(2.32e38)
