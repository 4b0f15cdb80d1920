"""What must be unchanged to resume a run: its recipe, and the fingerprint of what is the user's."""

import json
import logging
from collections.abc import Mapping

import torch
from pydantic import TypeAdapter, ValidationError

from fednnnn_plugin.errors import (
    OVERWRITE,
    RESUME,
    UserError,
    UserErrors,
    begin_anew,
    printable,
    shown,
)
from fednnnn_plugin.files import read_regular, write_atomically
from fednnnn_plugin.fingerprint import NOT_COVERED, Fingerprint
from fednnnn_plugin.processes.devices import device_facts
from fednnnn_plugin.reading import read_mapping
from fednnnn_plugin.recipe import Recipe, differences, load_recipe
from fednnnn_plugin.recipe.validation import named_objects
from fednnnn_plugin.rounds.stopping import STOP
from fednnnn_plugin.run_folder.folder import RunFolder
from fednnnn_plugin.run_folder.provenance import versions
from fednnnn_plugin.run_folder.records import Summary
from fednnnn_plugin.user_code import ONLY_GIVEN, is_own

_log = logging.getLogger(__name__)
# What a run was begun with beside what it is of.
_VERSIONS, _DEVICE = "versions", "device"
_LONGEST = 1 << 20  # bytes
#: Which rank trains where: a resumed run, or another rank, may have others.
PLACEMENT = tuple(
    f"device_args.{key}"
    for key in ("gpu_id", "gpu_mapping_file", "gpu_mapping_key", "gpu_util_parse", "worker_num")
)


def check_same_recipe(recipe: Recipe, folder: RunFolder) -> None:
    """Refuse to resume a run of another recipe, but for its length and for where it runs."""
    sections = read_mapping(folder.recipe, "recipe")
    if left := sorted(named_objects(sections) - named_objects(recipe.model_dump())):
        raise UserError(RESUME, f"{folder.recipe}: {', '.join(left)}: {ONLY_GIVEN}")
    # Of code that a folder names none runs but what the recipe has and the user allows.
    train, changed = sections.get("train_args"), dict[str, tuple[object, object]]()
    for key in ("federated_optimizer", "client_method"):
        name = train.get(key) if isinstance(train, dict) else None
        given = getattr(recipe.train_args, key)
        if is_own(name) and name != given:
            changed[f"train_args.{key}"] = (name, given)
    if not changed:
        # An entry script's recipe may name data, models and platforms that are not ours.
        stored = load_recipe(folder.recipe, foreign=True, allow_code=recipe.allow_code)
        changed = differences(stored, recipe)
        for key in ("train_args.comm_round", STOP, "tracking_args.label", *PLACEMENT):
            changed.pop(key, None)
    if changed:
        only = f"only train_args.comm_round, {STOP}, tracking_args.label, and what places ranks on "
        only += "GPUs and cores"
        raise UserErrors(
            UserError(
                RESUME,
                f"{key}: {text_of(given)}",
                f"the run in {folder.path} has {text_of(before)}; {only}, may differ",
            )
            for key, (before, given) in changed.items()
        )


def text_of(value: object) -> str:
    """Show a value, a mapping or a list by its content."""
    plain = isinstance(value, dict | list)
    return printable(json.dumps(value, default=str)) if plain else shown(value)


def is_finished(recipe: Recipe, folder: RunFolder) -> bool:
    """Tell whether the run in a folder has all rounds of a recipe, or was stopped as it says."""
    summary = Summary.read(folder.summary)
    if summary is None or summary.stopped is None:
        return summary is not None and summary.rounds >= recipe.train_args.comm_round
    validation = read_mapping(folder.recipe, "recipe").get("validation_args")
    before = validation.get("stop") if isinstance(validation, dict) else None
    return before == recipe.validation_args.stop


def begun_with(device: torch.device, precision: str) -> Fingerprint:
    """Return the versions and the device that a run is begun with."""
    return {_VERSIONS: versions(), _DEVICE: {**device_facts(device), "precision": precision}}


