"""A ``fednnnn`` process, run by `conftest` in a fork of one that has imported everything.

The global ``ASKED`` says what is to be done:

    arguments   of ``fednnnn``
    folder      to work in
    screen      prefix of the files that take standard output and error
    memory      bytes that the process may take beyond what it starts with
    processor   seconds of a core after which it is ended; 0 for any
    watch       file for a line about each change of a file, and each program or connection begun
    strike      what befalls it, at which of its changes, to the files of which folder
"""

import errno
import itertools
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fednnnn_plugin.cli import main

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
            changed = path(arguments[event == "os.rename"])
            # To remove what is not there changes nothing.
            if event != "os.remove" or os.path.lexists(changed):
                act(event, changed)

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


asked = globals()["ASKED"]
signal.alarm(600)  # a watchdog
if asked["processor"]:
    resource.setrlimit(resource.RLIMIT_CPU, (asked["processor"],) * 2)
os.chdir(asked["folder"])
for descriptor, name in ((1, "out"), (2, "err")):
    os.dup2(os.open(f"{asked['screen']}.{name}", os.O_WRONLY | os.O_CREAT), descriptor)
# Each thread takes address space, which is limited: not as many as a large machine has cores.
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
if asked["memory"]:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + asked["memory"]
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
if asked["watch"]:
    watch(asked["watch"])
if asked["strike"]:
    strike(*asked["strike"])
main(asked["arguments"], "fednnnn")
