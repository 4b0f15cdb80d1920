"""FedML's defences, attacks and differential privacy around our aggregator."""

import json
import logging
import math

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.testing import assert_close

import fednnnn_plugin as fp
from fednnnn_plugin.errors import RunError
from fednnnn_plugin.server.layout import State

from .conftest import SWITCHES
from .rounds import (
    COUNTS,
    PRIVACY,
    STATISTICS,
    TWO,
    WEIGHTS,
    clients,
    fedml_args,
    line,
    moved,
    net,
    play,
    refused,
)


def norm(update: State) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in update.values()))


def run_round(aggregator, given: list) -> tuple[State, list[int]]:
    """One round; w_t, and who was kept."""
    return aggregator.get_model_params(), play(aggregator, given)[1]


def send_away(given: list, client: int, distance: float) -> None:
    """Put a client far off, with a count to match."""
    for tensor in given[client][1].values():
        tensor.add_(distance if tensor.is_floating_point() else 1000)


def assert_average(aggregator, w_t: State, models: list, weights=None) -> None:
    """The evaluation model is the weighted mean of ``models``, the served one moved by βE."""
    weights = torch.tensor(weights or [1.0] * len(models), dtype=torch.float64)
    shares = (weights / weights.sum()).tolist()
    evaluation, served = aggregator.evaluation_state_dict(), aggregator.get_model_params()
    for name in (*WEIGHTS, *STATISTICS):
        mean = sum(a * model[name].double() for a, model in zip(shares, models, strict=True))
        assert_close(evaluation[name].double(), mean, rtol=1e-5, atol=1e-6)
    for name in COUNTS:
        assert torch.equal(evaluation[name], torch.stack([m[name] for m in models]).amax(0)), name
    for name in (*STATISTICS, *COUNTS):
        assert torch.equal(served[name], evaluation[name]), name
    *norms, moved = (norm({n: m[n] - w_t[n] for n in WEIGHTS}) for m in (*models, served))
    mean_norm = sum(a * length for a, length in zip(shares, norms, strict=True))
    assert moved == pytest.approx(0.5 * mean_norm, rel=1e-4)  # β is 1/2


CLIPPING = {"defense_type": "norm_diff_clipping"}
REPLACING = {"attack_type": "model_replacement"}
ZEROING = {"attack_type": "byzantine", "attack_mode": "zero", "byzantine_client_num": 3}


@pytest.mark.parametrize(
    ("settings", "changed"),
    [
        (CLIPPING | {"norm_bound": 0.2}, lambda k, w, u, length: w + u * min(1, 0.2 / length)),
        (REPLACING | {"malicious_client_id": 1}, lambda k, w, u, _: w + u * (3 if k == 1 else 1)),
        (ZEROING, lambda k, w, u, _: 0 * w),
    ],
)
def test_models_are_changed_by_clipping_and_attacks(settings, changed, secured) -> None:
    """In the second round one has sent no finite model; it is counted among the participants."""
    aggregator = secured(**settings)
    for places in ([0, 1, 2], [1, 2]):
        given = clients(aggregator, 3, len(places))
        if len(places) == 2:
            given[0][1]["1.bias"].fill_(math.nan)
        w_t, positions = run_round(aggregator, given)
        assert positions == places
        expected = []
        for k in places:
            state = given[k][1]
            update = {name: state[name] - w_t[name] for name in WEIGHTS}
            weights = {n: changed(k, w_t[n], u, norm(update)) for n, u in update.items()}
            expected.append(state | weights)
        assert_average(aggregator, w_t, expected)


def test_models_within_the_bound_are_as_sent(secured) -> None:
    """Also where a buffer stands before a parameter in ``state_dict``."""
    model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 2))
    model[0].register_buffer("table", torch.full((4,), 10.0))
    aggregator = secured(model, **CLIPPING, norm_bound=100.0)
    w_t = aggregator.get_model_params()
    sent = {name: tensor + 0.01 for name, tensor in w_t.items()}
    kept, _ = aggregator.on_before_aggregation([(1, sent), (1, sent)])
    for _, state in kept:
        assert_close(dict(state), sent)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # FedML's, of such a model
