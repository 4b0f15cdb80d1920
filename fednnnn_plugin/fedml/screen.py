"""FedML's logging: kept off the screen while a run of ours lasts, and used in its federations."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def log_through_fedml() -> None:
    """Give this package's records FedML's handlers, format and file.

    ``fedml.init`` puts a logger of its own in the place of ``logging.root``, which no logger has
    as its parent: warnings would go bare to standard error, the rest nowhere.
    """
    logging.getLogger("fednnnn_plugin").parent = logging.root


@contextmanager
def quiet_fedml() -> Iterator[None]:
    """Give logging and standard output back to Python while a run lasts.

    ``fedml.init`` puts a logger of its own, which writes to the screen, in the place of
    ``logging.root``, and that logger's ``info`` in the place of ``sys.stdout.write``. With the real
    root back, what FedML logs reaches the handlers of the real root, of which the run's log file is
    one, and what we print is printed.
    """
    replaced, logging.root = logging.root, logging.Logger.manager.root
    write = vars(sys.stdout).pop("write", None)
    silence = logging.NullHandler()  # without any handler logging.info() would add one that prints
    logging.root.addHandler(silence)
    try:
        yield
    finally:
        logging.root.removeHandler(silence)
        logging.root = replaced
        if write is not None:
            vars(sys.stdout)["write"] = write
