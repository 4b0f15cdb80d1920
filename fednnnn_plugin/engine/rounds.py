"""The rounds of a run on rank 0, and what is kept of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

import safetensors.torch

from fednnnn_plugin.engine.checkpoint import CheckpointFolder
from fednnnn_plugin.engine.federation import Federation, Standing
from fednnnn_plugin.engine.folder import Mode, RunFolder, write_atomically
from fednnnn_plugin.engine.progress import Follower, figures
from fednnnn_plugin.engine.ranks import Ranks
from fednnnn_plugin.engine.records import MetricsFile
from fednnnn_plugin.errors import UserError

_log = logging.getLogger(__name__)


class Results(NamedTuple):
    """The best accuracy, the first round that reached it, and the last; None without a test."""

    best: float | None
    best_round: int | None
    final: float | None


class KeptRounds:
    """Does a federation's rounds, and keeps their records, checkpoints and model.

    Args:
        federation: does the rounds.
        folder: of the run; it is locked.
        tied: further names of the model's tensors: name -> first name.
        checkpoint_every: rounds between checkpoints; the last round has one in any case.
        followers: are told how it goes.
    """

    def __init__(
        self,
        federation: Federation,
        folder: RunFolder,
        *,
        tied: dict[str, str],
        checkpoint_every: int,
        followers: Sequence[Follower],
    ) -> None:
        self._federation = federation
        self._folder = folder
        self._tied = tied
        self._every = checkpoint_every
        self._followers = followers
        self._metrics = MetricsFile(folder.metrics)
        self._checkpoints = CheckpointFolder(folder.checkpoints)
        self._saved = 0

    def run(self, mode: Mode, recipe: str, ranks: Ranks) -> None:
        """Do the rounds from the newest checkpoint on, or all of them.

        Args:
            mode: of the run.
            recipe: to write, resolved.
            ranks: are told where the run begins.

        Raises:
            UserError: what is there to go on with is damaged, or of another model.
            RunError: the run cannot go on; its last finished round is saved.
        """
        if mode == "resume":
            self._restore()
        else:
            self._checkpoints.clear()
        write_atomically(self._folder.recipe, recipe.encode())
        finished = self._federation.standing.progress.round
        self._metrics.cut(finished)
        ranks.start(finished)
        with ExitStack() as stack:
            stack.callback(self._save)
            for follower in self._followers:
                follower.begin(self._folder.path, finished)
                stack.callback(follower.end)
            while self._federation.standing.progress.round < self._federation.rounds:
                self._round()

    def results(self) -> Results:
        """Return the accuracies of all rounds in short."""
        tested = self._metrics.tested()
        best_round, best = max(
            tested, key=lambda entry: (entry[1], -entry[0]), default=(None, None)
        )
        return Results(best, best_round, tested[-1][1] if tested else None)

    def _round(self) -> None:
        record = self._federation.run_round(self._metrics.append)
        assert record is not None
        _log.info("round %d: %s", record.round, figures(record))
        if record.round % self._every == 0:
            self._save()
        for follower in self._followers:
            follower.round_done(record)

    def _restore(self) -> None:
        checkpoint = self._checkpoints.load(self._metrics.rounds())
        if checkpoint is None:
            _log.warning("%s: no checkpoint: starting from round 1", self._folder.path)
            return
        if checkpoint.progress.round > self._federation.rounds:
            raise UserError(
                f"--resume: train_args.comm_round: {self._federation.rounds}: the run in "
                f"{self._folder.path} is at round {checkpoint.progress.round} already"
            )
        federation = self._federation
        device = federation.standing.server.served.vector.device
        state = federation.server.restore(checkpoint.server, device)
        if state is None:
            raise UserError(
                f"--resume: {self._checkpoints.path}: its checkpoint is of another model; "
                "replace the run with --overwrite"
            )
        federation.standing = Standing(state, checkpoint.progress)
        self._saved = checkpoint.progress.round

    def _save(self) -> None:
        """Write a checkpoint and the evaluation model of the last finished round."""
        server, standing = self._federation.server, self._federation.standing
        progress = standing.progress
        if progress.round == self._saved:
            return
        self._metrics.sync()
        evaluation = server.layout.state_dict(standing.server.evaluation)
        tied = {name: evaluation[first].clone() for name, first in self._tied.items()}
        write_atomically(self._folder.model, safetensors.torch.save(evaluation | tied))
        self._checkpoints.save(server.state_dict(standing.server), progress)
        self._saved = progress.round
