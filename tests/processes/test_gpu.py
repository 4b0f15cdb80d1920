"""Which GPU or cores a rank takes; what runs on GPUs only, under a stand-in and on one.

The stand-in answers for a machine of two GPUs; nothing is computed there. A GPU's memory that runs
out: ``test_client_batching.py``; that a round waits for no transfer: ``client/test_group_sgd.py``.
"""

import os
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fednnnn_plugin.assembly.from_recipe import rank_device
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.processes import devices
from fednnnn_plugin.processes.numerics import numerics
from fednnnn_plugin.processes.workers import Threads, all_of
from fednnnn_plugin.rounds.batches import LoaderBatches, TensorBatches
from fednnnn_plugin.rounds.clock import Clock
from fednnnn_plugin.rounds.loaders import LoaderData
from fednnnn_plugin.seeds import isolated_generators

from ..tiny import Tiny, tiny_recipe

CPU, SECOND = torch.device("cpu"), torch.device("cuda", 1)
SGD = LocalSGD(1, 5, 0.1)
CURRENT: dict[int, Any] = {}


class Event:
    """Is reached when its stream comes to it: the stream's seconds so far, which the host gives."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: SimpleNamespace) -> None:
        self._stream, self._at = stream, stream.seconds

    def elapsed_time(self, end: "Event") -> float:
        assert self._stream.waits
        return 1000 * (end._at - self._at)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """Two GPUs: of each its generator, its stream's seconds, and how often that was waited for.

    ``CURRENT`` is the GPU of each thread, under 0 that of a ``with torch.cuda.device``, and under
    -1 that of a stream, with what it waits for.
    """
    CURRENT.clear()
    gpus = [SimpleNamespace(seconds=0.0, waits=0, generator=torch.tensor([k])) for k in (5, 6)]
    streams = [SimpleNamespace(gpu=k) for k in range(2)]
    for stream in (*gpus, *streams):
        stream.waits_for = []
        stream.wait_stream = stream.waits_for.append

    @contextmanager
    def of_stream(stream: SimpleNamespace) -> Iterator[None]:
        CURRENT[-1] = stream.gpu, *stream.waits_for
        yield
        del CURRENT[-1]

    def synchronize(device: torch.device) -> None:
        gpus[device.index].waits += 1

    def set_rng_state(state: Tensor, device: int) -> None:
        gpus[device].generator = state

    def manual_seed_all(seed: int) -> None:
        for gpu in gpus:
            gpu.generator = torch.tensor([seed % 1000])

    for name, answer in {
        "init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 2,
        "get_device_name": lambda device: f"GPU {device.index}",
        "get_device_capability": lambda device: (9, 0),
        "get_device_properties": lambda device: SimpleNamespace(uuid=f"uuid-{device.index}"),
        "mem_get_info": lambda device: (3, 100 + device.index),
        "current_stream": lambda device: gpus[device.index],
        "default_stream": lambda device: streams[device.index],
        "stream": of_stream,
        "Event": Event,
        "set_device": lambda device: CURRENT.__setitem__(threading.get_ident(), device.index),
        "_exchange_device": lambda index: CURRENT.__setitem__(0, index) or 0,
        "_maybe_exchange_device": lambda index: CURRENT.__setitem__(0, index) or 0,
        "synchronize": synchronize,
        "get_rng_state": lambda device: gpus[device].generator,
        "set_rng_state": set_rng_state,
        "manual_seed_all": manual_seed_all,
        "_is_in_bad_fork": lambda: False,
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    return gpus


def test_gpu_is_told_by_name_and_memory(cuda: Any) -> None:
    """Not what is free of it, which differs from start to start."""
    assert devices.choose_gpu(1) == SECOND
    assert devices.device_name(SECOND) == "cuda:1 (GPU 1)"
    assert devices.device_identity(SECOND) == "uuid-1"
    assert devices.total_memory(SECOND) == 101
    facts = devices.device_facts(SECOND)
    assert (facts["kind"], facts["name"]) == ("cuda", "cuda:1 (GPU 1)")
    assert {"cuda", "cudnn"} <= facts.keys()
    assert facts["gpu"] == "GPU 1"


def test_run_continues_on_its_kind_of_device_only(tiny: Tiny, request: Any) -> None:
    tiny(comm_round=1)
    request.getfixturevalue("cuda")
    with pytest.raises(UserError, match=r"^--resume: device_args: .*begun on cpu"):
        tiny(comm_round=2, mode="resume", device=SECOND)
    assert len(tiny.records()) == 1


MAPPING = """
two_hosts: {host1: [0, 2], host2: [1, 1]}
two_gpus: {host: [2, 1]}
empty:
words: {host1: many}
"""


@pytest.mark.parametrize(
    ("keys", "ranks", "found"),
    [
        ({"using_gpu": False}, 3, ["cpu"] * 3),
        ({}, 3, ["cuda:0", "cuda:1", "cuda:0"]),
        ({"gpu_id": 1}, 1, ["cuda:1"]),
        ({"gpu_id": 2}, 1, "gpu_id: 2: must be below 2, the visible GPUs"),
        ({"gpu_util_parse": "here:1,2"}, 3, ["cuda:0", "cuda:1", "cuda:1"]),
        ({"gpu_util_parse": "here:0,0,1"}, 1, "gpu_util_parse: GPU of process 0: 2"),
        ({"gpu_util_parse": " here : 0,1 ; there:1"}, 2, ["cuda:1", "cuda:0"]),
        *(
            ({"gpu_util_parse": text}, 1, r"device_args\.gpu_util_parse: .* must give for each")
            for text in ("", "here:x", "here:-1", "here:2;here:1", "here:" + "9" * 5_000)
        ),
        ({"gpu_mapping_key": "two_gpus"}, 3, ["cuda:0", "cuda:0", "cuda:1"]),
        ({"gpu_mapping_key": "two_hosts"}, 4, ["cuda:1", "cuda:1", "cuda:0", "cuda:1"]),
        ({"gpu_mapping_key": "absent"}, 1, r"device_args\.gpu_mapping_key: "),
        ({"gpu_mapping_key": "empty"}, 1, r"device_args\.gpu_mapping_file: "),
        ({"gpu_mapping_key": "words"}, 1, r"device_args\.gpu_mapping_file: "),
        ({"gpu_mapping_key": "two_gpus"}, 2, "it places 3 processes: must be 2, as launched"),
    ],
)
def test_ranks_take_mapped_or_visible_gpus(
    tmp_path: Path, cuda: Any, keys: Any, ranks: int, found: Any
) -> None:
    if "gpu_mapping_key" in keys:
        keys = keys | {"gpu_mapping_file": str(tmp_path / "mapping.yaml")}
        (tmp_path / "mapping.yaml").write_text(MAPPING)
    given = tiny_recipe(**{"using_gpu": True} | keys)
    world = [SimpleNamespace(rank=r, size=ranks, local_rank=r) for r in range(ranks)]
    if isinstance(found, str):
        with pytest.raises(UserError, match=found):
            rank_device(given, world[0])
    else:
        assert [str(rank_device(given, rank)) for rank in world] == found


def test_cores_are_shared_between_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    for ranks, limit, workers in ((1, None, 6), (2, None, 3), (9, None, 1), (1, 2, 2), (2, 5, 3)):
        assert devices.side_by_side(CPU, ranks, limit) == workers
    assert devices.side_by_side(torch.device("cuda")) == 1
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS and Windows
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert (devices.side_by_side(CPU), devices.core_ids()) == (3, {0, 1, 2})


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_clock_adds_up_its_parts(cuda: Any, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """Of its own GPU's stream, whatever the thread's is; parts of 1 + 4, 2 and 8 seconds."""
    monkeypatch.setattr(time, "perf_counter", lambda: cuda[1].seconds)
    clock = Clock(torch.device(device))
    for part, seconds in (("train", 1), ("aggregate", 2), ("train", 4), ("evaluate", 8)):
        cuda[1].seconds += seconds
        clock.mark(part)
    assert cuda[1].waits == 0
    assert clock.seconds() == {"train": 5.0, "aggregate": 2.0, "evaluate": 8.0}
    assert (cuda[0].waits, cuda[1].waits) == (0, device != "cpu")  # once


def test_generators_of_gpus_are_given_back(cuda: Any) -> None:
    drawn = []
    for seed in (1, 1, 2):
        with isolated_generators(seed, "trainer"):
            drawn.append([int(gpu.generator) for gpu in cuda])
        assert [int(gpu.generator) for gpu in cuda] == [5, 6]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0] != [5, 6]


def test_process_and_its_workers_have_their_gpu(cuda: Any) -> None:
    """A user's ``.cuda()`` goes there; after a run it is what it was."""
    default = torch.cuda.default_stream(SECOND)
    with numerics("fp32", SECOND), Threads(2, device=SECOND) as threads:
        assert CURRENT[0] == 1
        assert CURRENT[-1] == (1, cuda[1])  # the default stream, after what the caller's computes
        assert cuda[1].waits_for == []
        found = all_of(threads, [lambda _: CURRENT[threading.get_ident()]] * 4)
    assert found == [1] * 4
    assert CURRENT[0] == 0
    assert cuda[1].waits_for == [default]  # what follows on it reads what was trained


