"""The round loop on clients that do as they are told: two parameters, updates worked by hand."""

import json
import math
import re
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fednnnn_plugin.assembly.functions import Functions
from fednnnn_plugin.client.method import ClientMethod
from fednnnn_plugin.errors import RunError
from fednnnn_plugin.rounds.loaders import LoaderData
from fednnnn_plugin.run_folder.records import Evaluation

from ..tiny import Tiny

#: Two clients' updates: S = (12, 16), N = 20, E = 25.
HAND = ((0.0, 25.0), (24.0, 7.0))
NAN, INFINITE = (math.nan, 0.0), (0.0, math.inf)


class Told:
    """Clients that make these updates in one round, or in all, and else those of :data:`HAND`.

    ``test`` is called with 1, 2, …; ``tested`` keeps the models.
    """

    def __init__(self, *updates: Any, in_round: int = 0, test: Any = None) -> None:
        self._updates, self._round, self._test = updates or HAND, in_round, test
        self.tested: list[list[float]] = []

    def train(self, client: int, state: Any, round_number: int) -> Any:
        update = (self._updates if self._round in (0, round_number) else HAND)[client]
        if isinstance(update, BaseException):
            raise update
        return update if isinstance(update, dict) else {"w": state["w"] + torch.tensor(update)}

    def test(self, state: Any, round_number: int) -> Evaluation:
        self.tested.append(state["w"].tolist())
        number = len(self.tested)
        return (self._test and self._test(number)) or Evaluation(number / 100, 0.5)


class Example:
    """FedNNNN with β = γ = ½ from w_0 = (1, 2); the clients have 1, 3, 3, … samples."""

    def __init__(self, tiny: Tiny) -> None:
        self.tiny, self.records = tiny, tiny.records

    def __call__(self, trainer: Told, name: str = "run", clients: int = 2, **given: Any) -> Any:
        model = nn.Module()
        model.w = nn.Parameter(torch.tensor([1.0, 2.0]))
        sizes = {k: 3 if k else 1 for k in range(clients)}
        data = LoaderData(dict.fromkeys(sizes, ((),)), sizes, (), 2)
        settings = {"beta": 0.5, "gamma": 0.5, "comm_round": 2}
        settings |= {"client_num_in_total": clients, "client_num_per_round": clients}
        return self.tiny(name, model=model, data=data, trainer=trainer, **settings | given)

    def served(self, name: str = "run") -> dict[str, list[float]]:
        """The newest checkpoint's tensors."""
        newest = max((self.tiny.folder / name / "checkpoint").iterdir())
        return {key: tensor.tolist() for key, tensor in load_file(newest).items()}

    def evaluation(self, name: str = "run") -> list[float]:
        """The saved model."""
        return self.tiny.model(name)["w"].tolist()


@pytest.fixture
def example(tiny: Tiny) -> Example:
    return Example(tiny)


def test_two_rounds_worked_by_hand(example: Example) -> None:
    """β E/N S = (7.5, 10). d = (7.5, 10), then ½ d + (7.5, 10) = (11.25, 15).

    Served: (1, 2), (8.5, 12), (19.75, 27). Evaluated: w_t + (12, 16).
    """
    trainer = Told()
    example(trainer, **{"validation_args.test_served": True})
    assert trainer.tested == [[8.5, 12.0], [13.0, 18.0], [19.75, 27.0], [20.5, 28.0]]
    assert example.evaluation() == [20.5, 28.0]
    assert example.served() == {"w": [19.75, 27.0], ".momentum.w": [11.25, 15.0]}
    first, second = example.records()
    layer = {"mean_update_norm": 20.0, "mean_client_norm": 25.0, "server_update_norm": 12.5}
    assert first | {"seconds": None} == layer | {
        **{"round": 1, "evaluated": "average", "seconds": None},
        **{"test_acc": 0.02, "test_loss": 0.5, "test_metrics": None, "served_test_acc": 0.01},
        **{"served_test_loss": 0.5, "served_test_metrics": None},
        "orthogonal_norm": pytest.approx(math.sqrt(25**2 + 25**2) / 2),
        **{"integrated_norm": 12.5, "client_norms": [25.0, 25.0, 25.0], "layers": {"": layer}},
        **{"clients": 2, "rejected": 0, "degenerate": False},
        **{"schema": 2, "time": None, "tested": True, "clipped": 0, "largest_share": 0.5},
        "measured": "update",
        "by_client": [
            {"client": k, "outcome": "accepted", "norm": 25.0, "share": 0.5, "why": None}
            for k in (0, 1)
        ],
    }
    assert (second["server_update_norm"], second["integrated_norm"]) == (18.75, 31.25)


