"""What a program does to its runs, and what a run does to the program: nothing that lasts."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

import fednnnn_plugin as fp
from fednnnn_plugin.processes import fork
from fednnnn_plugin.processes.endings import ENDING

from ..support.commands import quick_words
from ..tiny import Content, Doing, Start, follower


def test_run_stays_where_it_began(start: Start, own_code: Path) -> None:
    """Whatever the user's code changes the working directory to; what is there stays as it is."""
    theirs = own_code / "elsewhere" / "mine" / "metrics.jsonl"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("theirs")

    def net(num_classes: int) -> nn.Module:
        os.chdir("elsewhere")
        return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))

    run = start("mine", model=net, overwrite=True)
    assert run.folder == own_code / "mine"
    assert len((own_code / "mine" / "metrics.jsonl").read_text().splitlines()) == 2
    assert [path.name for path in theirs.parent.iterdir()] == ["metrics.jsonl"]
    assert theirs.read_text() == "theirs"


@pytest.mark.forks
@pytest.mark.slow
def test_users_code_has_threads_of_its_own(
    start: Start, content: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its forward starts them when it is tried out, and in each fork; the bits repeat."""
    monkeypatch.setattr(fork, "SILENT_SECONDS", 2.0)
    monkeypatch.setattr(fork, "STUCK_SECONDS", 10.0)
    pool = ThreadPoolExecutor(1)  # which begins its thread when it is used

    def call(_: Doing, images: Tensor) -> Tensor:
        pool.submit(time.sleep, 0).result()
        return images

    model = nn.Sequential(Doing(call), nn.Flatten(), nn.Linear(64, 10))
    first, second = (start(name, model=model, worker_num=2) for name in ("first", "second"))
    assert content(first.folder) == content(second.folder)


def test_one_run_at_a_time(start: Start, content: Content) -> None:
    """Runs share the global generators: a second one is refused, and costs the first no bits."""
    refused: list[BaseException] = []

    def run_another() -> None:
        try:
            start("second")
        except fp.UserError as error:
            refused.append(error)

    def round_done(_: Any) -> None:
        thread = threading.Thread(target=run_another)
        thread.start()
        thread.join()

    first = start("first", followers=[follower(round_done=round_done)])
    assert len(refused) == 2
    assert not Path("second").exists()
    assert content(first.folder) == content(start("alone").folder)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
def test_program_that_is_told_to_end_keeps_its_rounds(
    start: Start, sent: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """And has its signals back, as after Ctrl-C in a notebook; a handler of its own stays."""
    before = [signal.getsignal(number) for number in ENDING]
    own: list[int] = []

    def round_done(record: Any) -> None:
        if record.round == 2:
            os.kill(os.getpid(), sent)

    told, given = [follower(round_done=round_done)], {"checkpoint_every": 99}
    with pytest.raises(SystemExit) as ended:
        start("run", comm_round=5, followers=told, **given)
    assert ended.value.code == 143
    assert "resume" in capsys.readouterr().err
    assert [path.name[:12] for path in Path("run/checkpoint").iterdir()] == ["round-000002"]
    assert [signal.getsignal(number) for number in ENDING] == before
    signal.signal(sent, lambda number, _: own.append(number))
    try:
        assert start("run", comm_round=3, resume=True, **given).summary.rounds == 3
        assert start("own", comm_round=2, followers=told, **given).summary.rounds == 2
    finally:
        signal.signal(sent, signal.SIG_DFL)
    assert own == [sent]


def test_run_in_a_thread_has_no_handlers(start: Start) -> None:
    found: list[Any] = []

    def round_done(_: Any) -> None:
        found.append([signal.getsignal(number) for number in ENDING])

    def run() -> None:
        found.append(start("run", followers=[follower(round_done=round_done)]).summary.rounds)

    before = [signal.getsignal(number) for number in ENDING]
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [before, before, 2]


@pytest.mark.slow
def test_closed_descriptors_take_nothing_in(tmp_path: Path) -> None:
    """As a daemon's are; the pipes of a user's processes would get their numbers."""
    (tmp_path / "mine.py").write_text(
        "import sys, os\n"
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def forward(self, images):\n"
        "        os.write(2, b'x' * 10000), os.write(1, b'x' * 10000)\n"
        "        return super().forward(images)\n"
        "def net(classes):\n"
        "    return Net(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    words = quick_words("run", "--allow-code", model="mine:net", worker_num=2)
    program = Path(sys.executable).with_name("fednnnn")
    command = ["bash", "-c", 'exec "$@" <&- >&- 2>&-', "-", program, *words]
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0
    assert (tmp_path / "run" / "summary.json").exists()
