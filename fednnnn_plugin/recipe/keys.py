"""Which keys there are, and which is nearest to one that there is not."""

from difflib import get_close_matches

from fednnnn_plugin.errors import printable
from fednnnn_plugin.recipe.schema import SECTIONS, own_keys


def keys_of(section: str) -> list[str]:
    """A section's keys; those of ``train_args`` with the rules'."""
    if section != "train_args":
        return own_keys(section)
    from fednnnn_plugin.server.rules import RULES

    of_rules = [key for rule in RULES.values() for key in rule.keys]
    return list(dict.fromkeys([*own_keys(section), *of_rules]))


def sections_of(key: str) -> list[str]:
    """The sections that have a key: one; two for what FedML has in two; or none."""
    return [section for section in SECTIONS if key in keys_of(section)]


def unknown_key(section: str, key: str) -> str:
    """Say that ``section.key`` is unknown, and name the nearest known key."""
    if homes := sections_of(key):
        return f"unknown key there; it belongs to {homes[0]}"
    wanted = printable(key[:40])
    if near := get_close_matches(wanted, keys_of(section), n=1, cutoff=0.6):
        return f"unknown key; did you mean {section}.{near[0]}?"
    known = {key: name for name in SECTIONS for key in keys_of(name)}
    nearest = get_close_matches(wanted, known, n=1, cutoff=0.0)[0]
    return f"unknown key; the nearest known one is {known[nearest]}.{nearest}"


def unknown_section(section: str) -> str:
    """Say that there is no such section, and name the nearest one."""
    if homes := sections_of(section):
        return f"not a section; it is a key of {homes[0]}"
    nearest = get_close_matches(section[:40], SECTIONS, n=1, cutoff=0.0)[0]
    return f"unknown section; the nearest known one is {nearest}"
