"""Pictures as arrays of bytes, and data sets in folders of pictures: one sub-folder a class."""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int, UInt8
from numpy import ndarray

from fedaudit.core import arguments
from fedaudit.core.arguments import Count, ProperShare
from fedaudit.core.errors import BadInput, Damaged, FedauditError
from fedaudit.core.files import hold_to_budget, open_regular, regular_size
from fedaudit.core.seeds import seeded_numpy
from fedaudit.datasets.arrays import MAX_VALUES, Arrays, from_arrays, split
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.source import DataFile

if TYPE_CHECKING:
    from PIL import Image

_MAX_PIXELS = 2**26


def stacked(
    pictures: "Iterable[tuple[str, Image.Image]]",
    count: int,
    *,
    size: int,
    grey: bool,
    on_disk: int,
) -> UInt8[ndarray, "samples height width channels"]:
    """All pictures in one array of bytes.

    Args:
        pictures: As many pictures as ``count`` says, each after its name; see :func:`decoded`.
        count: Their number.
        size: Side in pixels that every picture is resized to, whatever its form; 0 keeps them,
            and they must then be of one size.
        grey: Whether to keep brightness only, instead of three colours.
        on_disk: Bytes that all of them have there, which bound those that they may take.

    Raises:
        BadInput: Pictures of several sizes, or more or larger ones than can be held.
    """
    block: UInt8[ndarray, "samples height width channels"] | None = None
    for at, (name, picture) in enumerate(pictures):
        pixels = _pixels(picture, size, grey)
        if block is None:
            if count * pixels.size > MAX_VALUES:
                raise BadInput(
                    f"{count} pictures of {pixels.shape[1]} x {pixels.shape[0]} pixels are more "
                    f"than the {MAX_VALUES} values that can be held; set a smaller size"
                )
            # As 32-bit numbers, which features become.
            what = f"{count} pictures of {pixels.shape[1]} x {pixels.shape[0]} pixels"
            hold_to_budget(what, 4 * count * pixels.size, on_disk=on_disk)
            block = np.empty((count, *pixels.shape), dtype=np.uint8)
        if pixels.shape != block.shape[1:]:
            raise BadInput(
                f"{name} is {pixels.shape[1]} x {pixels.shape[0]} pixels and the first "
                f"{block.shape[2]} x {block.shape[1]}; set size to bring all to one"
            )
        block[at] = pixels
    if block is None:
        raise BadInput("there are no pictures to read; give at least one")
    return block


def check_size(name: str, picture: "Image.Image") -> None:
    """Refuse a picture whose header announces more pixels than are read."""
    if picture.width * picture.height > _MAX_PIXELS:
        raise BadInput(
            f"{name} has {picture.width} x {picture.height} pixels, and at most {_MAX_PIXELS} are "
            "read; shrink it first"
        )


def _pixels(
    picture: "Image.Image", size: int, grey: bool
) -> UInt8[ndarray, "height width channels"]:
    from PIL import Image

    converted = picture.convert("L" if grey else "RGB")
    if size:
        converted = converted.resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(converted, dtype=np.uint8)
    return pixels[..., None] if grey else pixels


def _of_eight_bits(name: str, picture: "Image.Image") -> "Image.Image":
    """Scale a grey picture of 16 bits to 8, which Pillow would clip to white instead.

    Raises:
        BadInput: The mode has no fixed range to scale by, such as 32-bit numbers.
    """
    from PIL import Image

    # A 16-bit PNG or PGM opens as I;16 or, in earlier versions of Pillow, as I.
    sixteen = picture.mode.startswith("I;16") or (
        picture.mode == "I" and picture.format in ("PNG", "PPM")
    )
    if sixteen:
        values = np.asarray(picture).astype(np.uint32)
        return Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))
    if picture.mode not in _MODES:
        raise BadInput(
            f"{name} has the mode {picture.mode}, whose values have no fixed range; pictures of 8 "
            f"or 16 bits a channel are read ({', '.join(_MODES)}, I;16): convert it to one"
        )
    return picture


_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "La", "RGBa")
"""Modes of 8 bits a channel, whose conversion to grey or colour keeps the range."""
_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp"}
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""Of every picture that is read, whatever its name: Pillow hands some others to other programs."""
_BYTES_A_PIXEL = 4
_MOST_LEVELS = 32
"""Of folders within a class's folder."""
_MOST_ENTRIES = 10_000_000
"""Files and folders within a class's folder."""
_TEST_FOLDERS = ("test", "val")


class _Files(NamedTuple):
    """Picture files and their classes.

    Attributes:
        root: Folder that none of them leaves.
        paths: The files.
        labels: Class of each.
    """

    root: Path
    paths: list[Path]
    labels: Int[ndarray, " samples"]


