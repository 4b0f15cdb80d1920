"""The other way to train several clients on one GPU: each by kernels of its own, on a stream.

Of the paper's FedNNNN only: its step has no anchor, and its models draw nothing. Which way is
faster is not known before both have run on a GPU; ``gpu.py --training slots`` measures this one.
"""

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from fednnnn_plugin.assembly.inputs import Inputs
from fednnnn_plugin.client.group_sgd import Group
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.client.replica import Replica
from fednnnn_plugin.client.step_graphs import CudaCapture, StepGraphs
from fednnnn_plugin.processes.workers import Step
from fednnnn_plugin.rounds.batches import TensorBatches
from fednnnn_plugin.server.layout import ModelState
from fednnnn_plugin.server.transfer import to_device


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
        for stream in self._streams:
            stream.wait_stream(torch.cuda.current_stream(self._device))

    def on(self, slot: int) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._streams[slot])

    def end(self) -> None:
        for stream in self._streams:
            torch.cuda.current_stream(self._device).wait_stream(stream)

    def graphs(self, slot: int) -> StepGraphs | None:
        """See :class:`Streams`; captured where they run, as a workspace of cuBLAS is a stream's."""
        return StepGraphs(partial(CudaCapture, self._streams[slot]))


class _Slot:
    """A model and a batch's positions, in memory that stays."""

    def __init__(self, sgd: LocalSGD, model: nn.Module, graphs: StepGraphs | None) -> None:
        self.replica, self.graphs = Replica(copy.deepcopy(model).train()), graphs
        self.step = sgd.stepper(self.replica)
        self.positions = torch.empty(0, dtype=torch.int64, device=self.replica.vector.device)

    def begin(self, start: ModelState, samples: int) -> None:
        """Begin a client's training, by batches of at most so many samples."""
        self.replica.load(start)
        if len(self.positions) < samples:
            self.positions = self.positions.new_zeros(samples)
            if self.graphs:
                self.graphs.clear()


class TrainInSlots:
    """:class:`LocalSGD` on clients side by side, each on a model and a stream of its own.

    A client's kernels are those that it has alone, and so are its bits: they depend neither on how
    many train beside it nor on the memory. Its steps are launched as CUDA graphs of the slot, one
    for each size of a batch. It takes the place of what the engine trains a group by.
    """

    def __init__(
        self, inputs: Inputs, sgd: LocalSGD, batches: TensorBatches, seed: None, augmentation: None
    ) -> None:
        assert seed is None
        assert augmentation is None
        self._sgd, self._model, self._batches = sgd, inputs.model, batches
        on_gpu = inputs.device.type == "cuda"
        self._streams = CudaStreams(inputs.device) if on_gpu else Streams()
        self._slots: list[_Slot] = []

    def __call__(
        self, replica: Replica, number: int, group: Group, correction: None, before_step: Step
    ) -> ModelState:
        assert correction is None
        if not self._slots:
            kinds = map(self._streams.graphs, range(self._streams.count))
            self._slots = [_Slot(self._sgd, self._model, graphs) for graphs in kinds]
        start, loads = replica.state, [0] * len(self._slots)
        trained = start.many(len(group))
        self._streams.begin()
        for place, client in enumerate(group):
            orders = self._batches.orders(client, number)
            least = min(range(len(loads)), key=loads.__getitem__)
            loads[least] += sum(map(len, orders))
            with self._streams.on(least):
                epochs = [to_device(order, start.vector.device) for order in orders]
                slot = self._slots[least]
                self._train_one(slot, start, epochs, before_step)
                for rows, tensor in zip(trained.tensors, slot.replica.state.tensors, strict=True):
                    rows[place].copy_(tensor)
        self._streams.end()
        return trained

    def give_back_memory(self) -> None:
        """Let go of the slots, and of the graphs that are of them."""
        self._slots = []

    def _train_one(
        self, slot: _Slot, start: ModelState, epochs: Sequence[Tensor], before_step: Step
    ) -> None:
        batch_size = min(self._sgd.batch_of(len(epochs[0])), len(epochs[0]))
        slot.begin(start, batch_size)
        for epoch in epochs:
            for batch in epoch.split(batch_size):
                before_step()
                slot.positions[: len(batch)].copy_(batch)
                step = partial(self._step, slot, len(batch))
                if slot.graphs:
                    slot.graphs.run(len(batch), step)
                else:
                    step()

    def _step(self, slot: _Slot, samples: int) -> None:
        held, positions = self._batches, slot.positions[:samples]
        slot.step(*held.staged((held.images[positions], held.labels[positions])))
