"""Where a process trains: its device, its threads, its numerics and its heap.

Which GPU each rank takes is said in FedML's two notations. A mapping file holds, under a key, for
each host how many processes each of its GPUs takes::

    mapping_two_hosts:
      host1: [2, 1]   # ranks 0 and 1 on GPU 0, rank 2 on GPU 1
      host2: [1]      # rank 3 on GPU 0

``gpu_util_parse`` says the same as ``"host1:2,1;host2:1"``.
"""

import ctypes
import logging
import os
import platform
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, TypeAdapter, ValidationError

from fednnnn_plugin import reading
from fednnnn_plugin.client.local_sgd import Precision
from fednnnn_plugin.errors import UserError, printable

_log = logging.getLogger(__name__)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_KEPT_BYTES = 1 << 30
_CPU_INFO = Path("/proc/cpuinfo")  # names no model on ARM
_HOSTS = TypeAdapter(
    dict[str, Annotated[list[Annotated[int, Field(ge=0, le=1024)]], Field(min_length=1)]]
)


def visible_gpus() -> int:
    """Return how many GPUs this process can use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def core_ids() -> set[int]:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux's
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(core_ids())


def device_name(device: torch.device) -> str:
    """Return the device and what it is: a GPU's name, or a CPU's and how many cores we may use."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    models = re.findall(r"^model name\s*: (.+)$", _CPU_INFO.read_text("utf-8"), re.MULTILINE)
    name, cores = [*models, platform.machine()][0], usable_cores()
    return f"{device} ({name}, {cores} {'core' if cores == 1 else 'cores'})"


def choose_gpu(gpu_id: int = 0, where: str = "gpu_id:", *, say: bool = True) -> torch.device:
    """Return the GPU that ``where`` asks for, or the CPU where there is none, and ``say`` so."""
    visible = visible_gpus()
    if not visible:
        if say:
            _log.warning("device_args.using_gpu: no GPU is visible: running on the CPU")
        return torch.device("cpu")
    if gpu_id >= visible:
        raise UserError(f"device_args.{where} {gpu_id}: must be below {visible}, the visible GPUs")
    return torch.device("cuda", gpu_id)


def device_identity(device: torch.device) -> str:
    """Return what tells one GPU from others of its machine, whatever a process calls it."""
    if device.type != "cuda":
        return str(device)
    return str(getattr(torch.cuda.get_device_properties(device), "uuid", device))


def total_memory(device: torch.device) -> int:
    """Return the bytes that a GPU has, whoever uses them; 0 for a CPU."""
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else 0


def side_by_side(device: torch.device, local_ranks: int = 1, limit: int | None = None) -> int:
    """Return how many clients a process trains at once: one on a GPU, one a core on a CPU.

    ``local_ranks`` processes share the cores; ``limit`` is ``device_args.worker_num``.
    """
    if device.type != "cpu":
        return 1
    cores = usable_cores()
    return max(1, min(cores // local_ranks, limit or cores))


def read_mapping(path: Path, key: str | None) -> list[int]:
    """Read a mapping file; return the GPU of each process, in order."""
    try:
        mappings = reading.read_mapping(path, "GPU mappings by name")
    except UserError as error:
        raise UserError(f"device_args.gpu_mapping_file: {error}") from None
    if key not in mappings:
        known = ", ".join(map(printable, mappings))
        raise UserError(
            f"device_args.gpu_mapping_key: {key!r}: not in {path}, which has the keys {known}"
        )
    return _gpus(mappings[key], f"device_args.gpu_mapping_file: {path}: {key}")


def parse_mapping(text: str) -> list[int]:
    """Parse ``gpu_util_parse``; return the GPU of each process, in order."""
    parts = [part.partition(":") for part in text.split(";")]
    hosts = {host.strip(): counts.split(",") for host, _, counts in parts}
    once = hosts if len(hosts) == len(parts) else None
    return _gpus(once, f"device_args.gpu_util_parse: {text!r}")


def _gpus(hosts: object, where: str) -> list[int]:
    try:
        counts = _HOSTS.validate_python(hosts).values()
    except ValidationError:
        raise UserError(
            f"{where}: must give for each host once how many processes each of its GPUs takes, "
            "as in host1: [2, 1]"
        ) from None
    return [gpu for host in counts for gpu, processes in enumerate(host) for _ in range(processes)]


@contextmanager
def numerics(precision: Precision) -> Iterator[None]:
    """Allow TF32 only if asked for, choose deterministic cuDNN kernels; restore both after.

    Products in float32 are float32's on a CPU too, where torch may be allowed bfloat16.
    """
    cudnn: Any = torch.backends.cudnn
    cpu: Any = torch.backends.mkldnn
    on_gpu = "tf32" if precision == "tf32" else "ieee"
    switches: list[tuple[Any, str]] = []
    if hasattr(torch.backends, "fp32_precision"):  # torch 2.9
        switches = [(of, on_gpu) for of in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)]
        switches += [(of, "ieee") for of in (cpu.matmul, cpu.conv, cpu.rnn)]
    with ExitStack() as after:
        for of, _ in switches:
            after.callback(setattr, of, "fp32_precision", of.fp32_precision)
        with suppress(RuntimeError):  # an older switch does not tell what a newer one has set
            older = torch.get_float32_matmul_precision()
            after.callback(torch.set_float32_matmul_precision, older)
        for of in (torch.backends.cuda.matmul, cudnn):
            with suppress(RuntimeError):
                after.callback(setattr, of, "allow_tf32", of.allow_tf32)
        for name, on in (("deterministic", True), ("benchmark", False)):
            after.callback(setattr, cudnn, name, getattr(cudnn, name))
            setattr(cudnn, name, on)
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        cudnn.allow_tf32 = precision == "tf32"
        for of, value in switches:
            of.fp32_precision = value
        yield


def keep_freed_memory() -> None:
    """Let glibc keep what is freed, for the next step's activations; elsewhere do nothing.

    By default every step and every test batch pays for fresh pages. Measured on two cores: without
    them the CIFAR-10 network trains 7 % faster, with the same peak. It holds for the process
    to its end, so only a command calls it, never the library in someone else's program.
    """
    if hasattr(ctypes.CDLL(None), "mallopt"):
        for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            ctypes.CDLL(None).mallopt(option, _KEPT_BYTES)


class Clock:
    """Seconds of the parts of a round, which begins now; a part lasts from one mark to the next.

    A GPU works on its own: its marks are events, for which the host waits once, in the end.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[tuple[str, Any]] = []
        self.mark("")

    def mark(self, part: str) -> None:
        """Count the time since the last mark as this part's."""
        if self._device.type != "cuda":
            self._marks.append((part, time.perf_counter()))
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))  # a thread's own may be of GPU 0
        self._marks.append((part, event))

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each part."""
        on_gpu = self._device.type == "cuda"
        if on_gpu:
            torch.cuda.synchronize(self._device)
        found: dict[str, float] = {}
        for (_, begun), (part, ended) in pairwise(self._marks):
            seconds = begun.elapsed_time(ended) / 1000 if on_gpu else ended - begun
            found[part] = found.get(part, 0.0) + seconds
        return found
