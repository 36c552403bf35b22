"""Classes of pictures in a text file, as Tiny-ImageNet has them for its validation part."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedaudit.core.errors import BadInput
from fedaudit.core.files import TooLarge, read_text

_FILE = "val_annotations.txt"
_PICTURES = "images"
_MOST_BYTES = 64 * 2**20


class Annotated(NamedTuple):
    """Pictures, sorted by name, and the number of each one's class."""

    paths: list[Path]
    labels: list[int]


def has_annotations(path: Path) -> bool:
    """Return whether a folder has annotated pictures in ``val``, and no classes in ``test``."""
    test = path / "test"
    folders = {entry.name for entry in test.iterdir() if entry.is_dir()} if test.is_dir() else set()
    return (path / "val" / _FILE).is_file() and folders <= {_PICTURES}


def annotated_pictures(folder: Path, classes: Sequence[str]) -> Annotated:
    """Return the pictures of a folder with the classes that its annotations state.

    Args:
        folder: Folder with the annotations, one line for each picture with its name and class,
            separated by tabulators, and with a folder of pictures.
        classes: Names of the classes in order.

    Raises:
        BadInput: A line has no name and class, a class is unknown, or annotations and pictures do
            not match.
    """
    file = folder / _FILE
    try:
        lines = read_text(file, max_bytes=_MOST_BYTES).splitlines()
        entries = (folder / _PICTURES).iterdir()
        present = {entry.name for entry in entries if not entry.name.startswith(".")}
    except (OSError, TooLarge, UnicodeDecodeError) as error:
        raise BadInput(f"{file} and its pictures cannot be read ({error}); restore them") from error
    number = {name: place for place, name in enumerate(classes)}
    labels: dict[str, int] = {}
    for place, line in enumerate(lines, 1):
        name, _, rest = line.partition("\t")
        label = rest.partition("\t")[0]
        if label not in number or name in labels:
            raise BadInput(
                f"line {place} of {file} has the picture {name[:80]!r} and the class "
                f"{label[:80]!r}; each line has another picture and a class of the training part"
            )
        labels[name] = number[label]
    unmatched = sorted(labels.keys() ^ present)
    if unmatched or not labels:
        raise BadInput(
            f"{file} and {folder / _PICTURES} differ in {len(unmatched)} pictures"
            f"{f', such as {unmatched[0][:80]!r}' if unmatched else ' and have none'}; give "
            "one line for each picture"
        )
    names = sorted(labels)
    return Annotated(
        [folder / _PICTURES / name for name in names], [labels[name] for name in names]
    )
