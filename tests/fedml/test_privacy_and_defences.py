"""FedML's differential privacy, attacks and defences around our aggregator."""

import copy
import math
import re
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from fedml.core.dp.fedml_differential_privacy import FedMLDifferentialPrivacy
from fedml.core.security.defense.foolsgold_defense import FoolsGoldDefense
from fedml.core.security.fedml_attacker import FedMLAttacker
from fedml.core.security.fedml_defender import FedMLDefender
from safetensors.torch import load_file
from torch import nn
from torch.testing import assert_close

import fednnnn_plugin as fp
from fednnnn_plugin.errors import RunError
from fednnnn_plugin.fedml.security import SUPPORTED

BETA = 0.5
WEIGHTS = ("0.weight", "0.bias", "1.weight", "1.bias")
STATISTICS = ("0.running_mean", "0.running_var")
COUNTS = ("0.num_batches_tracked", "positions")


@pytest.fixture(autouse=True)
def _fedml_anew(monkeypatch) -> None:
    """FedML keeps these for as long as its process lasts."""
    monkeypatch.setattr(FedMLAttacker, "_attacker_instance", None)
    monkeypatch.setattr(FedMLDefender, "_defender_instance", None)
    monkeypatch.setattr(FedMLDifferentialPrivacy, "_dp_instance", None)


def net() -> nn.Module:
    """Batch normalisation's statistics, a count of batches, and a table of positions."""
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    model.register_buffer("positions", torch.arange(3))
    return model


@pytest.fixture
def server(silo):
    def build(model=None, **values):
        torch.manual_seed(0)
        others = {"gamma": None, "worker_num": 5, "process_id": 0, "enable_cuda_rpc": False}
        return silo(model or net(), "NormNorm", **others | values)

    return build


@pytest.fixture
def defended(server):
    return lambda name, **values: server(enable_defense=True, defense_type=name, **values)


def clients(aggregator, count: int, seed: int = 1, scale: float = 0.1) -> list:
    """Clients near the served model; client k has seen k more batches, of 10 (k + 1) samples."""
    generator = torch.Generator().manual_seed(seed)

    def near(name, tensor, client):
        if name in COUNTS:
            return tensor + client * (name == COUNTS[0])
        draw = torch.randn if name in WEIGHTS else torch.rand
        return tensor + scale * draw(tensor.shape, generator=generator)

    w_t = aggregator.get_model_params()
    return [
        (10 * (k + 1), OrderedDict((name, near(name, t, k)) for name, t in w_t.items()))
        for k in range(count)
    ]


def send_away(given: list, client: int, distance: float) -> None:
    """Put a client far off, with a count to match."""
    samples, state = given[client]
    moved = ((n, t + distance if t.is_floating_point() else t + 1000) for n, t in state.items())
    given[client] = samples, OrderedDict(moved)


@pytest.fixture
def run_round(play):
    def run_round(aggregator, given) -> tuple[OrderedDict, list[int]]:
        """Return w_t and who was kept."""
        w_t = aggregator.get_model_params()
        return w_t, play(aggregator, given)[1]

    return run_round


def norm(update) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in update.values()))


def check(aggregator, w_t, models, weights=None) -> None:
    """The evaluation model is the weighted mean of ``models``, the served one moved by βE."""
    weights = weights or [1.0] * len(models)
    shares = [w / sum(weights) for w in weights]
    evaluation, served = aggregator.evaluation_state_dict(), aggregator.get_model_params()
    for name in (*WEIGHTS, *STATISTICS):
        mean = sum(a * model[name].double() for a, model in zip(shares, models, strict=True))
        assert_close(evaluation[name].double(), mean, rtol=1e-5, atol=1e-6)
    for name in COUNTS:
        assert torch.equal(evaluation[name], torch.stack([m[name] for m in models]).amax(0)), name
    for name in (*STATISTICS, *COUNTS):
        assert torch.equal(served[name], evaluation[name]), name
    norms = [norm({n: model[n] - w_t[n] for n in WEIGHTS}) for model in models]
    expected = BETA * sum(a * x for a, x in zip(shares, norms, strict=True))
    assert norm({n: served[n] - w_t[n] for n in WEIGHTS}) == pytest.approx(expected, rel=1e-4)


def test_norm_diff_clipping(defended, run_round) -> None:
    bound = 0.2
    aggregator = defended("norm_diff_clipping", norm_bound=bound)
    for seed in (1, 2):
        given = clients(aggregator, 4, seed)
        w_t, positions = run_round(aggregator, given)
        assert positions == [0, 1, 2, 3]
        clipped = []
        for _, state in given:
            length = norm({name: state[name] - w_t[name] for name in WEIGHTS})
            assert length > bound
            changed = {n: w_t[n] + (state[n] - w_t[n]) * bound / length for n in WEIGHTS}
            clipped.append(state | changed)
        check(aggregator, w_t, clipped)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # FedML's, of such a model
