"""The fingerprint in a run folder: what of the user's a run is of, and whether it still is."""

import json
import logging
import platform
from collections.abc import Mapping

from pydantic import TypeAdapter, ValidationError

from fednnnn_plugin.engine.folder import RunFolder, open_regular, write_atomically
from fednnnn_plugin.errors import UserError, printable
from fednnnn_plugin.fingerprint import Fingerprint, code_digest
from fednnnn_plugin.server.rules import Rule

_log = logging.getLogger(__name__)
_PYTHON = "python"  # whose bytecode the digests of code are of
_LONGEST = 1 << 20  # bytes


def rule_digests(rule: Rule) -> dict[str, str]:
    """Return the digest of a user's own rule, and of what its decorator says."""
    keys = [(name, vars(key)) for name, key in rule.keys.items()]
    return {"code": code_digest(rule.optimizer, keys, rule.wants, rule.evaluated)}


def keep_fingerprint(folder: RunFolder, fingerprint: Fingerprint) -> None:
    """Write what a run is of."""
    whole = {whose: dict(digests) for whose, digests in fingerprint.items()}
    text = json.dumps(whole | {_PYTHON: _version()}, indent=2)
    write_atomically(folder.fingerprint, f"{text}\n".encode())


def check_unchanged(folder: RunFolder, fingerprint: Fingerprint) -> None:
    """Refuse to go on with a run of something else; one from before there were fingerprints goes.

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
    changed = []
    for whose in sorted(stored.keys() | fingerprint.keys()):
        before, now = stored.get(whose, {}), fingerprint.get(whose, {})
        for what in sorted(before.keys() | now.keys()):
            if before.get(what) != now.get(what) and (same_python or what != "code"):
                changed.append(f"{printable(whose)} ({printable(what).replace('drawn_', '')})")
    if changed:
        raise UserError(
            f"--resume: {', '.join(changed)}: not what the run in {folder.path} is of: give what "
            "it was begun with, replace it with --overwrite, or choose another folder"
        )


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
