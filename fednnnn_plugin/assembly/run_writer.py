"""What a run's folder keeps of its rounds: records, checkpoints, evaluation model, summary."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fednnnn_plugin.assembly.inputs import Inputs
from fednnnn_plugin.assembly.load_model import model_metadata
from fednnnn_plugin.client.replica import aliases
from fednnnn_plugin.errors import RESUME, RunError, UserError, begin_anew, printable, reason
from fednnnn_plugin.files import write_atomically
from fednnnn_plugin.processes.devices import device_name, is_lost
from fednnnn_plugin.processes.endings import stops_held
from fednnnn_plugin.quantities import RoundRecord, Seconds
from fednnnn_plugin.recipe import Recipe
from fednnnn_plugin.rounds.client_vectors import MethodState
from fednnnn_plugin.rounds.evaluation import higher_is_better
from fednnnn_plugin.rounds.simulation import Federation, TrainState
from fednnnn_plugin.run_folder.checkpoint import load_checkpoint, save_checkpoint
from fednnnn_plugin.run_folder.folder import RunFolder, checkpoints_in, round_of
from fednnnn_plugin.run_folder.provenance import commit, versions
from fednnnn_plugin.run_folder.records import MetricsFile, Summary, best_and_last
from fednnnn_plugin.run_folder.results import Results, ResultTables
from fednnnn_plugin.run_folder.tensor_files import packed

_log = logging.getLogger(__name__)
_KEPT = (
    *("round", "tested", "test_acc", "test_loss", "test_metrics", "client_acc"),
    *("integrated_norm", "seconds"),
)


def _kept(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept in memory of a record."""
    results = record["test_acc"], record["test_loss"], record["test_metrics"]
    # Earlier versions did not say which rounds were tested.
    tested = record["tested"] or any(each is not None for each in results)
    return {name: record[name] for name in _KEPT} | {"tested": tested}


