"""FedML's privacy, attacks and defences around our aggregator: each in a process of its own.

FedML keeps them in singletons that outlive a federation, so that the scenarios are run in forks of
a process that has imported FedML and done nothing else. Prints {scenario: traceback or ""}.
"""

import copy
import json
import logging
import math
import multiprocessing
import sys
import tempfile
import traceback
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import fedml
import numpy as np
import pytest
import torch
from fedml.core.security.defense.foolsgold_defense import FoolsGoldDefense
from fedml.core.security.fedml_defender import FedMLDefender
from safetensors.torch import load_file
from torch import nn

import fednnnn_plugin as fp
from fednnnn_plugin.errors import RunError

BETA = 0.5


class Net(nn.Module):
    """Batch normalisation's statistics, a count of batches, and a table of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(3)
        self.register_buffer("positions", torch.arange(3))
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.bn(x))


WEIGHTS = ("bn.weight", "bn.bias", "head.weight", "head.bias")
STATISTICS = ("bn.running_mean", "bn.running_var")
COUNTS = ("bn.num_batches_tracked", "positions")


def server(**values):
    args = SimpleNamespace(
        **{
            "training_type": "cross_silo",
            "scenario": "horizontal",
            "dataset": "mine",
            "federated_optimizer": "FedAvg",
            "beta": BETA,
            "using_gpu": False,
            "worker_num": 5,
            "process_id": 0,
            "enable_cuda_rpc": False,
            "comm_round": 3,
        }
        | values
    )
    torch.manual_seed(0)
    return fp.FedNNNNAggregator(values.pop("model", None) or Net(), args, "NormNorm")


def clients(aggregator, count: int, seed: int = 1, scale: float = 0.1) -> list:
    """Clients near the served model; client k has seen k more batches, of 10 (k + 1) samples."""
    generator = torch.Generator().manual_seed(seed)
    w_t = aggregator.get_model_params()
    return [
        (
            10 * (k + 1),
            OrderedDict(
                (name, t + scale * torch.randn(t.shape, generator=generator))
                if name in WEIGHTS
                else (name, t + scale * torch.rand(t.shape, generator=generator))
                if t.is_floating_point()
                else (name, t + k if name == COUNTS[0] else t)
                for name, t in w_t.items()
            ),
        )
        for k in range(count)
    ]


def away(state, distance: float) -> OrderedDict:
    """A client far off, with a count to match."""
    return OrderedDict(
        (name, t + distance if t.is_floating_point() else t + 1000) for name, t in state.items()
    )


def run_round(aggregator, given) -> tuple[OrderedDict, list[int]]:
    """FedML's order of calls; clients must stay as they are. Returns w_t and who was kept."""
    before, w_t = copy.deepcopy(given), aggregator.get_model_params()
    kept, positions = aggregator.on_before_aggregation(given)
    served = aggregator.on_after_aggregation(aggregator.aggregate(kept))
    assert type(served) is OrderedDict
    aggregator.set_model_params(served)
    for (_, state), (_, original) in zip(given, before, strict=True):
        for name, tensor in original.items():
            assert (
                torch.equal(
                    state[name],
                    tensor,
                )
                or not torch.isfinite(tensor).all()
            ), name
    return w_t, positions


def norm(update) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in update.values()))


def check(aggregator, w_t, models, weights=None) -> None:
    """The evaluation model is the weighted mean of ``models``, the served one moved by βE."""
    weights = weights or [1.0] * len(models)
    shares = [w / sum(weights) for w in weights]
    evaluation, served = aggregator.evaluation_state_dict(), aggregator.get_model_params()
    for name in (*WEIGHTS, *STATISTICS):
        mean = sum(a * model[name].double() for a, model in zip(shares, models, strict=True))
        torch.testing.assert_close(evaluation[name].double(), mean, rtol=1e-5, atol=1e-6)
    for name in COUNTS:
        assert torch.equal(evaluation[name], torch.stack([m[name] for m in models]).amax(0)), name
    for name in (*STATISTICS, *COUNTS):
        assert torch.equal(served[name], evaluation[name]), name
    norms = [norm({n: model[n] - w_t[n] for n in WEIGHTS}) for model in models]
    expected = BETA * sum(a * x for a, x in zip(shares, norms, strict=True))
    move = norm({name: served[name] - w_t[name] for name in WEIGHTS})
    assert math.isclose(move, expected, rel_tol=1e-4), (move, expected)


