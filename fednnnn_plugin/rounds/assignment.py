"""Which rank trains which of a round's clients."""

from collections.abc import Sequence

from fednnnn_plugin.client.group_sgd import Group


def assign(groups: Sequence[Group], work: Sequence[int], ranks: int) -> list[list[Group]]:
    """Assign groups of clients, heaviest first, each to the rank with the least work so far.

    No rank then has more than 4/3 of the best possible maximum (Graham 1969). It is the same on
    every rank; of a rank the groups that run last are short.
    """
    assignment: list[list[Group]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for cost, group in sorted(zip(work, groups, strict=True), key=lambda pair: (-pair[0], pair[1])):
        least = loads.index(min(loads))
        assignment[least].append(group)
        loads[least] += cost
    return assignment