@pytest.mark.parametrize(
    ("name", "settings", "count", "far", "broken"),
    [
        ("krum", {"byzantine_client_num": 1}, 5, 5.0, None),
        ("multikrum", {"byzantine_client_num": 1, "krum_param_m": 3}, 8, 5.0, math.nan),
        ("3sigma", {}, 6, 5.0, math.inf),
        ("anomaly_detection", {"cosine_similarity_bound": 0.5}, 6, -5.0, math.nan),
    ],
)
def test_who_is_far_off_or_not_finite_is_left_out(
    name, settings, count, far, broken, defended, run_round
) -> None:
    """A model that is not finite would make every distance one that is none."""
    aggregator = defended(name, client_num_per_round=count, **settings)
    for seed in (1, 2, 3):
        given = clients(aggregator, count, seed)
        send_away(given, 1, far)
        if broken and seed == 2:
            send_away(given, 4, broken)
        w_t, positions = run_round(aggregator, given)
        assert positions
        assert 1 not in positions
        assert not (broken and seed == 2 and 4 in positions)
        if "krum" in name:
            assert len(positions) == settings.get("krum_param_m", 1)
        check(aggregator, w_t, [given[k][1] for k in positions])


def test_krum_says_at_the_start_and_later_how_many_clients_it_needs(defended, run_round) -> None:
    """Whose models are not finite it never sees."""
    krum = {"name": "krum", "byzantine_client_num": 1}
    for refused in ({"client_num_per_round": 4}, {"byzantine_client_num": None}):
        with pytest.raises(fp.UserError, match=r"defense_type:? krum"):
            defended(**krum | {"client_num_per_round": 5} | refused)
    aggregator = defended(**krum, client_num_per_round=5)
    given = clients(aggregator, 5)
    send_away(given, 1, math.nan)
    with pytest.raises(RunError, match=r"^defense_type: krum: 4 of 5 clients .* needs 5$"):
        run_round(aggregator, given)


def test_3sigma_foolsgold(defended, run_round) -> None:
    aggregator = defended("3sigma_foolsgold")
    given = clients(aggregator, 14, scale=2.0)
    given[13] = (given[13][0], copy.deepcopy(given[2][1]))  # two of one mind
    send_away(given, 7, math.nan)
    w_t, positions = run_round(aggregator, given)
    assert len(positions) < 13
    assert not {2, 7, 13} & set(positions)
    check(aggregator, w_t, [given[k][1] for k in positions])


def test_foolsgold(defended, run_round) -> None:
    """It weighs by what it remembers of clients by their place, which none may leave."""
    aggregator = defended("foolsgold", client_weighting="samples")
    memory = 0.0
    for seed in (1, 2):
        given = clients(aggregator, 6, seed, scale=2.0)
        given[5] = (given[5][0], copy.deepcopy(given[0][1]))
        seen = [state for _, state in given]
        if seed == 1:
            send_away(given, 3, math.nan)
            seen[3] = aggregator.get_model_params()  # stands in
        w_t, positions = run_round(aggregator, given)
        memory = memory + np.stack([state["1.weight"].numpy().reshape(-1) for state in seen])
        verdict = FoolsGoldDefense.fools_gold_score(list(memory))
        assert positions == [k for k in range(6) if not (seed == 1 and k == 3)]
        weighed = [k for k in positions if verdict[k] > 0]
        assert len(weighed) < len(positions)
        weights = [float(given[k][0] * verdict[k]) for k in weighed]
        check(aggregator, w_t, [given[k][1] for k in weighed], weights)


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("name", ["foolsgold", "3sigma_foolsgold"])
def test_who_failed_keeps_his_place_in_what_a_defence_remembers(
    name, first, defended, run_round
) -> None:
    """In the first round, or in one after it."""
    aggregator = defended(name, client_weighting="samples", max_client_failures=1)
    for number in (1, 2):
        given = clients(aggregator, 6, number, scale=2.0)
        if number == first:
            del given[3][1]["1.bias"]
        _, positions = run_round(aggregator, given)
        assert positions
        assert number != first or 3 not in positions


def test_byzantine(server, run_round) -> None:
    attack = {"enable_attack": True, "attack_type": "byzantine", "attack_mode": "zero"}
    aggregator = server(**attack, byzantine_client_num=5)
    w_t, _ = run_round(aggregator, clients(aggregator, 5))
    evaluation = aggregator.evaluation_state_dict()
    assert not any(evaluation[name].any() for name in WEIGHTS)
    assert evaluation[COUNTS[0]] == w_t[COUNTS[0]] + 4


