"""When a run ends before its last round, by values worked by hand, and in runs."""

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.nn.functional import one_hot

import fednnnn_plugin as fp
from fednnnn_plugin.assembly.functions import Functions
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.quantities import Spread
from fednnnn_plugin.rounds.loaders import LoaderData
from fednnnn_plugin.rounds.stopping import RoundTest, Stop

from ..tiny import Content, Drawing, Tiny, follower

KEY = "validation_args.stop"


@pytest.mark.parametrize(
    ("stop", "values", "ends"),
    [
        (Stop(target=0.5), [0.4, 0.49, 0.5, 0.6], 3),
        (Stop(target=0.5), [0.4, 0.49], None),
        (Stop("loss", target=0.5), [0.9, 0.6, 0.5], 3),
        # Better than 0.4 by more than 0.1 is 0.51, not 0.5: round 4 is the fourth since the first.
        (Stop(patience=3), [0.4, 0.5, 0.5, 0.4, 0.5], 5),
        (Stop(patience=3, min_delta=0.11), [0.4, 0.5, 0.5, 0.4, 0.5], 4),
        (Stop(patience=3, min_delta=0.11), [0.4, 0.5, 0.52, 0.4, 0.5], None),
        (Stop("loss", patience=2), [0.4, 0.3, 0.3, None], 4),
        (Stop(patience=2), [None, None, None], 3),
        (Stop(patience=9, target=0.5), [0.6], 1),
        (Stop("error", higher_is_better=False, target=0.5), [0.6, 0.5], 2),
        (Stop("loss", higher_is_better=True, target=0.5), [0.4, 0.5], 2),  # a metric of this name
        (Stop("own", higher_is_better=True, target=0.5), [None, 0.5], 2),  # 0/0 at first
        (Stop("own", higher_is_better=True, patience=2), [None, None, None], 3),
    ],
)
def test_round_that_ends_a_run(stop: Stop, values: list[float | None], ends: int | None) -> None:
    names = ("loss",) if stop.metric == "loss" else ("accuracy", "loss", "error")
    own = [{} if value is None else {"own": value} for value in values]  # as in a record
    tests = [
        RoundTest(number, {"accuracy": None} | dict.fromkeys(names, value) | more)
        for number, (value, more) in enumerate(zip(values, own, strict=True), start=1)
    ]
    reasons = [stop.reason(tests[:count]) for count in range(len(tests) + 1)]
    assert [bool(reason) for reason in reasons].index(True) == ends if ends else not any(reasons)


def test_reason_says_by_how_much_a_round_had_to_be_better() -> None:
    tests = [RoundTest(r, {"accuracy": v}) for r, v in enumerate((0.4, 0.45, 0.49), start=1)]
    said = "accuracy has not been better than 0.4 by more than 0.1 for 2 rounds"
    assert Stop(patience=2, min_delta=0.1).reason(tests) == said


def test_rounds_count_where_not_all_are_tested() -> None:
    """Patience is in rounds: tested in 1, 4, 7, …, none of them better than the first."""
    tests = [RoundTest(number, {"accuracy": 0.4}) for number in (1, 4, 7)]
    ended = [bool(Stop(patience=5).reason(tests[:count])) for count in (1, 2, 3)]
    assert ended == [False, False, True]


def test_stopped_run(tiny: Tiny, content: Content) -> None:
    """It has the rounds of a run of that length; it is finished, unless it is to stop otherwise."""
    stop = {"patience": 1, "min_delta": 0.5}
    summary = tiny(comm_round=9, checkpoint_every=5, stop=stop)
    assert (summary.rounds, summary.stopped) == (2, tiny.log().split("stopped at 2: ")[1].strip())
    assert tiny("two", comm_round=2, checkpoint_every=5).stopped is None
    assert content(tiny.folder / "run") == content(tiny.folder / "two")
    assert "stopped" not in (tiny.folder / "two/summary.json").read_text()
    assert tiny(mode="resume", comm_round=12, checkpoint_every=5, stop=stop) is None
    runs = fp.read_runs(tiny.folder / "run")
    assert runs["finished"].all()
    assert set(runs["stopped"]) == {summary.stopped}
    further: dict[str, Any] = {"comm_round": 4, "checkpoint_every": 5, "stop": {"target": 1.0}}
    interrupted = follower(round_done=Mock(side_effect=EOFError))
    with pytest.raises(EOFError):
        tiny(mode="resume", **further, followers=[interrupted])
    more = tiny(mode="resume", **further)
    assert (more.rounds, more.stopped) == (4, None)


def test_interrupted_run_is_stopped_by_what_is_on_record(tiny: Tiny) -> None:
    """Even where the round that stops it is on record and the summary is not."""
    stop = {"metric": "accuracy", "target": 0.01}
    given = {"comm_round": 5, "frequency_of_the_test": 2}
    first = tiny(**given, stop=stop)
    (tiny.folder / "run/summary.json").unlink()
    again = tiny(mode="resume", **given, stop=stop)
    assert (again.rounds, again.stopped) == (first.rounds, first.stopped)


