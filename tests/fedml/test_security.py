"""FedML's security settings that our aggregation refuses at the start."""

import pytest

from .rounds import PRIVACY, refused

SWITCHES = {
    "defense_type": "enable_defense",
    "attack_type": "enable_attack",
    "dp_solution_type": "enable_dp",
}
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
        ({"defense_type": "cclip"}, "defense_type: cclip: must be one of"),
        ({"attack_type": "dlg"}, "attack_type: dlg: must be one of"),
        ({"dp_solution_type": "nbafl"}, "dp_solution_type: nbafl: must be one of"),
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
    """What is not switched on is left alone."""
    secured(
        **PRIVACY | {"enable_dp": False} | RDP | {k: v for k, v in values.items() if k in SWITCHES}
    )
    switches = {switch: key in values for key, switch in SWITCHES.items()}
    with refused(named):
        secured(**PRIVACY | switches | values)