def test_model_replacement(server, run_round) -> None:
    aggregator = server(enable_attack=True, attack_type="model_replacement", malicious_client_id=1)
    given = clients(aggregator, 3)
    w_t, positions = run_round(aggregator, given)
    assert positions == [0, 1, 2]
    state = given[1][1]
    replaced = state | {name: w_t[name] + 3 * (state[name] - w_t[name]) for name in WEIGHTS}
    check(aggregator, w_t, [given[0][1], replaced, given[2][1]])


PRIVACY = {"enable_dp": True, "dp_solution_type": "cdp", "mechanism_type": "gaussian"}
PRIVACY |= {"epsilon": 0.9, "delta": 0.01, "sensitivity": 0.05, "max_grad_norm": 1.0}


def assert_noise_on_floats_only(noised, plain) -> None:
    for name, tensor in plain.items():
        assert noised[name].dtype == tensor.dtype
        assert torch.equal(noised[name], tensor) != tensor.is_floating_point(), name


def test_global_privacy(server, tmp_path, caplog) -> None:
    """Clients are clipped, what we serve is noised, and the average is nowhere to be had."""
    path = tmp_path / "evaluation.safetensors"
    aggregator = server(**PRIVACY, save_path=str(path))
    assert "epsilon does not cover the server rule" in caplog.text
    given, w_t = clients(aggregator, 3), aggregator.get_model_params()
    kept, _ = aggregator.on_before_aggregation(given)
    for (_, clipped), (_, state) in zip(kept, given, strict=True):
        floating = {n: t for n, t in state.items() if t.is_floating_point()}
        scale = max(1.0, norm(floating))
        expected = state | {name: tensor / scale for name, tensor in floating.items()}
        assert_close(OrderedDict(clipped), OrderedDict(expected), rtol=1e-3, atol=1e-4)
    plain = aggregator.aggregate(kept)
    assert_close(aggregator.evaluation_state_dict(), w_t, rtol=0, atol=0)
    served = aggregator.on_after_aggregation(plain)
    aggregator.set_model_params(served)
    assert_noise_on_floats_only(served, plain)
    for state in (aggregator.evaluation_state_dict(), load_file(path)):
        assert_close(dict(state), dict(served), rtol=0, atol=0)


def test_noise_keeps_tied_parameters_tied_and_makes_no_variance_negative(server, run_round) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[1].weight = model[0].weight
    aggregator = server(model, **PRIVACY | {"sensitivity": 50.0})
    run_round(aggregator, [(1, aggregator.get_model_params()) for _ in range(3)])
    served = aggregator.get_model_params()
    assert torch.equal(served["0.weight"], served["1.weight"])
    assert (served["2.running_var"] >= 0).all()


def test_local_privacy(server, fedml_args, run_round) -> None:
    """The client adds it, the server nothing."""
    local = PRIVACY | {"dp_solution_type": "ldp"}
    args = fedml_args(**local, round_idx=0)
    trainer = fp.FedNNNNClientTrainer(net(), args)
    trainer.set_id(0)
    data = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))]
    trainer.train(data, "cpu", args)
    trained = trainer.get_model_params()
    trainer.on_after_local_training(data, "cpu", args)
    sent = trainer.get_model_params()
    assert_noise_on_floats_only(sent, trained)
    aggregator = server(**local)
    w_t, _ = run_round(aggregator, [(4, sent)])
    check(aggregator, w_t, [sent])
    below = sent | {STATISTICS[1]: sent[STATISTICS[1]] - 9.0}  # as of FedML's own trainer
    run_round(aggregator, [(4, below)])
    for state in (aggregator.get_model_params(), aggregator.evaluation_state_dict()):
        assert (state[STATISTICS[1]] == 0).all()


def test_no_client_is_finite(defended, run_round) -> None:
    aggregator = defended("3sigma", client_num_per_round=3)
    state = {n: t + math.nan if t.is_floating_point() else t for n, t in net().state_dict().items()}
    with pytest.raises(RunError, match="no client update to average: 0 have weight 0"):
        run_round(aggregator, [(1, OrderedDict(state))] * 3)


REFUSED = [(key, value) for key, (_, _, _, refused) in SUPPORTED.items() for value in refused]
REFUSED += [*((key, "another") for key in SUPPORTED), ("defense_type", "foolsgold")]


