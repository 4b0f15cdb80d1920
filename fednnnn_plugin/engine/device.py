"""The device of a process, and how many clients train on it side by side."""

from __future__ import annotations

import logging
import os

import torch

from fednnnn_plugin.errors import UserError

_log = logging.getLogger(__name__)


def visible_gpus() -> int:
    """Return how many GPUs this process can use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def choose_device(*, wants_gpu: bool, gpu_id: int = 0, say: bool = True) -> torch.device:
    """Return the GPU that was asked for, or the CPU where there is none.

    Args:
        wants_gpu: a GPU is asked for.
        gpu_id: which.
        say: warn of the fall-back.

    Raises:
        UserError: there are GPUs, but not this one.
    """
    if not wants_gpu:
        return torch.device("cpu")
    visible = visible_gpus()
    if not visible:
        if say:
            _log.warning("device_args.using_gpu: no GPU is visible: running on the CPU")
        return torch.device("cpu")
    if gpu_id >= visible:
        raise UserError(f"device_args.gpu_id: {gpu_id}: must be below {visible}, the visible GPUs")
    return torch.device("cuda", gpu_id)


def side_by_side(device: torch.device, local_ranks: int = 1, limit: int | None = None) -> int:
    """Return how many clients a process trains at once: one a core of its share.

    Args:
        device: on a GPU it is one.
        local_ranks: processes that share this machine's cores.
        limit: the most that ``device_args.worker_num`` allows.
    """
    if device.type != "cpu":
        return 1
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores // local_ranks, limit or cores))
