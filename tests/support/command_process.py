"""A ``fednnnn`` process, run by `commands` in a fork of one that has imported everything.

The global ``ASKED`` says what is to be done:

    arguments   of ``fednnnn``
    folder      to work in
    screen      prefix of the files that take standard output and error
    memory      bytes that the process may take beyond what it starts with
    processor   seconds of a core after which it is ended; 0 for any
    watchdog    seconds after which it is ended
    watch       file for a line about each change of a file, and each program or connection begun
    copied      folder that is copied before each of its changes: what a kill would leave then
    full        folder whose disk is full, from which of its changes on
"""

import errno
import itertools
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fednnnn_plugin.cli import main

CHANGES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
STARTS = {"os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def before_changes(act: Callable[[str, str], object]) -> None:
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

    def synced(fd: Any) -> None:
        act("fsync", path(fd))
        fsync(fd)

    fsync, os.fsync = os.fsync, synced
    sys.addaudithook(audit)


def watch(log: str) -> None:
    """Tell of all changes, wherever they are; a pickle ends the process."""
    file = Path(log).open("a", buffering=1)  # noqa: SIM115 - until the process ends

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event in STARTS:
            started = arguments[1][0] if event == "subprocess.Popen" else ""
            file.write(f"{event} {started}\n")
        elif event == "pickle.find_class":
            raise RuntimeError(f"a pickle: {arguments}")

    before_changes(lambda event, path: file.write(f"{event} {path}\n"))
    sys.addaudithook(audit)


def copy(folder: str) -> None:
    """Copy a folder before each of its changes, for the n-th change to ``<folder>-<n>``."""
    changes = itertools.count(1)

    def act(_: str, path: str) -> None:
        if Path(path).is_relative_to(folder) and Path(folder).exists():
            shutil.copytree(folder, f"{folder}-{next(changes)}")

    before_changes(act)


def fill(folder: str, at: int) -> None:
    """Have the disk of a folder full, from change ``at`` on."""
    changes = itertools.count(1)

    def act(event: str, path: str) -> None:
        full = Path(path).is_relative_to(folder) and next(changes) >= at
        if full and event != "os.remove":
            named = () if event in ("fsync", "os.truncate") else (path,)  # as the kernel's calls do
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *named)

    before_changes(act)


asked = globals()["ASKED"]
os.fsync = lambda fd: None  # the machine stays on: what is written can be read
signal.alarm(asked["watchdog"])
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
if asked["copied"]:
    copy(asked["copied"])
if asked["full"]:
    fill(*asked["full"])
main(asked["arguments"], "fednnnn")
