"""How a run may begin in a folder, who may write to it, and its log."""

import logging
import logging.config
import os
import re
from concurrent.futures import ThreadPoolExecutor
from logging.handlers import MemoryHandler
from pathlib import Path

import pytest

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.run_folder.folder import Mode, RunFolder
from fednnnn_plugin.run_folder.log_file import run_log

LINE = '{"round": 1}\n'
CHECKPOINT = "checkpoint/round-000001.safetensors"
BEGUN = {".lock": "", "recipe.yaml": "r"}
MODES: tuple[Mode, ...] = ("new", "resume", "overwrite")


HOLDS = "it already holds a run: continue with --resume, replace it with --overwrite, or"
NO_RUN = "--resume: .*: it holds no run"


def put(files: dict[str, str], folder: Path) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("files", "new", "resume"),
    [
        ({}, None, NO_RUN),
        # A run without a finished round blocks nothing.
        (BEGUN | {"fedml.log": "", "metrics.jsonl": LINE[:-1]}, None, None),
        (BEGUN | {"metrics.jsonl": LINE}, HOLDS, None),
        (BEGUN | {CHECKPOINT: ""}, HOLDS, None),
        ({".lock": "", "model.safetensors": ""}, HOLDS, r"recipe\.yaml: missing"),
        # A copy without the lock; a published run.
        ({"recipe.yaml": "r", "fingerprint.json": ""}, HOLDS, None),
        ({"recipe.yaml": "r", "summary.json": "", "metrics.jsonl.gz": ""}, HOLDS, None),
        ({"wandb/theirs": ""}, "wandb: not a run's: move it away", NO_RUN),
    ],
)
def test_folder_tells_how_a_run_may_begin(
    tmp_path: Path, files: dict[str, str], new: str | None, resume: str | None
) -> None:
    put(files, tmp_path)
    for mode, refused in zip(MODES, (new, resume, None), strict=True):
        if refused is None:
            RunFolder(tmp_path).check(mode)
        else:
            with pytest.raises(UserError, match=refused):
                RunFolder(tmp_path).check(mode)
    assert RunFolder(tmp_path).holds_rounds() == (new == HOLDS and "fingerprint.json" not in files)


@pytest.mark.parametrize("name", ["recipe.yaml", "model.safetensors", "summary.json", CHECKPOINT])
def test_a_users_own_files_are_no_run(tmp_path: Path, name: str) -> None:
    """Nothing replaces them, and no message proposes it."""
    put({name: "mine"}, tmp_path)
    theirs = f"--output: {tmp_path / name}: not a run's: move it away, or choose another folder"
    none = f"--resume: {tmp_path}: it holds no run: leave --resume out to begin one"
    for mode, said in zip(MODES, (theirs, none, theirs), strict=True):
        with pytest.raises(UserError) as refused:
            RunFolder(tmp_path).check(mode)
        assert str(refused.value) == said
    assert not RunFolder(tmp_path).holds_rounds()


def test_published_run_is_replaced_whole(tmp_path: Path) -> None:
    put({"recipe.yaml": "r", "metrics.jsonl.gz": ""}, tmp_path)
    with RunFolder(tmp_path).locked("overwrite"):
        assert not (tmp_path / "metrics.jsonl.gz").exists()


