"""Results by client and by class: worked by hand, and against a plain loop over each client."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fednnnn_plugin as fp
from fednnnn_plugin.assembly.functions import Functions
from fednnnn_plugin.client.loss import LOSSES
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.data.holdout import hold_out_of_each
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.models import create_model
from fednnnn_plugin.quantities import Spread
from fednnnn_plugin.rounds.client_results import client_results
from fednnnn_plugin.rounds.evaluation import Tally
from fednnnn_plugin.rounds.loaders import LoaderData
from fednnnn_plugin.run_folder.results import (
    ClassResult,
    ClientResult,
    Results,
    ResultTables,
    spread,
)

from ..tiny import SIZES, Tiny, follower

BOTH = {"per_client": True, "per_class": True}


def table(folder: Path, name: str) -> list[dict[str, str]]:
    return [*csv.DictReader((folder / name).read_text().splitlines())]


def tables(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in ("clients.csv", "classes.csv")]


@pytest.fixture
def held(data: FederatedData) -> FederatedData:
    """The tiny federation, a quarter of each client's samples held out."""
    clients, holdouts = hold_out_of_each(data.train_labels, data.client_indices, 0.25, seed=0)
    return replace(data, client_indices=clients, client_holdouts=holdouts)


def test_spread_worked_by_hand() -> None:
    assert spread([0.5, 1.0, 0.0, 0.5]) == Spread(0.5, 0.125**0.5, 0.0, 0.0)
    assert spread([0.5, 1.0, 0.0, 0.5], lower_is_better=True) == Spread(0.5, 0.125**0.5, 1.0, 1.0)
    of_eleven = spread([k / 10 for k in range(11)])  # two are the worst tenth
    assert (of_eleven.worst_10, of_eleven.worst) == (0.05, 0.0)
    assert spread([]) is spread([None, 1.0]) is spread([1e308, -1e308]) is None


def test_each_client_keeps_a_share_of_each_class_apart() -> None:
    """Of 8 and 4 samples of two classes a quarter is 2 and 1; of 3 one; one alone is trained on."""
    labels = torch.tensor([0] * 8 + [1] * 4 + [0] * 3 + [1])
    clients = torch.randperm(12), torch.tensor([14, 12, 13]), torch.tensor([15])
    left, held = hold_out_of_each(labels, clients, 0.25, seed=3)
    assert [labels[own].bincount(minlength=2).tolist() for own in held] == [[2, 1], [1, 0], [0, 0]]
    for before, *parts in zip(clients, left, held, strict=True):
        assert sorted(torch.cat(parts).tolist()) == sorted(before.tolist())
        for part in parts:  # in the client's order
            assert [place for place in before.tolist() if place in part] == part.tolist()
    assert torch.equal(hold_out_of_each(labels, clients, 0.25, seed=3)[1][0], held[0])


def test_sample_of_several_places_is_held_out_of_all() -> None:
    """Client 0 has each of its samples thrice, 1 two of 0's, and 2 two that others have."""
    labels, shared = torch.arange(24) % 2, torch.tensor([3, 5])
    clients = torch.arange(20).repeat(3), torch.cat([shared, torch.arange(20, 24)]), shared
    for seed in range(20):
        left, held = hold_out_of_each(labels, clients, 0.4, seed)
        assert not {*torch.cat(left).tolist()} & {*torch.cat(held).tolist()}
        for before, trains, tests in zip(clients, left, held, strict=True):
            assert len(trains)
            assert len({*tests.tolist()}) == len(tests)
            assert [place for place in before.tolist() if place in trains] == trains.tolist()
    assert 7 <= len(held[0]) <= 10  # 8, and what the others draw of the two


def plain_results(
    model: nn.Module, data: FederatedData, images: Any, positions: Any
) -> tuple[int, float, float]:
    inputs, labels = data.normalised(images[0][positions]), images[1][positions]
    outputs = model(inputs)
    accuracy = (outputs.argmax(1) == labels).double().mean()
    return len(labels), float(accuracy), float(F.cross_entropy(outputs.double(), labels))