def norm_diff_clipping() -> None:
    bound = 0.2
    aggregator = server(enable_defense=True, defense_type="norm_diff_clipping", norm_bound=bound)
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


def krum() -> None:
    aggregator = server(enable_defense=True, defense_type="krum", byzantine_client_num=1)
    given = clients(aggregator, 5)
    given[2] = (given[2][0], away(given[2][1], 5.0))
    w_t, positions = run_round(aggregator, given)
    assert len(positions) == 1
    assert positions != [2]
    check(aggregator, w_t, [given[positions[0]][1]])


def multikrum() -> None:
    aggregator = server(
        enable_defense=True, defense_type="multikrum", byzantine_client_num=1, krum_param_m=3
    )
    for seed in (1, 2):
        given = clients(aggregator, 7, seed)
        given[0] = (given[0][0], away(given[0][1], 5.0))
        # A model that is not finite would make every distance one that is none.
        given[3] = (given[3][0], away(given[3][1], math.nan))
        given.append((1, given[1][1]))
        w_t, positions = run_round(aggregator, given)
        assert len(positions) == 3
        assert not {0, 3} & set(positions)
        check(aggregator, w_t, [given[k][1] for k in positions])


def three_sigma() -> None:
    aggregator = server(enable_defense=True, defense_type="3sigma")
    for seed in (1, 2):
        given = clients(aggregator, 6, seed)
        given[4] = (given[4][0], away(given[4][1], 5.0))
        given[5] = (given[5][0], away(given[5][1], math.inf))
        w_t, positions = run_round(aggregator, given)
        assert positions
        assert not {4, 5} & set(positions)
        check(aggregator, w_t, [given[k][1] for k in positions])


def three_sigma_foolsgold() -> None:
    aggregator = server(enable_defense=True, defense_type="3sigma_foolsgold")
    given = clients(aggregator, 14, scale=2.0)
    given[13] = (given[13][0], copy.deepcopy(given[2][1]))  # two of one mind
    given[7] = (given[7][0], away(given[7][1], math.nan))
    w_t, positions = run_round(aggregator, given)
    assert len(positions) < 13, positions
    assert not {2, 7, 13} & set(positions), positions
    check(aggregator, w_t, [given[k][1] for k in positions])
    run_round(aggregator, clients(aggregator, 14, seed=2, scale=2.0))


def foolsgold() -> None:
    aggregator = server(enable_defense=True, defense_type="foolsgold", client_weighting="samples")
    memory = None
    for seed in (1, 2):
        given = clients(aggregator, 6, seed, scale=2.0)
        given[5] = (given[5][0], copy.deepcopy(given[0][1]))
        stand_in = aggregator.get_model_params()
        if seed == 1:
            given[3] = (given[3][0], away(given[3][1], math.nan))
        w_t, positions = run_round(aggregator, given)
        seen = [stand_in if seed == 1 and k == 3 else state for k, (_, state) in enumerate(given)]
        features = np.stack([state["head.weight"].numpy().reshape(-1) for state in seen])
        memory = features if memory is None else memory + features
        verdict = FoolsGoldDefense.fools_gold_score(list(memory))
        assert positions == [k for k in range(6) if not (seed == 1 and k == 3)]
        weighed = [k for k in positions if verdict[k] > 0]
        assert len(weighed) < len(positions)
        weights = [float(given[k][0] * verdict[k]) for k in weighed]
        check(aggregator, w_t, [given[k][1] for k in weighed], weights)


def anomaly_detection() -> None:
    aggregator = server(
        enable_defense=True, defense_type="anomaly_detection", cosine_similarity_bound=0.5
    )
    for seed in (1, 2, 3):
        given = clients(aggregator, 6, seed)
        given[1] = (given[1][0], away(given[1][1], -5.0))
        if seed == 2:
            given[5] = (given[5][0], away(given[5][1], math.nan))
        w_t, positions = run_round(aggregator, given)
        assert 1 not in positions
        assert (5 in positions) <= (seed != 2)
        check(aggregator, w_t, [given[k][1] for k in positions])


