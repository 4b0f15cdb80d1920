"""What is on record of a round: each quantity is declared here, and nowhere else.

``metrics.jsonl``, TensorBoard, Weights & Biases and the report take names, ranges and labels from
here. A new quantity is a field here, and one of its name in the server's ``Update`` or
``ServerMove``, which computes it.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, Field, create_model

# Half of the range: what a run adds to it cannot overflow.
Amount = Annotated[float, Field(ge=0, le=sys.float_info.max / 2)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=10**9)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


SCHEMA = 2  # 1 had no schema, time and clients


class Tag(NamedTuple):
    """How TensorBoard and Weights & Biases call a quantity, or all below it; empty: not at all."""

    name: str


#: Marks a quantity that a record has only where it is known.
IF_KNOWN = "if known"


@dataclass(frozen=True)
class Seconds:
    """Wall time of the parts of a round."""

    train: Amount = 0.0
    aggregate: Amount = 0.0
    evaluate: Amount = 0.0

    @property
    def total(self) -> float:
        """The wall time of the round."""
        return self.train + self.aggregate + self.evaluate


class ClientNorms(NamedTuple):
    """Of ``‖Δ_k‖₂`` over the clients of a round; a list in JSON."""

    client_norm_min: Amount
    client_norm_median: Amount
    client_norm_max: Amount


Outcome = Literal["accepted", "clipped", "rejected", "left out"]
#: A round of more clients keeps the longest updates, and the first ones that it did not accept.
MOST_CLIENTS, LONGEST = 100, 10


@dataclass(frozen=True)
class ClientRecord:
    """What became of one client in a round."""

    client: Count | str  #: its number; in a federation its rank
    outcome: Outcome
    norm: Amount | None = None  #: ‖Δ_k‖ before clipping; None where it is not known or finite
    share: Share | None = None  #: α_k
    why: str | None = None  #: of one that was rejected or left out


def kept_clients(every: Iterable[ClientRecord]) -> tuple[ClientRecord, ...]:
    """Return what a record keeps of a round's clients, by their numbers."""
    found = sorted(every, key=lambda one: (isinstance(one.client, str), one.client))
    if len(found) > MOST_CLIENTS:
        others = [one for one in found if one.outcome in ("rejected", "left out")][:LONGEST]
        rest = [one for one in found if one.outcome in ("accepted", "clipped")]
        longest = sorted(rest, key=lambda one: -(one.norm or 0.0))[:LONGEST]
        found = [one for one in found if one in others or one in longest]
    return tuple(found)


@dataclass(frozen=True)
class Spread:
    """Of a result by client, or by class: each of them counts once."""

    mean: Finite
    std: Amount  #: standard deviation of all of them, not of a sample
    worst_10: Finite  #: mean of the worst tenth of them, rounded up
    worst: Finite


@dataclass(frozen=True)
class LayerRecord:
    """The norms of one module, including its part of the server step."""

    mean_update_norm: Amount
    mean_client_norm: Amount
    server_update_norm: Amount


