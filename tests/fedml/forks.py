"""Forks a process for each script from one that has imported what is slow to import."""

import atexit
import logging
import os
import runpy
import signal
import sys
import threading
import time
import warnings
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import SimpleNamespace

import torch

from fednnnn_plugin.fedml.hook import PatchingFinder


def begin(plugin: bool, *modules: str) -> Connection:
    """Fork a process that takes requests; return where to send them and to receive the answers.

    A request is of a script: its ``arguments``, its ``folder`` and ``path``, the ``seconds`` that
    it may take, and the ``screen``, a prefix of the files 1 and 2 that take its standard output
    and error. The answer is a process id. A process id asks for the exit status. The modules are
    imported at the first request; without the plugin FedML is imported anew.
    """
    ours, theirs = Pipe()
    if os.fork():
        theirs.close()
        return ours
    ours.close()
    try:
        _serve(theirs, plugin, modules)
    finally:
        os._exit(0)


def _serve(requests: Connection, plugin: bool, modules: tuple[str, ...]) -> None:
    requests.poll(None)
    atexit._clear()  # what is pytest's
    logging.getLogger().handlers.clear()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if not plugin:
        sys.meta_path.remove(PatchingFinder)
        for name in list(sys.modules):
            if name.partition(".")[0] in {"fedml", "fednnnn_plugin"}:
                del sys.modules[name]
    for module in modules:
        import_module(module)
    while True:  # until the tests have ended
        asked = requests.recv()
        if isinstance(asked, int):
            answer = os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1])
        elif (answer := os.fork()) == 0:
            _leave(_become(**asked))
        requests.send(answer)


def _become(arguments: list[str], folder: str, path: str, seconds: int, screen: str) -> int:
    """Turn this process into the script's; return its exit status."""
    signal.alarm(seconds)
    os.chdir(folder)
    os.environ["HOME"] = folder
    for descriptor in (1, 2):
        target = os.open(f"{screen}{descriptor}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(target, descriptor)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    hasten()
    sys.argv, sys.path[:1] = arguments, [folder, path]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _leave(status: int) -> None:
    """End as the interpreter does, but for the seconds that it takes to free every object."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def hasten() -> None:
    """Shorten FedML's waits, for the network five times at each start and for clients' goodbyes."""
    sys.addaudithook(_offline)
    for name in ("fedml.core.mlops", "fedml.cross_silo.server.fedml_server_manager"):
        if module := sys.modules.get(name):
            module.time = SimpleNamespace(**vars(time) | {"sleep": lambda _: time.sleep(0.02)})


def _offline(event, arguments) -> None:
    """Let Python see no network but this machine's own, and say who looked for it."""
    host = {"socket.connect": lambda: arguments[1][0], "socket.getaddrinfo": lambda: arguments[0]}
    if event in host and host[event]() not in {"127.0.0.1", "localhost", "::1", None}:
        os.write(2, f"offline: {event}\n".encode())
        raise OSError(f"offline: {event} {host[event]()}")
