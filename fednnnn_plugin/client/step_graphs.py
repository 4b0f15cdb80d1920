"""CUDA graphs: a step that is launched as one, without the host's time for each kernel."""

import logging
from collections.abc import Callable, Hashable
from contextlib import suppress

import torch
from torch.torch_version import TorchVersion

from fednnnn_plugin.errors import reason
from fednnnn_plugin.processes.devices import is_out_of_memory

_log = logging.getLogger(__name__)

Step = Callable[[], None]
#: Records what a step launches, and runs none of it; what it returns launches that again.
Capture = Callable[[Step], Step]


class StepGraphs:
    """Runs steps on fixed memory, which differ in nothing but their form and what that memory has.

    A form's first step runs as it is, which also warms up its kernels; its second is captured, and
    launched as a graph from then on: the same kernels, and so the same bits. What cannot be
    captured runs as it is, which the log says once: ``refused``. Where a GPU's memory ends in a
    capture, that is raised. All graphs are of one capture, from ``begin``, until they are cleared.
    """

    def __init__(self, begin: Callable[[], Capture]) -> None:
        self._begin, self._graphs = begin, dict[Hashable, Step]()
        self._capture: Capture | None = None
        self._seen, self.refused = set[Hashable](), False

    def run(self, form: Hashable, step: Step) -> None:
        """Run a step of this form."""
        if form in self._seen and form not in self._graphs and not self.refused:
            try:
                self._capture = self._capture or self._begin()
                self._graphs[form] = self._capture(step)
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise
                self.refused = True
                _log.warning("training runs without CUDA graphs, and slower: %s", reason(error))
        self._seen.add(form)
        self._graphs.get(form, step)()

    def clear(self) -> None:
        """Forget all graphs: the memory that they are of is given back."""
        capture, self._capture = self._capture, None
        self._graphs.clear()
        self._seen.clear()
        if isinstance(capture, CudaCapture):
            capture.give_back_workspaces()


class CudaCapture:
    """Captures steps on one stream of a GPU; they share the memory of their intermediate results.

    When all its graphs are gone, PyTorch may hold its pool for dead: no other graph can use it.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._pool, self._stream = torch.cuda.graph_pool_handle(), stream

    def __call__(self, step: Step) -> Step:
        """Capture a step."""
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._stream.device)
        torch.cuda.synchronize(self._stream.device)
        # What steps without graphs have used is given back: a capture cannot take it.
        torch.cuda.empty_cache()
        with torch.cuda.stream(self._stream):
            # Not torch.cuda.graph(), which collects garbage for 0.1 s each time.
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                step()
            except BaseException:
                with suppress(RuntimeError):  # of a capture that has failed: not the reason
                    self._end(graph)
                raise
            self._end(graph)
        current.wait_stream(self._stream)
        return graph.replay

    def give_back_workspaces(self) -> None:
        """Free what cuBLAS holds for the stream, of a pool whose graphs are gone (#175276)."""
        with suppress(RuntimeError):  # a GPU that computes no more gives nothing back
            torch.cuda.synchronize(self._stream.device)
            torch._C._cuda_clearCublasWorkspaces()

    def _end(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a capture; PyTorch before 2.12 holds one that has failed for underway (#180395)."""
        try:
            graph.capture_end()
        except RuntimeError:
            if TorchVersion(torch.__version__) < (2, 12):  # type: ignore[operator]
                self._forget_capture()
            raise

    def _forget_capture(self) -> None:
        """Leave PyTorch's allocator and generator as if no capture had begun.

        Else no memory is given back any more, and nothing can be drawn on the GPU.
        """
        device = self._stream.device.index
        ends = "_cuda_endAllocateToPool"
        if not hasattr(torch._C, ends):  # before PyTorch 2.8
            ends = "_cuda_endAllocateCurrentStreamToPool"
        # Where the first refuses, the capture had ended: the graph gives the pool back itself.
        with suppress(RuntimeError, AttributeError):
            for forget in (ends, "_cuda_releasePool"):
                getattr(torch._C, forget)(device, self._pool)
        generator = torch.cuda.default_generators[device]
        generator.graphsafe_set_state(generator.clone_state())
