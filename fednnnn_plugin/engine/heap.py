"""The C library's heap in a process of ours."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_BYTES = 1 << 30


def keep_freed_memory() -> None:
    """Let glibc keep what is freed, for the next step's activations; elsewhere do nothing.

    By default it returns buffers of megabytes to the system at once, and every training step and
    test batch pays for fresh pages. Measured on two cores: the CIFAR-10 network trains 7 % faster
    and is tested 1.7 times as fast; the peak is the same. It holds for the process to its end, so
    only a command calls it, never the library in someone else's program.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _BYTES)
        mallopt(_M_TRIM_THRESHOLD, _BYTES)