@pytest.mark.parametrize("own_tests", [False, True])
@torch.no_grad()
def test_results_are_those_of_a_plain_loop(
    tiny: Tiny, held: FederatedData, data: FederatedData, own_tests: bool
) -> None:
    """On what is held out of each client, or on its own part of the test samples."""
    source, of_clients = (data.train_images, data.train_labels), held.client_holdouts
    if own_tests:
        source = data.test_images, data.test_labels
        of_clients = torch.arange(40).split((6, 7, 8, 9, 10, 0))
        held = replace(data, client_test_indices=of_clients)
    tiny(data=held, **BOTH)
    folder, model = tiny.folder / "run", create_model("nnnn_digits", 0).eval()
    model.load_state_dict(tiny.model())
    rows = table(folder, "clients.csv")
    tested = [client for client, own in enumerate(of_clients) if len(own)]
    places = [(row["round"], row["client"]) for row in rows]
    assert places == [(str(number), str(client)) for number in (1, 2, 3) for client in tested]
    found = []
    for client, row in zip(tested, rows[-len(tested) :], strict=True):
        samples, accuracy, loss = plain_results(model, held, source, of_clients[client])
        assert (int(row["samples"]), float(row["accuracy"])) == (samples, accuracy)
        assert float(row["loss"]) == pytest.approx(loss, rel=1e-6)
        found.append((accuracy, float(row["loss"])))
    last = tiny.records()[-1]
    accuracies, losses = zip(*found, strict=True)
    assert last["client_acc"] == vars(spread(accuracies))
    assert last["client_loss"] == vars(spread(losses, lower_is_better=True))
    predicted = model(data.test_images).argmax(1)
    classes = table(folder, "classes.csv")[-10:]
    for label, row in enumerate(classes):
        of_class = data.test_labels == label
        right = int((predicted[of_class] == label).sum())
        assert (row["class"], row["name"], int(row["samples"])) == (str(label), str(label), 4)
        assert float(row["accuracy"]) == right / 4
        of_each = [held.train_labels[own] == label for own in held.client_indices]
        assert int(row["train_clients"]) == sum(bool(each.any()) for each in of_each)
        weight = sum(float(each.double().mean()) for each in of_each) / 6
        assert float(row["weight"]) == pytest.approx(weight)
        trained = torch.cat(held.client_indices)
        assert int(row["train_samples"]) == int((held.train_labels[trained] == label).sum())
    assert last["class_acc"]["mean"] == pytest.approx(last["test_acc"])  # classes of one size


def test_tables_are_the_same_by_any_way(tiny: Tiny, held: FederatedData) -> None:
    """On two workers, in groups, after an interruption and what it left behind."""
    given = {"data": held, "comm_round": 4, "checkpoint_every": 2} | BOTH
    tiny("whole", worker_num=1, **given)
    tiny("two", worker_num=2, **given)
    ended = follower(round_done=lambda record: 1 / (record.round != 3))
    with pytest.raises(ZeroDivisionError):
        tiny("parts", followers=[ended], **given)
    parts = tiny.folder / "parts"
    for path in parts.glob("*.csv"):
        with path.open("a") as file:  # of round 4, which has no record
            file.write("4,0,1,1.0,0.0\n4,1,")
    newest = max((parts / "checkpoint").iterdir())
    newest.unlink()  # round 3's: its lines are to go, too
    tiny("parts", mode="resume", **given)
    assert tables(parts) == tables(tiny.folder / "whole") == tables(tiny.folder / "two")
    tiny("parts", mode="overwrite", comm_round=1)
    assert not list(parts.glob("*.csv"))
    assert not {"client_acc", "client_loss", "class_acc"} & tiny.records("parts")[0].keys()


