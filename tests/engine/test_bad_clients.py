"""Clients that send nonsense: dropped, counted, clipped, or the end of the run."""

import re
from typing import Any

import pytest
import torch

from fednnnn_plugin.errors import RunError

NAN = (float("nan"), 0.0)
INFINITE = (0.0, float("inf"))


def test_updates_not_finite_are_dropped_and_counted(
    example: Any, caplog: pytest.LogCaptureFixture
) -> None:
    updates = (NAN, INFINITE, NAN, (24.0, 7.0))
    example.follow(example.every_round(*updates), clients=4, comm_round=1)
    assert example.evaluation() == [25.0, 9.0]
    [record] = example.records()
    assert (record["clients"], record["rejected"]) == (1, 3)
    for client in range(3):
        assert f"round 1: client {client}: update rejected: not finite" in caplog.text


def test_round_without_any_update_ends_the_run(example: Any) -> None:
    settings = {"comm_round": 4, "checkpoint_every": 10}
    with pytest.raises(RunError, match=r"^round 3: .*2"):
        example.follow(example.in_round(3, NAN, INFINITE), **settings)
    assert example.evaluation() == [20.5, 28.0]
    assert example.served() == {"w": [19.75, 27.0], ".momentum.w": [11.25, 15.0]}
    assert [record["round"] for record in example.records()] == [1, 2]


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (ZeroDivisionError("no\nsamples"), "ZeroDivisionError: no samples"),
        (SystemExit(0), "SystemExit: 0"),
        (AssertionError(), "AssertionError"),
        ({"w": torch.zeros(3)}, r"client model: w: shape \(3,\): must be \(2,\)"),
    ],
)
def test_failing_client_ends_the_run_unless_allowed(
    example: Any, failure: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(
        RunError, match=rf"^round 1: client 0 failed \({reason}.*max_client_failures allows 0$"
    ) as error:
        example.follow(example.every_round(failure, (24.0, 7.0)))
    assert "\n" not in str(error.value)
    caplog.clear()
    example.follow(
        example.every_round(failure, (24.0, 7.0)), "allowed", comm_round=1, max_client_failures=1
    )
    [warning] = caplog.messages  # the log has the traceback as well
    assert re.match(f"round 1: client 0 failed: {reason}.*$", warning)
    assert "\n" not in warning
    assert example.evaluation("allowed") == [25.0, 9.0]
    assert example.records("allowed")[0]["rejected"] == 1
    with pytest.raises(RunError, match=r"client . failed.*: 2 of its .* allows 1$"):
        example.follow(example.every_round(failure, failure), "both", max_client_failures=1)


def test_served_model_that_overflows_ends_the_run(example: Any) -> None:
    """d = 0.8, 1.52, 2.168 × 10³⁸ under γ = 0.9: round 3 passes the largest float32."""
    settings = {"federated_optimizer": "Momentum", "beta": None, "gamma": 0.9, "comm_round": 5}
    with pytest.raises(RunError, match=r"^round 3: the served model is no longer finite"):
        example.follow(example.every_round((8e37, 0.0), (8e37, 0.0)), **settings)
    assert [record["round"] for record in example.records()] == [1, 2]
    assert example.served()["w"][0] == pytest.approx(2.32e38)
