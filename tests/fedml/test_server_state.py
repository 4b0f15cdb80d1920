"""A federation that goes on: the state file of the server aggregator."""

import copy
import errno
import re
import shutil
from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

import fednnnn_plugin as fp
from fednnnn_plugin.server.rules import RULES


def model(seed: int = 0, width: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv1d(1, width, 2), nn.BatchNorm1d(width), nn.Flatten())


def aggregator(path, start: object = 0, method="FedNNNN", net=None, **values):
    needed = {key: 0.5 for key, one in RULES[method].keys.items() if not one.client}
    args = SimpleNamespace(
        training_type="cross_silo",
        federated_optimizer=method,
        server_state_path=str(path),
        start_round=start,
        **needed | values,
    )
    return fp.FedNNNNAggregator(net or model(), args)


def run_round(server, number: int) -> None:
    """Clients that differ from round to round, and from what is served."""
    generator = torch.Generator().manual_seed(number)
    clients = [
        (
            1,
            OrderedDict(
                (
                    name,
                    t + torch.rand(t.shape, generator=generator)
                    if t.dtype.is_floating_point
                    else t + 1,
                )
                for name, t in server.get_model_params().items()
            ),
        )
        for _ in range(3)
    ]
    server.set_model_params(server.on_after_aggregation(server.aggregate(clients)))


def assert_equal(one, other) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


@pytest.mark.parametrize("method", RULES)
def test_a_restart_gives_the_bits_of_an_uninterrupted_federation(method, tmp_path) -> None:
    whole = aggregator(tmp_path / "whole.safetensors", method=method)
    for number in range(4):
        run_round(whole, number)
    path = tmp_path / "folder" / "state.safetensors"
    for start in range(4):  # a new process every round, with another model at first
        server = aggregator(path, start, method, net=model(seed=start))
        if start:
            assert_equal(server.evaluation_state_dict(), server.get_model_params())
        run_round(server, start)
    assert_equal(server.get_model_params(), whole.get_model_params())
    assert_equal(server.evaluation_state_dict(), whole.evaluation_state_dict())
    assert_equal(load_file(path), load_file(tmp_path / "whole.safetensors"))
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_state_is_of_what_was_set_and_in_its_precision(tmp_path) -> None:
    path = tmp_path / "state.safetensors"
    server = aggregator(path, net=model().half())
    run_round(server, 0)
    noised = OrderedDict(
        (name, t + 1 if t.is_floating_point() else t)
        for name, t in server.get_model_params().items()
    )
    server.set_model_params(noised)
    assert_equal(aggregator(path, 1, net=model().half()).get_model_params(), noised)
    stored = load_file(path)
    assert stored["0.weight"].dtype == torch.float16
    assert stored[".momentum.0.weight"].dtype == torch.float32


def test_a_first_start_from_weights_of_the_users_is_kept_too(tmp_path) -> None:
    path = tmp_path / "state.safetensors"
    pretrained = model(seed=7).state_dict()
    aggregator(path).set_model_params(pretrained)
    assert_equal(aggregator(path).get_model_params(), pretrained)


@pytest.mark.parametrize("start", [0, 1, 3])
def test_a_state_of_another_round_is_refused(start, tmp_path) -> None:
    path = tmp_path / "state.safetensors"
    server = aggregator(path)
    for number in range(2):
        run_round(server, number)
    with pytest.raises(fp.UserError) as caught:
        aggregator(path, start)
    assert str(caught.value) == (
        f"server_state_path: {path}: the state is of round 2, start_round is {start}: set "
        "start_round: 2 and comm_round to the rounds that remain, or move the file away to start "
        "anew"
    )


def test_a_state_of_another_method_model_or_file_is_refused(tmp_path) -> None:
    path = tmp_path / "state.safetensors"
    run_round(aggregator(path), 0)
    for values, words in (
        ({"method": "Momentum"}, "the state is of FedNNNN, not of Momentum"),
        ({"net": model(width=4)}, "the state is of another model"),
        ({"net": nn.Linear(2, 2)}, "the state is of another model"),
    ):
        with pytest.raises(
            fp.UserError, match=f"^server_state_path: {re.escape(str(path))}: {words}$"
        ):
            aggregator(path, 1, **values)
    with pytest.raises(fp.UserError, match="there is no state to start from"):
        aggregator(tmp_path / "elsewhere", 1)
    save_file(model().state_dict(), tmp_path / "weights.safetensors")
    (tmp_path / "text").write_text("not tensors")
    (tmp_path / "pickle").write_bytes(b"\x80\x04N.")
    for other in ("weights.safetensors", "text", "pickle", "."):
        with pytest.raises(fp.UserError, match="not a whole server state"):
            aggregator(tmp_path / other, 1)


def test_a_state_of_other_trained_parameters_is_refused(tmp_path) -> None:
    path = tmp_path / "state.safetensors"
    run_round(aggregator(path), 0)
    frozen = model()
    frozen[0].bias.requires_grad_(False)
    with pytest.raises(fp.UserError, match=f"^server_state_path: {re.escape(str(path))}: .*other"):
        aggregator(path, 1, net=frozen)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_damage_is_seen(data, tmp_path) -> None:
    path, damaged = tmp_path / "state.safetensors", tmp_path / "damaged.safetensors"
    if not path.exists():
        run_round(aggregator(path), 0)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    else:
        content = content[:place]
    damaged.write_bytes(content)
    shutil.copy(path, tmp_path / "copy.safetensors")
    aggregator(tmp_path / "copy.safetensors", 1)
    with pytest.raises(fp.UserError, match=r"^server_state_path: .*: not a whole server state"):
        aggregator(damaged, 1)


def test_a_restart_says_where_fedml_draws_other_clients(tmp_path, caplog) -> None:
    path = tmp_path / "state.safetensors"
    run_round(aggregator(path), 0)
    aggregator(path, 1, client_num_in_total=10, client_num_per_round=3)
    assert "unlike an uninterrupted federation's" in caplog.text


def test_an_interrupted_write_leaves_the_state_before(tmp_path, monkeypatch) -> None:
    path = tmp_path / "state.safetensors"
    server = aggregator(path)
    run_round(server, 0)
    before = copy.deepcopy(load_file(path))

    def no_space(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(OSError, match=r"No space left on device: .*state\.safetensors"):
        run_round(server, 1)
    monkeypatch.undo()
    assert_equal(load_file(path), before)
    aggregator(path, 1)