@pytest.mark.parametrize(
    ("updates", "settings", "evaluation", "record"),
    [
        # α = (¼, ¾): S = (18, 11.5).
        ((), {"client_weighting": "samples"}, [19.0, 13.5], {"rejected": 0}),
        # c = 5: Δ = (0, 5), (4.8, 1.4), so S = (2.4, 3.2), N = 4, E = 5.
        (
            *((), {"max_client_norm": 5.0}, [3.4, 5.2]),
            {"mean_update_norm": 4, "mean_client_norm": 5, "clipped": 2},
        ),
        ((NAN, INFINITE, NAN, HAND[1]), {"clients": 4}, [25, 9], {"clients": 1, "rejected": 3}),
    ],
)
def test_round_worked_by_hand(
    example: Example, updates: Any, settings: Any, evaluation: list[float], record: dict[str, float]
) -> None:
    example(Told(*updates), comm_round=1, **settings)
    assert example.evaluation() == pytest.approx(evaluation, rel=1e-6)
    [found] = example.records()
    assert {key: found[key] for key in record} == pytest.approx(record, rel=1e-6)


class Roots(ClientMethod):
    sends, keeps, returns = ("mean",), ("last",), ("root",)

    def finish_client(self, local: Any) -> Any:
        return {"last": local.update}, {"root": local.update.sqrt()}

    def finish_round(self, sent: Any, returned: Any, share: float) -> Any:
        return {"mean": share * returned["root"]}


