"""A federation that goes on: the state file of the server aggregator."""

import os
import re
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing import assert_close

import fednnnn_plugin as fp
from fednnnn_plugin.server.rules import RULES

from .rounds import play, refused, silo


def model(seed: int = 0, width: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv1d(1, width, 2), nn.BatchNorm1d(width), nn.Flatten())


def frozen() -> nn.Module:
    other = model()
    other[0].bias.requires_grad_(False)
    return other


def aggregator(path, start=0, method="FedNNNN", net=None, **values) -> fp.FedNNNNAggregator:
    keys = {"beta": None, "gamma": None, **dict.fromkeys(RULES[method].keys, 0.5)}
    keys |= {"server_state_path": str(path), "start_round": start}
    return silo(net or model(), method, **keys | values)


def advance(server, number: int) -> None:
    """A round of clients that differ from round to round, and from what is served."""
    generator = torch.Generator().manual_seed(number)

    def trained(tensor):
        if not tensor.is_floating_point():
            return tensor + 1
        return tensor + torch.rand(tensor.shape, generator=generator)

    w_t = server.get_model_params()
    play(server, [(1, OrderedDict((n, trained(t)) for n, t in w_t.items())) for _ in range(3)])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "state.safetensors"


@pytest.mark.parametrize("method", RULES)
def test_state_of_a_restart_costs_no_bits(method, path, tmp_path) -> None:
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


def test_state_is_of_what_was_set(path) -> None:
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
        (0, {}, "the state is of round 1, start_round is 0"),
        (1, {"method": "Momentum"}, "the state is of FedNNNN, not of Momentum"),
        (1, {"net": model(width=4)}, "the state is of another model"),
        (1, {"net": frozen()}, "the state is of another model, or other parameters of it"),
        (1, {"path": "weights"}, "not a whole server state"),
    ],
)
def test_state_of_something_else_is_refused(start, values, words, path, monkeypatch) -> None:
    advance(aggregator(path), 0)
    monkeypatch.chdir(path.parent)
    save_file(model().state_dict(), "weights")
    values = {"path": path} | values
    with refused(f"server_state_path: [^:]*: {words}"):
        aggregator(start=start, **values)


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
def test_state_that_cannot_be_written_is_refused(values, line, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    os.mkfifo("pipe")
    with refused(re.escape(line)):
        aggregator(**{"path": "state"} | values)


def test_state_is_kept_where_the_average_cannot_be(path, tmp_path) -> None:
    server = aggregator(path, save_path=str(tmp_path / "model"))
    (tmp_path / "model").mkdir()
    with pytest.raises(OSError, match="model"):
        advance(server, 0)
    aggregator(path, 1)


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    path = tmp_path_factory.mktemp("state") / "state.safetensors"
    advance(aggregator(path), 0)
    return path


@given(data=st.data())
def test_state_shows_any_damage(data, state) -> None:
    damaged = state.with_name("damaged.safetensors")
    content = bytearray(state.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    else:
        content = content[:place]
    damaged.write_bytes(content)
    with refused("server_state_path: .*: not a whole server state"):
        aggregator(damaged, 1)


def test_restart_says_that_fedml_draws_other_clients(path, caplog) -> None:
    advance(aggregator(path), 0)
    aggregator(path, 1, client_num_in_total=10, client_num_per_round=3)
    assert "unlike an uninterrupted federation's" in caplog.text
