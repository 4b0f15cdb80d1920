"""Which GPU each rank takes, in FedML's two notations; and how many clients train side by side."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fednnnn_plugin.engine import devices as device_module
from fednnnn_plugin.engine import from_recipe
from fednnnn_plugin.engine.clock import share_waited
from fednnnn_plugin.engine.devices import choose_gpu, core_ids, side_by_side
from fednnnn_plugin.engine.from_recipe import rank_device
from fednnnn_plugin.engine.gpu_mapping import parse_mapping, read_mapping
from fednnnn_plugin.errors import UserError

MAPPING = """
two_hosts: {host1: [2, 0, 1], host2: [1]}
two_gpus: {host: [2, 1]}
empty:
words: {host1: many}
"""
CPU = torch.device("cpu")


@pytest.fixture
def mapping(tmp_path: Path) -> Path:
    path = tmp_path / "gpu_mapping.yaml"
    path.write_text(MAPPING)
    return path


def test_gpu_mapping_in_both_notations(mapping: Path) -> None:
    assert read_mapping(mapping, "two_hosts") == [0, 0, 2, 0]
    assert parse_mapping(" host1 : 2, 0,1 ; host2:1") == [0, 0, 2, 0]


@pytest.mark.parametrize(
    ("key", "named"), [("no", "_key"), (None, "_key"), ("empty", "_file"), ("words", "_file")]
)
def test_gpu_mapping_file_with_a_mistake_is_refused(
    mapping: Path, key: str | None, named: str
) -> None:
    with pytest.raises(UserError, match=rf"^device_args\.gpu_mapping{named}: "):
        read_mapping(mapping, key)


@pytest.mark.parametrize("text", ["", "host:x", "host:-1", "host:2;host:1", "host:" + "9" * 5_000])
def test_gpu_mapping_text_with_a_mistake_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"^device_args\.gpu_util_parse: .* must give for each"):
        parse_mapping(text)


def test_cpu_is_chosen_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(device_module, "visible_gpus", lambda: 0)
    assert choose_gpu() == CPU
    assert "device_args.using_gpu: " in caplog.text


@pytest.mark.parametrize(
    ("keys", "ranks", "found"),
    [
        ({"using_gpu": False}, 3, ["cpu"] * 3),
        ({}, 3, ["cuda:0", "cuda:1", "cuda:0"]),
        ({"gpu_id": 1}, 1, ["cuda:1"]),
        ({"gpu_id": 2}, 1, "gpu_id: 2: must be below 2, the visible GPUs"),
        ({"gpu_util_parse": "here:1,2"}, 3, ["cuda:0", "cuda:1", "cuda:1"]),
        ({"gpu_util_parse": "here:0,0,1"}, 1, "gpu_util_parse: it gives process 0 GPU 2"),
        ({"gpu_mapping_key": "two_gpus"}, 3, ["cuda:0", "cuda:0", "cuda:1"]),
        ({"gpu_mapping_key": "two_gpus"}, 2, "it places 3 processes: must be 2, as launched"),
    ],
)
def test_ranks_take_mapped_or_visible_gpus(
    recipe: Any, mapping: Path, monkeypatch: pytest.MonkeyPatch, keys: Any, ranks: int, found: Any
) -> None:
    for module in (device_module, from_recipe):
        monkeypatch.setattr(module, "visible_gpus", lambda: 2)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    if "gpu_mapping_key" in keys:
        keys = keys | {"gpu_mapping_file": str(mapping)}
    given = recipe(**{"using_gpu": True} | keys)
    world = [SimpleNamespace(rank=r, size=ranks, local_rank=r) for r in range(ranks)]
    if isinstance(found, str):
        with pytest.raises(UserError, match=found):
            rank_device(given, world[0])
    else:
        assert [str(rank_device(given, rank)) for rank in world] == found


def test_cores_are_shared_between_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    for ranks, limit, workers in ((1, None, 6), (2, None, 3), (9, None, 1), (1, 2, 2), (2, 5, 3)):
        assert side_by_side(CPU, ranks, limit) == workers
    assert side_by_side(torch.device("cuda")) == 1
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS and Windows
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert (side_by_side(CPU), core_ids()) == (3, {0, 1, 2})


@pytest.mark.parametrize(("load", "share"), [(0.0, 0.0), (3.9, 0.0), (5.0, 0.2)])
def test_share_waited_by_hand(monkeypatch: pytest.MonkeyPatch, load: float, share: float) -> None:
    """Of five on four cores one waits at any time."""
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 9.0, 9.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert share_waited() == pytest.approx(share)
