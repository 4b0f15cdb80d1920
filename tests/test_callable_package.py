"""``fp.report`` and ``fp.tune``: packages that are called, and explained, as functions."""

import inspect
from typing import Any

import pytest

import fednnnn_plugin as fp
from fednnnn_plugin.report.page import report
from fednnnn_plugin.tune.tuning import tune


@pytest.mark.parametrize(("package", "function"), [(fp.report, report), (fp.tune, tune)])
def test_help_is_of_the_function(package: Any, function: Any) -> None:
    assert inspect.signature(package) == inspect.signature(function)
    assert inspect.getdoc(function) in str(inspect.getdoc(package))
