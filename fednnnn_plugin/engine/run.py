"""One run: from a recipe, a model and data to a run folder."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import safetensors.torch
import torch
from torch import nn

from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine.batches import ClientBatches, LoaderBatches, LoaderData, TensorBatches
from fednnnn_plugin.engine.cohort import (
    BatchedTraining,
    ClientTraining,
    Cohort,
    Replica,
    SGDTraining,
)
from fednnnn_plugin.engine.device import side_by_side
from fednnnn_plugin.engine.evaluation import Evaluation
from fednnnn_plugin.engine.federation import Federation, Schedule
from fednnnn_plugin.engine.files import write_atomically
from fednnnn_plugin.engine.folder import Mode, RunFolder
from fednnnn_plugin.engine.grouping import group_size
from fednnnn_plugin.engine.numerics import numerics
from fednnnn_plugin.engine.ranks import Ranks, Solo
from fednnnn_plugin.engine.records import RoundRecord
from fednnnn_plugin.engine.state import State, aliases, named_tensors, trainable_names
from fednnnn_plugin.engine.summary import Summary, read_rounds, versions
from fednnnn_plugin.engine.tracking import Follower, Log, scalars
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.models import MODELS
from fednnnn_plugin.recipe import Recipe, differences, dump_recipe, load_recipe
from fednnnn_plugin.server.server import Server, ServerRule

_log = logging.getLogger(__name__)

OnRound = Callable[[RoundRecord], None]


class ForeignTrainer(Protocol):
    """A user's own local training, such as a FedML ``ClientTrainer``."""

    def train(self, client: int, state: State, round_number: int) -> State:
        """Return the client's model, trained from ``state``, which may not be kept."""

    def test(self, state: State) -> Evaluation | None:
        """Test a model; None leaves that to the engine."""


def run_federation(
    recipe: Recipe,
    *,
    model: nn.Module,
    data: FederatedData | LoaderData,
    device: torch.device,
    folder: Path,
    mode: Mode = "new",
    trainer: ForeignTrainer | None = None,
    ranks: Ranks | None = None,
    on_round: OnRound | None = None,
    followers: Sequence[Follower] = (),
) -> Summary | None:
    """Run a recipe's federation and keep it in a run folder.

    Our networks on staged tensors train several clients side by side; a model, data or trainer
    that we do not know trains one client at a time, with the global generators seeded for it.

    Args:
        recipe: the settings; its data and model sections are the caller's to follow.
        model: ``w_0``; it is left as it is.
        data: clients and test set.
        device: where to train.
        folder: the run folder.
        mode: ``"resume"`` goes on from the newest whole checkpoint (from the start if there is
            none); ``"overwrite"`` replaces a run; ``"new"`` refuses to.
        trainer: replaces the engine's local training.
        ranks: the processes that share the clients; this one alone by default.
        on_round: called with each round's record, on rank 0.
        followers: opened for the run folder, on rank 0; they get each round's scalars.

    Returns:
        The summary on rank 0; None elsewhere, and where a resumed run was finished already.

    Raises:
        UserError: settings that do not fit the data or the folder.
        RunError: the run cannot go on; its last checkpoint is in place.
    """
    ranks = ranks or Solo()
    sgd = _local_sgd(recipe)
    model = copy.deepcopy(model).to(device, sgd.dtype)
    known = type(model) in MODELS.values() and isinstance(data, FederatedData) and not trainer
    batching = group_size(recipe.train_args.client_batching, model, device, known=known)
    with (
        numerics(sgd.precision),
        _cohort(recipe, sgd, model, data, trainer, ranks, known=known) as cohort,
    ):

        def test(state: State) -> Evaluation:
            own = cohort.alone(partial(trainer.test, state)) if trainer else None
            return own or cohort.test(state)

        federation = Federation(
            _schedule(recipe, data, batching),
            Server(_rule(recipe), named_tensors(model), trainable_names(model)),
            trainable_names(model),
            cohort,
            ranks,
            test,
        )
        if ranks.rank:
            _follow(federation, ranks)
            return None
        run = _Run(recipe, RunFolder(folder), federation, aliases(model), device, ranks, batching)
        with run.folder.locked(mode), _logged_to(run.folder.log):
            return run.resume_or_start(mode, on_round, followers)


