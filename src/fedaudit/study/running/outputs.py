"""Paths that pages and comparisons may be written to: never over a file of something else."""

from collections.abc import Collection, Sequence
from pathlib import Path

from fedaudit.core.errors import BadInput, FedauditError, option
from fedaudit.core.files import (
    PAGE_SUFFIXES,
    RECORD_FILE,
    open_regular,
    refuse_other_suffix,
    resolved,
)

_NAMED = (RECORD_FILE, "study.json", "runs.json", "run.json")
"""What tells fedaudit's folders from others; no comparison may be taken for one of them."""
_PAGE = b"<!doctype html"


def refuse_other_comparison(path: Path, records: Sequence[Path]) -> None:
    """Lets a comparison replace an earlier one of the same records, or of some of them, only.

    Args:
        path: The comparison's JSON file.
        records: Record files that will be compared.

    Raises:
        BadInput: The file is no comparison, is one of other records, or would be called what
            fedaudit calls a record or the settings of a study.
    """
    if path.name in _NAMED:
        raise BadInput(
            f"the figures would be written to {path}, and {path.name} is what fedaudit calls "
            f"another kind of file; give {option('out')} another name, such as comparison.html"
        )
    if not path.exists():
        return
    from fedaudit.results.read import read_comparison

    try:
        sources = read_comparison(path).sources
    except FedauditError as refusal:
        raise BadInput(
            f"{path} is there and is no comparison, so that the figures are not written over it; "
            f"give another file with {option('out')}, or delete it"
        ) from refusal
    now = {resolved(record) for record in records}
    lost = [s for s in sources if resolved(path.parent / s.path) not in now]
    if lost:
        raise BadInput(
            f"{path} is a comparison with other records (such as {lost[0].name[:80]!r}), which "
            f"would be lost; give another file with {option('out')}, or delete it"
        )


def refuse_page_alone(target: Path, made_of: Path) -> None:
    """Lets a page of fedaudit's name replace one only where what it is made from lies there too.

    Args:
        target: The page's file.
        made_of: The record or comparison that is written before it.

    Raises:
        BadInput: The page is there alone, or is no HTML.
    """
    refuse_foreign_page(target)
    if target.exists() and not made_of.exists():
        raise BadInput(
            f"{target} is there without a {made_of.name}, so that it is not fedaudit's and is not "
            f"replaced; rename it, or write elsewhere with {option('out')}"
        )


def refuse_foreign_page(target: Path, inputs: Collection[Path] = ()) -> None:
    """Lets an HTML page replace an HTML page only, and none of the files that it is made from.

    Args:
        target: The page's file.
        inputs: Files that it is made from.

    Raises:
        BadInput: There is another kind of file, or one of the inputs, or the name is of another
            kind.
    """
    refuse_other_suffix(target, *PAGE_SUFFIXES, what="an HTML page")
    if not target.exists():
        return
    if any(one.exists() and target.samefile(one) for one in inputs):
        raise BadInput(f"{target} is what is read here; give an HTML file with {option('out')}")
    if not target.is_file() or not _is_page(target):
        raise BadInput(
            f"{target} is there and is no HTML file, so that it is not replaced; give another "
            f"one with {option('out')}"
        )


def refuse_missing_folder(target: Path) -> None:
    """Names the folder of a file that cannot be written because the folder is not there."""
    if not target.parent.is_dir():
        raise BadInput(
            f"{target} cannot be written: {target.parent} is no folder; make it first, or give "
            f"another file with {option('out')}"
        )


def _is_page(path: Path) -> bool:
    with open_regular(path) as file:
        start = file.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip()
    return start[: len(_PAGE)].lower() == _PAGE