def test_links_and_pipes_are_refused(tmp_path: Path) -> None:
    for name in (".lock", CHECKPOINT, "wandb"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        for make in (os.mkfifo, lambda path: path.symlink_to(tmp_path)):
            make(path)
            for mode in MODES:
                with pytest.raises(UserError, match=f"--output: {path}: not a "):
                    RunFolder(tmp_path).check(mode)
            path.unlink()


def test_folder_is_written_by_one_run(tmp_path: Path) -> None:
    with RunFolder(tmp_path).locked("new"), ThreadPoolExecutor() as threads:
        begins = [RunFolder(tmp_path).locked(mode).__enter__ for mode in MODES]
        for begin in (*begins, RunFolder(tmp_path).check_free):
            with pytest.raises(UserError, match=f"--output: {tmp_path}: another run is writing"):
                threads.submit(begin).result()
    RunFolder(tmp_path).check_free()
    with RunFolder(tmp_path).locked("resume"):
        pass


def test_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "link"
    for to in ("link", "absent"):
        folder.symlink_to(to)
        for begin in (RunFolder(folder).check_free, RunFolder(folder).locked("new").__enter__):
            with pytest.raises(UserError, match=f"--output: {folder}: cannot be written to"):
                begin()
        folder.unlink()


def test_log_goes_on_after_a_module_has_configured_logging(tmp_path: Path) -> None:
    """Loggers that are there are disabled by default, and handlers of the root are removed."""
    root, ours = logging.getLogger(), logging.getLogger("fednnnn_plugin.some")
    level, handlers = root.level, root.handlers[:]
    others = [each for each in root.manager.loggerDict.values() if hasattr(each, "disabled")]
    before = [each.disabled for each in others]
    try:
        with run_log() as write_to:
            ours.info("before")
            logging.config.dictConfig({"version": 1, "root": {"level": "ERROR"}})
            write_to(tmp_path / "log")
            ours.info("round 1")
        assert root.level == logging.ERROR
        lines = (tmp_path / "log").read_text().splitlines()
        assert [line.rpartition(" INFO ")[2] for line in lines] == [
            "fednnnn_plugin.some: before",
            "fednnnn_plugin.some: round 1",
        ]
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
        for each, disabled in zip(others, before, strict=True):
            each.disabled = disabled


def test_folder_keeps_what_is_not_its_own(tmp_path: Path) -> None:
    """Folders of a project's own scripts and data; a run that came while this one loaded data."""
    (tmp_path / "wandb").mkdir()
    theirs = tmp_path / "clients" / "hospital.csv"
    theirs.parent.mkdir()
    ours = theirs.with_name("client-000001-round-000002.safetensors")
    theirs.touch()
    ours.touch()
    for kept in (True, False):
        with RunFolder(tmp_path).locked("overwrite"):
            assert (tmp_path / "wandb").exists() == kept
            assert (theirs.exists(), ours.exists()) == (True, False)
    folder = RunFolder(tmp_path)
    folder.check("new")
    folder.model.write_text("theirs")
    with pytest.raises(UserError, match="it already holds a run"), folder.locked("new"):
        pass
    assert folder.model.read_text() == "theirs"


def test_log_waits_until_it_has_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The process's own handlers get what they got, loggers with a level of their own included."""
    root, told = logging.getLogger(), logging.getLogger("told")
    told.setLevel(logging.INFO)
    before = root.handlers[:], root.level, caplog.handler.filters[:]
    with run_log() as write_to:
        told.parent.info("early")
        write_to(tmp_path / "log")
        for logger in (root, told):
            logger.info("late")
            logger.warning("late")
    assert len((tmp_path / "log").read_text().splitlines()) == 5
    assert (root.handlers, root.level, caplog.handler.filters) == before
    levels = [(record.name, record.levelname) for record in caplog.records]
    assert levels == [("root", "WARNING"), ("told", "INFO"), ("told", "WARNING")]
    told.setLevel(logging.NOTSET)


def test_log_leaves_records_of_debugging_to_the_programs_handlers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, mine = logging.getLogger(), logging.getLogger("mine")
    level = root.level
    root.setLevel(logging.NOTSET)  # as loguru's handler for others' records asks for
    try:
        with run_log() as write_to:
            write_to(tmp_path / "log")
            mine.debug("detail")
            mine.info("fact")
        assert root.level == logging.NOTSET
    finally:
        root.setLevel(level)
    assert [record.message for record in caplog.records] == ["detail", "fact"]
    assert "detail" not in (tmp_path / "log").read_text()
    with run_log() as write_to, caplog.at_level(logging.DEBUG, "mine"):
        write_to(tmp_path / "log")
        mine.debug("asked for")
    assert "asked for" in (tmp_path / "log").read_text()


class Unprintable:
    def __repr__(self) -> str:
        raise ArithmeticError("no text")


@pytest.mark.parametrize(
    ("message", "arguments", "kept"),
    [
        ("%d of %s", ("two",), "not all arguments|number is required|not enough arguments"),
        ("%s", (Unprintable(),), "no text"),
        ("caf\udce9 %s", ("x",), r"caf\\udce9 x"),  # a file's name that is not UTF-8
    ],
)
def test_log_takes_any_record(
    tmp_path: Path, message: object, arguments: tuple[object, ...], kept: str
) -> None:
    """Of a library or of a user's: a record is never what ends a run."""
    record = logging.LogRecord("theirs", logging.INFO, "file", 1, message, arguments, None)
    with run_log() as write_to:
        write_to(tmp_path / "log")
        for handler in logging.getLogger().handlers:
            if isinstance(handler, MemoryHandler):
                handler.handle(record)
        logging.getLogger("mine").warning("after")
    first, last = (tmp_path / "log").read_text().splitlines()
    assert re.search(kept, first)
    assert last.endswith("mine: after")