class _Run:
    """Rank 0's side of a run: its files."""

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
        if mode == "resume" and self.folder.recipe.exists():
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


def _follow(federation: Federation, ranks: Ranks) -> None:
    """Train on a rank that keeps no files."""
    federation.progress = replace(federation.progress, round=ranks.start(None))
    while federation.progress.round < federation.rounds:
        federation.run_round()


class _ForeignTraining:
    def __init__(self, trainer: ForeignTrainer) -> None:
        self._trainer = trainer

    def __call__(
        self, replica: Replica, round_number: int, client: int, stopping: threading.Event
    ) -> State:
        return self._trainer.train(client, replica.tensors, round_number)


def _cohort(
    recipe: Recipe,
    sgd: LocalSGD,
    model: nn.Module,
    data: FederatedData | LoaderData,
    trainer: ForeignTrainer | None,
    ranks: Ranks,
    *,
    known: bool,
) -> Cohort:
    """Put together how clients train; what is not the package's own trains one at a time."""
    seed = recipe.common_args.random_seed
    device = next(model.parameters()).device
    batches: ClientBatches
    group_training = None
    if isinstance(data, FederatedData):
        batches = TensorBatches(data, sgd, seed, device)
        group_training = BatchedTraining(sgd, batches) if known else None
    else:
        batches = LoaderBatches(data, sgd, device)
    training: ClientTraining = _ForeignTraining(trainer) if trainer else SGDTraining(sgd, batches)
    workers = side_by_side(device, ranks.local_size, recipe.device_args.worker_num)
    return Cohort(
        model.to(memory_format=torch.channels_last) if known else model,
        training,
        batches,
        group_training=group_training,
        workers=min(workers, recipe.train_args.client_num_per_round),
        seed=None if known else seed,
    )


def _local_sgd(recipe: Recipe) -> LocalSGD:
    train = recipe.train_args
    return LocalSGD(
        epochs=train.epochs,
        batch_size=train.batch_size,
        learning_rate=train.learning_rate,
        weight_decay=train.weight_decay,
        prox_mu=train.prox_mu or 0.0,
        precision=train.precision,
    )


def _rule(recipe: Recipe) -> ServerRule:
    train = recipe.train_args
    return ServerRule(train.federated_optimizer, beta=train.beta, gamma=train.gamma)


def _schedule(recipe: Recipe, data: FederatedData | LoaderData, batching: int) -> Schedule:
    train, validation = recipe.train_args, recipe.validation_args
    if data.num_clients != train.client_num_in_total:
        raise UserError(
            f"train_args.client_num_in_total: {train.client_num_in_total}: the data set has "
            f"{data.num_clients} clients"
        )
    return Schedule(
        rounds=train.comm_round,
        client_sizes=tuple(data.client_size(client) for client in range(data.num_clients)),
        cohort_size=train.client_num_per_round,
        seed=recipe.common_args.random_seed,
        weighting=train.client_weighting,
        test_every=validation.frequency_of_the_test,
        test_served=validation.test_served,
        max_client_failures=train.max_client_failures,
        max_client_norm=train.max_client_norm,
        batch_size=train.batch_size,
        group_size=batching,
    )


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return str(device)


class _LogFile(logging.FileHandler):
    """Loses records on a full disk: logging's own report of that would hide the run's."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            assert self.stream is not None
            self.stream.write(self.format(record) + self.terminator)
            self.flush()

    def close(self) -> None:
        with suppress(OSError):
            super().close()


@contextmanager
def _logged_to(path: Path) -> Iterator[None]:
    """Send every log record of the process, FedML's included, to the run's log file."""
    root = logging.getLogger()
    handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    level = root.level
    root.addHandler(handler)
    root.setLevel(min(level, logging.INFO) or logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        handler.close()
