"""Everything that fedaudit knows, for people: tables, explanations and the catalogue page.

Everything is read from the plain dictionaries that the code itself uses and from the
docstrings of what is in them, so that it cannot fall behind.
"""

from fedaudit.catalogue.console import explanation, listing
from fedaudit.catalogue.entries import CATALOGUES
from fedaudit.catalogue.page import catalogue_markdown

__all__ = ["CATALOGUES", "catalogue_markdown", "explanation", "listing"]
