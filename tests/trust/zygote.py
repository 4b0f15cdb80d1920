"""Forks ``fednnnn`` processes from one that has imported everything, so that each starts at once.

A request is a line of JSON, and so is its answer: ``{"wait": pid}`` gives the exit status, anything
else starts a command and gives its process id:

    arguments   of ``fednnnn``
    folder      to work in
    screen      prefix of the files that take standard output and error
    memory      bytes that the process may take beyond what it starts with
    seconds     after which it is ended
    watch       file for a line about each change of a file, and each program or connection begun
    strike      what befalls it, at which of its changes, to the files of which folder
"""

import atexit
import errno
import itertools
import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

PRELOADED = (
    "fednnnn_plugin.cli",
    "fednnnn_plugin.data.cifar10",
    "fednnnn_plugin.engine.start",
    "fednnnn_plugin.engine.progress",
    "fednnnn_plugin.report.build",
    "sklearn.datasets",
    "torchvision",
)
CHANGES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
STARTS = {"os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def before_changes(act: Callable[[str, str], None]) -> None:
    """Call ``act`` before each change of a file, with what it is and the file's path."""

    def path(target: Any) -> str:
        if isinstance(target, int):
            return str(Path(f"/proc/self/fd/{target}").readlink())
        return str(Path(os.fsdecode(target)).absolute())

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event in CHANGES and (event != "open" or arguments[2] & WRITING):
            act(event, path(arguments[event == "os.rename"]))

    def synced(descriptor: int) -> None:
        act("fsync", path(descriptor))
        fsync(descriptor)

    fsync, os.fsync = os.fsync, synced
    sys.addaudithook(audit)


def watch(log: str) -> None:
    """Tell of all changes, wherever they are; a pickle ends the process."""
    file = Path(log).open("a", buffering=1)  # noqa: SIM115 - until the process ends

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event in STARTS:
            file.write(f"{event}\n")
        elif event == "pickle.find_class":
            raise RuntimeError(f"a pickle: {arguments}")

    before_changes(lambda event, path: file.write(f"{event} {path}\n"))
    sys.addaudithook(audit)


def strike(kind: str, at: int, within: str) -> None:
    """``kill`` the process before change ``at`` of a folder, or have the disk ``full`` then."""
    changes = itertools.count(1)

    def act(event: str, path: str) -> None:
        number = next(changes) if path.startswith(within) else 0
        if kind == "kill" and number == at:
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "full" and number >= at and event != "os.remove":
            named = () if event in ("fsync", "os.truncate") else (path,)  # as the kernel's calls do
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *named)

    before_changes(act)


def become(request: dict[str, Any]) -> NoReturn:
    """Turn this process into the command."""
    signal.alarm(request["seconds"])
    os.chdir(request["folder"])
    for descriptor, name in ((1, "out"), (2, "err")):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(f"{request['screen']}.{name}", flags, 0o600), descriptor)
    if request["memory"]:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + request["memory"]
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    if request["watch"]:
        watch(request["watch"])
    if request["strike"]:
        strike(*request["strike"])
    try:
        import_module("fednnnn_plugin.cli").main(request["arguments"], "fednnnn")
    except SystemExit as ended:
        status = ended.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    # As the interpreter ends, but for the seconds that it takes to free every module's objects.
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    # Each thread takes address space, which is limited: not as many as a large machine has cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    for module in PRELOADED:
        import_module(module)
    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            answer = os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1])
        elif (answer := os.fork()) == 0:
            become(asked)
        os.write(1, f"{answer}\n".encode())