def all_not_finite() -> None:
    aggregator = server(enable_defense=True, defense_type="3sigma")
    given = [(n, away(state, math.nan)) for n, state in clients(aggregator, 3)]
    with pytest.raises(RunError, match="no client update to average"):
        run_round(aggregator, given)


def byzantine_and_krum() -> None:
    for mode in ("zero", "random", "flip"):
        aggregator = server(
            enable_attack=True,
            attack_type="byzantine",
            attack_mode=mode,
            byzantine_client_num=1,
            enable_defense=True,
            defense_type="krum",
        )
        w_t, positions = run_round(aggregator, clients(aggregator, 6))
        assert len(positions) == 1
        move = norm({n: aggregator.get_model_params()[n] - w_t[n] for n in WEIGHTS})
        assert 0 < move < 1.0


def byzantine() -> None:
    aggregator = server(
        enable_attack=True, attack_type="byzantine", attack_mode="zero", byzantine_client_num=5
    )
    w_t, _ = run_round(aggregator, clients(aggregator, 5))
    for name in WEIGHTS:
        assert not aggregator.evaluation_state_dict()[name].any()
    assert aggregator.evaluation_state_dict()["bn.num_batches_tracked"] == w_t[COUNTS[0]] + 4


def model_replacement() -> None:
    aggregator = server(enable_attack=True, attack_type="model_replacement", malicious_client_id=1)
    given = clients(aggregator, 3)
    w_t, positions = run_round(aggregator, given)
    assert positions == [0, 1, 2]
    state = given[1][1]
    replaced = state | {name: w_t[name] + 3 * (state[name] - w_t[name]) for name in WEIGHTS}
    check(aggregator, w_t, [given[0][1], replaced, given[2][1]])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(2, 2, bias=False)
        self.decoder = nn.Linear(2, 2)
        self.decoder.weight = self.encoder.weight


PRIVACY = {
    "enable_dp": True,
    "dp_solution_type": "cdp",
    "epsilon": 0.9,
    "delta": 0.01,
    "sensitivity": 0.05,
    "max_grad_norm": 1.0,
}


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record) -> None:
        self.lines.append(record.getMessage())


def global_privacy(mechanism: str) -> None:
    log = Kept()
    logging.getLogger("fednnnn_plugin").addHandler(log)
    logging.disable(logging.NOTSET)
    folder = Path(tempfile.mkdtemp())
    aggregator = server(
        **PRIVACY, mechanism_type=mechanism, save_path=str(folder / "evaluation.safetensors")
    )
    assert any("epsilon does not cover the server rule" in line for line in log.lines)
    given = clients(aggregator, 3)
    before, w_t = copy.deepcopy(given), aggregator.get_model_params()
    kept, positions = aggregator.on_before_aggregation(given)
    assert positions == [0, 1, 2]
    for (_, clipped), (_, state), (_, original) in zip(kept, given, before, strict=True):
        floating = {n: t for n, t in state.items() if t.is_floating_point()}
        length = norm(floating)
        for name, tensor in state.items():
            assert torch.equal(tensor, original[name])
            expected = tensor / max(1.0, length) if name in floating else tensor
            torch.testing.assert_close(clipped[name], expected, rtol=1e-3, atol=1e-4)
    plain = aggregator.aggregate(kept)
    average = aggregator.evaluation_state_dict()
    for name, tensor in w_t.items():  # the average is nowhere to be had
        assert torch.equal(average[name], tensor)
    served = aggregator.on_after_aggregation(plain)
    aggregator.set_model_params(served)
    for name, tensor in plain.items():
        assert served[name].dtype == tensor.dtype
        assert torch.equal(served[name], tensor) != tensor.is_floating_point(), name
    assert (served["bn.running_var"] >= 0).all()
    for state in (
        aggregator.evaluation_state_dict(),
        aggregator.get_model_params(),
        load_file(folder / "evaluation.safetensors"),
    ):
        assert all(torch.equal(state[name], tensor) for name, tensor in served.items())
    data = [(torch.randn(4, 3), torch.ones(4).long())]
    accuracy, loss, *_ = aggregator.test(data, "cpu", SimpleNamespace())
    noised = Net()
    noised.load_state_dict(served)
    logits = noised.eval()(data[0][0])
    assert math.isclose(loss, nn.functional.cross_entropy(logits, data[0][1]).item(), rel_tol=1e-5)
    assert accuracy == (logits.argmax(1) == 1).double().mean()
    # The next round starts from the noised model.
    w_t, _ = run_round(aggregator, clients(aggregator, 3, seed=2, scale=0.0))
    assert all(torch.equal(w_t[name], tensor) for name, tensor in served.items())


