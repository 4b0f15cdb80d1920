"""``fednnnn check`` of a cross-silo server's YAML: what the server refuses, without starting it."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import fedml  # noqa: F401  # whose names of methods are none of ours

from fednnnn_plugin.errors import UserError, UserErrors, printable, shown
from fednnnn_plugin.fedml.methods import in_scripts
from fednnnn_plugin.fedml.security import check_security, global_privacy
from fednnnn_plugin.fedml.server_files import ServerFiles
from fednnnn_plugin.fedml.settings import continue_from_state, server_recipe
from fednnnn_plugin.fedml.silo_records import settings_line
from fednnnn_plugin.fedml.silos import check_silos, check_testing, read_addresses
from fednnnn_plugin.reading import read_mapping
from fednnnn_plugin.run_folder.server_records import records_file
from fednnnn_plugin.run_folder.server_state import file_to_write

T = TypeVar("T")


@in_scripts
def check_server(path: Path) -> str:
    """Return a line on what the server of a FedML YAML would run; write nothing.

    Relative paths are of the working directory, as the server's are.

    Raises:
        UserError: a line for each mistake.
    """
    args = _arguments(path)
    problems: list[UserError] = []

    def tried(check: Callable[..., T], *given: object, **named: object) -> T | None:
        try:
            return check(*given, **named)
        except UserError as error:
            problems.append(error)
            return None

    tried(continue_from_state, args)
    recipe = tried(server_recipe, args)
    counts = ("client_num_in_total", "client_num_per_round")
    if all(isinstance(getattr(args, key, None), int) for key in counts):
        tried(check_silos, args, 0)
        tried(check_security, args)
    tried(check_testing, args)
    tried(read_addresses, args)
    if recipe is not None:
        tracking, done = recipe.tracking_args, recipe.train_args.start_round
        files = tried(ServerFiles, tracking, only_check=True)
        if files is not None:
            tried(files.read, done, recipe.rule.name)
        tried(records_file, tracking.metrics_path, done, "start_round", only_check=True)
        tried(file_to_write, "prometheus_path", tracking.prometheus_path, only_check=True)
    if problems or recipe is None:
        raise UserErrors(problems)
    line = settings_line(recipe, served_alone=global_privacy())
    return f"{recipe.name}: a server of {line}"


def _arguments(path: Path) -> SimpleNamespace:
    """Return what FedML makes of the file in the server's process."""
    given: dict[str, Any] = {}
    sections = read_mapping(path, "sections such as train_args", as_pyyaml=True)
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise UserError(printable(path), f"{name}: {shown(section)}", "must be a mapping")
        for key in section:
            if not isinstance(key, str):  # on, yes and 1 are none to PyYAML
                raise UserError(printable(path), f"{name}: {shown(key)}", "a key must be text")
        given |= section
    fixed = {"yaml_config_file": str(path), "role": "server", "rank": 0, "process_id": 0}
    args = SimpleNamespace(**{"enable_cuda_rpc": False} | given | fixed)
    if not hasattr(args, "worker_num"):
        args.worker_num = given.get("client_num_per_round")
    return args
