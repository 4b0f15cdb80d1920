"""The patches. Each acts on our names only and passes the rest through.

On a FedML that we do not know the wrappers go in all the same, where there is something to wrap:
they change nothing for FedML's own names and make ours fail with one line that says why.
"""