def global_privacy_of_tied_parameters() -> None:
    aggregator = server(**PRIVACY, mechanism_type="gaussian", model=Tied())
    state = OrderedDict((n, t + 0.1) for n, t in aggregator.get_model_params().items())
    kept, _ = aggregator.on_before_aggregation([(1, state)])
    served = aggregator.on_after_aggregation(aggregator.aggregate(kept))
    assert torch.equal(served["encoder.weight"], served["decoder.weight"])
    aggregator.set_model_params(served)
    assert torch.equal(aggregator.get_model_params()["encoder.weight"], served["encoder.weight"])


def negative_variance() -> None:
    """Noise far above the variance itself."""
    aggregator = server(**PRIVACY | {"sensitivity": 50.0}, mechanism_type="gaussian")
    run_round(aggregator, clients(aggregator, 3))
    variance = aggregator.get_model_params()["bn.running_var"]
    assert (variance >= 0).all()


def local_privacy() -> None:
    args = SimpleNamespace(
        **PRIVACY | {"dp_solution_type": "ldp"},
        mechanism_type="gaussian",
        epochs=1,
        batch_size=2,
        learning_rate=0.1,
        round_idx=0,
    )
    model = Net()
    trainer = fp.FedNNNNClientTrainer(model, args)
    trainer.set_id(0)
    data = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))]
    trainer.train(data, "cpu", args)
    trained = trainer.get_model_params()
    trainer.on_after_local_training(data, "cpu", args)
    sent = trainer.get_model_params()
    for name, tensor in trained.items():
        assert sent[name].dtype == tensor.dtype
        assert torch.equal(sent[name], tensor) != tensor.is_floating_point(), name
    aggregator = server(**PRIVACY | {"dp_solution_type": "ldp"}, mechanism_type="gaussian")
    w_t, _ = run_round(aggregator, [(4, sent)])
    check(aggregator, w_t, [sent])  # nothing is added here


SCENARIOS = {
    "norm_diff_clipping": norm_diff_clipping,
    "krum": krum,
    "multikrum": multikrum,
    "3sigma": three_sigma,
    "3sigma_foolsgold": three_sigma_foolsgold,
    "foolsgold": foolsgold,
    "anomaly_detection": anomaly_detection,
    "no client is finite": all_not_finite,
    "byzantine": byzantine,
    "byzantine and krum": byzantine_and_krum,
    "model_replacement": model_replacement,
    "cdp gaussian": lambda: global_privacy("gaussian"),
    "cdp laplace": lambda: global_privacy("laplace"),
    "cdp tied parameters": global_privacy_of_tied_parameters,
    "cdp negative variance": negative_variance,
    "ldp": local_privacy,
}


def run(scenario, results) -> None:
    try:
        assert not FedMLDefender.get_instance().is_defense_enabled()
        scenario()
        results.send("")
    except BaseException:
        results.send(traceback.format_exc())


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.disable()
    fedml.mlops.pre_setup(SimpleNamespace(using_mlops=False))  # no reports to FedML's platform
    results, sys.stdout = sys.stdout, sys.stderr  # FedML prints
    fork, found = multiprocessing.get_context("fork"), {}
    for name, scenario in SCENARIOS.items():
        ours, theirs = fork.Pipe(duplex=False)
        process = fork.Process(target=run, args=(scenario, theirs))
        process.start()
        found[name] = ours.recv() if ours.poll(60) else "no answer"
        process.join()
    json.dump(found, results)
