"""A federation that goes on: the state file of the server aggregator."""

import os
import re
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing import assert_close

import fednnnn_plugin as fp
from fednnnn_plugin.server.rules import RULES


def model(seed: int = 0, width: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv1d(1, width, 2), nn.BatchNorm1d(width), nn.Flatten())


def frozen() -> nn.Module:
    other = model()
    other[0].bias.requires_grad_(False)
    return other


@pytest.fixture
def aggregator(silo):
    def build(path, start=0, method="FedNNNN", net=None, **values):
        keys = {"beta": None, "gamma": None}
        keys |= dict.fromkeys(RULES[method].keys, 0.5)
        keys |= {"server_state_path": str(path), "start_round": start}
        return silo(net or model(), method, **keys | values)

    return build


@pytest.fixture
def advance(play):
    def advance(server, number: int) -> None:
        """A round of clients that differ from round to round, and from what is served."""
        generator = torch.Generator().manual_seed(number)

        def trained(tensor):
            if not tensor.is_floating_point():
                return tensor + 1
            return tensor + torch.rand(tensor.shape, generator=generator)

        w_t = server.get_model_params()
        play(server, [(1, OrderedDict((n, trained(t)) for n, t in w_t.items())) for _ in range(3)])

    return advance


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "state.safetensors"


@pytest.mark.parametrize("method", RULES)
def test_restart_gives_an_uninterrupted_federations_bits(
    method, path, tmp_path, aggregator, advance
) -> None:
    whole = aggregator(tmp_path / "whole.safetensors", method=method)
    for number in range(3):
        advance(whole, number)
    for start in range(3):  # a new process every round, with another model at first
        server = aggregator(path, start, method, net=model(seed=start))
        if start:
            assert_close(server.evaluation_state_dict(), server.get_model_params(), rtol=0, atol=0)
        advance(server, start)
    assert_close(server.get_model_params(), whole.get_model_params(), rtol=0, atol=0)
    assert_close(server.evaluation_state_dict(), whole.evaluation_state_dict(), rtol=0, atol=0)
    assert_close(load_file(path), load_file(tmp_path / "whole.safetensors"), rtol=0, atol=0)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_state_is_of_what_was_set(path, aggregator, advance) -> None:
    """At a first start too, from weights of the user's; with noise on what was aggregated."""
    pretrained = model(seed=7).half().state_dict()
    aggregator(path, net=model().half()).set_model_params(pretrained)
    server = aggregator(path, net=model().half())
    assert_close(server.get_model_params(), pretrained, rtol=0, atol=0)
    advance(server, 0)
    served = server.get_model_params()
    noised = {n: t + 1 if t.is_floating_point() else t for n, t in served.items()}
    server.set_model_params(noised)
    assert_close(aggregator(path, 1, net=model().half()).get_model_params(), noised, rtol=0, atol=0)
    stored = load_file(path)
    assert stored["0.weight"].dtype == torch.float16
    assert stored[".momentum.0.weight"].dtype == torch.float32


@pytest.mark.parametrize(
    ("start", "values", "words"),
    [
        (0, {}, "the state is of round 1, start_round is 0: set start_round: 1 and comm_round to"),
        (1, {"method": "Momentum"}, "the state is of FedNNNN, not of Momentum"),
        (1, {"net": model(width=4)}, "the state is of another model"),
        (1, {"net": frozen()}, "the state is of another model, or other parameters of it"),
    ],
)
def test_a_state_of_something_else_is_refused(
    start, values, words, path, aggregator, advance
) -> None:
    advance(aggregator(path), 0)
    with pytest.raises(fp.UserError, match=f"^server_state_path: {re.escape(str(path))}: {words}"):
        aggregator(path, start, **values)


def test_what_is_no_state_is_refused(tmp_path, aggregator) -> None:
    weights = tmp_path / "weights"
    save_file(model().state_dict(), weights)
    with pytest.raises(fp.UserError, match="not a whole server state"):
        aggregator(weights, 1)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"path": "."}, "server_state_path: .: is no regular file"),
        ({"path": "pipe"}, "server_state_path: pipe: is no regular file"),
        ({"path": "file/x"}, "server_state_path: file/x: cannot be written"),
        ({"save_path": "."}, "save_path: .: is no regular file"),
        ({"save_path": "/proc/x"}, "save_path: /proc/x: cannot be written"),
        ({"save_path": "x" * 250}, "save_path: xxx"),
        ({"metrics_path": "file"}, "metrics_path: file/metrics.jsonl: cannot be written"),
        ({"metrics_path": "/proc/x"}, "metrics_path: /proc/x/metrics.jsonl: cannot be written"),
        ({"path": "a", "save_path": "b/../a"}, "save_path: b/../a: is the server_state_path too"),
    ],
)
def test_unwritable_paths_are_refused_at_the_start(
    values, line, tmp_path, aggregator, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    os.mkfifo("pipe")
    with pytest.raises(fp.UserError, match=f"^{re.escape(line)}"):
        aggregator(**{"path": "state"} | values)


def test_state_is_kept_where_the_average_cannot_be(path, tmp_path, aggregator, advance) -> None:
    server = aggregator(path, save_path=str(tmp_path / "model"))
    (tmp_path / "model").mkdir()
    with pytest.raises(OSError, match="model"):
        advance(server, 0)
    aggregator(path, 1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_is_seen(data, path, aggregator, advance) -> None:
    damaged = path.with_name("damaged.safetensors")
    if not path.exists():
        advance(aggregator(path), 0)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    else:
        content = content[:place]
    damaged.write_bytes(content)
    with pytest.raises(fp.UserError, match=r"^server_state_path: .*: not a whole server state"):
        aggregator(damaged, 1)


def test_a_restart_says_where_fedml_draws_other_clients(path, aggregator, advance, caplog) -> None:
    advance(aggregator(path), 0)
    aggregator(path, 1, client_num_in_total=10, client_num_per_round=3)
    assert "unlike an uninterrupted federation's" in caplog.text
