"""FedML's defences and attacks around our aggregator, each against what it is to do."""

import copy
import logging
import math

import numpy as np
import pytest
import torch
from fedml.core.security.defense.foolsgold_defense import FoolsGoldDefense
from fedml.core.security.fedml_defender import FedMLDefender

from fednnnn_plugin.errors import RunError

from .rounds import COUNTS, WEIGHTS, assert_average, clients, line, norm, run_round, send_away

FEATURE = "1.weight"  # of FoolsGold: the last entry but one


@pytest.fixture
def defended(secured):
    return lambda name, **values: secured(enable_defense=True, defense_type=name, **values)


def test_defence_norm_diff_clipping(defended) -> None:
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
        assert_average(aggregator, w_t, clipped)


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
def test_defence_leaves_outliers_out_and_names_them(
    name, settings, count, far, broken, defended, caplog
) -> None:
    """A model that is not finite would make every distance one that is none."""
    caplog.set_level(logging.INFO, "fednnnn_plugin")
    aggregator = defended(name, client_num_per_round=count, frequency_of_the_test=0, **settings)
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
        assert_average(aggregator, w_t, [given[k][1] for k in positions])
        lines = (line for line in caplog.messages if line.startswith(f"round {seed}: "))
        said = next(line for line in lines if "N/E" in line)
        for k in range(count):
            why = "not finite" if broken and seed == 2 and k == 4 else f"by {name}"
            assert (f"rank {k + 1} left out: {why}" in said) == (k not in positions)


def test_defence_3sigma_foolsgold(defended) -> None:
    aggregator = defended("3sigma_foolsgold")
    given = clients(aggregator, 14, scale=2.0)
    given[13] = (given[13][0], copy.deepcopy(given[2][1]))  # two of one mind
    send_away(given, 7, math.nan)
    w_t, positions = run_round(aggregator, given)
    assert len(positions) < 13
    assert not {2, 7, 13} & set(positions)
    assert_average(aggregator, w_t, [given[k][1] for k in positions])


def test_defence_foolsgold_weighs_by_its_memory(defended) -> None:
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
        memory = memory + np.stack([state[FEATURE].numpy().reshape(-1) for state in seen])
        verdict = FoolsGoldDefense.fools_gold_score(list(memory))
        assert positions == [k for k in range(6) if not (seed == 1 and k == 3)]
        weighed = [k for k in positions if verdict[k] > 0]
        assert len(weighed) < len(positions)
        weights = [float(given[k][0] * verdict[k]) for k in weighed]
        assert_average(aggregator, w_t, [given[k][1] for k in weighed], weights)


@pytest.mark.parametrize("failing", [1, 2])
@pytest.mark.parametrize("name", ["foolsgold", "3sigma_foolsgold"])
def test_defence_remembers_a_failed_client(name, failing, defended) -> None:
    """The served model stands in for it, in the first round as in one after it."""
    aggregator = defended(name, client_weighting="samples", max_client_failures=1)
    expected = np.zeros((6, 6))
    for number in (1, 2):
        given = clients(aggregator, 6, number, scale=2.0)
        seen = [state[FEATURE] for _, state in given]
        if number == failing:
            del given[3][1]["1.bias"]
            seen[3] = aggregator.get_model_params()[FEATURE]
        _, positions = run_round(aggregator, given)
        assert positions
        assert number != failing or 3 not in positions
        expected += torch.stack(seen).flatten(1).numpy()
    np.testing.assert_allclose(
        np.stack(FedMLDefender.get_instance().defender.memory), expected, rtol=1e-5
    )


def test_attack_by_byzantine_clients(secured) -> None:
    attack = {"enable_attack": True, "attack_type": "byzantine", "attack_mode": "zero"}
    aggregator = secured(**attack, byzantine_client_num=5)
    w_t, _ = run_round(aggregator, clients(aggregator, 5))
    evaluation = aggregator.evaluation_state_dict()
    assert not any(evaluation[name].any() for name in WEIGHTS)
    assert evaluation[COUNTS[0]] == w_t[COUNTS[0]] + 4


def test_attack_by_model_replacement(secured) -> None:
    aggregator = secured(enable_attack=True, attack_type="model_replacement", malicious_client_id=1)
    given = clients(aggregator, 3)
    w_t, positions = run_round(aggregator, given)
    assert positions == [0, 1, 2]
    state = given[1][1]
    replaced = state | {name: w_t[name] + 3 * (state[name] - w_t[name]) for name in WEIGHTS}
    assert_average(aggregator, w_t, [given[0][1], replaced, given[2][1]])


@pytest.mark.parametrize(
    ("name", "settings", "count", "broken", "line"),
    [
        # Those that are not finite it never sees.
        ("krum", {"byzantine_client_num": 1}, 5, 1, "^defense_type: krum: 4 of 5 .* needs 5$"),
        ("3sigma", {}, 3, 3, "no client update to average"),
    ],
)
def test_defence_without_enough_finite_clients_ends(
    name, settings, count, broken, line, defended
) -> None:
    aggregator = defended(name, client_num_per_round=count, **settings)
    given = clients(aggregator, count)
    for client in range(broken):
        send_away(given, client, math.nan)
    with pytest.raises(RunError, match=line):
        run_round(aggregator, given)


def test_defence_that_fails_is_one_line(defended) -> None:
    """FoolsGold looks at the entry before the last, which a model of one has not."""
    server = defended("3sigma", model=line(), client_num_per_round=3)
    with pytest.raises(RunError, match=r"^defense_type: 3sigma: FedML 0\.9\.6 fails on .*: \w"):
        server.on_before_aggregation([(1, line().state_dict())] * 3)
