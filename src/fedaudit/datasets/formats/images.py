"""Image files as arrays of bytes, and data sets in folders of images with a folder per class."""

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
from fedaudit.core.files import open_regular, refuse_oversized, regular_size
from fedaudit.core.seeds import seeded_numpy
from fedaudit.datasets.arrays import MAX_VALUES, Arrays, from_arrays, split
from fedaudit.datasets.dataset import DataFile, Dataset
from fedaudit.datasets.formats.annotations import annotated_pictures, has_annotations

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
    """Return all images in one array of bytes.

    Args:
        pictures: Pairs of a name and an image; see :func:`decoded`.
        count: Number of images.
        size: Side in pixels that every image is resized to, whatever its shape. 0 keeps the sizes,
            which must then be equal.
        grey: Whether to keep brightness only, instead of three colours.
        on_disk: Size of all files in bytes, which limits the memory of the array.

    Raises:
        BadInput: Images have several sizes, or are too many or too large.
    """
    block: UInt8[ndarray, "samples height width channels"] | None = None
    for index, (name, picture) in enumerate(pictures):
        pixels = _pixels(picture, size, grey)
        if block is None:
            if count * pixels.size > MAX_VALUES:
                raise BadInput(
                    f"{count} pictures of {pixels.shape[1]} x {pixels.shape[0]} pixels are more "
                    f"than the limit of {MAX_VALUES} values; set a smaller size"
                )
            # Features become 32-bit numbers.
            what = f"{count} pictures of {pixels.shape[1]} x {pixels.shape[0]} pixels"
            refuse_oversized(what, 4 * count * pixels.size, on_disk=on_disk)
            block = np.empty((count, *pixels.shape), dtype=np.uint8)
        if pixels.shape != block.shape[1:]:
            raise BadInput(
                f"{name} is {pixels.shape[1]} x {pixels.shape[0]} pixels and the first "
                f"{block.shape[2]} x {block.shape[1]}; set size to bring all to one"
            )
        block[index] = pixels
    if block is None:
        raise BadInput("there are no pictures to read; give at least one")
    return block


def check_size(name: str, picture: "Image.Image") -> None:
    """Raise if a picture's header declares more pixels than are read."""
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
    """Scale a grey picture of 16 bits to 8 bits, which Pillow would clip to white instead.

    Raises:
        BadInput: The mode, such as 32-bit numbers, has no fixed range for scaling.
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
"""Modes of 8 bits per channel, whose conversion to grey or colour keeps the range."""
PICTURE_SUFFIXES = {
    ".png",
    ".jpg",
    ".jpeg",
    ".bmp",
    ".gif",
    ".pgm",
    ".ppm",
    ".tif",
    ".tiff",
    ".webp",
}
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""Formats of all pictures, whatever their names: Pillow opens some other formats with other
programs."""
_BYTES_A_PIXEL = 4
_MOST_LEVELS = 32
"""Limit of the nesting of folders within a class's folder."""
_MOST_ENTRIES = 10_000_000
"""Limit of the files and folders within a class's folder."""
_TEST_FOLDERS = ("test", "val")