@pytest.mark.parametrize(("name", "kept"), [("krum", 1), ("multikrum", 3)])
def test_defence_leaves_outliers_out_and_names_them(name, kept, secured, caplog) -> None:
    """A model that is not finite would make every distance one that is none."""
    caplog.set_level(logging.INFO, "fednnnn_plugin")
    settings = {"byzantine_client_num": 1, "client_num_per_round": 8, "frequency_of_the_test": 0}
    aggregator = secured(defense_type=name, krum_param_m=kept, **settings)
    given = clients(aggregator, 8, 1)
    send_away(given, 1, 5.0)
    send_away(given, 4, math.nan)
    w_t, positions = run_round(aggregator, given)
    assert len(positions) == kept
    assert not {1, 4} & {*positions}
    assert_average(aggregator, w_t, [given[k][1] for k in positions])
    [said] = (line for line in caplog.messages if "N/E" in line)
    for k in range(8):
        why = "rejected: not finite" if k == 4 else f"left out: by {name}"
        assert (f"rank {k + 1} {why}" in said) == (k not in positions)
    for client in range(5):  # which it never sees: too few are left
        send_away(given, client, math.nan)
    with pytest.raises(RunError, match=rf"^defense_type: {name}: 3 of 8 .* needs "):
        run_round(aggregator, given)


def assert_noise_on_floats_only(noised: State, plain: State) -> None:
    for name, tensor in plain.items():
        assert noised[name].dtype == tensor.dtype
        assert torch.equal(noised[name], tensor) != tensor.is_floating_point(), name


def test_privacy_of_the_server(secured, tmp_path, caplog) -> None:
    """Clients are clipped, what we serve is noised, and the average is nowhere to be had."""
    path = tmp_path / "evaluation.safetensors"
    aggregator = secured(**PRIVACY, save_path=str(path))
    assert "epsilon does not cover the server rule" in caplog.text
    given, w_t = clients(aggregator, 3, scale=9.0), aggregator.get_model_params()
    kept, _ = aggregator.on_before_aggregation(given)
    for (_, clipped), (_, state) in zip(kept, given, strict=True):
        floating = {n: t for n, t in state.items() if t.is_floating_point()}
        expected = state | {n: t / max(1.0, norm(floating)) for n, t in floating.items()}
        assert_close(dict(clipped), dict(expected), rtol=1e-3, atol=1e-4)
    plain = aggregator.aggregate(kept)
    assert_close(aggregator.evaluation_state_dict(), w_t, rtol=0, atol=0)
    served = aggregator.on_after_aggregation(plain)
    aggregator.set_model_params(served)
    assert_noise_on_floats_only(served, plain)
    for state in (aggregator.evaluation_state_dict(), load_file(path)):
        assert_close(dict(state), dict(served), rtol=0, atol=0)
    following = secured()  # FedML's privacy is that of the process
    assert_close(following.on_before_aggregation(given)[0], given, rtol=0, atol=0)
    assert_close(following.on_after_aggregation(plain), plain, rtol=0, atol=0)


def test_privacy_keeps_ties_and_no_negative_variance(secured) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[1].weight = model[0].weight
    aggregator = secured(model, **PRIVACY | {"sensitivity": 50.0})
    run_round(aggregator, [(1, aggregator.get_model_params()) for _ in range(3)])
    served = aggregator.get_model_params()
    assert torch.equal(served["0.weight"], served["1.weight"])
    assert (served["2.running_var"] >= 0).all()


def sent_by(trainer: fp.FedNNNNClientTrainer) -> State:
    trainer.on_after_local_training([], "cpu", trainer.args)
    return trainer.get_model_params()


def test_privacy_of_the_clients(secured) -> None:
    """The client adds it, the server nothing."""
    local = PRIVACY | {"dp_solution_type": "ldp"}
    args = fedml_args(**local, round_idx=0)
    trainer = fp.FedNNNNClientTrainer(net(), args)
    trainer.set_id(0)
    data = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))]
    trainer.train(data, "cpu", args)
    trained = trainer.get_model_params()
    sent = sent_by(trainer)
    assert_noise_on_floats_only(sent, trained)
    aggregator = secured(**local)
    w_t, _ = run_round(aggregator, [(4, sent)])
    assert_average(aggregator, w_t, [sent])
    other = fp.FedNNNNClientTrainer(net(), fedml_args())  # of a later federation of the process
    assert_close(other.get_model_params(), sent_by(other), rtol=0, atol=0)
    below = sent | {STATISTICS[1]: sent[STATISTICS[1]] - 9.0}  # as of FedML's own trainer
    run_round(aggregator, [(4, below)])
    for state in (aggregator.get_model_params(), aggregator.evaluation_state_dict()):
        assert (state[STATISTICS[1]] == 0).all()


