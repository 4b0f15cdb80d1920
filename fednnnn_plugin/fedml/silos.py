"""The silos of a cross-silo federation: which ones FedML knows, draws and waits for."""

import csv
import json
import logging
from pathlib import Path
from typing import Any

from fednnnn_plugin.errors import UserError, shown

_log = logging.getLogger(__name__)
_COLUMNS = ("eid", "rank", "grpc_server_ip", "grpc_server_port")  # that FedML needs


def check_silos(args: Any, start_round: int) -> None:
    """Refuse numbers of clients for which FedML averages others than train, or waits for ever.

    FedML's server draws ``client_num_per_round`` of the silos in ``client_id_list``, and then
    averages the first ``worker_num`` of that list, whichever were drawn.
    """
    drawn, waited_for = args.client_num_per_round, getattr(args, "worker_num", None)
    if waited_for is not None and waited_for != drawn:
        raise UserError(
            "device_args.worker_num",
            shown(waited_for),
            f"must be client_num_per_round, here {shown(drawn)}: FedML averages the first "
            "worker_num silos, and no others",
        )
    _check_ids(args)
    ids = client_ids(args)
    if ids and len(ids) < drawn:
        raise UserError(
            "train_args.client_id_list",
            f"{len(ids)} silos",
            f"must be at least client_num_per_round, here {shown(drawn)}",
        )
    known = max(len(ids), len(read_addresses(args)))
    if known > drawn:
        _log.warning(
            "client_num_per_round: %s of %d silos: FedML 0.9.6 averages the first %s of "
            "client_id_list alone, and waits for ever in a round that draws another one",
            *(drawn, known, drawn),
        )
    total = args.client_num_in_total
    if total != drawn:
        anew = "; after a restart its draws begin anew, unlike an uninterrupted federation's"
        _log.warning(
            "client_num_per_round: %s of %s: FedML 0.9.6 draws the same data for rounds 1 and 2, "
            "and gives the first client's data to no silo but the first%s",
            *(drawn, total, anew if start_round else ""),
        )


def _check_ids(args: Any) -> None:
    """Refuse a ``client_id_list`` that FedML's server cannot read, or waits for ever by."""
    given, ids = getattr(args, "client_id_list", None), client_ids(args)
    if given in (None, "None", "[]"):  # FedML counts the clients from 1 on
        return
    whole = all(isinstance(each, int) for each in ids)
    if not isinstance(given, str) or not ids or not whole or len({*ids}) < len(ids):
        raise UserError(
            "train_args.client_id_list",
            shown(given),
            "must be left out, or a text of different whole numbers, such as '[1, 2, 3]'",
        )


def check_testing(args: Any) -> None:
    """Refuse a ``frequency_of_the_test`` with which FedML's server fails after its first round.

    With a negative one it would test in rounds of which our records say that they are not tested.
    """
    every = getattr(args, "frequency_of_the_test", None)
    if not isinstance(every, int | float) or not every >= 1:
        raise UserError(
            "validation_args.frequency_of_the_test",
            shown(every),
            "must be a number of at least 1: FedML's server tests in every so many rounds",
        )


def client_ids(args: Any) -> list[Any]:
    """Return the clients' ids in the order of FedML's list of models; empty if not known."""
    try:
        ids = json.loads(str(getattr(args, "client_id_list", None)))
    except ValueError:
        return []
    return ids if isinstance(ids, list) else []


def read_addresses(args: Any) -> list[str]:
    """Return the ranks of the clients that have a line in gRPC's table, if FedML is to read one.

    Raises:
        UserError: it cannot be read, or lacks a column.
    """
    if getattr(args, "backend", None) != "GRPC":
        return []
    table = getattr(args, "grpc_ipconfig_path", None)
    where = f"comm_args.grpc_ipconfig_path: {shown(table)}"
    if not isinstance(table, str):
        raise UserError(where, allowed="must be the file of gRPC's addresses")
    try:
        with Path(table).open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            ranks, columns = [row.get("rank") for row in rows], rows.fieldnames or ()
    except (OSError, ValueError, csv.Error) as error:
        why = getattr(error, "strerror", None) or "not a table in UTF-8"
        raise UserError(where, f"cannot be read: {why}") from None
    if lacking := [name for name in _COLUMNS if name not in columns]:
        raise UserError(where, f"no column {', '.join(lacking)}", f"must have {','.join(_COLUMNS)}")
    return [rank for rank in ranks if rank not in (None, "", "0")]
