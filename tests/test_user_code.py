"""A user's own code by name: imported from the current directory, one line for what is wrong."""

import random
import shutil
import sys
from pathlib import Path

import pytest
import torch

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.models import create_model
from fednnnn_plugin.user_code import call_code, load_code, names_code, on_threads


def test_code_name_is_a_module_and_a_name() -> None:
    assert names_code("own.data:load")
    assert not any(map(names_code, ("digits", "own:", "s3://bucket", "own data:load", None)))


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("", "own.sub:load", "own.sub"),
        ("load = 3", "own:save", "save"),
        ("\n1 +", "own:load", "SyntaxError: invalid syntax (own.py, line 2)"),
        ("import json\n\njson.loads('two\\nlines')", "own:load", "own.py, line 3)"),
        ("raise SystemExit(7)", "own:load", "SystemExit: 7 ("),
        ("def __getattr__(_): import not_there", "own:load", "No module named 'not_there' ("),
        ("load = 3", "own:load", "callable"),
        ("from torch import nn\nload = nn.ReLU()", "own:load", "is a model"),
        ("def load(): return 3", "own:load", "returned a int"),
        ("load = max", "own:load", "raised ValueError: no signature"),
        ("def load():\n    raise SystemExit(0)", "own:load", "own.py, line 2)"),
    ],
)
def test_code_that_makes_no_model_is_refused(own_code, text: str, name: str, said: str) -> None:
    Path("own.py").write_text(text)
    with pytest.raises(UserError) as refused:
        create_model(name, seed=0, allow_code=True)
    assert str(refused.value).startswith(f"model_args.model: {name}: ")
    assert said in str(refused.value)
    assert str(refused.value).isprintable()
    shutil.rmtree(own_code)  # the current directory
    with pytest.raises(UserError, match=r"^key: other:load: does not import: FileNotFoundError"):
        load_code("other:load", "key")


OWN = """
import random, torch
import beside

value, threads = random.random(), torch.get_num_threads()
"""


def test_code_is_imported_on_one_thread(own_code: Path) -> None:
    """What it draws when it is imported is the same in every run."""
    Path("own_module.py").write_text(OWN)
    Path("beside.py").touch()
    values = set()
    with on_threads(2):
        for seed in (1, 2):
            random.seed(seed)
            values.add(load_code("own_module:value", "key"))
            assert load_code("own_module:threads", "key") == 1
            del sys.modules["own_module"]
        assert len(values) == 1
        assert call_code(torch.get_num_threads, "key") == 1
        assert torch.get_num_threads() == 2
