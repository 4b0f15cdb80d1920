"""Rank 0's side of a run: its files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import safetensors.torch
import torch

from fednnnn_plugin.engine.federation import Federation
from fednnnn_plugin.engine.files import write_atomically
from fednnnn_plugin.engine.folder import Mode, RunFolder
from fednnnn_plugin.engine.ranks import Ranks, Solo
from fednnnn_plugin.engine.records import RoundRecord
from fednnnn_plugin.engine.summary import Summary, read_rounds, versions
from fednnnn_plugin.engine.tracking import Follower, Log, scalars
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe import Recipe, differences, dump_recipe, load_recipe

_log = logging.getLogger(__name__)

OnRound = Callable[[RoundRecord], None]


class RunKeeper:
    """Runs a federation and keeps its recipe, records, checkpoints, model and summary."""

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        federation: Federation,
        tied: dict[str, str],
        device: torch.device,
        ranks: Ranks,
        batching: int,
    ) -> None:
        self.recipe = recipe
        self.folder = folder
        self._federation = federation
        self._tied = tied
        self._device = device
        self._ranks = ranks
        self._batching = batching
        self._saved = 0

    def resume_or_start(
        self, mode: Mode, on_round: OnRound | None, followers: Sequence[Follower]
    ) -> Summary | None:
        if mode == "resume" and self.folder.holds_a_run():
            self._check_recipe()
            if read_rounds(self.folder.summary) >= self._federation.rounds:
                self._ranks.start(self._federation.rounds)
                return None
            self._restore()
        self.folder.write_recipe(dump_recipe(self.recipe))
        self.folder.metrics.cut(self._federation.progress.round)
        self._ranks.start(self._federation.progress.round)
        try:
            with ExitStack() as stack:
                logs = [stack.enter_context(follow(self.folder.path)) for follow in followers]
                self._rounds(on_round, logs)
        except BaseException:
            self._save()
            raise
        self._save()
        return self._summarise()

    def _check_recipe(self) -> None:
        # An entry script's recipe may name data, models and platforms that are not ours.
        stored = load_recipe(self.folder.recipe, foreign=True)
        changed = differences(stored, self.recipe)
        changed.pop("train_args.comm_round", None)
        if changed:
            raise UserError(
                "\n".join(
                    f"--resume: {key}: {given}: the run in {self.folder.path} has {before}; only "
                    "train_args.comm_round may differ"
                    for key, (before, given) in changed.items()
                )
            )

    def _restore(self) -> None:
        checkpoint = self.folder.checkpoints.load(self.folder.metrics.rounds())
        if checkpoint is None:
            _log.warning("%s: no checkpoint: starting from round 1", self.folder.path)
            return
        if checkpoint.progress.round > self._federation.rounds:
            raise UserError(
                f"--resume: train_args.comm_round: {self._federation.rounds}: the run in "
                f"{self.folder.path} is at round {checkpoint.progress.round} already"
            )
        if not self._federation.server.takes(checkpoint.server):
            raise UserError(
                f"--resume: {self.folder.checkpoints.path}: its checkpoint is of another model; "
                "replace the run with --overwrite"
            )
        self._federation.server.load_state_dict(checkpoint.server)
        self._federation.progress = checkpoint.progress
        self._saved = checkpoint.progress.round

    def _rounds(self, on_round: OnRound | None, logs: Sequence[Log]) -> None:
        while self._federation.progress.round < self._federation.rounds:
            record = self._federation.run_round(self.folder.metrics.append)
            assert record is not None
            if record.round % self.recipe.train_args.checkpoint_every == 0:
                self._save()
            for log in logs:
                log(scalars(record), record.round)
            if on_round:
                on_round(record)

    def _save(self) -> None:
        """Write a checkpoint and the evaluation model of the last finished round."""
        progress = self._federation.progress
        if progress.round == self._saved:
            return
        self.folder.metrics.sync()
        evaluation = {
            name: tensor.contiguous() for name, tensor in self._federation.server.evaluation.items()
        }
        tied = {name: evaluation[first].clone() for name, first in self._tied.items()}
        write_atomically(self.folder.model, safetensors.torch.save(evaluation | tied))
        self.folder.checkpoints.save(self._federation.server.state_dict(), progress)
        self._saved = progress.round

    def _summarise(self) -> Summary:
        tested = self.folder.metrics.tested()
        if not tested:  # the last round always is: somebody changed the file
            raise UserError(f"--resume: {self.folder.metrics.path}: no round in it is tested")
        best_round, best = max(tested, key=lambda entry: (entry[1], -entry[0]))
        summary = Summary(
            recipe=self.recipe.name,
            seed=self.recipe.common_args.random_seed,
            rounds=self._federation.rounds,
            best_test_acc=best,
            best_round=best_round,
            final_test_acc=tested[-1][1],
            backend="sp" if isinstance(self._ranks, Solo) else "MPI",
            ranks=self._ranks.size,
            device=_device_name(self._device),
            client_batching=self._batching,
            wall_seconds=self._federation.progress.wall_seconds,
            versions=versions(),
        )
        summary.write(self.folder.summary)
        return summary


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return str(device)