def test_method_round_leaves_rejected_client_out(example: Example) -> None:
    """The root of client 1's update is not a number: half of the clients return (3, 4)."""
    told = Told((9.0, 16.0), (-3.0, 4.0), in_round=2)
    example(told, functions=Functions(method=Roots()))
    found = example.served()
    assert [row[:2] for row in found["..kept"]] == [[0, 2], [1, 1]]
    assert found["..sent.mean"] == [1.5, 2.0]
    assert example.evaluation() == [17.5, 28.0]
    assert example.records()[1]["rejected"] == 1


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (ZeroDivisionError("no\nsamples"), "ZeroDivisionError: no samples"),
        (torch.cuda.OutOfMemoryError("no room"), "OutOfMemoryError: no room"),
        ({"w": torch.zeros(3)}, r"client model: w: shape \(3,\): must be \(2,\)"),
    ],
)
def test_failing_client_ends_the_run_unless_allowed(
    example: Example, failure: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    for updates, allowed in ((failure, HAND[1]), 0), ((failure, failure), 1):
        failed = rf"^round 1: client . failed \({reason}.*max_client_failures allows {allowed}$"
        with pytest.raises(RunError, match=failed):
            example(Told(*updates), f"allows {allowed}", max_client_failures=allowed)
    caplog.clear()
    example(Told(failure, HAND[1]), "allowed", comm_round=1, max_client_failures=1)
    [warning] = caplog.messages  # the log has the traceback as well
    assert re.fullmatch(f"round 1: client 0 failed: {reason}.*", warning)
    assert example.evaluation("allowed") == [25.0, 9.0]
    assert example.records("allowed")[0]["rejected"] == 1


def failing_test(error: type[BaseException]) -> Told:
    """Clients whose test fails in round 3, when the server has moved."""
    return Told(test=Mock(side_effect=[None, None, error("x")]))


@pytest.mark.parametrize(
    ("trainer", "error", "said"),
    [
        (Told(NAN, INFINITE, in_round=3), RunError, "^round 3: .*2"),
        (failing_test(KeyboardInterrupt), KeyboardInterrupt, None),
        (failing_test(ZeroDivisionError), RunError, "^round 3: the test failed .ZeroDivisionError"),
    ],
)
def test_round_that_does_not_end_is_repeated(
    example: Example, trainer: Told, error: Any, said: Any
) -> None:
    """What is saved of an end in round 3 is round 2."""
    settings = {"comm_round": 4, "checkpoint_every": 10}
    with pytest.raises(error, match=said):
        example(trainer, **settings)
    assert example.evaluation() == [20.5, 28.0]
    assert example.served() == {"w": [19.75, 27.0], ".momentum.w": [11.25, 15.0]}
    assert len(example.records()) == 2
    example(Told(), mode="resume", **settings)
    example(Told(), "whole", **settings)
    assert example.served() == example.served("whole")
    assert [record["round"] for record in example.records()] == [1, 2, 3, 4]


def test_served_model_that_overflows_ends_the_run(example: Example) -> None:
    """d = 0.8, 1.52, 2.168 × 10³⁸ under γ = 0.9: round 3 passes the largest float32."""
    settings = {"federated_optimizer": "Momentum", "beta": None, "gamma": 0.9, "comm_round": 5}
    with pytest.raises(RunError, match=r"^round 3: the served model is no longer finite"):
        example(Told((8e37, 0.0), (8e37, 0.0)), **settings)
    assert len(example.records()) == 2
    assert example.served()["w"][0] == pytest.approx(2.32e38)


def test_final_value_is_that_of_the_last_test(example: Example) -> None:
    """Which found none: the run may have diverged."""
    told = Told(test=lambda n: Evaluation([0.2, 0.7, None][n - 1], 1.0))
    summary = example(told, comm_round=3)
    assert (summary.best_test_acc, summary.best_round, summary.final_test_acc) == (0.7, 2, None)


def test_summary_is_of_the_rounds_tested(example: Example) -> None:
    """Those that FedML tests, and the last."""
    told = Told(test=lambda n: Evaluation([0.2, 0.7, 0.7, 0.4][n - 1], None))
    summary = example(told, comm_round=8, **{"validation_args.frequency_of_the_test": 3})
    records = example.records()
    found = {record["round"]: record["test_acc"] for record in records}
    assert found == dict.fromkeys(range(1, 9)) | {1: 0.2, 4: 0.7, 7: 0.7, 8: 0.4}
    assert len(told.tested) == 4
    assert (summary.best_test_acc, summary.best_round, summary.final_test_acc) == (0.7, 4, 0.4)
    written = json.loads((example.tiny.folder / "run" / "summary.json").read_text())
    known = {"rounds": 8, "backend": "sp", "ranks": 1, "recipe": "digits_noniid_b_fednnnn"}
    assert written | known == written
    assert torch.__version__.startswith(written["versions"]["torch"])
    parts = ("train", "aggregate", "evaluate")
    seconds = sum(record["seconds"][part] for record in records for part in parts)
    assert written["wall_seconds"] == pytest.approx(seconds)


class Weighing(ClientMethod):
    def upload(self, local: Any) -> Any:
        return local.update, local.update[:, 1:] + 1


def test_weights_of_an_upload_replace_the_rounds(example: Example) -> None:
    """(0, 25) and (24, 7) weigh 26 and 8."""
    example(Told(), comm_round=1, functions=Functions(method=Weighing()))
    [record] = example.records()
    assert [one["share"] for one in record["by_client"]] == [26 / 34, 8 / 34]
    assert record["mean_client_norm"] == 25
    assert example.evaluation() == pytest.approx([1 + 24 * 8 / 34, 2 + (25 * 26 + 7 * 8) / 34])