KRUM = {"defense_type": "krum", "byzantine_client_num": 1, "client_num_per_round": 4}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"defense_type": "cclip"}, r"defense_type: cclip: must be one of .* \(it "),
        (CLIPPING, "norm_bound: null: .* greater than 0"),
        (CLIPPING | {"norm_bound": True}, "norm_bound: true: .* greater than 0"),
        (KRUM, "client_num_per_round: 4: .* 5"),
        (REPLACING | {"malicious_client_id": 2}, "client_num_per_round: 2: .* 3"),
        ({"epsilon": 2.0}, "dp_solution_type: cdp: .*psilon"),
        ({"ml_engine": "jax"}, "ml_engine: jax: .* dp_solution_type: cdp"),
        ({"enable_fhe": True}, "enable_fhe: true"),
    ],
)
def test_security_settings_that_cannot_work_are_refused(values, named, secured) -> None:
    """What is not switched on is left alone."""
    named_kinds = {kind: values[kind] for kind in values.keys() & SWITCHES.values()}
    secured(**PRIVACY | named_kinds | dict.fromkeys(SWITCHES, False))
    with refused(named):
        secured(**PRIVACY | values)


def test_choice_without_its_switch_is_named(secured, caplog) -> None:
    """FedML ignores it; what is switched off by ``false`` is meant so."""
    secured(**CLIPPING, norm_bound=1.0, enable_defense=None)
    said = "defense_type: 'norm_diff_clipping': without effect: enable_defense is not given"
    assert caplog.messages == [said]
    secured(**CLIPPING, norm_bound=1.0, enable_defense=False)
    assert caplog.messages == [said]


def test_last_round_under_privacy_hands_over_the_served_model(secured, tmp_path) -> None:
    """Which is the one that is tested, and on record."""
    aggregator = secured(**PRIVACY, comm_round=1, metrics_path=str(tmp_path / "run"))
    w_t = aggregator.get_model_params()
    kept, _ = aggregator.on_before_aggregation(clients(aggregator, 3))
    handed = aggregator.aggregate(kept)
    models = [*(state for _, state in kept), handed]
    *each, moved_by = (norm({n: m[n] - w_t[n] for n in WEIGHTS}) for m in models)
    assert moved_by == pytest.approx(0.5 * sum(each) / 3, rel=1e-4)
    aggregator.on_after_aggregation(handed)
    assert set(fp.read_runs(tmp_path / "run")["evaluated"]) == {"served"}


@pytest.mark.parametrize(
    ("settings", "value", "clipped"),
    [
        (CLIPPING | {"norm_bound": 2.5}, 0.0, (True, True, False)),
        (PRIVACY | {"max_grad_norm": 2.5}, -4.0, (False, True, True)),
        (ZEROING, 0.0, (False, False, False)),
    ],
)
def test_clipped_clients_are_recorded_as_sent(settings, value, clipped, secured, tmp_path) -> None:
    """Privacy clips models, here (-1, 0), (-4, 4) and (-4, 1): the last one's update is longer."""
    model, path = line(2), tmp_path / "run"
    model.weight.data[0, 0] = value
    aggregator = secured(model, **settings, metrics_path=str(path))
    play(aggregator, moved(aggregator, *TWO, (0.0, 1.0), (0.0, math.nan)))
    record = json.loads((path / "metrics.jsonl").read_text())
    assert (record["clients"], record["rejected"]) == (3, 1)
    outcomes = [(one["outcome"], one["norm"]) for one in record["by_client"]]
    names = ["clipped" if each else "accepted" for each in clipped]
    assert outcomes == [*zip(names, (3.0, 4.0, 1.0), strict=True), ("rejected", None)]
    assert record["clipped"] == sum(clipped)