def test_what_is_not_deterministic_is_logged(
    cuda: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each operation once; other warnings go their way; what was set is restored."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with numerics("fp32", CPU):
        assert not torch.are_deterministic_algorithms_enabled()
    said = "_backward_cuda does not have a deterministic implementation, but you set"
    with warnings.catch_warnings(record=True) as others, numerics("fp32", SECOND):
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        product = "Deterministic behavior was enabled with either ... but this is not deterministic"
        for text in (f"pool{said}", f"pool{said}", f"sum{said}", "another", product, product):
            warnings.warn(text, UserWarning, stacklevel=1)
    assert [str(other.message) for other in others] == ["another"]
    assert not torch.are_deterministic_algorithms_enabled()
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    logged = [record.getMessage().split(": ")[1] for record in caplog.records]
    assert logged == [f"pool{said}", f"sum{said}", product]


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (torch.cuda.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be"), True),
        (RuntimeError("GET was unable to find an engine to execute this computation"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (MemoryError("CUDA error: out of memory"), False),
        (type("Wordless", (RuntimeError,), {"__str__": None})(), False),
        (None, False),
    ],
)
def test_end_of_a_gpus_memory_is_told(error: Any, ended: bool) -> None:
    assert devices.is_out_of_memory(error) is ended


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp64"])
def test_precision_sets_autocast_and_products(precision: Any) -> None:
    context: Any = LocalSGD(1, 5, 0.1, precision=precision).autocast(SECOND)
    if precision == "bf16":
        assert (context.device, context.fast_dtype) == ("cuda", torch.bfloat16)
    else:
        assert isinstance(context, nullcontext)
    cudnn = torch.backends.cudnn
    with numerics(precision):
        assert torch.backends.cuda.matmul.allow_tf32 is (precision == "tf32")
        assert cudnn.allow_tf32 is (precision == "tf32")
        assert cudnn.deterministic
        assert not cudnn.benchmark


def test_batches_are_staged_on_their_device(data: FederatedData) -> None:
    """On ``meta``, which is no CPU: channels first, whatever order the model would take."""
    meta, pair = torch.device("meta"), (torch.zeros(4, 3, 8, 8), torch.zeros(4).int())
    theirs = LoaderBatches(LoaderData({0: [pair]}, {0: 4}, [pair], 10), SGD, meta, any_order=True)
    for batches in (TensorBatches(data, SGD, meta, seed=0, any_order=True), theirs):
        for inputs, labels in next(batches.epochs(0, 1)):
            assert (inputs.device, labels.device) == (meta, meta)
            assert (inputs.dtype, labels.dtype) == (torch.float32, torch.int64)
            assert inputs.is_contiguous()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("precision", "batching", "within"),
    [
        *(("fp64", batching, 1e-9) for batching in ("off", 2, "auto")),
        *(("fp32", "auto", 1e-3), ("tf32", "auto", 0.05), ("bf16", "auto", 0.2)),
    ],
)
def test_gpu_gives_the_model_of_a_cpu(
    tiny: Tiny, precision: str, batching: Any, within: float
) -> None:
    """Within a part of a tensor's largest number, and the same bits again."""
    settings = {"comm_round": 2, "epochs": 2, "weight_decay": 1e-3, "client_batching": batching}
    tiny("cpu", precision="fp64", **settings)
    for name in ("gpu", "again"):
        tiny(name, precision=precision, device=torch.device("cuda"), **settings)
    found = tiny.model("gpu")
    torch.testing.assert_close(found, tiny.model("again"), rtol=0, atol=0)
    for name, tensor in tiny.model("cpu").items():
        assert (found[name] - tensor).abs().max() <= within * tensor.abs().max()
