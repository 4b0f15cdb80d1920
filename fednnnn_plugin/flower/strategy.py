"""A server rule as a strategy of Flower's Message API."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from flwr.serverapp.strategy.strategy_utils import validate_message_reply_consistency
from torch import nn

from fednnnn_plugin.errors import UserError, check_known, printable, reason, shown
from fednnnn_plugin.flower.messages import (
    averaged_if_fit,
    client_result,
    evaluation_of,
    model_of,
    round_metrics,
    weight_of,
)
from fednnnn_plugin.run_folder.kept_server import KeptServer
from fednnnn_plugin.run_folder.results import ClientResult
from fednnnn_plugin.run_folder.server_state import file_to_write
from fednnnn_plugin.server.admission import checked_positive
from fednnnn_plugin.server.average import ClientSum
from fednnnn_plugin.server.rules import Rule

_log = logging.getLogger("flwr")  # which `flwr run` shows
if TYPE_CHECKING:
    Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class RuleStrategy(FedAvg):
    r"""The strategy of a server rule; the classes of the rules derive from it.

    What it returns, what Flower evaluates and ``Result.arrays`` hold is the *evaluation* model,
    :math:`w_t + S` for the paper's methods. What clients get is the *served* model :math:`w_t`,
    which the strategy keeps. Clients answer as for Flower's FedAvg: with one ``ArrayRecord``, the
    trained model, and one ``MetricRecord``.

    The norms of a round are in its ``MetricRecord``, beside what the clients measured: ``N``,
    ``E``, ``N/E``, ``client-norms`` (minimum, median, maximum), ``server-update-norm``, and the
    counts ``clients``, ``rejected``, ``failed`` (of the rejected, those that sent an error, another
    model or, with ``"samples"``, no positive weight; the others sent numbers that are not finite)
    and ``clipped``. A round with no valid reply leaves both models as they are, with
    a warning. Metrics of clients that do not fit each other are left out, with a warning.

    Args:
        trainable: names of the trained parameters, all names of a tied tensor; or the model, whose
            parameters with ``requires_grad`` they are (tied ones count once). All else is a buffer:
            averaged, not moved by the rule. By default all floating point arrays but
            ``running_mean`` and ``running_var`` are trained. Counts that Flower's FedAvg returned
            as float64, those of the model or of batch normalisation, are integers again.
        client_weighting: ``"uniform"``, as in the paper, whose server does not know the clients'
            data sizes: :math:`α_k = 1/m`; or ``"samples"``, as Flower's FedAvg: in proportion to
            ``weighted_by_key`` (``num-examples``) of the clients' metrics.
        max_client_norm: longer updates are clipped to it.
        metrics_path: a folder for the records of the rounds, with each layer's norms, which
            ``fednnnn report`` and :func:`~fednnnn_plugin.read_runs` read. ``accuracy`` in [0, 1]
            and ``loss`` of ``evaluate_fn`` or, where none is given, of the clients' evaluation are
            its ``test_acc`` and ``test_loss``; another accuracy is among its metrics, with a
            warning. Where an ``evaluate_fn`` returns None, a round has no test.
            Each client's are in ``clients.csv``, and their mean, deviation and worst in the record.
        state_path: a file for the state after each round. If it is there, :meth:`start` continues;
            a strategy that wraps this one has a ``start`` of its own, and can have none.
        **options: the rule's settings, and the arguments of Flower's ``FedAvg``:
            ``fraction_train``, ``min_train_nodes``, ``train_metrics_aggr_fn``, ….

    Raises:
        UserError: a setting that is missing, unknown or out of range, or a path where nothing can
            be written.
    """

    rule: ClassVar[Rule]

    def __init__(
        self,
        *,
        trainable: nn.Module | Iterable[str] | None = None,
        client_weighting: Literal["uniform", "samples"] = "uniform",
        max_client_norm: float | None = None,
        metrics_path: str | Path | None = None,
        state_path: str | Path | None = None,
        **options: Any,
    ) -> None:
        rule = self.rule
        check_known("client_weighting", client_weighting, ("uniform", "samples"))
        if max_client_norm is not None:
            max_client_norm = checked_positive("max_client_norm", max_client_norm)
        flowers = list(inspect.signature(FedAvg.__init__).parameters)[1:]
        own = list(inspect.signature(RuleStrategy.__init__).parameters)[1:-1]
        for name in options:
            check_known(f"{rule.name}: setting", name, [*rule.keys, *own, *flowers])
        self._settings = rule.settings(options)
        super().__init__(**{name: options[name] for name in options.keys() - rule.keys})
        if not isinstance(trainable, nn.Module | None):
            names = list(trainable) if isinstance(trainable, Iterable) else [trainable]
            if isinstance(trainable, str) or not all(isinstance(name, str) for name in names):
                given = shown(trainable)
                raise UserError("trainable", given, "must be a model, or a list of names")
            trainable = names
        self._trainable = trainable
        self._weighting, self._longest = client_weighting, max_client_norm
        self._paths = file_to_write("state_path", state_path), metrics_path
        self._server: KeptServer | None = None
        self._is_running = False  # by its own start()
        self._server_tests = False  # by evaluate_fn
        self._sent = False  # whether clients have the served model of this round
        self._returned: ArrayRecord | None = None
        self._warned = False  # of an accuracy that is none

    def summary(self) -> None:
        """Log the settings of the rule, then those of Flower's FedAvg."""
        values = [f"{name} {value}" for name, value in self._settings.items()]
        values.append(f"weights {self._weighting}")
        _log.info("\t├──> %s: %s", self.rule.name, ", ".join(values))
        super().summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Run the federation, as Flower's ``Strategy.start`` does.

        Rounds whose state ``state_path`` holds are among the ``num_rounds``: the others are run.
        The numbers of rounds, in results, and for clients, ``evaluate_fn`` and the methods of a
        subclass, go on.

        Raises:
            UserError: the arrays, the state or the records do not fit each other.
            RunError: the served or the evaluation model overflowed.
        """
        server = self._begin(initial_arrays)
        done, arrays = server.done, initial_arrays
        run: Callable[..., Result] = super().start
        if done:
            counted = type(type(self).__name__, (_CountedOn,), {})(self, done)
            run = partial(FedAvg.start, counted)
            _log.info("%s: %d rounds are done", self._paths[0], done)
            arrays = ArrayRecord(server.evaluation)

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            found = evaluate_fn(done + server_round, arrays) if evaluate_fn else None
            self._record_test(server, MetricRecord() if found is None else found)
            return found

        configs = timeout, train_config, evaluate_config
        left, tested = max(num_rounds - done, 0), evaluate if evaluate_fn else None
        self._is_running, self._server_tests = True, evaluate_fn is not None
        try:
            result = run(grid, arrays, left, *configs, tested)
        finally:
            self._is_running = self._server_tests = False
        for name, found in vars(result).items():
            if isinstance(found, dict):  # by the number of the round
                setattr(result, name, {done + number: each for number, each in found.items()})
        if self._returned is None:  # no round, or none with a valid reply
            result.arrays = arrays
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the served model. ``arrays`` must be what was returned last.

        Raises:
            UserError: a strategy that wraps this one changed them, as Flower's server-side
                differential privacy does: clients would get the model without its noise; or
                ``state_path`` without :meth:`start`, which alone continues.
        """
        server, (state_path, metrics_path) = self._server, self._paths
        if server is None or (server_round == 1 and not self._is_running):
            why = "an own start() must call super().start(); a wrapping strategy has its own"
            if state_path is not None:
                given = f"{printable(state_path)}: only RuleStrategy.start() continues from it"
                raise UserError("state_path", given, f"{why}: leave state_path out")
            if metrics_path is not None:
                _log.warning("metrics_path: has N and E, but no test by evaluate_fn: %s", why)
            server = self._begin(arrays)
        elif self._returned is not None and self._returned != arrays:
            raise UserError(
                self.rule.name,
                f"round {server_round}: the arrays are not those that it returned",
                "must not be changed, as clients get the served model, not these",
            )
        self._sent = True
        return super().configure_train(server_round, ArrayRecord(server.served), config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the evaluation model, None if no reply is valid, and the round's numbers.

        Raises:
            UserError: what the rule raises; replies to what :meth:`configure_train` did not send.
            RunError: the served or the evaluation model overflowed.
        """
        replies = sorted(replies, key=lambda reply: reply.metadata.src_node_id)
        server, sent, self._sent = self._server, self._sent, False
        if replies and not sent:
            raise UserError(
                self.rule.name,
                f"round {server_round}: replies to messages of another configure_train",
                "a subclass's must call super().configure_train() once a round and send what it "
                "returns, or some of it: clients train the served model, which only that has",
            )
        if self.fraction_train == 0.0 or server is None:
            return None, None
        server.records.clients_came()
        total = server.begin_sum()
        accepted = [reply.content for reply in replies if self._add(total, server, reply)]
        update, move = server.close_round(total)
        metrics = self._client_metrics(accepted) or MetricRecord()
        metrics.update(round_metrics(update, move, total.seen.failed))
        if not accepted:
            _log.warning("round %d: no valid reply: the model stays", server.done)
            return None, metrics
        self._returned = ArrayRecord(server.evaluation)
        return self._returned, metrics

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the clients' metrics, averaged as by Flower's FedAvg; None if they do not fit."""
        replies = sorted(replies, key=lambda reply: reply.metadata.src_node_id)
        averaged, by = super().aggregate_evaluate, self.evaluate_metrics_aggr_fn
        found = averaged_if_fit(lambda: averaged(server_round, replies), by)
        results = [client_result(reply, self.weighted_by_key) for reply in replies]
        known = [result for result in results if result is not None]
        if self._server is not None and (found is not None or known):
            tested = MetricRecord() if found is None or self._server_tests else found
            self._record_test(self._server, tested, known)
        return found

    def _record_test(
        self, server: KeptServer, found: MetricRecord, clients: Sequence[ClientResult] = ()
    ) -> None:
        evaluation = evaluation_of(found)
        recorded = self._paths[1] is not None
        if recorded and "accuracy" in found and evaluation.accuracy is None and not self._warned:
            self._warned = True
            _log.warning("accuracy %s: not in [0, 1]: not recorded as test_acc", found["accuracy"])
        server.records.tested(evaluation, clients)

    def _begin(self, arrays: ArrayRecord) -> KeptServer:
        model, settings = arrays.to_torch_state_dict(), (self._weighting, self._longest)
        given = self.rule, self._settings, model, self._trainable, *settings, *self._paths
        server = self._server = KeptServer(*given)
        self._sent, self._returned = False, None
        return server

    def _add(self, total: ClientSum, server: KeptServer, reply: Message) -> bool:
        """Add a client's model; tell whether it was accepted, and in the log why not."""
        client = f"node {reply.metadata.src_node_id}"
        try:
            model, uniform = model_of(reply), self._weighting == "uniform"
            weight = 1.0 if uniform else weight_of(reply, self.weighted_by_key)
            return server.add(total, model, weight, client)
        except Exception as error:  # whatever a client sends, the round goes on
            why = printable(reason(error))
            total.fail(client, why)
            _log.warning("round %d: %s: left out: %s", server.done + 1, client, why)
            return False

    def _client_metrics(self, replies: list[RecordDict]) -> MetricRecord | None:
        """Return the clients' metrics, averaged by Flower where they fit each other."""
        if not replies:
            return None
        average, key = self.train_metrics_aggr_fn, self.weighted_by_key

        def averaged() -> MetricRecord:
            validate_message_reply_consistency(replies, key, False)
            return average(replies, key)

        return averaged_if_fit(averaged, average)


class _CountedOn:
    """A strategy for Flower's loop, which counts from 1: its methods get the rounds before, too."""

    def __init__(self, strategy: RuleStrategy, done: int) -> None:
        self._strategy, self._done = strategy, done

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._strategy, name)
        if not name.startswith(("configure_", "aggregate_")):
            return found

        def counted(server_round: int, *given: Any, **named: Any) -> Any:
            return found(self._done + server_round, *given, **named)

        return counted
