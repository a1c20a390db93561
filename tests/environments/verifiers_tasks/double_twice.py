"""The tasks of double_it, with a user who asks for a second try."""

from double_it import DoubleTaskset, TryAgain

__all__ = ["DoubleTaskset", "TryAgain"]