def test_clients_are_tested_with_the_test_or_at_the_end(tiny: Tiny, held: FederatedData) -> None:
    rounds = {}
    for when in (True, "end"):
        tiny(str(when), data=held, per_client=when, frequency_of_the_test=2, comm_round=4)
        rows = table(tiny.folder / str(when), "clients.csv")
        rounds[when] = sorted({int(row["round"]) for row in rows})
        assert [r["round"] for r in tiny.records(str(when)) if "client_acc" in r] == rounds[when]
    assert rounds == {True: [1, 3, 4], "end": [4]}


def test_weight_of_a_class_is_by_size_where_clients_are_drawn_so(tiny: Tiny) -> None:
    tiny(client_sampling="by_size", client_num_per_round=2, per_class=True, comm_round=1)
    found = fp.class_results(tiny.folder / "run")
    shares = found["train_samples"] / found["train_samples"].sum()
    assert found["weight"].tolist() == pytest.approx(shares.tolist())


def test_what_has_no_such_results_is_refused(tiny: Tiny, data: FederatedData) -> None:
    batches = [(data.test_images[:5], data.test_labels[:5])]
    loaders = LoaderData(dict.fromkeys(range(6), batches), dict(enumerate(SIZES)), batches, 10)
    for given in (data, loaders):
        with pytest.raises(UserError, match=r"^validation_args\.per_client: .* test part"):
            tiny(data=given, per_client=True)
    numbers = replace(data, train_labels=data.train_labels / 2, test_labels=data.test_labels / 2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 1))
    with pytest.raises(UserError, match=r"^validation_args\.per_class: "):
        tiny(data=numbers, model=model, functions=Functions(loss=LOSSES["mse"]), per_class=True)
    assert not list(tiny.folder.glob("run/metrics.jsonl"))


def test_loaders_of_each_client_are_its_test_part(tiny: Tiny, data: FederatedData) -> None:
    own = {
        client: [(data.test_images[part], data.test_labels[part]) for part in parts]
        for client, parts in ((4, torch.arange(9).split(5)), (1, [torch.arange(9, 16)]))
    }
    batches = {
        k: [(data.train_images[own], data.train_labels[own])]
        for k, own in enumerate(data.client_indices)
    }
    loaders = LoaderData(batches, dict(enumerate(SIZES)), [*own[4], *own[1]], 10, own)
    tiny(data=loaders, comm_round=1, worker_num=1, **BOTH)
    rows = table(tiny.folder / "run", "clients.csv")
    assert [(row["client"], row["samples"]) for row in rows] == [("1", "7"), ("4", "9")]
    whole = sum(float(row["accuracy"]) * int(row["samples"]) for row in rows) / 16
    assert tiny.records()[0]["test_acc"] == pytest.approx(whole)


def test_table_of_another_version_is_not_continued(tmp_path: Path) -> None:
    made = ResultTables(tmp_path)
    made.append(1, Results([ClientResult(0, 3, None, 0.5)]))
    made.append(2, Results([ClientResult(0, 3, 1 / 3, 0.25)]))
    made.append(2, Results(classes=[ClassResult(0, "=1\n,x", 2, 0.5, None, None, None)]))
    assert (tmp_path / "classes.csv").read_text().endswith('2,0,"\'=1\\n,x",2,0.5,,,\n')
    made.check("--resume")
    made.cut(1)
    assert (tmp_path / "clients.csv").read_text().splitlines()[1:] == ["1,0,3,,0.5"]
    (tmp_path / "clients.csv").write_text("round,client\n1,0\n")
    with pytest.raises(UserError, match=r"^--resume: .*clients\.csv"):
        made.check("--resume")


def test_client_without_a_label_that_counts_has_no_result() -> None:
    tallies = [((0, 0), Tally(1, 1.5, 2, 2)), ((1, 1), Tally(0, 0.0, 0, 0))]
    tallies += [((0, 2), Tally(2, 0.5, 2, 2))]
    assert client_results(tallies) == [ClientResult(0, 4, 0.75, 0.5)]
