"""The rounds of a run on rank 0, and what is kept of them."""

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import safetensors.torch

from fednnnn_plugin.engine.checkpoint import CheckpointFolder
from fednnnn_plugin.engine.client_vectors import MethodState
from fednnnn_plugin.engine.federation import Federation, Standing
from fednnnn_plugin.engine.folder import (
    Mode,
    RunFolder,
    checkpoints_in,
    round_of,
    write_atomically,
)
from fednnnn_plugin.engine.progress import figures
from fednnnn_plugin.engine.ranks import Ranks
from fednnnn_plugin.engine.records import MetricsFile, RoundRecord
from fednnnn_plugin.engine.widths import Widths, keep_widths
from fednnnn_plugin.errors import UserError

_log = logging.getLogger(__name__)


@dataclass
class KeptRounds:
    """Does a federation's rounds, and keeps their records, checkpoints and model in its folder."""

    federation: Federation
    folder: RunFolder
    tied: Mapping[str, str]  # further names of the model's tensors -> the first name
    checkpoint_every: int

    def __post_init__(self) -> None:
        self._metrics = MetricsFile(self.folder.metrics)
        self._checkpoints = CheckpointFolder(self.folder.checkpoints)
        self._saved = 0
        self._widths: Widths = {}  # that are in the folder

    def run(self, mode: Mode, recipe: str, ranks: Ranks) -> None:
        """Do the rounds from the newest checkpoint on, or all of them; tell ``ranks`` which.

        The folder is locked. Whatever ends the run, its last finished round is saved.
        """
        federation = self.federation
        if mode == "resume":
            self._restore()
        write_atomically(self.folder.recipe, recipe.encode())
        finished = federation.standing.round
        self._metrics.cut(finished)
        ranks.start(finished)
        if finished < federation.rounds:
            self.folder.summary.unlink(missing_ok=True)  # of the shorter run that this extends
        with ExitStack() as stack:
            for follower in federation.followers:
                follower.begin(self.folder.path, finished)
                stack.callback(follower.end)
            stack.callback(self._save_last)  # before any follower ends, which may take its time
            while federation.standing.round < federation.rounds:
                record = federation.run_round(self._keep)
                _log.info("round %d: %s", record.round, figures(record))
                if record.round % self.checkpoint_every == 0:
                    self._save()
                self._prune()
                for follower in federation.followers:
                    follower.round_done(record)

    def check(self, mode: Mode) -> None:
        """Refuse what :meth:`run` would; write nothing."""
        self.folder.check_free()
        if mode == "resume":
            self._restore()

    def _restore(self) -> None:
        federation = self.federation
        recorded = self._metrics.rounds()
        vectors = federation.vectors
        checkpoint = self._checkpoints.load(recorded, vectors.check if vectors else None)
        if checkpoint is None and self.folder.summary.exists():
            raise UserError(
                f"--resume: {self._checkpoints.path}: no whole checkpoint of the {recorded} rounds "
                "that are done: replace the run with --overwrite"
            )
        if checkpoint is None:
            _log.warning("%s: no checkpoint: starting from round 1", self.folder.path)
            return
        self._saved = checkpoint.round
        # With no round left to do, the model may be one of a later round than the checkpoint.
        if self._saved >= federation.rounds and recorded > federation.rounds:
            raise UserError(
                f"--resume: train_args.comm_round: {federation.rounds}: the run in "
                f"{self.folder.path} is at round {recorded} already"
            )
        device = federation.standing.server.served.vector.device
        method = MethodState.taken_from(checkpoint.server)
        state = federation.server.restore(checkpoint.server, device)
        if state is None:
            raise UserError(
                f"--resume: {self._checkpoints.path}: its checkpoint is of another model; "
                "replace the run with --overwrite"
            )
        sums = self._metrics.until(self._saved)
        federation.standing = Standing(state, self._saved, *sums, method.on(device))

    def _keep(self, record: RoundRecord) -> None:
        self.folder.check_held()
        if self._widths != self.federation.widths:
            self._widths = self.federation.widths
            keep_widths(self.folder, self._widths)
        self._metrics.append(record)

    def _save_last(self) -> None:
        try:
            self._save()
        finally:
            self._save()  # again, where an interrupt cut it short

    def _save(self) -> None:
        """Write a checkpoint and the evaluation model of the last finished round."""
        server, standing = self.federation.server, self.federation.standing
        if standing.round == self._saved:
            return
        self.folder.check_held()
        self._metrics.sync()
        evaluation = server.layout.state_dict(standing.server.evaluation)
        tied = {name: evaluation[first].clone() for name, first in self.tied.items()}
        write_atomically(self.folder.model, safetensors.torch.save(evaluation | tied))
        if vectors := self.federation.vectors:
            vectors.sync()
        state = server.state_dict(standing.server) | standing.method.state_dict()
        self._checkpoints.save(state, standing.round)
        self._saved = standing.round

    def _prune(self) -> None:
        """Remove what clients kept that neither a checkpoint nor the next round needs."""
        if vectors := self.federation.vectors:
            saved = map(round_of, checkpoints_in(self.folder.checkpoints))
            vectors.prune([*saved, self.federation.standing.round])