def test_accuracy_that_is_not_measured_stops_no_run(tiny: Tiny) -> None:
    with pytest.raises(fp.RunError, match=f"^{KEY}: metric: accuracy: .*round 1 has none"):
        tiny(trainer=Drawing(), stop={"metric": "accuracy", "patience": 1})
    nothing = RoundTest(1, dict.fromkeys(("accuracy", "loss")))
    with pytest.raises(fp.RunError, match=f"^{KEY}: metric: worst_10: .*round 1 has none"):
        Stop("worst_10", patience=1).reason([nothing])
    assert not Stop("worst_10", patience=1).reason(
        [RoundTest(1, {**nothing.values, "worst_10": 5})]
    )
    assert tiny("other", trainer=Drawing(), stop={"patience": 1}).rounds == 2  # of the loss: none


def test_metric_that_no_test_returns_stops_no_run() -> None:
    """Of a custom trainer's own metrics; one without a value is no better."""
    test = RoundTest(3, {"accuracy": None, "loss": None, "f1": None})
    allowed = r"must be one of f1, loss; did you mean f1\?$"
    with pytest.raises(fp.RunError, match=f"^{KEY}: metric: f1_: .*round 3 has none: {allowed}"):
        Stop("f1_", target=0.5).reason([test])
    assert Stop("f1", target=0.5).reason([test]) is None


def test_worst_tenth_of_the_clients_ends_a_run() -> None:
    """Of this process's records, and of those that are read."""
    for form in (lambda spread: spread, vars):
        for worst, ends in ((0.4, False), (0.6, True)):
            found = {"round": 1, "test_acc": 0.9, "test_loss": None, "test_metrics": None}
            found["client_acc"] = form(Spread(0.9, 0.1, worst, 0.1))
            reason = Stop("worst_10", target=0.5).reason([RoundTest.of(found)])
            assert bool(reason) == ends


def test_users_metric_that_is_called_loss_stops_a_run_as_it_is_meant(tiny: Tiny) -> None:
    """The larger the better, as in its summary; it stands before the loss of the test."""
    functions = Functions(metrics={"loss": lambda *_: 0.9})
    summary = tiny(functions=functions, stop={"metric": "loss", "target": 0.8})
    assert (summary.rounds, summary.best_metric, summary.higher_is_better) == (1, 0.9, True)


@pytest.mark.parametrize("metric", ["accuracy", "worst_10"])
def test_numbers_have_no_accuracy_to_stop_by(tiny: Tiny, data: FederatedData, metric: str) -> None:
    """Without a value, patience would end the run, and no target ever would."""
    given, tests = (one_hot(y, 10).float() for y in (data.train_labels, data.test_labels))
    theirs = (torch.arange(5),) * data.num_clients
    numbers = replace(data, train_labels=given, test_labels=tests, client_test_indices=theirs)
    with pytest.raises(fp.UserError, match=f"^{KEY}: metric: {metric}: labels that are numbers"):
        tiny(data=numbers, loss="mse", per_client=True, stop={"metric": metric, "patience": 1})


@pytest.mark.parametrize("metric", [None, "accuracy", "worst_10"])
@pytest.mark.parametrize("target", [97, -1])
def test_target_that_no_accuracy_reaches_is_refused(
    tiny: Tiny, data: FederatedData, metric: str | None, target: int
) -> None:
    data = replace(data, client_test_indices=(torch.arange(5),) * data.num_clients)
    stop = {"target": target} | ({"metric": metric} if metric else {})
    by_name = {"metrics": ["accuracy"]} if metric == "accuracy" else {}
    batches = ((data.test_images.float(), data.test_labels),)
    own = dict.fromkeys(range(data.num_clients), batches)
    loaders = LoaderData(own, dict.fromkeys(own, 5), batches, 10, own)
    for given in (data, loaders):
        with pytest.raises(fp.UserError, match=f"^{KEY}: target: {target}: .* name metric: loss$"):
            tiny(data=given, per_client=True, stop=stop, **by_name)


def test_target_above_1_is_one_of_other_values(tiny: Tiny, data: FederatedData) -> None:
    """Of a custom trainer's accuracy, in per cent, of the loss, and of a loss by default."""
    assert tiny("own", trainer=Drawing(), stop={"target": 97}).stopped is None
    assert tiny("loss", stop={"metric": "loss", "target": 97}).rounds == 1
    given, tests = (one_hot(y, 10).float() for y in (data.train_labels, data.test_labels))
    numbers = replace(data, train_labels=given, test_labels=tests)
    assert tiny("numbers", data=numbers, loss="mse", stop={"target": 97}).rounds == 1
