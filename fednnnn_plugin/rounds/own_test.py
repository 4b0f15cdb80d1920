"""A user's own test of a model, in the place of the engine's."""

import torch

from fednnnn_plugin.processes.workers import Step, Threads, all_of
from fednnnn_plugin.rounds.training import ForeignTester
from fednnnn_plugin.run_folder.records import Evaluation
from fednnnn_plugin.seeds import isolated_generators
from fednnnn_plugin.server.layout import Layout, ModelState


class OwnTest:
    """Tests models by a user's tester, with the global generators seeded as for a client.

    All tests of a run are on one thread of this process: what the tester keeps, also in
    thread-local variables, is there in the next round.
    """

    def __init__(
        self, tester: ForeignTester, layout: Layout, device: torch.device, seed: int
    ) -> None:
        self._tester, self._layout, self._seed = tester, layout, seed
        self._thread = Threads(device=device)

    def __enter__(self) -> "OwnTest":
        return self

    def __exit__(self, *ended: object) -> None:
        """Wait for a test that was abandoned."""
        self._thread.__exit__(*ended)

    def __call__(self, number: int, state: ModelState) -> Evaluation:
        """Return what the test after a round finds."""

        def test(_: Step) -> Evaluation:
            with isolated_generators(self._seed, "client", 0, 0):
                return self._tester.test(self._layout.state_dict(state), number)

        found: Evaluation
        [found] = all_of(self._thread, [test])
        return found
