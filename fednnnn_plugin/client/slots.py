"""Local training of several clients on one GPU, each by kernels of its own: on streams."""

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from fednnnn_plugin.client.correction import Correction
from fednnnn_plugin.client.local_sgd import LocalSGD, uninterrupted
from fednnnn_plugin.client.replica import Replica
from fednnnn_plugin.client.step_graphs import CudaCapture, StepGraphs
from fednnnn_plugin.seeds import generators_state
from fednnnn_plugin.server.layout import ModelState
from fednnnn_plugin.server.transfer import to_device

_log = logging.getLogger(__name__)

#: Returns the inputs and the labels of samples at ``positions``, staged.
Stage = Callable[[Tensor], tuple[Tensor, Tensor]]


class Streams:
    """Where slots compute side by side: as on a CPU there is one, for one client after another."""

    count = 1

    def begin(self) -> None:
        """Have all wait for what was computed before."""

    def on(self, slot: int) -> AbstractContextManager[object]:
        """Return the context in which a slot computes."""
        return nullcontext()

    def end(self) -> None:
        """Have what is computed from now on wait for all."""

    def graphs(self, slot: int) -> StepGraphs | None:
        """Return the graphs of a slot, None where there are none."""
        return None


class CudaStreams(Streams):
    """Streams of a GPU; each slot's CUDA graphs are in memory of their own."""

    def __init__(self, device: torch.device, count: int = 24) -> None:
        self.count, self._device = count, device
        self._streams = [torch.cuda.Stream(device) for _ in range(count)]

    def begin(self) -> None:
        """See :class:`Streams`."""
        for stream in self._streams:
            stream.wait_stream(torch.cuda.current_stream(self._device))

    def on(self, slot: int) -> AbstractContextManager[object]:
        """See :class:`Streams`."""
        return torch.cuda.stream(self._streams[slot])

    def end(self) -> None:
        """See :class:`Streams`."""
        for stream in self._streams:
            torch.cuda.current_stream(self._device).wait_stream(stream)

    def graphs(self, slot: int) -> StepGraphs | None:
        """See :class:`Streams`; captured where they run, as a workspace of cuBLAS is a stream's."""
        return StepGraphs(partial(CudaCapture, self._streams[slot]))


class _Slot:
    """A model, a batch's positions, and the anchor, in memory that stays."""

    def __init__(self, sgd: LocalSGD, model: nn.Module, graphs: StepGraphs | None) -> None:
        self.replica, self.graphs = Replica(copy.deepcopy(model).train()), graphs
        self.anchor = torch.zeros_like(self.replica.vector)
        self.step = sgd.stepper(self.replica, anchor=self.anchor)
        self.positions = torch.empty(0, dtype=torch.int64, device=self.anchor.device)
        saved = self.replica.model.state_dict().keys()
        named = self.replica.model.named_buffers()
        self._others = [(buffer, buffer.clone()) for name, buffer in named if name not in saved]

    def begin(self, start: ModelState, anchor: Tensor, samples: int) -> None:
        """Begin a client's training, by batches of at most so many samples."""
        self.replica.load(start)
        self.anchor.copy_(anchor)
        with torch.no_grad():
            for buffer, initial in self._others:
                buffer.copy_(initial)
        if len(self.positions) < samples:
            self.positions = self.positions.new_zeros(samples)
            if self.graphs:
                self.graphs.clear()


