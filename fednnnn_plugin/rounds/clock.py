"""The time that the parts of a round take."""

import time
from itertools import pairwise
from typing import Any

import torch


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
