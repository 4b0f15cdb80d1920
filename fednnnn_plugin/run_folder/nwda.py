"""Norm records for an aggregation that is not ours."""

import math
import operator
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, SupportsIndex

import torch
from pydantic import ValidationError
from torch import Tensor

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.quantities import Seconds, read_record
from fednnnn_plugin.run_folder.records import Evaluation, MetricsFile, round_record
from fednnnn_plugin.server.accumulator import UpdateAccumulator
from fednnnn_plugin.server.admission import check_start
from fednnnn_plugin.server.gradients import NEAR_ZERO
from fednnnn_plugin.server.layout import trained_by_default
from fednnnn_plugin.server.server import ServerMove
from fednnnn_plugin.server.update import Update

_BEGINNING = b'{"round": '  # of a record


class NWDARecorder:
    r"""Writes the paper's norms to ``metrics.jsonl``, one line a round, for any server rule.

    With the global model ``w_t``, the clients' models ``w_k`` and their weights ``α_k`` (paper,
    eqs. 2 to 5, and the appendix's server step), it writes

    .. math::
        N = \left\lVert \sum_k α_k (w_k - w_t) \right\rVert_2, \quad
        E = \sum_k α_k \left\lVert w_k - w_t \right\rVert_2, \quad
        \left\lVert w_{t+1} - w_t \right\rVert_2

    of the whole model and of every module. An existing file is continued, including its
    ``integrated_norm``. If a round is recorded again, its line and those of all later rounds are
    deleted first. :func:`~fednnnn_plugin.read_runs` uses the name of the folder as the method.

    Args:
        path: the file.
        trainable: names of the trained parameters. By default all floating point entries except
            the running statistics of batch normalisation; tied ones count once.

    Example:
        >>> import json, tempfile, torch
        >>> from pathlib import Path
        >>> from fednnnn_plugin import NWDARecorder
        >>> path = Path(tempfile.mkdtemp(), "metrics.jsonl")
        >>> w, clients = {"w": torch.zeros(2)}, [{"w": torch.tensor([3.0, 4.0])}]
        >>> NWDARecorder(path).record(w, clients, [1.0], {"w": torch.tensor([1.5, 2.0])}, 1)
        >>> line = json.loads(path.read_text())
        >>> line["mean_update_norm"], line["server_update_norm"]
        (5.0, 2.5)
    """

    def __init__(self, path: Path | str, trainable: Iterable[str] | None = None) -> None:
        self._file = MetricsFile(Path(path))
        self._trainable = None if trainable is None else set(trainable)

    @torch.no_grad()
    def record(
        self,
        global_state: Mapping[str, Tensor],
        clients: Iterable[Mapping[str, Tensor]],
        weights: Iterable[float],
        served_state: Mapping[str, Tensor],
        round: int,  # noqa: A002
        test_acc: float | None = None,
        test_loss: float | None = None,
    ) -> None:
        """Append the line of a round.

        ``seconds`` are 0 and ``evaluated`` is null, because they are not known here.
        ``degenerate`` is true if N was near 0 and the model did not change.

        Args:
            global_state: ``w_t``; it may have buffers.
            clients: ``w_k``, with the same names and shapes; read one at a time.
            weights: ``a_k`` > 0 for each client, such as its number of samples; ``α_k`` is
                ``a_k / Σ a``.
            served_state: ``w_{t+1}``.
            round: from 1.
            test_acc: accuracy of your evaluation model in [0, 1], if you tested one.
            test_loss: its loss.

        Raises:
            UserError: names, shapes or numbers do not fit, no client is finite, or the file is no
                ``metrics.jsonl``. A client that is not finite is left out, with a warning.
        """
        if isinstance(round, bool) or not isinstance(round, SupportsIndex) or round.__index__() < 1:
            raise _refused(f"round: {round!r}", "must be a whole number of at least 1")
        accuracy, loss = _number("test_acc", test_acc), _number("test_loss", test_loss)
        is_tested = accuracy is not None or loss is not None
        if accuracy is not None and not 0 <= accuracy <= 1:
            raise _refused(f"test_acc: {test_acc!r}", "must be from 0 to 1, or None")
        if loss is not None and not math.isfinite(loss):
            loss = None
        for name, state in (("global_state", global_state), ("served_state", served_state)):
            if not isinstance(state, Mapping) or not all(
                isinstance(tensor, Tensor)
                for entry, tensor in state.items()
                if self._trainable is None or entry in self._trainable
            ):
                raise _refused(name, "must map names to tensors")
        trainable = self._names(global_state)
        part = UpdateAccumulator({n: global_state[n] for n in trainable}, trainable)
        check_start(global_state, trainable, "NWDARecorder: global_state")
        try:
            for state, weight in zip(clients, weights, strict=True):
                if not isinstance(state, Mapping):
                    raise UserError("client", type(state).__name__, "must map names to tensors")
                part.add({n: t for n, t in state.items() if n in trainable}, weight)
        except (TypeError, ValueError) as error:
            raise _refused(f"round {round}: {error}") from error
        update = part.finish()
        move = _move(global_state, served_state, update)
        self._file.path.parent.mkdir(parents=True, exist_ok=True)
        record = round_record(
            round.__index__(),
            update,
            move,
            integrated_norm=self._cut(round) + move.server_update_norm,
            evaluated=None,
            evaluation=Evaluation(accuracy, loss) if is_tested else None,
            seconds=Seconds(),
        )
        self._file.append(record)

    def _names(self, state: Mapping[str, Tensor]) -> list[str]:
        if self._trainable is not None:
            if missing := sorted(self._trainable - state.keys()):
                raise _refused(f"trainable: {missing}: not in the global state")
            return [name for name in state if name in self._trainable]
        first: dict[tuple[object, ...], str] = {}
        for name in trained_by_default(state):
            tensor = state[name]
            place = (tensor.data_ptr(), tensor.shape, tensor.stride())
            first.setdefault(place if tensor.numel() else (name,), name)
        return list(first.values())

    def _cut(self, round_number: int) -> float:
        """Drop the lines from a round on, and a broken last one; return ``integrated_norm``."""
        kept, integrated = 0, 0.0
        try:
            for line in self._file.lines():
                if not line.endswith(b"\n") and _BEGINNING.startswith(line[: len(_BEGINNING)]):
                    break  # a record that was cut off
                recorded = read_record(line)
                if recorded["round"] >= round_number:
                    break
                kept, integrated = kept + 1, recorded["integrated_norm"] or 0.0
        except ValidationError:
            raise _refused(f"{self._file.path}: not a metrics.jsonl file") from None
        self._file.cut(kept)
        return integrated


def _refused(given: str, allowed: str = "") -> UserError:
    return UserError("NWDARecorder", given, allowed)


def _number(name: str, value: Any) -> float | None:
    """Return a measurement, also a tensor's or NumPy's, as a float."""
    try:
        return None if value is None else float(operator.pos(value))  # a text has no sign
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise _refused(f"{name}: {value!r}", "must be a number, or None") from None


def _move(before: Mapping[str, Tensor], after: Mapping[str, Tensor], update: Update) -> ServerMove:
    layout = update.layout
    for entry in layout.entries:
        if entry.name not in after or after[entry.name].shape != entry.shape:
            raise _refused(f"served_state: {entry.name}: missing, or of another shape")
    difference = layout.flatten(after).to(update.vector.device) - layout.flatten(before)
    near_zero = update.mean_update_norm <= NEAR_ZERO * update.mean_client_norm
    move = ServerMove.of(difference, layout, degenerate=near_zero and not difference.any())
    if not math.isfinite(move.server_update_norm):
        raise _refused("served_state: not finite")
    return move
