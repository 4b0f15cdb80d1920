"""What must be unchanged to resume a run: its recipe, and the fingerprint of what is the user's."""

import json
import logging
import platform
from collections.abc import Mapping

from pydantic import TypeAdapter, ValidationError

from fednnnn_plugin.errors import UserError, printable, shown
from fednnnn_plugin.files import open_regular, write_atomically
from fednnnn_plugin.fingerprint import NOT_COVERED, Fingerprint, code_digests
from fednnnn_plugin.reading import read_mapping
from fednnnn_plugin.recipe import Recipe, differences, load_recipe
from fednnnn_plugin.recipe.validation import named_objects
from fednnnn_plugin.run_folder.folder import RunFolder
from fednnnn_plugin.server.rules import Rule
from fednnnn_plugin.user_code import ONLY_GIVEN, is_own, names_code

_log = logging.getLogger(__name__)
_PYTHON = "python"  # whose bytecode the digests of code are of
_LONGEST = 1 << 20  # bytes
#: Which rank trains where: a resumed run, or another rank, may have others.
PLACEMENT = tuple(
    f"device_args.{key}"
    for key in ("gpu_id", "gpu_mapping_file", "gpu_mapping_key", "gpu_util_parse", "worker_num")
)


def check_same_recipe(recipe: Recipe, folder: RunFolder) -> None:
    """Refuse to resume a run of another recipe, but for its length and for where it runs."""
    # Of code that a folder names none runs but what the recipe has and the user allows.
    own = {key: getattr(recipe.train_args, key) for key in ("federated_optimizer", "client_method")}
    sections = read_mapping(folder.recipe, "recipe")
    train = sections.get("train_args")
    stored_names = {key: train.get(key) if isinstance(train, dict) else None for key in own}
    if left := sorted(named_objects(sections) - named_objects(recipe.model_dump())):
        raise UserError(f"--resume: {folder.recipe}: {', '.join(left)}: {ONLY_GIVEN}")
    changed: dict[str, tuple[object, object]] = {
        f"train_args.{key}": (name, own[key])
        for key, name in stored_names.items()
        if is_own(name) and name != own[key]
    }
    if not changed:
        # An entry script's recipe may name data, models and platforms that are not ours.
        allow = any(map(names_code, own.values()))
        stored = load_recipe(folder.recipe, foreign=True, allow_code=allow)
        changed = differences(stored, recipe)
        for key in ("train_args.comm_round", *PLACEMENT):
            changed.pop(key, None)
    if changed:
        raise UserError(
            "\n".join(
                f"--resume: {key}: {shown(given)}: the run in {folder.path} has {shown(before)}; "
                "only train_args.comm_round, and what places ranks on GPUs and cores, may differ"
                for key, (before, given) in changed.items()
            )
        )


def rule_digests(rule: Rule) -> dict[str, str]:
    """Return the digest of a custom rule, and of what its decorator says."""
    keys = [(name, vars(key)) for name, key in rule.keys.items()]
    declared = (keys, rule.wants, rule.evaluated, rule.client_method)
    return code_digests(rule.optimizer, *declared)


def keep_fingerprint(folder: RunFolder, fingerprint: Fingerprint) -> None:
    """Write what a run is of."""
    whole = {whose: dict(digests) for whose, digests in fingerprint.items()}
    text = json.dumps(whole | {_PYTHON: _version()}, indent=2)
    write_atomically(folder.fingerprint, f"{text}\n".encode())


def check_unchanged(folder: RunFolder, fingerprint: Fingerprint) -> None:
    """Refuse to resume a run of something else; one from before there were fingerprints goes.

    Another minor version of Python compiles to other code: the code is then not compared.
    """
    if not folder.fingerprint.exists():
        return
    stored = _stored(folder)
    if stored is None:
        raise UserError(
            f"--resume: {folder.fingerprint}: damaged: replace the run with --overwrite"
        )
    same_python = stored.pop(_PYTHON, None) == _version()
    if not same_python:
        _log.warning("%s: of another Python: its code is not compared", folder.fingerprint)
    for whose, digests in fingerprint.items():
        if unknown := digests.get(NOT_COVERED):
            _log.warning("--resume: %s: not compared, as no digest tells it: %s", whose, unknown)
    if changed := _changed(stored, fingerprint, code=same_python):
        raise UserError(
            f"--resume: {', '.join(changed)}: not what the run in {folder.path} is of: give what "
            "it was begun with, replace it with --overwrite, or choose another folder"
        )


def _changed(before: Fingerprint, now: Fingerprint, *, code: bool) -> list[str]:
    """Name what differs between two fingerprints, in their code only if asked for."""
    return [
        f"{printable(whose)} ({printable(what).replace('drawn_', '')})"
        for whose in sorted(before.keys() | now.keys())
        for one, other in [(before.get(whose, {}), now.get(whose, {}))]
        for what in sorted(one.keys() | other.keys())
        if one.get(what) != other.get(what) and what != NOT_COVERED and (code or what != "code")
    ]


def is_of_other_code(folder: RunFolder, model: Mapping[str, str]) -> bool:
    """Tell whether a run's model was of other code than one with these digests.

    Nothing is known of a run without a fingerprint or of another Python, nor of a module given for
    a function that makes one.
    """
    stored = _stored(folder) or {}
    before = stored.get("model", {})
    known = stored.get(_PYTHON) == _version() and before.keys() == model.keys()
    return known and before["code"] != model["code"]


def _stored(folder: RunFolder) -> dict[str, dict[str, str]] | None:
    """Return what the folder has; None where it is missing or damaged."""
    try:
        with open_regular(folder.fingerprint, _LONGEST) as file:
            return TypeAdapter(dict[str, dict[str, str]]).validate_json(file.read(), strict=True)
    except (OSError, ValidationError):
        return None


def _version() -> dict[str, str]:
    return {"version": ".".join(platform.python_version_tuple()[:2])}
