"""The small pair and its corpus, for every measure."""

from tests.study.conftest import place

__all__ = ["place"]
