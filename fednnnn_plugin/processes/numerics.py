"""How a process computes: its products, its kernels, its heap."""

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Literal

import torch

from fednnnn_plugin.processes.determinism import deterministic_algorithms

Precision = Literal["fp32", "tf32", "bf16", "fp64"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_KEPT_BYTES = 1 << 30
_CPU = torch.device("cpu")


@contextmanager
def numerics(precision: Precision, device: torch.device = _CPU) -> Iterator[None]:
    """Allow TF32 only if asked for, choose deterministic kernels; restore both after.

    Products in float32 are float32's on a CPU too, where torch may be allowed bfloat16. A GPU is
    the current one inside, with its default stream: a user's ``.cuda()`` means it.
    """
    cudnn: Any = torch.backends.cudnn
    cpu: Any = torch.backends.mkldnn
    on_gpu = "tf32" if precision == "tf32" else "ieee"
    switches: list[tuple[Any, str]] = []
    if hasattr(torch.backends, "fp32_precision"):  # torch 2.9
        switches = [(of, on_gpu) for of in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)]
        switches += [(of, "ieee") for of in (cpu.matmul, cpu.conv, cpu.rnn)]
    with ExitStack() as after:
        if device.type == "cuda":
            after.enter_context(torch.cuda.device(device))
            own, default = torch.cuda.current_stream(device), torch.cuda.default_stream(device)
            if own != default:  # the threads that train have the default stream
                default.wait_stream(own)
                after.callback(own.wait_stream, default)
            after.enter_context(torch.cuda.stream(default))
            after.enter_context(deterministic_algorithms())
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