class _Parts(NamedTuple):
    """Picture files of both parts."""

    train: _Files
    test: _Files


@arguments.dataclass(frozen=True)
class images(DataFile):
    """Data set in a folder of pictures, with a folder for each class.

    Classes are numbered by the sorted names of their folders, samples by sorted file names.
    Folders within a class's folder are searched too. ``val`` serves where there is no ``test``.
    Where ``train`` is alone, ``test_share`` of each of its classes is held out for testing.

    Attributes:
        path: Folder with ``train/CLASS/*`` and ``test/CLASS/*``, or with ``CLASS/*``.
        size: Side in pixels that every picture is resized to; 0 if all have one size.
        grey: Whether only brightness is kept.
        test_share: Share of each class in the test part, if there is no folder for it.
        standardise: Whether pixels get mean 0 and standard deviation 1 for each channel.

    Examples:
        >>> images("pictures", size=32).part().options
        {'size': 32}
    """

    looks_for: ClassVar[str] = "NAME/CLASS/ or NAME/train/CLASS/"

    _: KW_ONLY
    size: Count = 0
    grey: bool = False
    test_share: ProperShare = 0.2
    standardise: bool = True

    @classmethod
    def find(cls, folder: Path, name: str) -> Path | None:
        """Return the folder ``NAME`` if it has sub-folders."""
        path = folder / name
        return path if path.is_dir() and _subfolders(path) else None

    def read(self, seed: int) -> Dataset:
        """Return the data set.

        Raises:
            BadInput: No pictures, a class without any, a test class that is not trained on, folders
                of parts without ``train`` or under other names, pictures of several sizes, a link
                to a folder or out of this one, a folder that cannot be read or is nested too deep,
                or a file that is no regular one, such as a pipe.
            Damaged: A file that is no picture.
        """
        path, size = self.file, self.size
        names = {folder.name for folder in _subfolders(path)}
        _refuse_other_parts(path, names)
        train, test = _parts(path, seed, self.test_share)
        x_train, x_test = (_block(part, size, self.grey) for part in (train, test))
        arrays = Arrays(x_train, train.labels, x_test, test.labels)
        dataset = from_arrays(path.name, arrays, standardise=self.standardise)
        notes = [f"resized to {size} x {size}"] if size else []
        if names == {_TRAIN_FOLDER}:
            share = f"{self.test_share:g}"
            notes.append(f"a share of {share} of each class in train held out for testing")
        return replace(dataset, normalisation=", ".join([*notes, dataset.normalisation]))


_TRAIN_FOLDER = "train"
_PART_NAMES = {
    *("train", "training", "test", "testing", "tests"),
    *("val", "valid", "validation", "dev", "eval"),
}


def _refuse_other_parts(path: Path, names: set[str]) -> None:
    """Raise if sub-folders are parts of a data set and would be taken for its classes."""
    usual = {name.lower() for name in names}
    if not usual <= _PART_NAMES or names == {_TRAIN_FOLDER}:
        return
    if _TRAIN_FOLDER not in names or not names & {*_TEST_FOLDERS}:
        raise BadInput(
            f"{path} has the folders {', '.join(sorted(names))}, which are parts and no classes; "
            "name them train and test (or val), or leave train alone, of which a share is then "
            "held out"
        )


def _parts(path: Path, seed: int, test_share: float) -> _Parts:
    folders = _subfolders(path)
    _refuse_links(folders)
    names = {folder.name for folder in folders}
    if names == {_TRAIN_FOLDER}:
        path = path / _TRAIN_FOLDER
        folders = _subfolders(path)
        _refuse_links(folders)
        names = {folder.name for folder in folders}
        if not names:
            raise BadInput(f"{path} has no folder of a class; give one for each class")
    tested = [name for name in _TEST_FOLDERS if name in names]
    if "train" in names and tested:
        classes = [folder.name for folder in _subfolders(path / "train")]
        unknown = {folder.name for folder in _subfolders(path / tested[0])} - set(classes)
        if unknown:
            raise BadInput(
                f"{path / tested[0]} has class {min(unknown)!r}, which {path / 'train'} has not; "
                "give both the same classes"
            )
        return _Parts(
            _files(path, path / "train", classes),
            _files(path, path / tested[0], classes, partial=True),
        )
    classes = sorted(names)
    every = _files(path, path, classes)
    parts = split(every.labels, test_share, rng=seeded_numpy(seed, "split", path.name))
    return _Parts(
        *(_Files(path, [every.paths[at] for at in part], every.labels[part]) for part in parts)
    )