class _Files(NamedTuple):
    """Picture files and their classes.

    Attributes:
        root: Folder that contains all of them.
        paths: The files.
        labels: Class of each file.
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

    Classes are numbered by the sorted names of their folders, samples by sorted file names. Folders
    within a class's folder are searched too. ``val`` is used if there is no ``test``. If there is
    only ``train``, ``test_share`` of each class is held out for testing. In the folders of
    Tiny-ImageNet, ``val/val_annotations.txt`` has the class of each picture in ``val/images``, and
    ``test``, which has no classes, is not read.

    Attributes:
        path: Folder with ``train/CLASS/*`` and ``test/CLASS/*``, or with ``CLASS/*``.
        size: Side in pixels that every picture is resized to; 0 if all have one size.
        grey: Whether only brightness is kept.
        test_share: Share of each class in the test part, if there is no folder for it.
        standardise: Whether pixels are scaled to mean 0 and standard deviation 1 for each channel.

    Examples:
        >>> import fedaudit as fa
        >>> fa.datasets.images("pictures", size=32).part().options
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
                to a folder or out of this one, a folder that cannot be read or is nested too
                deeply, or a file that is not regular, such as a pipe.
            Damaged: A file is not a picture.
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
    """Raise if the folders are parts of a data set instead of classes."""
    usual = {name.lower() for name in names}
    if not usual <= _PART_NAMES or names == {_TRAIN_FOLDER}:
        return
    if _TRAIN_FOLDER not in names or not names & {*_TEST_FOLDERS}:
        raise BadInput(
            f"{path} has the folders {', '.join(sorted(names))}, which are parts and no classes; "
            "name them train and test (or val), or keep only train, of which a share is then held "
            "out"
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
    if "train" in names and has_annotations(path):
        classes = [folder.name for folder in _subfolders(path / "train")]
        _refuse_links([path / "val" / "images"])
        annotated = annotated_pictures(path / "val", classes)
        test = _Files(path, annotated.paths, np.array(annotated.labels, dtype=np.int64))
        return _Parts(_files(path, path / "train", classes), test)
    test_names = [name for name in _TEST_FOLDERS if name in names]
    if "train" in names and test_names:
        classes = [folder.name for folder in _subfolders(path / "train")]
        test_folder = path / test_names[0]
        unknown = {folder.name for folder in _subfolders(test_folder)} - set(classes)
        if unknown:
            raise BadInput(
                f"{test_folder} has class {min(unknown)!r}, which {path / 'train'} lacks; give "
                "both the same classes"
            )
        return _Parts(
            _files(path, path / "train", classes),
            _files(path, test_folder, classes, partial=True),
        )
    classes = sorted(names)
    files = _files(path, path, classes)
    parts = split(files.labels, test_share, rng=seeded_numpy(seed, "split", path.name))
    return _Parts(
        *(_Files(path, [files.paths[i] for i in part], files.labels[part]) for part in parts)
    )


def _files(root: Path, folder: Path, classes: Sequence[str], *, partial: bool = False) -> _Files:
    paths: list[Path] = []
    counts = []
    for name in classes:
        # The test part may lack a class.
        every = _walk(folder / name) if not partial or (folder / name).is_dir() else ()
        pictures = sorted(file for file in every if file.suffix.lower() in PICTURE_SUFFIXES)
        if not pictures and not partial:
            raise BadInput(f"class folder {folder / name} has no pictures; fill or remove it")
        paths += pictures
        counts.append(len(pictures))
    return _Files(root, paths, np.repeat(np.arange(len(classes)), counts))


def _walk(folder: Path) -> Iterator[Path]:
    """Yield all files in a folder and its subfolders.

    Raises:
        BadInput: A folder is a link, cannot be read or is nested too deeply, or there are too many
            entries.
    """
    _refuse_links([folder])
    waiting, count = [(folder, 0)], 0
    while waiting:
        place, depth = waiting.pop()
        if depth > _MOST_LEVELS:
            raise BadInput(
                f"{folder} has folders nested over {_MOST_LEVELS} levels deep, the limit for "
                "pictures; move the pictures up"
            )
        for entry in _entries(place):
            count += 1
            if count > _MOST_ENTRIES:
                raise BadInput(
                    f"{folder} contains over {_MOST_ENTRIES:,} files and folders, which is the "
                    "limit; give fewer"
                )
            if entry.is_dir():
                _refuse_links([entry])
                waiting.append((entry, depth + 1))
            else:
                yield entry


def _entries(folder: Path) -> Iterator[Path]:
    """Yield the files and folders in a folder.

    Raises:
        BadInput: The folder cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            yield from (Path(entry.path) for entry in entries)
    except OSError as error:
        raise BadInput(
            f"{folder} cannot be read ({error.strerror}), so the data set would lack its "
            "contents; change its permissions, or remove it"
        ) from error


def _refuse_links(folders: Iterable[Path]) -> None:
    for folder in folders:
        if folder.is_symlink():
            raise BadInput(
                f"{folder} is a link to a folder, which may lead anywhere on this machine; replace "
                "it with a copy of the folder, or remove it"
            )


def _block(files: _Files, size: int, grey: bool) -> UInt8[ndarray, "samples height width channels"]:
    try:
        # The sizes of all files are needed before the first is opened.
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
    """Return the folder that a link must not leave; None for a file that is not a link.

    Other paths are not resolved, since this takes long for many files and their folders are known
    to be no links.
    """
    return files.root if path.is_symlink() else None


class Encoded(NamedTuple):
    """Picture that is not decoded yet.

    Attributes:
        name: Name of the picture, for messages.
        open: Function that opens its bytes.
    """

    name: str
    open: Callable[[], IO[bytes]]


def decoded(pictures: Iterable[Encoded]) -> "Iterator[tuple[str, Image.Image]]":
    """Decode pictures one by one, each within a memory budget for its file size.

    Yields:
        A picture's name, and the picture with 8 bits per channel.

    Raises:
        BadInput: A picture takes more memory than its file size allows, or its mode has no fixed
            range of values.
        Damaged: A picture is truncated, or has a format that is not read.
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
                    refuse_oversized(name, _BYTES_A_PIXEL * pixels, on_disk=on_disk)
                    picture.load()
                    yield name, _of_eight_bits(name, picture)
        except FedauditError:
            raise
        except UnidentifiedImageError as error:
            raise Damaged(
                f"{name} cannot be read as a picture: its format is none of "
                f"{', '.join(_FORMATS)}, whatever its name; convert or replace it"
            ) from error
        # A hostile picture can raise anything.
        except Exception as error:
            raise Damaged(f"{name} cannot be read as a picture ({error}); replace it") from error


def _sized(file: IO[bytes]) -> "Image.Image":
    """Open a picture and read only its header, without Pillow's warning about its size."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return Image.open(file, formats=_FORMATS)


def _subfolders(path: Path) -> list[Path]:
    return sorted(entry for entry in _entries(path) if entry.is_dir())
