"""Values to a `Recipe`, or a line for each that is wrong: where, key, value, what is allowed."""

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

from pydantic import ValidationError

from fednnnn_plugin.data.sets import DATASETS, NamedDataset, find_dataset
from fednnnn_plugin.errors import MAX_LINES, UserError, UserErrors, did_you_mean, printable, shown
from fednnnn_plugin.recipe.consistency import inconsistencies
from fednnnn_plugin.recipe.kinds import Caller
from fednnnn_plugin.recipe.method_keys import CLIENT_METHOD, RULE, method_keys, method_settings
from fednnnn_plugin.recipe.schema import FUNCTIONS, SECTIONS, Recipe, fixed_keys
from fednnnn_plugin.user_code import ONLY_GIVEN, is_own, names_object

# What others call our keys.
_USUAL = {
    "lr": "learning_rate",
    "client_lr": "learning_rate",
    "wd": "weight_decay",
    "momentum": "client_optimizer_args",
    "seed": "random_seed",
    "rounds": "comm_round",
    "num_rounds": "comm_round",
    "num_clients": "client_num_in_total",
    "clients": "client_num_in_total",
    "local_epochs": "epochs",
    "augmentation": "train_transform",
    "transform": "train_transform",
    "steps": "local_steps",
    "early_stopping": "stop",
    "patience": "stop",
    "lr_decay": "learning_rate_decay",
    "scheduler": "learning_rate_schedule",
    "milestones": "learning_rate_schedule",
    "warmup_epochs": "learning_rate_schedule",
    "warmup_rounds": "learning_rate_schedule",
}
_WORDS = {
    "boolean": "true or false",
    "string": "text (quote what YAML reads otherwise)",
    "null": "null",
}


def check_sections(sections: Mapping[str, object], where: str) -> None:
    """Refuse a file that lacks a section, or has something else in its place."""
    problems = dict[str, str]()
    for name in SECTIONS:
        if name not in sections:
            problems[name] = "missing section"
        elif not isinstance(keys := sections[name], dict):
            problems[name] = f"{shown(keys)}: must be a section, a mapping of keys to values"
    if problems:
        problems = _unknown_sections(sections) | problems
        raise UserErrors(
            UserError(f"{where}: {printable(name)}", text) for name, text in problems.items()
        )


def build(name: str, sections: Mapping[str, Mapping[str, Any]], caller: Caller) -> Recipe:
    """Validate the keys of all sections; a ``UserError`` has a line for each problem."""
    problems = _unknown_sections(sections)
    sections = {section: keys for section, keys in sections.items() if section in SECTIONS}
    if not caller.foreign and (left := sorted(named_objects(sections) - caller.objects)):
        raise UserError(caller.where(", ".join(left)), ONLY_GIVEN)
    train, ours = sections["train_args"], fixed_keys("train_args")
    settings, of_method = method_settings(train, caller)
    problems |= of_method
    if all(train.get(key) is None for key in ("epochs", "local_steps")):
        what = "missing; must be a number of epochs, or set local_steps"
        problems["train_args.epochs"] = what
    known = {key: value for key, value in train.items() if key not in caller.left}
    of_methods = not problems.keys() & {RULE, CLIENT_METHOD}
    problems |= _unknown(sections | {"train_args": known}, of_methods=of_methods)
    own = {key: value for key, value in train.items() if key in ours}
    values: dict[str, object] = {**sections, "train_args": own, "rule_settings": settings}
    values |= {"name": name, "allow_code": caller.allow_code}
    try:
        recipe = Recipe.model_validate(values, context=caller)
        if not problems:
            found = inconsistencies(recipe, foreign=caller.foreign)
            problems = {key: _said(attrgetter(key)(recipe), why) for key, why in found}
    except ValidationError as error:
        for entry in error.errors(include_url=False):
            problems.setdefault(*_problem(entry))
    if problems:
        raise UserErrors(UserError(caller.where(key), text) for key, text in problems.items())
    return recipe


