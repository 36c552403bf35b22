"""Pictures whose classes are listed in a text file, as in Tiny-ImageNet's validation part."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedaudit.core.errors import BadInput
from fedaudit.core.files import TooLarge, read_text

_FILE = "val_annotations.txt"
_PICTURES = "images"
_MAX_BYTES = 64 * 2**20


class AnnotatedPictures(NamedTuple):
    """Pictures, sorted by name, and the number of each picture's class."""

    paths: list[Path]
    labels: list[int]


def has_annotations(path: Path) -> bool:
    """Return whether a folder has annotated pictures in ``val``, and no classes in ``test``."""
    test = path / "test"
    folders = {entry.name for entry in test.iterdir() if entry.is_dir()} if test.is_dir() else set()
    return (path / "val" / _FILE).is_file() and folders <= {_PICTURES}


def annotated_pictures(folder: Path, classes: Sequence[str]) -> AnnotatedPictures:
    """Return the pictures of a folder with the classes that its annotations state.

    The annotations have one line per picture: its name and its class, separated by a tabulator.

    Raises:
        BadInput: A line has no name and class, a class is unknown, or annotations and pictures do
            not match.
    """
    file = folder / _FILE
    try:
        lines = read_text(file, max_bytes=_MAX_BYTES).splitlines()
        entries = (folder / _PICTURES).iterdir()
        file_names = {entry.name for entry in entries if not entry.name.startswith(".")}
    except (OSError, TooLarge, UnicodeDecodeError) as error:
        raise BadInput(f"{file} and its pictures cannot be read ({error}); restore them") from error
    class_number = {name: number for number, name in enumerate(classes)}
    labels: dict[str, int] = {}
    for line_number, line in enumerate(lines, 1):
        # Further fields of a line are bounding boxes.
        name, class_name, *_ = [*line.split("\t"), ""]
        if class_name not in class_number or name in labels:
            raise BadInput(
                f"line {line_number} of {file} has the picture {name[:80]!r} and the class "
                f"{class_name[:80]!r}; list each picture once, with a class of the training part"
            )
        labels[name] = class_number[class_name]
    unmatched = sorted(labels.keys() ^ file_names)
    if unmatched or not labels:
        raise BadInput(
            f"{file} and {folder / _PICTURES} differ in {len(unmatched)} pictures"
            f"{f', such as {unmatched[0][:80]!r}' if unmatched else ' and have none'}; give "
            "one line for each picture"
        )
    names = sorted(labels)
    paths = [folder / _PICTURES / name for name in names]
    return AnnotatedPictures(paths, [labels[name] for name in names])
