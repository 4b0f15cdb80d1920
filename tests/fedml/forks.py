"""Forks a process for each script from one that has imported what is slow to import.

``python forks.py MODULE...`` imports the modules. A request is a line of JSON: the script's
``arguments``, its ``folder`` and ``path``, the ``seconds`` that it may take, and the ``screen``, a
prefix of the files 1 and 2 that take its standard output and error. The answer is a process id;
``{"wait": pid}`` gives the exit status.
"""

import atexit
import json
import os
import runpy
import signal
import sys
import threading
import time
from importlib import import_module
from types import SimpleNamespace


def _offline(event, arguments) -> None:
    """Let Python see no network but this machine's own."""
    host = {"socket.connect": lambda: arguments[1][0], "socket.getaddrinfo": lambda: arguments[0]}
    if event in host and host[event]() not in {"127.0.0.1", "localhost", "::1", None}:
        raise OSError(f"offline: {event} {host[event]()}")


def hasten() -> None:
    """Shorten FedML's waits, for the network five times at each start and for clients' goodbyes."""
    sys.addaudithook(_offline)
    for name in ("fedml.core.mlops", "fedml.cross_silo.server.fedml_server_manager"):
        if module := sys.modules.get(name):
            module.time = SimpleNamespace(**vars(time) | {"sleep": lambda _: time.sleep(0.1)})


def become(request) -> int:
    """Turn this process into the script's; return its exit status."""
    signal.alarm(request["seconds"])
    os.chdir(request["folder"])
    os.environ["HOME"] = request["folder"]
    for descriptor in (1, 2):
        target = os.open(f"{request['screen']}{descriptor}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(target, descriptor)
    hasten()
    sys.argv, sys.path[:1] = request["arguments"], [request["folder"], request["path"]]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def leave(status) -> None:
    """End as the interpreter does, but for the seconds that it takes to free every object."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    for module in sys.argv[1:]:
        import_module(module)
    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            answer = os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1])
        elif (answer := os.fork()) == 0:
            leave(become(asked))
        os.write(1, f"{answer}\n".encode())
    leave(0)