#: How figures call these norms, of which every layer has one.
NORMS = {
    "mean_update_norm": "N, mean update",
    "mean_client_norm": "E, mean client update",
    "server_update_norm": "server step",
}


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """What is kept of a round; norms are Euclidean, of the whole model and of its modules."""

    round: Annotated[int, Field(ge=1, le=10**9), Tag("")]  #: from 1
    #: the version of these quantities
    schema: Annotated[int, Field(ge=1, le=10**9), Tag("")] = SCHEMA
    time: str | None = None  #: of a server: when the round ended, in UTC: 2026-01-31T12:00:00Z
    tested: Annotated[bool, Tag("")] = False  #: whether a test of this round is on record
    evaluated: str | None  #: which model is tested; None where that is not known
    test_acc: Annotated[Share | None, Tag("Test/Acc")]  #: None where it was not measured
    test_loss: Annotated[Finite | None, Tag("Test/Loss")]  #: mean; None where not finite
    #: those of the recipe or a custom trainer, by name
    test_metrics: Annotated[Mapping[str, Finite | None] | None, Tag("Test")]
    served_test_acc: Annotated[Share | None, Tag("Test/ServedAcc")]  #: where asked for
    served_test_loss: Annotated[Finite | None, Tag("Test/ServedLoss")]
    served_test_metrics: Annotated[Mapping[str, Finite | None] | None, Tag("Test/Served")]
    #: of the accuracy on each client's own test part
    client_acc: Annotated[Spread | None, Tag("Test/ClientAcc"), IF_KNOWN] = None
    #: of the mean loss there, the worst of which are the largest
    client_loss: Annotated[Spread | None, Tag("Test/ClientLoss"), IF_KNOWN] = None
    #: of the accuracy on the test samples of each class
    class_acc: Annotated[Spread | None, Tag("Test/ClassAcc"), IF_KNOWN] = None
    mean_update_norm: Amount  #: N
    mean_client_norm: Amount  #: E
    orthogonal_norm: Amount  #: what N is where all clients' updates are orthogonal
    server_update_norm: Amount  #: ‖w_{t+1} - w_t‖
    integrated_norm: Amount  #: its sum over all rounds so far
    client_norms: ClientNorms  #: minimum, median and maximum of ‖Δ_k‖
    layers: Annotated[Mapping[str, LayerRecord], Tag("NWDA")]  #: of those with parameters
    #: what client norms, N and E are of: ``w_k - w_t``, or what a client method uploads instead
    measured: Literal["update", "upload"] = "update"
    clients: Count  #: how many client models the round averages
    rejected: Count  #: how many it dropped
    clipped: Count = 0  #: how many of those that it averages were clipped
    largest_share: Share = 0.0  #: the largest α_k
    #: each client; of many the ten longest, and the first ten that it does not average
    by_client: tuple[ClientRecord, ...] = ()
    degenerate: bool  #: N was near 0: the served model did not change
    seconds: Annotated[Seconds, Tag("")]  #: of its parts
    #: η of the round; on record where it has a schedule
    client_learning_rate: Annotated[Amount | None, Tag("Train/LearningRate"), IF_KNOWN] = None

    def to_json(self) -> str:
        """Return the record as one line."""
        values = asdict(self)
        for name in _IF_KNOWN:
            if values[name] is None:
                del values[name]
        return json.dumps(values, allow_nan=False)

    def tagged(self) -> dict[str, float]:
        """Return its numbers by the names that trackers show: ``Test/Acc``, ``NWDA/fc3/...``."""
        found = {}
        for (first, *rest), value in _leaves(asdict(self)):
            tag = _TAGS.get(first, f"NWDA/{first}")
            if tag and isinstance(value, int | float):
                name = "/".join([tag, *rest])
                if rest and name in _TAGS.values():  # a metric of the name of another quantity
                    name = "/".join([tag, "metrics", *rest])
                found[name] = float(value)
        return found


_HINTS = get_type_hints(RoundRecord, include_extras=True)
_TAGS = {
    name: extra.name
    for name, hint in _HINTS.items()
    for extra in getattr(hint, "__metadata__", ())
    if isinstance(extra, Tag)
}
_IF_KNOWN = [name for name, hint in _HINTS.items() if IF_KNOWN in getattr(hint, "__metadata__", ())]
# Of another version, a record may lack any quantity but its round, and have others.
_OPTIONAL: dict[str, Any] = {name: (hint | None, None) for name, hint in _HINTS.items()}
del _OPTIONAL["schema"]  # a name of pydantic's
_OPTIONAL |= {"round": (_HINTS["round"], ...), "layers": (dict[str, dict[str, Amount | None]], {})}
_Recorded: type[BaseModel] = create_model("_Recorded", **_OPTIONAL)


def read_record(line: bytes) -> dict[str, Any]:
    """Return a line of ``metrics.jsonl`` by the names of `RoundRecord`; None where it lacks one.

    Raises:
        ValidationError: it is no JSON, has no round, or a number that cannot be.
    """
    return _Recorded.model_validate_json(line, strict=True).model_dump()


def columns(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record as a row: ``seconds.train``, ``layers.fc3.mean_update_norm``."""
    return {".".join(path): value for path, value in _leaves(record)}


def _leaves(record: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    norms = zip(ClientNorms._fields, record.get("client_norms") or (), strict=False)
    yield from (((name,), norm) for name, norm in norms)
    for name, value in record.items():
        if name not in ("client_norms", "by_client"):  # which is no number of the round's
            yield from _inside((name,), value)


def _inside(path: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _inside((*path, name), each)
    else:
        yield path, value


def _kinds(of: Any, prefix: str = "") -> Iterator[tuple[str, type]]:
    for name, hint in get_type_hints(of).items():
        is_optional = get_origin(hint) in (Union, UnionType)
        kind = next(each for each in get_args(hint) if each) if is_optional else hint
        if is_dataclass(kind):
            yield from _kinds(kind, f"{name}.")
        elif kind is ClientNorms:
            yield from _kinds(kind)
        elif kind in (float, int, bool):
            yield prefix + name, kind


#: The numbers of records by their columns, with their types.
NUMBERS: dict[str, type] = dict(_kinds(RoundRecord))
del NUMBERS["schema"]
#: Those that not every record has.
NOT_ALWAYS = frozenset(n for n in NUMBERS if n.partition(".")[0] in _IF_KNOWN)