class Slots:
    """:class:`LocalSGD` on clients side by side, each on a model and a stream of its own.

    A client's kernels are those that it has alone, and so are its bits: they depend neither on how
    many train beside it nor on the memory. Its steps are launched as CUDA graphs of the slot, one
    for each size of a batch. They run as they are, each kernel launched by the host, where clients
    have ``generators``, as of a user's model; where there is a correction, an optimizer, or a
    learning rate that changes from round to round; where the model draws, which the first client's
    training shows; and where a step cannot be captured.
    """

    def __init__(self, sgd: LocalSGD, model: nn.Module, stage: Stage, streams: Streams) -> None:
        self._sgd, self._model, self._stage, self._streams = sgd, model, stage, streams
        self._slots: list[_Slot] = []
        self._draws: bool | None = None  # not known before the first client

    def train(
        self,
        start: ModelState,
        orders: Sequence[Sequence[Tensor]],
        before_step: Callable[[], None] = uninterrupted,
        round_number: int = 1,
        correction: Correction | None = None,
        generators: Sequence[AbstractContextManager[None]] = (),
    ) -> ModelState:
        """Train clients that all start from one model; return their models, ``[m, d]``.

        Arguments are those of :meth:`GroupSGD.train`; the ``generators`` are each client's, for a
        model that may draw.
        """
        sgd = self._sgd.in_round(round_number)
        # A user's forward pass may do what a graph would not do again.
        plain = not (generators or correction or sgd.optimizer) and sgd is self._sgd
        if plain and not self._slots:
            kinds = map(self._streams.graphs, range(self._streams.count))
            self._slots = [_Slot(self._sgd, self._model, graphs) for graphs in kinds]
        trained, anchor = start.many(len(orders)), sgd.anchor(start.vector)
        contexts = generators or [nullcontext() for _ in orders]
        loads = [0] * self._streams.count
        with self._side_by_side():
            for place, (order, drawing) in enumerate(zip(orders, contexts, strict=True)):
                number = min(range(len(loads)), key=loads.__getitem__)
                loads[number] += sum(map(len, order))
                with self._streams.on(number), drawing, self._noting_draws():
                    epochs = [to_device(epoch, anchor.device) for epoch in order]
                    if plain and self._draws is False and not self._refused:
                        slot = self._slots[number]
                        replica = self._by_graphs(slot, start, anchor, epochs, before_step)
                    else:
                        replica = Replica(copy.deepcopy(self._model))
                        replica.load(start)
                        batches = (epoch.split(sgd.batch_of(len(epochs[0]))) for epoch in epochs)
                        own = None if correction is None else correction.row(place)
                        staged = (map(self._stage, each) for each in batches)
                        sgd.train(replica, staged, before_step, own)
                    for rows, tensor in zip(trained.tensors, replica.state.tensors, strict=True):
                        rows[place].copy_(tensor)
        return trained

    def give_back_memory(self) -> None:
        """Let go of the slots, and of the graphs that are of them."""
        self._slots = []

    @property
    def _refused(self) -> bool:
        """Whether a slot could not capture a step: no other one tries."""
        return any(slot.graphs is not None and slot.graphs.refused for slot in self._slots)

    @contextmanager
    def _side_by_side(self) -> Iterator[None]:
        """Compute on the streams; whatever ends it, nothing is left running on its memory."""
        self._streams.begin()
        try:
            yield
        except BaseException:
            self.give_back_memory()
            raise
        finally:
            self._streams.end()

    @contextmanager
    def _noting_draws(self) -> Iterator[None]:
        """Learn from the first client whether the model draws."""
        if self._draws is not None:
            yield
            return
        before = self._drawn()
        yield
        self._draws = self._drawn() != before
        if self._draws:
            _log.warning("the model draws: training runs without CUDA graphs, and slower")

    def _drawn(self) -> object:
        on_gpu = torch.cuda.get_rng_state().tolist() if torch.cuda.is_initialized() else None
        return generators_state(), on_gpu

    def _by_graphs(
        self,
        slot: _Slot,
        start: ModelState,
        anchor: Tensor,
        epochs: Sequence[Tensor],
        before_step: Callable[[], None],
    ) -> Replica:
        batch_size = min(self._sgd.batch_of(len(epochs[0])), len(epochs[0]))
        slot.begin(start, anchor, batch_size)
        for epoch in epochs:
            for batch in epoch.split(batch_size):
                before_step()
                slot.positions[: len(batch)].copy_(batch)
                step = partial(self._step, slot, len(batch))
                if slot.graphs:
                    slot.graphs.run(len(batch), step)
                else:
                    step()
        return slot.replica

    def _step(self, slot: _Slot, samples: int) -> None:
        slot.step(*self._stage(slot.positions[:samples]))
