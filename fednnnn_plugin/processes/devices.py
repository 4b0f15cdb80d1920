"""Where a process trains: on which GPU, or on how many cores."""

import ctypes
import logging
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import torch

from fednnnn_plugin.errors import UserError, said_by
from fednnnn_plugin.processes.endings import OPENMP_BINDING

_log = logging.getLogger(__name__)
_DRIVER = Path("/proc/driver/nvidia/version")
_CPU_INFO = Path("/proc/cpuinfo")  # names no model on ARM
# CUDNN_STATUS_ALLOC_FAILED, CUBLAS_STATUS_ALLOC_FAILED, ..._DEVICE_ALLOCATION_FAILED; CUDA's own;
# PyTorch's, where none of cuDNN's algorithms got its workspace.
_NO_MEMORY = re.compile(
    "_ALLOC(ATION)?_FAILED|CUDA error: out of memory|unable to find an engine to execute"
)


def visible_gpus() -> int:
    """Return how many GPUs this process can use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


@contextmanager
def tensors_made_on_cpu() -> Iterator[None]:
    """Have tensors made on the CPU, also where the caller's default device is another."""
    # get_default_device() of PyTorch 2.4 does not see a `with torch.device(...)`.
    is_default = torch.empty(0).device.type == "cpu"
    with nullcontext() if is_default else torch.device("cpu"):
        yield


def core_ids() -> set[int]:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux's
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(core_ids())


def openmp_binding() -> list[str]:
    """Return the settings by which OpenMP has bound this process to one core of several, if any."""
    given = [name for name in OPENMP_BINDING if name in os.environ]
    places = getattr(ctypes.CDLL(None), "omp_get_num_places", lambda: 0)  # torch's OpenMP
    return given if usable_cores() == 1 and places() > 1 else []


def device_name(device: torch.device) -> str:
    """Return the device and what it is: a GPU's name, or a CPU's and how many cores we may use."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    models = re.findall(r"^model name\s*: (.+)$", _CPU_INFO.read_text("utf-8"), re.MULTILINE)
    name, cores = [*models, platform.machine()][0], usable_cores()
    return f"{device} ({name}, {cores} {'core' if cores == 1 else 'cores'})"


def device_facts(device: torch.device) -> dict[str, str]:
    """Return what bits may depend on: a CPU's instructions, or a GPU, its driver and libraries.

    ``name`` also says how many cores there are, or which GPU of the machine it is.
    """
    facts = {"kind": device.type, "name": device_name(device)}
    if device.type != "cuda":
        return facts | {"instructions": torch.backends.cpu.get_cpu_capability()}
    with suppress(OSError):
        found = re.search(r"\d+(\.\d+)+", _DRIVER.read_text("utf-8"))
        facts["driver"] = found[0] if found else ""
    facts["gpu"] = torch.cuda.get_device_name(device)
    libraries = {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    return facts | {name: str(version) for name, version in libraries.items()}


def choose_gpu(gpu_id: int = 0, where: str = "gpu_id", *, say: bool = True) -> torch.device:
    """Return the GPU that ``where`` asks for, or the CPU where there is none, and ``say`` so."""
    visible = visible_gpus()
    if not visible:
        if say:
            _log.warning("device_args.using_gpu: no GPU is visible: running on the CPU")
        return torch.device("cpu")
    if gpu_id >= visible:
        raise UserError(
            f"device_args.{where}", gpu_id, f"must be below {visible}, the visible GPUs"
        )
    torch.cuda.init()  # from here on its generator is seeded with the others
    return torch.device("cuda", gpu_id)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Tell whether the memory of a GPU ended: PyTorch's, or a library's that allocates its own."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and bool(_NO_MEMORY.search(said_by(error)))


def is_lost(error: BaseException) -> bool:
    """Tell whether a GPU computes no more in this process, as after an illegal access."""
    is_cudas = isinstance(error, RuntimeError) and said_by(error).startswith("CUDA error")
    return is_cudas and not is_out_of_memory(error)


def is_asynchronous(device: torch.device) -> bool:
    """Tell whether the host goes on while a device computes what it was given: a GPU."""
    return device.type == "cuda"


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