def _files(root: Path, folder: Path, classes: Sequence[str], *, partial: bool = False) -> _Files:
    paths: list[Path] = []
    counts = []
    for name in classes:
        # A class need not be in the test part.
        walked = _walked(folder / name) if not partial or (folder / name).is_dir() else ()
        found = sorted(file for file in walked if file.suffix.lower() in _SUFFIXES)
        if not found and not partial:
            raise BadInput(f"class folder {folder / name} has no pictures; fill or remove it")
        paths += found
        counts.append(len(found))
    return _Files(root, paths, np.repeat(np.arange(len(classes)), counts))


def _walked(folder: Path) -> Iterator[Path]:
    """All files in a folder and its subfolders.

    Raises:
        BadInput: One of the folders is a link or cannot be read, is nested too deep, or there are
            too many entries.
    """
    _refuse_links([folder])
    waiting, count = [(folder, 0)], 0
    while waiting:
        place, depth = waiting.pop()
        if depth > _MOST_LEVELS:
            raise BadInput(
                f"{folder} has folders that nest over {_MOST_LEVELS} levels deep, and none of "
                "pictures does; move the pictures up"
            )
        for entry in _entries(place):
            count += 1
            if count > _MOST_ENTRIES:
                raise BadInput(
                    f"{folder} holds over {_MOST_ENTRIES:,} files and folders, which are more than "
                    "are read; give fewer"
                )
            if entry.is_dir():
                _refuse_links([entry])
                waiting.append((entry, depth + 1))
            else:
                yield entry


def _entries(folder: Path) -> Iterator[Path]:
    """The files and folders in a folder.

    Raises:
        BadInput: It cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            yield from (Path(entry.path) for entry in entries)
    except OSError as error:
        raise BadInput(
            f"{folder} cannot be read ({error.strerror}), and the data set would lack what is in "
            "it; change its permissions, or remove it"
        ) from error


def _refuse_links(folders: Iterable[Path]) -> None:
    for folder in folders:
        if folder.is_symlink():
            raise BadInput(
                f"{folder} is a link to a folder, which may be any of this machine; copy the "
                "folder to that place, or remove the link"
            )


def _block(files: _Files, size: int, grey: bool) -> UInt8[ndarray, "samples height width channels"]:
    try:
        # All of them, before the first is opened.
        on_disk = sum(regular_size(path, within=_bounds(path, files)) for path in files.paths)
    except OSError as error:
        raise BadInput(
            f"{error.filename} cannot be read as a picture ({error.strerror}); replace it with a "
            "regular file, or remove it"
        ) from error
    encoded = (
        Encoded(str(path), partial(open_regular, path, within=_bounds(path, files)))
        for path in files.paths
    )
    return stacked(decoded(encoded), len(files.paths), size=size, grey=grey, on_disk=on_disk)


def _bounds(path: Path, files: _Files) -> Path | None:
    """Return the folder that a link must not leave; None for a file that is no link.

    That its folders are no links is known, and to resolve each of many paths takes long.
    """
    return files.root if path.is_symlink() else None


class Encoded(NamedTuple):
    """A picture that is not decoded yet.

    Attributes:
        name: Name of the picture, for refusals.
        open: Opens its bytes.
    """

    name: str
    open: Callable[[], IO[bytes]]


def decoded(pictures: Iterable[Encoded]) -> "Iterator[tuple[str, Image.Image]]":
    """Decode pictures one by one, each within the budget for its size on the disk.

    Yields:
        A picture's name, and the picture with 8 bits a channel.

    Raises:
        BadInput: A picture takes more memory than its bytes allow, or has a mode whose values have
            no fixed range.
        Damaged: A picture that is cut off, or of another format than those that are read.
    """
    from PIL import UnidentifiedImageError

    for name, opening in pictures:
        try:
            with opening() as file:
                on_disk = file.seek(0, os.SEEK_END)
                file.seek(0)
                with _sized(file) as picture:
                    check_size(name, picture)
                    pixels = picture.width * picture.height
                    hold_to_budget(name, _BYTES_A_PIXEL * pixels, on_disk=on_disk)
                    picture.load()
                    yield name, _of_eight_bits(name, picture)
        except FedauditError:
            raise
        except UnidentifiedImageError as error:
            raise Damaged(
                f"{name} cannot be read as a picture: it is of none of the formats "
                f"{', '.join(_FORMATS)}, whatever its name; convert or replace it"
            ) from error
        # A hostile picture can fail in any way at all.
        except Exception as error:
            raise Damaged(f"{name} cannot be read as a picture ({error}); replace it") from error


def _sized(file: IO[bytes]) -> "Image.Image":
    """A picture of which the header alone is read; Pillow's own words on its size are not heard."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return Image.open(file, formats=_FORMATS)


def _subfolders(path: Path) -> list[Path]:
    return sorted(entry for entry in _entries(path) if entry.is_dir())
