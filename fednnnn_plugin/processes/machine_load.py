"""How busy the machine is, with whatever runs on it."""

import os


def share_waited() -> float | None:
    """Return the share of the last minute in which what ran here waited for a core.

    With C cores and a load average of L > C processes and threads it is ``1 - C / L``, else 0; None
    where the system has no load average.
    """
    try:
        load = os.getloadavg()[0]
    except (OSError, AttributeError):  # AttributeError: on Windows
        return None
    return max(0.0, 1.0 - (os.cpu_count() or 1) / load) if load else 0.0