class RunWriter:
    """Keeps a federation's rounds in its folder, which is locked.

    Attributes:
        train_state: after the last round on record; replaced as one, whatever interrupts it.
        tests: of the tested rounds on record what ends a run and what its summary has.
    """

    def __init__(
        self,
        recipe: Recipe,
        inputs: Inputs,
        federation: Federation,
        train_state: TrainState,
        folder: RunFolder,
    ) -> None:
        self.train_state, self.tests = train_state, list[Mapping[str, Any]]()
        self._recipe, self._inputs = recipe, inputs
        # Further names of the model's tensors -> the first name.
        self._tied, self._of_data = aliases(inputs.model), model_metadata(inputs.data)
        self._federation, self._folder = federation, folder
        self._metrics, self._tables = MetricsFile(folder.metrics), ResultTables(folder.path)
        self._saved = 0
        self._summary: Summary | None = None  # that is in the folder

    def restore(self) -> None:
        """Take the state from the newest whole checkpoint; nothing is written."""
        federation, path = self._federation, self._folder.checkpoints
        self._tables.check(RESUME)
        kept = list(map(_kept, self._metrics.records()))
        recorded = len(kept)
        checkpoint = load_checkpoint(path, recorded, federation.vectors.check)
        if checkpoint is None and self._folder.summary.exists():
            raise begin_anew(f"{path}: no whole checkpoint of the {recorded} rounds that are done")
        if checkpoint is None:
            _log.warning("%s: no checkpoint: starting from round 1", self._folder.path)
            return
        # With no round left to do, the model may be one of a later round than the checkpoint.
        rounds = federation.schedule.rounds
        if checkpoint.round >= rounds and recorded > rounds:
            raise UserError(
                RESUME,
                f"train_args.comm_round: {rounds}: the run in {self._folder.path} is at round "
                f"{recorded} already",
            )
        device = self.train_state.server.served.vector.device
        method = MethodState.taken_from(checkpoint.server, device)
        state = federation.server.restore(checkpoint.server, device)
        if state is None:
            raise begin_anew(f"{path}: its checkpoint is of another model")
        self._saved = checkpoint.round
        kept = kept[: self._saved]
        seconds = sum(Seconds(**each["seconds"]).total for each in kept)
        integrated_norm = kept[-1]["integrated_norm"]
        self.train_state = TrainState(state, self._saved, integrated_norm, seconds, method)
        self.tests = [each for each in kept if each["tested"]]

    def begin(self) -> None:
        """Drop what is on record of the rounds that are to be done."""
        self._metrics.cut(self.train_state.round)
        self._tables.cut(self.train_state.round)
        self._prune()
        if self._saved:
            self._write_summary()  # in place of a longer or a stopped run's

    def keep(self, record: RoundRecord, results: Results, train_state: TrainState) -> None:
        """Put a round on record, with a checkpoint where one is due."""
        self._folder.check_held()
        with stops_held():  # a stop saves the state of each round that is on record
            self._tables.append(record.round, results)  # first: each record has its own
            self._metrics.append(record)
            self.train_state = train_state
            self.tests += [_kept(vars(record))] * record.tested
        if train_state.round % self._recipe.train_args.checkpoint_every == 0:
            self._save()
        self._prune()

    def _prune(self) -> None:
        """Remove what clients kept in a round that is to be done, or that no state needs."""
        if self._inputs.functions.method.keeps:
            saved = map(round_of, checkpoints_in(self._folder.checkpoints))
            done = self.train_state.round
            self._federation.vectors.files.prune(
                [number for number in {*saved, done} if number <= done]
            )

    def save(self) -> None:
        """Write the last round's checkpoint and evaluation model, if they are not there.

        Raises:
            RunError: the GPU that has them does not give them any more.
        """
        try:
            try:
                self._save()
            finally:
                self._save()  # again, where an interrupt cut it short
        except RuntimeError as error:
            if not is_lost(error):
                raise
            last = f"{RESUME} continues after round {self._saved}" if self._saved else "begin anew"
            why = reason(error).partition(" CUDA kernel errors")[0]
            raise RunError(f"the GPU computes no more ({why}): {last}") from error
        self._prune()

    def end(self, stopped: str | None) -> Summary:
        """Return the summary of a saved run; in the folder it lacks only why it was stopped."""
        if stopped or self._summary is None:
            return self._write_summary(stopped)
        return self._summary

    def _write_summary(self, stopped: str | None = None) -> Summary:
        """Write the summary of the rounds so far, and why the run was stopped there."""
        federation, inputs, train_state = self._federation, self._inputs, self.train_state
        accuracies = [(test["round"], test["test_acc"]) for test in self.tests]
        best, best_round, final = best_and_last(accuracies)
        summary = Summary(
            recipe=printable(self._recipe.name),
            seed=self._recipe.common_args.random_seed,
            rounds=train_state.round,
            best_test_acc=best,
            best_round=best_round,
            final_test_acc=final,
            backend=federation.ranks.backend,
            ranks=federation.ranks.size,
            device=device_name(inputs.device),
            client_batching=federation.width,
            wall_seconds=train_state.wall_seconds,
            versions=versions(),
            commit=commit(),
            workers=federation.executor.workers.count,
            stopped=stopped,
        )
        for name, metric in [*inputs.functions.metrics.items()][:1]:
            higher = higher_is_better(metric)
            values = [(of["round"], (of["test_metrics"] or {}).get(name)) for of in self.tests]
            best, best_round, final = best_and_last(values, higher_is_better=higher)
            summary = replace(
                summary,
                metric=name,
                best_metric=best,
                best_metric_round=best_round,
                final_metric=final,
                higher_is_better=higher,
            )
        summary.write(self._folder.summary)
        self._summary = summary
        return summary

    def _save(self) -> None:
        federation, train_state = self._federation, self.train_state
        if train_state.round == self._saved:
            return
        self._folder.check_held()
        self._metrics.sync()
        self._tables.sync()
        evaluation = federation.server.layout.state_dict(train_state.server.evaluation)
        tied = {name: evaluation[first] for name, first in self._tied.items()}
        write_atomically(self._folder.model, packed(evaluation | tied, self._of_data))
        federation.vectors.files.sync()
        state = federation.server.state_dict(train_state.server) | train_state.method.state_dict()
        save_checkpoint(self._folder.checkpoints, state, train_state.round)
        self._write_summary()
        self._saved = train_state.round
