"""Forks ``fednnnn`` processes from one that has imported everything, so that each starts at once.

A request is a line of JSON, and so is its answer: ``{"wait": pid}`` gives the exit status, anything
else starts a command and gives its process id:

    arguments   of ``fednnnn``
    folder      to work in
    screen      prefix of the files that take standard output and error
    memory      bytes that the process may take beyond what it starts with
    seconds     after which it is ended
    fault       what befalls it, see `Fault`
"""

import atexit
import errno
import json
import os
import resource
import signal
import sys
import threading
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
STARTS = {"os.system", "os.exec", "os.posix_spawn", "subprocess.Popen"}


class Fault:
    """Strikes at one of a process's changes to its files, which it counts, or only watches them.

    Args:
        kind: ``kill`` or ``full``, as a disk does from there on, before the change; ``half`` kills
            once half of a file is written; ``watch`` lets all pass but a pickle.
        at: which change, from 1.
        within: the folder whose changes count.
        log: takes a line for each change, wherever it is, and each program or connection begun.
    """

    def __init__(self, kind: str, at: int = 0, within: str = "/", log: str = os.devnull) -> None:
        self._kind, self._at, self._within = kind, at, within
        self._log = Path(log).open("a", buffering=1)  # noqa: SIM115 - until the process ends
        self._count = 0
        self._fsync = os.fsync
        os.fsync = self._synced
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in CHANGES and (event != "open" or self._writes(arguments)):
            target = arguments[1] if event == "os.rename" else arguments[0]
            self._change(event, self._path(target))
        elif event in STARTS or event == "socket.connect":
            self._log.write(f"{event}\n")
        elif event == "pickle.find_class" and self._kind == "watch":
            raise RuntimeError(f"a pickle: {arguments}")

    @staticmethod
    def _writes(arguments: tuple[Any, ...]) -> bool:
        return bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))

    @staticmethod
    def _path(target: Any) -> str:
        if isinstance(target, int):
            return str(Path(f"/proc/self/fd/{target}").readlink())
        return str(Path(os.fsdecode(target)).absolute())

    def _synced(self, descriptor: int) -> None:
        path = self._path(descriptor)
        if self._kind == "half":
            if path.startswith(self._within) and path.endswith("-tmp") and self._is_due():
                os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
        else:
            self._change("fsync", path)
        self._fsync(descriptor)

    def _change(self, event: str, path: str) -> None:
        self._log.write(f"{event} {path}\n")
        if not path.startswith(self._within) or self._kind not in ("kill", "full"):
            return
        if self._is_due() and self._kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._count >= self._at and self._kind == "full" and event != "os.remove":
            named = () if event in ("fsync", "os.truncate") else (path,)  # as the kernel's calls do
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *named)

    def _is_due(self) -> bool:
        self._count += 1
        return self._count == self._at


def become(request: dict[str, Any]) -> NoReturn:
    """Turn this process into the command."""
    signal.alarm(request["seconds"])
    os.chdir(request["folder"])
    for descriptor, name in ((1, "out"), (2, "err")):
        target = os.open(
            f"{request['screen']}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600
        )
        os.dup2(target, descriptor)
        os.close(target)
    if request["memory"]:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + request["memory"]
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    if request["fault"]:
        Fault(**request["fault"])
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


def serve() -> None:
    """Answer requests until there are no more; only the children return."""
    # Each thread takes address space, which is limited: not as many as a large machine has cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    for module in PRELOADED:
        import_module(module)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        elif (answer := os.fork()) == 0:
            become(request)
        os.write(1, f"{answer}\n".encode())


if __name__ == "__main__":
    serve()