@pytest.mark.parametrize(("key", "value"), REFUSED)
def test_the_rest_is_refused_by_name_where_it_is_enabled(key, value, server) -> None:
    """Each that FedML has, with its reason, what it does not have, and what lacks a setting."""
    switch, _, allowed, refused = SUPPORTED[key]
    line = f"must be one of {', '.join(allowed)}"
    if value == "foolsgold":
        line = "it puts its verdict into the numbers of samples: set train_args.client_weighting"
    with pytest.raises(fp.UserError, match=f"^{key}: {value}: {line}") as caught:
        server(**{switch: True, key: value})
    assert refused.get(value, "") in str(caught.value)
    server(**{switch: False, key: value})


def test_the_readme_lists_the_same() -> None:
    readme = (Path(__file__).parents[2] / "launch" / "README.md").read_text().splitlines()
    for key, (_, _, allowed, refused) in SUPPORTED.items():
        [row] = [line for line in readme if line.startswith(f"| `{key}` |")]
        _, _, works, fails, _ = (re.findall(r"`(\w+)`", cell) for cell in row.split("|"))
        assert sorted(works) == sorted(allowed)
        assert set(refused) <= set(fails)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (PRIVACY | {"delta": None}, "dp_solution_type: cdp: .*elta"),
        (PRIVACY | {"epsilon": 2.0}, "dp_solution_type: cdp: .*psilon"),
        (PRIVACY | {"max_grad_norm": "1e-1"}, "max_grad_norm: '1e-1': must be a positive"),
        ({"defense_type": "norm_diff_clipping"}, "norm_bound: None: must be a positive"),
        ({"defense_type": "norm_diff_clipping", "norm_bound": "1e-1"}, "norm_bound: '1e-1'"),
        ({"defense_type": "krum", "byzantine_client_num": 0, "krum_param_m": 0}, "krum_param_m: 0"),
        (
            {"defense_type": "anomaly_detection", "client_num_per_round": 3},
            "defense_type: .* 'cosine_similarity_bound'",
        ),
        (
            {"defense_type": "anomaly_detection", "cosine_similarity_bound": "5e-1"},
            "cosine_similarity_bound: '5e-1': must be a number",
        ),
        ({"defense_type": "3sigma", "client_num_per_round": 2}, "defense_type: 3sigma: .* least 3"),
        (
            {"attack_type": "model_replacement", "malicious_client_id": 2},
            "malicious_client_id: 2: .* below 2",
        ),
        (PRIVACY | {"ml_engine": "jax"}, "ml_engine: jax: .* dp_solution_type: cdp"),
        ({"attack_type": "byzantine"}, "byzantine_client_num: None: attack_type byzantine"),
        ({"attack_type": "byzantine", "byzantine_client_num": 1}, "attack_mode: None: must be"),
    ],
)
def test_what_a_setting_lacks_is_said_at_the_start(values, named, server) -> None:
    switches = {switch: key in values for key, (switch, *_) in SUPPORTED.items()}
    with pytest.raises(fp.UserError, match=f"^{named}") as caught:
        server(**switches | values)
    assert "\n" not in str(caught.value)


def test_what_fedml_cannot_do_with_a_model_is_one_line(defended) -> None:
    """FoolsGold looks at the entry before the last, which a model of one has not."""
    model = nn.Linear(2, 1, bias=False)
    server = defended("3sigma", model=model, client_num_per_round=3)
    with pytest.raises(RunError, match=r"^defense_type: 3sigma: FedML 0\.9\.6 fails on .*: \w"):
        server.on_before_aggregation([(1, model.state_dict())] * 3)


def test_a_process_has_one_federation_after_the_other(server) -> None:
    """FedML's privacy, attack and defence are those of the process."""
    server(**PRIVACY)
    given = clients(plain := server(), 3, scale=9.0)
    kept, _ = plain.on_before_aggregation(given)
    assert all(
        torch.equal(one["1.weight"], of["1.weight"])
        for (_, one), (_, of) in zip(kept, given, strict=True)
    )
    served = plain.aggregate(kept)
    assert_close(plain.on_after_aggregation(served), served, rtol=0, atol=0)


def test_buckets_contributions_encryption_and_the_accountant_are_refused(server, defended) -> None:
    with pytest.raises(fp.UserError, match="bucketing_batch_size: 2"):
        defended("3sigma_foolsgold", bucketing_batch_size=2)
    for key in ("enable_contribution", "enable_fhe"):
        with pytest.raises(fp.UserError, match=f"^{key}: true"):
            server(**{key: True})
    accountant = {"enable_rdp_accountant": True, "rdp_alpha": 2}
    with pytest.raises(fp.UserError, match=r"^enable_rdp_accountant: true"):
        server(**PRIVACY | accountant)
    server(**accountant)
