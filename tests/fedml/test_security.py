"""FedML's security settings: what our aggregation takes, and what it refuses at the start."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest
from fedml.core.dp.common import constants as privacy_names
from fedml.core.security import constants as security_names

from fednnnn_plugin.fedml.security import SUPPORTED

from .rounds import PRIVACY, refused

SWITCHES = {
    "defense_type": "enable_defense",
    "attack_type": "enable_attack",
    "dp_solution_type": "enable_dp",
}
#: What the other files test, with the settings that it needs.
WORKS = {
    ("defense_type", "norm_diff_clipping"): {"norm_bound": 1.0},
    ("defense_type", "krum"): {"byzantine_client_num": 1},
    ("defense_type", "multikrum"): {"byzantine_client_num": 1, "krum_param_m": 1},
    ("defense_type", "3sigma"): {},
    ("defense_type", "3sigma_foolsgold"): {},
    ("defense_type", "foolsgold"): {"client_weighting": "samples"},
    ("defense_type", "anomaly_detection"): {"cosine_similarity_bound": 0.5},
    ("attack_type", "byzantine"): {"byzantine_client_num": 1, "attack_mode": "zero"},
    ("attack_type", "model_replacement"): {"malicious_client_id": 1},
    ("dp_solution_type", "cdp"): {},
    ("dp_solution_type", "ldp"): {},
}


def named(constants: object, start: str) -> set[str]:
    return {str(value) for name, value in vars(constants).items() if re.match(start, name)}


FEDMLS = {
    "defense_type": named(security_names, "DEFENSE_|ANOMALY_"),
    "attack_type": named(security_names, "ATTACK_|BACKDOOR_"),
    "dp_solution_type": named(privacy_names, "DP_[CL]|NBAFL_DP"),
}


@pytest.mark.parametrize(
    ("key", "name"), sorted((key, name) for key, names in FEDMLS.items() for name in names)
)
def test_security_name_of_fedmls_works_or_is_refused(key, name, secured) -> None:
    """Where it is switched off it is left alone."""
    settings = PRIVACY | {"enable_dp": False, "client_num_per_round": 5, key: name}
    settings |= WORKS.get((key, name), {})
    secured(**settings)
    works = (key, name) in WORKS
    with nullcontext() if works else refused(f"{key}: {name}: must be one of "):
        secured(**settings | {SWITCHES[key]: True})


def test_security_page_lists_what_the_code_does() -> None:
    page = (Path(__file__).parents[2] / "launch" / "README.md").read_text().splitlines()
    for key, (_, _, works, lacking) in SUPPORTED.items():
        [row] = [line for line in page if line.startswith(f"| `{key}` |")]
        _, _, named, fails, _ = (re.findall(r"`(\w+)`", cell) for cell in row.split("|"))
        assert sorted(named) == sorted(works) == sorted(n for k, n in WORKS if k == key)
        assert set(lacking) <= set(fails)


CDP = {"dp_solution_type": "cdp"}
KRUM = {"defense_type": "krum", "byzantine_client_num": 1, "client_num_per_round": 5}
CLIPPING = {"defense_type": "norm_diff_clipping"}
ANOMALY = {"defense_type": "anomaly_detection", "client_num_per_round": 3}


SIGMAS = {"defense_type": "3sigma", "client_num_per_round": 2}
FOOLSGOLD = {"defense_type": "3sigma_foolsgold", "bucketing_batch_size": 2}
REPLACEMENT = {"attack_type": "model_replacement", "malicious_client_id": 2}
RDP = {"enable_rdp_accountant": True, "rdp_alpha": 2}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"defense_type": "another"}, "defense_type: another: must be one of"),
        ({"defense_type": "foolsgold"}, "client_weighting: null: .*'samples'"),
        (FOOLSGOLD, "bucketing_batch_size: 2"),
        (SIGMAS, "client_num_per_round: 2: .* least 3"),
        (CLIPPING, "norm_bound: null: .* positive"),
        (CLIPPING | {"norm_bound": "1e-1"}, "norm_bound: '1e-1'"),
        (KRUM | {"client_num_per_round": 4}, "client_num_per_round: 4: .* 5"),
        (KRUM | {"byzantine_client_num": None}, "byzantine_client_num: null"),
        (KRUM | {"krum_param_m": 0}, "krum_param_m: 0"),
        (ANOMALY, "cosine_similarity_bound: null"),
        (ANOMALY | {"cosine_similarity_bound": "5e-1"}, "cosine_similarity_bound: '5e-1'"),
        ({"attack_type": "byzantine"}, "byzantine_client_num: null"),
        ({"attack_type": "byzantine", "byzantine_client_num": 1}, "attack_mode: null"),
        (REPLACEMENT, "client_num_per_round: 2: .* 3"),
        (CDP | {"delta": None}, "dp_solution_type: cdp: .*elta"),
        (CDP | {"epsilon": 2.0}, "dp_solution_type: cdp: .*psilon"),
        (CDP | {"max_grad_norm": "1e-1"}, "max_grad_norm: '1e-1'"),
        (CDP | {"ml_engine": "jax"}, "ml_engine: jax: .* dp_solution_type: cdp"),
        (CDP | RDP, "enable_rdp_accountant: true"),
        ({"enable_contribution": True}, "enable_contribution: true"),
        ({"enable_fhe": True}, "enable_fhe: true"),
    ],
)
def test_security_settings_that_cannot_work_are_refused(values, named, secured) -> None:
    secured(**RDP)  # without privacy it is left alone
    switches = {switch: key in values for key, switch in SWITCHES.items()}
    with refused(named):
        secured(**PRIVACY | switches | values)
