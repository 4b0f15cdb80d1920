"""The tiny federation, for the tests of this room."""

from ..tiny import data, start, tiny

__all__ = ["data", "start", "tiny"]
