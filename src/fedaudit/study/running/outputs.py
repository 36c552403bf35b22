"""Checks that pages and comparisons do not overwrite other files.

Here, a *record* is the result file of an audit (``record.json``).
"""

from collections.abc import Collection, Sequence
from pathlib import Path

from fedaudit.core.errors import BadInput, FedauditError, format_option
from fedaudit.core.files import (
    PAGE_SUFFIXES,
    RECORD_FILE,
    open_regular,
    raise_if_other_suffix,
    resolve_links,
)

_RESERVED = (RECORD_FILE, "study.json", "runs.json", "run.json")
"""Names of files by which folders of fedaudit are recognised. Comparisons must not use them."""
_PAGE_START = b"<!doctype html"


def raise_if_not_replaceable(path: Path, records: Sequence[Path]) -> None:
    """Raise if a file must not be replaced by a comparison of the records.

    A comparison may be replaced if the new one contains all of its records.

    Raises:
        BadInput: The file is not a comparison or compares other records, or its name is reserved.
    """
    if path.name in _RESERVED:
        raise BadInput(
            f"the comparison would be written to {path}, but fedaudit uses the name {path.name} "
            f"for another file; give {format_option('out')} another name, such as comparison.html"
        )
    if not path.exists():
        return
    from fedaudit.results.read import read_comparison

    try:
        sources = read_comparison(path).sources
    except FedauditError as error:
        raise BadInput(
            f"{path} exists and is not a comparison, so it is not replaced; give another file "
            f"with {format_option('out')}, or delete it"
        ) from error
    compared = {resolve_links(record) for record in records}
    lost = [
        source for source in sources if resolve_links(path.parent / source.path) not in compared
    ]
    if lost:
        raise BadInput(
            f"{path} is a comparison with other records (such as {lost[0].name[:80]!r}), which "
            f"would be lost; give another file with {format_option('out')}, or delete it"
        )


def raise_if_page_without_source(target: Path, source: Path) -> None:
    """Raise if a page exists without the JSON file that fedaudit writes with each page.

    Args:
        target: The page.
        source: The record or comparison that the page shows.

    Raises:
        BadInput: The page exists without the JSON file, or is not an HTML page.
    """
    raise_if_page_not_replaceable(target)
    if target.exists() and not source.exists():
        raise BadInput(
            f"{target} exists without a {source.name}, so fedaudit did not write it and does not "
            f"replace it; rename it, or choose another folder with {format_option('out')}"
        )


def raise_if_page_not_replaceable(target: Path, inputs: Collection[Path] = ()) -> None:
    """Raise if an HTML page would replace a file of another kind, or one of its inputs.

    Raises:
        BadInput: The file is of another kind or an input, or its name has another suffix.
    """
    raise_if_other_suffix(target, *PAGE_SUFFIXES, format_name="an HTML page")
    if not target.exists():
        return
    if any(path.exists() and target.samefile(path) for path in inputs):
        raise BadInput(
            f"{target} is an input of this command; give another HTML file with "
            f"{format_option('out')}"
        )
    if not target.is_file() or not _is_page(target):
        raise BadInput(
            f"{target} exists and is not an HTML file, so it is not replaced; give another "
            f"file with {format_option('out')}"
        )


def raise_if_missing_folder(target: Path) -> None:
    """Raise if the folder of a file does not exist."""
    if not target.parent.is_dir():
        raise BadInput(
            f"{target} cannot be written: {target.parent} is not a folder; create it, or give "
            f"another file with {format_option('out')}"
        )


def _is_page(path: Path) -> bool:
    with open_regular(path) as file:
        start = file.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip()
    return start[: len(_PAGE_START)].lower() == _PAGE_START
