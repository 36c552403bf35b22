"""Everything that fedaudit knows, for people: tables and explanations.

Everything is read from the plain dictionaries that the code itself uses and from the
docstrings of what is in them, so that it cannot fall behind.
"""

from fedaudit.catalogue.console import explanation, listing
from fedaudit.catalogue.entries import CATALOGUES

__all__ = ["CATALOGUES", "explanation", "listing"]
