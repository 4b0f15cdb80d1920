"""The examples in the docstrings run."""

import doctest
from importlib import import_module

import pytest


@pytest.mark.usefixtures("rules_taken_back")
@pytest.mark.parametrize("module", ["average", "rules.fednnnn", "rules.fedexp", "rules"])
def test_docstring_examples_run(module: str) -> None:
    result = doctest.testmod(import_module(f"fednnnn_plugin.server.{module}"))
    assert result.attempted > 0
    assert result.failed == 0
