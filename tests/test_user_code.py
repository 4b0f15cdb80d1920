"""A user's own code by name: imported from the current directory, one line for what is wrong."""

import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.user_code import call_code, load_code, names_code, on_threads


@pytest.fixture
def write(own_code: Path) -> Callable[[str, str], int]:
    """Write a module into the current directory, which is otherwise not importable."""
    return lambda name, text: (own_code / f"{name}.py").write_text(text)


def test_code_name_is_a_module_and_a_name() -> None:
    assert names_code("own:load")
    assert names_code("own.data:load")
    for text in ("digits", "own:", "s3://bucket", "own data:load", None):
        assert not names_code(text)


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (None, "own:load", "no module own: it must be installed, or in the current dir"),
        ("load = 3", "own.sub:load", "no module own.sub: it must be installed, or in the"),
        ("load = 3", "own:save", "save is not there, in module own"),
        ("load = 3", "no code", "must be module:name"),
        ("\n1 +", "own:load", "SyntaxError: invalid syntax (own.py, line 2)"),
        ("import not_there", "own:load", "ModuleNotFoundError: No module named 'not_there' ("),
        ("import json\n\njson.loads('two\\nlines')", "own:load", "own.py, line 3)"),
        ("raise SystemExit(7)", "own:load", "SystemExit: 7 ("),
        ("def __getattr__(_): import not_there", "own:load", "No module named 'not_there' ("),
    ],
)
def test_code_that_does_not_import_is_refused(
    write, text: str | None, name: str, said: str
) -> None:
    if text is not None:
        write("own", text)
    with pytest.raises(UserError) as refused:
        load_code(name, "data_args.dataset")
    assert str(refused.value).startswith(f"data_args.dataset: {name}: ")
    assert said in str(refused.value)
    assert str(refused.value).isprintable()


def test_code_in_a_lost_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(UserError, match=r"^key: own:load: does not import: FileNotFoundError"):
        load_code("own:load", "key")


def test_code_draws_the_same_when_imported(write) -> None:
    write("own_drawing", "import random\nvalue = random.random()")
    state, values = random.getstate(), set()
    for seed in (1, 2):
        random.seed(seed)
        values.add(load_code("own_drawing:value", "key"))
        del sys.modules["own_drawing"]
    random.setstate(state)
    assert len(values) == 1


def test_code_imports_what_lies_beside_it(write) -> None:
    write("own_sibling", "VALUE = 5")
    write("own_importing", "def load():\n    from own_sibling import VALUE\n    return VALUE")
    assert load_code("own_importing:load", "key")() == 5


def test_code_computes_on_one_thread(write) -> None:
    write("own_summing", "import torch\nload = torch.get_num_threads\ncount = load()")
    with on_threads(2):
        assert load_code("own_summing:count", "key") == 1
        assert call_code(torch.get_num_threads, "key", lambda load: load()) == 1
        assert torch.get_num_threads() == 2


def test_code_that_ends_the_process_is_one_line(write) -> None:
    write("own_quitting", "import sys\ndef load():\n    sys.exit(0)")
    function = load_code("own_quitting:load", "key")
    with pytest.raises(UserError, match=r"^key: raised SystemExit: 0 .*own_quitting.py, line 3"):
        call_code(function, "key", lambda load: load())
