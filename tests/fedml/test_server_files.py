"""What a cross-silo server says of its rounds, what it keeps in files, and how it resumes."""

import json
import logging
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

import fednnnn_plugin as fp
from fednnnn_plugin.reporting.conditions import arrange
from fednnnn_plugin.reporting.outcomes import outcomes
from fednnnn_plugin.server.rules import RULES

from .rounds import CPU, TWO, clients, line, moved, net, play, refused, silo

#: A batch whose labels a :func:`line` has right that moves up.
DATA = [(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64))]


def server(start=0, model=None, method="FedNNNN", **values) -> fp.FedNNNNAggregator:
    torch.manual_seed(start)  # of a restart's own model
    keys = {"beta": None, "gamma": None, **dict.fromkeys(RULES[method].keys, 0.5)}
    keys |= {"server_state_path": "folder/state", "metrics_path": "run", "start_round": start}
    return silo(model or net(), method, **keys | values)


def advance(server, number: int) -> None:
    """A round of clients that differ from round to round, and from what is served."""
    play(server, clients(server, 3, number))


def records(folder: str) -> list[dict]:
    lines = Path(folder, "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) | {"seconds": None, "time": None} for line in lines]


def test_rounds_are_said_and_kept_by_hand(own_folder, caplog) -> None:
    """Of (3, 4), (0, 1), (8, 6) clipped to 5 and one not finite: S = (7, 8) / 3, E = 11 / 3."""
    caplog.set_level(logging.INFO, "fednnnn_plugin")
    values = {"epochs": None, "max_client_norm": 5.0, "frequency_of_the_test": 2}
    silo = server(0, line(2), client_id_list="[7, 8, 9, 10]", **values)
    updates = ((3.0, 4.0), (0.0, 1.0), (8.0, 6.0), (0.0, math.nan))
    play(silo, moved(silo, *updates))
    silo.test(DATA, CPU, silo.args)
    play(silo, moved(silo, *updates))  # which FedML does not test
    assert silo.test(None, CPU, silo.args) == (None,) * 4  # without test data
    first, second = records("run")
    outcomes = [(one["client"], one["outcome"], one["norm"]) for one in first["by_client"]]
    assert outcomes[:2] == [(7, "accepted", 5.0), (8, "accepted", 1.0)]
    assert outcomes[2:] == [(9, "clipped", 10.0), (10, "rejected", None)]
    assert (first["tested"], second["tested"], first["clipped"]) == (1, 0, 1)
    assert first["mean_client_norm"] == pytest.approx(11 / 3)
    assert first["mean_update_norm"] == pytest.approx(math.sqrt(49 + 64) / 3)
    assert first["client_norms"] == pytest.approx([1, 5, 5])
    assert (first["test_acc"], second["test_acc"], first["evaluated"]) == (1.0, None, "average")
    for said in (text for text in caplog.messages if "N/E" in text):
        for part in (f"N/E {math.sqrt(113) / 11:.3f}", "1, 5, 5", "1 rejected", "rank 10 rejected"):
            assert part in said
        assert said.count("clipped") == said.count("rank 9 clipped") == 1
    row = fp.read_runs("run").iloc[0]
    assert (row["method"], row["learning_rate"]) == ("FedNNNN", 0.1)
    assert not {"epochs", "precision"} & {*row.index}  # the clients may have others


@pytest.mark.parametrize("method", ["FedNNNN", "FedExP", "FedAdam"])
def test_restart_costs_no_bits_and_no_records(method, own_folder) -> None:
    """A process for each round; the second dies after its record, and its round is done again."""
    whole = server(method=method, server_state_path="whole", metrics_path="undisturbed")
    for number in range(2):
        advance(whole, number)
    for start, dies in ((0, False), (1, True), (1, False)):
        before = Path("folder/state").read_bytes() if start else b""
        continued = server(start, method=method)
        if start:
            served, tested = continued.get_model_params(), continued.evaluation_state_dict()
            assert_close(tested, served, rtol=0, atol=0)
        advance(continued, 7 if dies else start)
        if dies:
            Path("folder/state").write_bytes(before)
    for found, expected in (
        (continued.get_model_params(), whole.get_model_params()),
        (continued.evaluation_state_dict(), whole.evaluation_state_dict()),
        (load_file("folder/state"), load_file("whole")),
    ):
        assert_close(found, expected, rtol=0, atol=0)
    assert records("run") == records("undisturbed")
    kept = {f"state.round-{number}{kind}" for number in (1, 2) for kind in ("", ".model")}
    assert {path.name for path in Path("folder").iterdir()} == {"state", *kept}


def test_settings_total_of_rounds_and_tested_ones_outlive_a_restart(own_folder, caplog) -> None:
    """FedML tests rounds 1 and 3, of 3 and 4 the first and the last after a restart: 4 and 7.

    Settings are recorded also where the server does not read them; others after that are told.
    """
    others = {"prox_mu": 0.1, "weight_decay": 5e-4, "client_optimizer": "adam"}
    values = {"model": line(2), "frequency_of_the_test": 5, "method": "PaperFedProx"} | others
    for start, rounds in ((0, 3), (3, 4)):
        silo = server(start, comm_round=rounds, **values)
        for number in range(rounds):
            play(silo, moved(silo, *TWO))
            if number % 5 == 0 or number == rounds - 1:
                silo.test(DATA, CPU, silo.args)
        runs = fp.read_runs("run")
        assert set(runs["comm_round"]) == {start + rounds}
    assert runs["round"][runs["tested"].astype(bool)].tolist() == [1, 3, 4, 7]
    assert outcomes(arrange(runs))["final"].tolist() == [1.0]
    assert {key: runs[key][0] for key in others} == others
    assert "records, if kept" not in caplog.text
    silo = server(7, **values | {"prox_mu": None}, client_weighting="samples")
    assert "state: client_weighting: 'samples', but 'uniform' up to round 7; " in caplog.text
    assert "state: prox_mu: null, but 0.1 up to round 7; " in caplog.text
    assert fp.read_runs("run")["prox_mu"].unique().tolist() == [0.1]  # until there is another round
    play(silo, moved(silo, *TWO))
    assert "prox_mu" not in fp.read_runs("run")


def test_a_kept_state_is_gone_back_to(own_folder, caplog) -> None:
    """Rounds 2 to 4 are kept; from 3 on again, with the bits and records of the first time."""
    first = server()
    for number in range(4):
        advance(first, number)
    whole, rounds = load_file("folder/state"), records("run")
    with refused(r"server_state_path: .*start_round: 4 .*\(2, 3\)"):
        server(1)
    again = server(3)
    assert "newest state is of round 4: start_round 3 goes back, and drops" in caplog.text
    assert_close(load_file("folder/state.round-3.model"), _model_after(3), rtol=0, atol=0)
    advance(again, 3)
    assert_close(load_file("folder/state"), whole, rtol=0, atol=0)
    assert records("run") == rounds
    advance(server(4, keep_states=1), 4)
    assert [path.name for path in Path("folder").iterdir()] == ["state"]


def _model_after(rounds: int) -> dict[str, torch.Tensor]:
    """The evaluation model of an undisturbed federation."""
    undisturbed = server(server_state_path=None, metrics_path=None)
    for number in range(rounds):
        advance(undisturbed, number)
    return dict(undisturbed.evaluation_state_dict())


def test_state_is_of_what_was_set(own_folder) -> None:
    """At a first start too, from weights of the user's; with noise on what was aggregated."""
    pretrained = net().half().state_dict()
    server(model=net().half()).set_model_params(pretrained)
    first = server(model=net().half())
    assert_close(first.get_model_params(), pretrained, rtol=0, atol=0)
    advance(first, 0)
    served = first.get_model_params()
    noised = {n: t + 1 if t.is_floating_point() else t for n, t in served.items()}
    first.set_model_params(noised)
    assert_close(server(1, net().half()).get_model_params(), noised, rtol=0, atol=0)
    stored = load_file("folder/state")
    assert stored["1.weight"].dtype == torch.float16
    assert stored[".momentum.1.weight"].dtype == torch.float32


def test_last_round_hands_over_the_evaluation_model(own_folder) -> None:
    last_two = server(0, line(), comm_round=2)
    first, _ = play(last_two, moved(last_two, *TWO))
    assert_close(first["weight"], 0.5 * 3.5 / 2.5 * torch.tensor([[1.5, 2.0]]))
    last, _ = play(last_two, moved(last_two, *TWO))
    average = first["weight"] + torch.tensor([[1.5, 2.0]])
    for found in (last, last_two.evaluation_state_dict(), last_two.model.state_dict()):
        assert_close(found["weight"], average)
    following = 1.5 * first["weight"] + first["weight"]  # d ← d / 2 + d₁, with d₁ = w₁
    assert_close(load_file("folder/state")["weight"], following)


DAMAGED = {
    "short": lambda content: content[:-1],
    "empty": lambda content: b"",
    "header": lambda content: content[:20] + bytes([content[20] ^ 1]) + content[21:],
    "data": lambda content: content[:-9] + bytes([content[-9] ^ 64]) + content[-8:],
}


@pytest.mark.parametrize(
    ("start", "values", "named"),
    [
        (1, {"method": "Momentum"}, "server_state_path: .*: the state is of FedNNNN"),
        (1, {"model": line()}, "server_state_path: .*: the state is of another model"),
        (1, {"server_state_path": "weights"}, "server_state_path: .*weights: not a whole"),
        *((1, {"server_state_path": kind}, "server_state_path: .* whole") for kind in DAMAGED),
        (1, {"server_state_path": "absent"}, "train_args.start_round: 1: "),
        (0, {"server_state_path": None}, "metrics_path: .*start_round"),
        (1, {"metrics_path": "other"}, "metrics_path: .*other: .*start_round"),
        (
            0,
            {"metrics_path": "others", "server_state_path": None},
            "metrics_path: .*others/clients.csv: its first line",
        ),
        (
            0,
            {"metrics_path": "mine", "server_state_path": None},
            "metrics_path: .*mine/recipe.yaml: of no federation",
        ),
        (1, {"save_path": "."}, r"save_path: \.: is no regular file"),
        (1, {"save_path": "run/../folder/state"}, "save_path: run/../folder/state: is the server_"),
    ],
)
def test_server_files_that_do_not_fit_are_refused(start, values, named, own_folder) -> None:
    advance(server(), 0)
    save_file(net().state_dict(), "weights")
    for own in ("others/clients.csv", "mine/recipe.yaml"):
        Path(own).parent.mkdir()
        Path(own).write_text("name,country")  # a line without an end
    for name, damage in DAMAGED.items():
        Path(name).write_bytes(damage(Path("folder/state").read_bytes()))
    with refused(named):
        server(start, **values)


def test_state_is_kept_where_the_average_cannot_be(own_folder) -> None:
    running = server(save_path="average")
    Path("average").mkdir()
    with pytest.raises(OSError, match="average"):
        advance(running, 0)
    server(1)


def test_client_process_keeps_no_files(own_folder) -> None:
    server(5, role="client")
    assert not [*own_folder.iterdir()]


def test_server_watches_its_rounds(own_folder, caplog) -> None:
    watched = silo(prometheus_path="p", warn_norm_ratio=0.99, frequency_of_the_test=0)
    play(watched, moved(watched, *TWO))
    assert "fednnnn_mean_update_norm 2.5" in Path("p").read_text()
    assert any("the largest client norm, 4," in text for text in caplog.messages)
