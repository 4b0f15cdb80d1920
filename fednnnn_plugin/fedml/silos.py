"""The silos of a cross-silo federation: which ones FedML knows, draws and waits for."""

import csv
import json
import logging
from pathlib import Path
from typing import Any

from fednnnn_plugin.errors import UserError, shown

_log = logging.getLogger(__name__)


def check_silos(args: Any, start_round: int) -> None:
    """Refuse numbers of clients for which FedML averages others than train, or waits for ever.

    FedML's server draws ``client_num_per_round`` of the silos in ``client_id_list``, and then
    averages the first ``worker_num`` of that list, whichever were drawn.
    """
    drawn = getattr(args, "client_num_per_round", None)
    waited_for = getattr(args, "worker_num", None)
    if drawn is None:
        return
    if waited_for is not None and waited_for != drawn:
        raise UserError(
            f"device_args.worker_num: {shown(waited_for)}: must be client_num_per_round, here "
            f"{shown(drawn)}: FedML averages the first worker_num silos, and no others"
        )
    ids = client_ids(args)
    if ids and len(ids) < drawn:
        raise UserError(
            f"train_args.client_id_list: {len(ids)} silos: must be at least client_num_per_round, "
            f"here {shown(drawn)}"
        )
    known = max(len(ids), _addresses(args))
    if known > drawn:
        _log.warning(
            "client_num_per_round: %s of %d silos: FedML 0.9.6 averages the first %s of "
            "client_id_list alone, and waits for ever in a round that draws another one",
            *(drawn, known, drawn),
        )
    _warn_of_drawn_data(args, start_round)


def client_ids(args: Any) -> list[Any]:
    """Return the clients' ids in the order of FedML's list of models; empty if not known."""
    try:
        ids = json.loads(str(getattr(args, "client_id_list", None)))
    except ValueError:
        return []
    return ids if isinstance(ids, list) else []


def _addresses(args: Any) -> int:
    """Return how many clients have a line in gRPC's table; 0 without one that can be read."""
    table = getattr(args, "grpc_ipconfig_path", None)
    if getattr(args, "backend", None) != "GRPC" or not isinstance(table, str):
        return 0
    try:
        with Path(table).open(encoding="utf-8", newline="") as file:
            return sum(row.get("rank") not in (None, "", "0") for row in csv.DictReader(file))
    except (OSError, ValueError, csv.Error):
        return 0  # which FedML reports


def _warn_of_drawn_data(args: Any, start_round: int) -> None:
    """Say what FedML's draws leave out, where not all clients' data take part in every round."""
    total = getattr(args, "client_num_in_total", None)
    drawn = args.client_num_per_round
    if total is None or total == drawn:
        return
    anew = "; after a restart its draws begin anew, unlike an uninterrupted federation's"
    _log.warning(
        "client_num_per_round: %s of %s: FedML 0.9.6 draws the same data for rounds 1 and 2, and "
        "gives the first client's data to no silo but the first%s",
        drawn,
        total,
        anew if start_round else "",
    )