def named_objects(sections: Mapping[str, object]) -> set[str]:
    """Every ``section.key`` that names an object of a Python program's."""
    return {
        f"{section}.{key}"
        for section, keys in sections.items()
        for key, value in (keys.items() if isinstance(keys, dict) else ())
        if any(map(names_object, value if isinstance(value, list) else (value,)))
    }


def known_keys(datasets: Iterable[NamedDataset] = DATASETS.values()) -> dict[str, str]:
    """Every key, those of the rules and of these data sets too, and its section."""
    known = {key: "data_args" for dataset in datasets for key in dataset.arguments}
    known |= dict.fromkeys(method_keys(), "train_args")
    for section in SECTIONS:
        known |= dict.fromkeys(fixed_keys(section), section)
    return known


def unknown_section(section: str) -> str:
    """Say that there is no such section, and name the nearest one."""
    if home := known_keys().get(section):
        return f"not a section; it is a key of {home}"
    hint = did_you_mean(section, SECTIONS) or f"; must be one of {', '.join(SECTIONS)}"
    return f"unknown section{hint}"


def _unknown_sections(sections: Mapping[str, object]) -> dict[str, str]:
    unknown = [name for name in sections if name not in SECTIONS]
    found = {name: unknown_section(name) for name in unknown[:MAX_LINES]}
    return found | dict.fromkeys(unknown[MAX_LINES:], "unknown section")  # no message shows it


def _unknown(sections: Mapping[str, Mapping[str, object]], *, of_methods: bool) -> dict[str, str]:
    """What no section has; without ``of_methods`` that may be the keys of one not yet known."""
    named = find_dataset(sections["data_args"].get("dataset"))
    homes = known_keys([named] if named else [])
    wrong: dict[str, tuple[str, str]] = {}
    for section, keys in sections.items():
        if section in FUNCTIONS and is_own(keys.get(FUNCTIONS[section])):
            continue  # a function's arguments are checked where it is called
        taken = (section,) if of_methods or section != "train_args" else (section, None)
        wrong |= {f"{section}.{k}": (section, k) for k in keys if homes.get(k) not in taken}
    return {  # no message shows more lines, of which each takes a while
        path: _why_unknown(*of, homes) if number < MAX_LINES else "unknown key"
        for number, (path, of) in enumerate(wrong.items())
    }


def _why_unknown(section: str, key: str, homes: Mapping[str, str]) -> str:
    if home := homes.get(key):
        return f"unknown key there; it belongs to {home}"
    hint = did_you_mean(_USUAL.get(key, key), homes, lambda name: f"{homes[name]}.{name}")
    return f"unknown key{hint}"


def _problem(entry: Any) -> tuple[str, str]:
    """What one pydantic error says of which key; in a union each member reports the same."""
    section, key, *_ = (str(part) for part in entry["loc"])
    missing, value = entry["type"] == "missing", entry["input"]
    text = str(entry["ctx"]["error"]) if entry["type"] == "value_error" else ""
    if not text:
        schema = SECTIONS[section].model_json_schema()["properties"][key]
        text = f"must be {_words(schema)}"
        if key == "learning_rate" and isinstance(value, list | dict):
            text += (
                "; to change it over the rounds, see learning_rate_schedule and learning_rate_decay"
            )
    return f"{section}.{key}", _said(None if missing else value, text)


def _said(value: object, why: str) -> str:
    """What is wrong with a value, which is None where it is missing."""
    return f"missing; {why}" if value is None else f"{shown(value)}: {why}"


def _words(schema: Mapping[str, Any]) -> str:
    """What a JSON schema allows, as it follows "must be"."""
    if "description" in schema:
        return str(schema["description"])
    if "anyOf" in schema:
        return ", or ".join(filter(None, map(_words, schema["anyOf"])))
    names = schema.get("enum") or [schema.get("const") or _WORDS[schema["type"]]]
    return " or ".join(names) if len(names) < 3 else f"one of {', '.join(names)}"
