"""The round loop on clients that do as they are told: two parameters, updates worked by hand."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from fednnnn_plugin.engine.evaluation import Evaluation
from fednnnn_plugin.errors import RunError

from .conftest import Example

HAND, NAN, INFINITE = (24.0, 7.0), (float("nan"), 0.0), (0.0, float("inf"))


def test_two_rounds_worked_by_hand(example: Example) -> None:
    """β E/N S = (7.5, 10). d = (7.5, 10), then ½ d + (7.5, 10) = (11.25, 15).

    Served: (1, 2), (8.5, 12), (19.75, 27). Evaluated: w_t + (12, 16).
    """
    trainer = example.every_round()
    example.follow(trainer, **{"validation_args.test_served": True})
    assert trainer.tested == [[8.5, 12.0], [13.0, 18.0], [19.75, 27.0], [20.5, 28.0]]
    assert example.evaluation() == [20.5, 28.0]
    assert example.served() == {"w": [19.75, 27.0], ".momentum.w": [11.25, 15.0]}
    first, second = example.records()
    assert first | {"seconds": None} == {
        "round": 1,
        "evaluated": first["evaluated"],
        "test_acc": 0.02,
        "test_loss": 0.5,
        "test_metrics": None,
        "served_test_acc": 0.01,
        "mean_update_norm": 20.0,
        "mean_client_norm": 25.0,
        "orthogonal_norm": pytest.approx(math.sqrt(25**2 + 25**2) / 2),
        "server_update_norm": 12.5,
        "integrated_norm": 12.5,
        "client_norms": [25.0, 25.0, 25.0],
        "layers": {
            "": {"mean_update_norm": 20.0, "mean_client_norm": 25.0, "server_update_norm": 12.5}
        },
        "clients": 2,
        "rejected": 0,
        "degenerate": False,
        "seconds": None,
    }
    assert (second["server_update_norm"], second["integrated_norm"]) == (18.75, 31.25)


@pytest.mark.parametrize(
    ("updates", "settings", "evaluation", "record"),
    [
        # α = (¼, ¾): S = (18, 11.5).
        ((), {"client_weighting": "samples"}, [19.0, 13.5], {"rejected": 0}),
        # c = 5: Δ = (0, 5), (4.8, 1.4), so S = (2.4, 3.2), N = 4, E = 5.
        ((), {"max_client_norm": 5.0}, [3.4, 5.2], {"mean_update_norm": 4, "mean_client_norm": 5}),
        ((NAN, INFINITE, NAN, HAND), {"clients": 4}, [25.0, 9.0], {"clients": 1, "rejected": 3}),
    ],
)
def test_round_worked_by_hand(
    example: Example, updates: Any, settings: Any, evaluation: list[float], record: dict[str, float]
) -> None:
    example.follow(example.every_round(*updates), comm_round=1, **settings)
    assert example.evaluation() == pytest.approx(evaluation, rel=1e-6)
    [found] = example.records()
    assert {key: found[key] for key in record} == pytest.approx(record, rel=1e-6)


def test_round_of_cancelling_updates_moves_nothing(example: Example) -> None:
    example.follow(example.in_round(2, (3.0, -4.0), (-3.0, 4.0)))
    assert example.served() == {"w": [8.5, 12.0], ".momentum.w": [7.5, 10.0]}
    assert example.evaluation() == [8.5, 12.0]
    record = example.records()[1]
    assert record["degenerate"] is True
    assert (record["mean_update_norm"], record["mean_client_norm"]) == (0.0, 5.0)
    assert (record["server_update_norm"], record["integrated_norm"]) == (0.0, 12.5)


def test_round_without_any_update_ends_the_run(example: Example) -> None:
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
    example: Example, failure: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name, updates, allowed in (("one", (failure, HAND), 0), ("both", (failure, failure), 1)):
        failed = rf"^round 1: client . failed \({reason}.*max_client_failures allows {allowed}$"
        with pytest.raises(RunError, match=failed) as error:
            example.follow(example.every_round(*updates), name, max_client_failures=allowed)
        assert "\n" not in str(error.value)
    caplog.clear()
    one = example.every_round(failure, HAND)
    example.follow(one, "allowed", comm_round=1, max_client_failures=1)
    [warning] = caplog.messages  # the log has the traceback as well
    assert re.fullmatch(f"round 1: client 0 failed: {reason}.*", warning)
    assert example.evaluation("allowed") == [25.0, 9.0]
    assert example.records("allowed")[0]["rejected"] == 1


def test_served_model_that_overflows_ends_the_run(example: Example) -> None:
    """d = 0.8, 1.52, 2.168 × 10³⁸ under γ = 0.9: round 3 passes the largest float32."""
    settings = {"federated_optimizer": "Momentum", "beta": None, "gamma": 0.9, "comm_round": 5}
    with pytest.raises(RunError, match=r"^round 3: the served model is no longer finite"):
        example.follow(example.every_round((8e37, 0.0), (8e37, 0.0)), **settings)
    assert [record["round"] for record in example.records()] == [1, 2]
    assert example.served()["w"][0] == pytest.approx(2.32e38)


@pytest.mark.parametrize(("frequency", "rounds", "tested"), [(3, 7, [1, 4, 7]), (3, 6, [1, 4, 6])])
def test_rounds_tested_are_fedmls_and_the_last(
    example: Example, frequency: int, rounds: int, tested: list[int]
) -> None:
    trainer = example.every_round()
    settings = {"comm_round": rounds, "validation_args.frequency_of_the_test": frequency}
    example.follow(trainer, **settings)
    records = example.records()
    assert [record["round"] for record in records] == list(range(1, rounds + 1))
    for name in ("test_acc", "test_loss"):
        assert [record["round"] for record in records if record[name] is not None] == tested
    assert len(trainer.tested) == len(tested)


def test_round_interrupted_in_its_test_is_repeated(example: Example) -> None:
    """The server has moved when round 3 is tested: what is saved is still round 2."""

    def test(number: int) -> None:
        if number == 3:
            raise KeyboardInterrupt

    settings = {"comm_round": 4, "checkpoint_every": 10}
    with pytest.raises(KeyboardInterrupt):
        example.follow(example.every_round(test=test), **settings)
    assert example.evaluation() == [20.5, 28.0]
    assert example.served() == {"w": [19.75, 27.0], ".momentum.w": [11.25, 15.0]}
    assert len(example.records()) == 2
    example.follow(example.every_round(), mode="resume", **settings)
    example.follow(example.every_round(), "whole", **settings)
    assert example.served() == example.served("whole")
    assert [record["round"] for record in example.records()] == [1, 2, 3, 4]


@pytest.mark.parametrize("error", [ZeroDivisionError("no samples"), SystemExit(0)])
def test_evaluation_that_raises_ends_the_run(example: Example, error: BaseException) -> None:
    def test(_: int) -> None:
        raise error

    with pytest.raises(RunError, match=f"^round 1: the test failed .{type(error).__name__}: "):
        example.follow(example.every_round(test=test))


def test_summary_names_the_best_and_the_last_round(example: Example, tmp_path: Path) -> None:
    told = example.every_round(test=lambda n: Evaluation([0.2, 0.7, 0.7, 0.4][n - 1], None))
    summary = example.follow(told, comm_round=4)
    assert (summary.best_test_acc, summary.best_round, summary.final_test_acc) == (0.7, 2, 0.4)
    written = json.loads((tmp_path / "run" / "summary.json").read_text())
    known = {"rounds": 4, "backend": "sp", "ranks": 1, "seed": 0}
    assert written | known | {"recipe": "digits_noniid_b_fednnnn"} == written
    assert written["wall_seconds"] > 0
    assert re.fullmatch(r"cpu \(.+, \d+ cores?\)", written["device"])
    assert torch.__version__.startswith(written["versions"]["torch"])