def keep_fingerprint(folder: RunFolder, fingerprint: Fingerprint, begun: Fingerprint) -> None:
    """Write what a run is of, and what it was begun with."""
    whole = {whose: dict(digests) for whose, digests in {**fingerprint, **begun}.items()}
    write_atomically(folder.fingerprint, f"{json.dumps(whole, indent=2)}\n".encode())


def has_own_fingerprint(folder: RunFolder) -> bool:
    """Tell whether a run is of something of a user's, or of what a damaged file does not say."""
    if not folder.fingerprint.exists():
        return False
    stored = _stored(folder)
    return stored is None or bool(stored.keys() - {"data_set", _VERSIONS, _DEVICE})


def check_unchanged(folder: RunFolder, fingerprint: Fingerprint, begun: Fingerprint) -> None:
    """Refuse to resume a run of something else; one from before there were fingerprints goes.

    Another kind of device computes other bits. Other versions, CPU instructions or GPUs may, so
    there is a warning; the code is not compared under another minor version of Python, whose texts
    and bytecode may differ.
    """
    if not folder.fingerprint.exists():
        return
    stored = _stored(folder)
    if stored is None:
        raise begin_anew(f"{folder.fingerprint}: damaged")
    before, device = stored.pop(_VERSIONS, {}), stored.pop(_DEVICE, {})
    now = begun[_DEVICE]
    if device.get("kind", now["kind"]) != now["kind"]:
        raise UserError(
            RESUME,
            f"device_args: the run in {folder.path} was begun on {printable(device['kind'])}, and "
            f"this is {now['name']}, which computes other bits: resume it there, or begin anew "
            f"with {OVERWRITE}",
        )
    same_python = _minor(before) == _minor(begun[_VERSIONS])
    was = before | device
    if changed := [
        f"{name} {printable(was[name])}, now {value}"
        for name, value in {**begun[_VERSIONS], **now}.items()
        # "name" also has the number of cores, or the GPU's place
        if name != "name" and was.get(name, value) != value
    ]:
        uncompared = "" if same_python else "; its code is not compared"
        _log.warning(
            "%s: the run in %s was begun with %s: its numbers may differ%s",
            RESUME,
            *(folder.path, "; ".join(changed), uncompared),
        )
    for whose, digests in fingerprint.items():
        if unknown := digests.get(NOT_COVERED):
            _log.warning("%s: %s: not compared, as no digest tells it: %s", RESUME, whose, unknown)
    begun_of, is_of = (parts_of(each, code=same_python) for each in (stored, fingerprint))
    if differing := sorted({part for part, _ in begun_of.items() ^ is_of.items()}):
        raise UserError(
            RESUME,
            f"{', '.join(differing)}: not what the run in {folder.path} is of",
            f"give what it was begun with, begin anew with {OVERWRITE}, or choose another folder",
        )


def parts_of(fingerprint: Fingerprint, *, code: bool = True) -> dict[str, str]:
    """Return the digests by what they are of, such as ``model (weights)``; or all but the code."""
    return {
        f"{printable(whose)} ({printable(what).replace('drawn_', '')})": digest
        for whose, digests in fingerprint.items()
        for what, digest in digests.items()
        if what != NOT_COVERED and (code or what != "code")
    }


def is_of_other_code(folder: RunFolder, model: Mapping[str, str]) -> bool:
    """Tell whether a run's model was of other code than one with these digests.

    Nothing is known of a run without a fingerprint or of another Python, nor of a module given for
    a function that makes one.
    """
    stored = _stored(folder) or {}
    before = stored.get("model", {})
    of_python = _minor(stored.get(_VERSIONS, {})) == _minor(versions())
    known = of_python and before.keys() == model.keys()
    return known and before["code"] != model["code"]


def _stored(folder: RunFolder) -> dict[str, dict[str, str]] | None:
    """Return what the folder has; None where it is missing or damaged."""
    try:
        content = read_regular(folder.fingerprint, _LONGEST)
        return TypeAdapter(dict[str, dict[str, str]]).validate_json(content, strict=True)
    except (OSError, ValidationError):
        return None


def _minor(of: Mapping[str, str]) -> list[str]:
    return of.get("python", "").split(".")[:2]
