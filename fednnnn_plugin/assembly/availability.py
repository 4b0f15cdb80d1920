"""Which clients are available in which rounds, as a file says it."""

import csv
import hashlib
import re
from collections.abc import Iterable
from operator import itemgetter

from fednnnn_plugin.errors import UserError, printable, reason
from fednnnn_plugin.files import read_regular, user_path
from fednnnn_plugin.rounds.sampling import AVAILABILITY

_COLUMNS = ["client", "first_round", "last_round"]
_LONGEST = 1 << 26  # bytes


class AvailabilityFile:
    """The clients of each round, of a CSV file: a line is a client and the rounds that it is there.

    ``client,first_round,last_round``, a client with any number of lines. ``digest`` is the
    content's.

    Raises:
        UserError: the file cannot be read, a line is wrong, or a round has no client.
    """

    def __init__(self, path: str, num_clients: int, rounds: int) -> None:
        where = f"{AVAILABILITY}: {printable(path)}"
        try:
            content = read_regular(user_path(path), _LONGEST)
            lines = list(csv.reader(content.decode("utf-8-sig").splitlines()))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UserError(where, f"cannot be read: {reason(error)}") from None
        if lines[:1] != [_COLUMNS]:
            raise UserError(where, "line 1", f"must be {','.join(_COLUMNS)}")
        self.digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        self._spans: list[tuple[int, int, int]] = []
        for number, line in enumerate(lines[1:], start=2):
            if not any(map(str.strip, line)):
                continue
            fits = len(line) == 3 and all(re.fullmatch(r"\s*\d{1,18}\s*", part) for part in line)
            client, first, last = map(int, line) if fits else (0, 0, 0)
            if not (fits and client < num_clients and 1 <= first <= last):
                raise UserError(
                    where,
                    f"line {number}",
                    f"must be a client of 0 to {num_clients - 1}, and its first and its last "
                    "round, from 1",
                )
            self._spans.append((client, first, last))
        covered = 0  # the last round before the first one without a client
        for _, first, last in sorted(self._spans, key=itemgetter(1)):
            if first > covered + 1:
                break
            covered = max(covered, last)
        if covered < rounds:
            raise UserError(
                where,
                f"round {covered + 1}: no client is available",
                "must cover every round now: a run cannot be resumed with another file",
            )

    def __call__(self, number: int) -> Iterable[int]:
        """Return the clients of a round."""
        return sorted({client for client, first, last in self._spans if first <= number <= last})
