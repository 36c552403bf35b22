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
        size: Side in pixels that every image is resized to, whatever its shape. With 0, all images
            must have one size.
        grey: Whether to keep brightness only, instead of three colours.
        on_disk: Size of all files in bytes, which limits the memory of the array.

    Raises:
        BadInput: Images have several sizes, or are too many or too large.
    """
    array: UInt8[ndarray, "samples height width channels"] | None = None
    for index, (name, picture) in enumerate(pictures):
        pixels = _pixels(picture, size, grey)
        if array is None:
            what = f"{count} pictures of {pixels.shape[1]} x {pixels.shape[0]} pixels"
            if count * pixels.size > MAX_VALUES:
                raise BadInput(
                    f"{what} are more than the limit of {MAX_VALUES} values; set a smaller size"
                )
            # Features become 32-bit numbers.
            refuse_oversized(what, 4 * count * pixels.size, on_disk=on_disk)
            array = np.empty((count, *pixels.shape), dtype=np.uint8)
        if pixels.shape != array.shape[1:]:
            raise BadInput(
                f"{name} is {pixels.shape[1]} x {pixels.shape[0]} pixels and the first "
                f"{array.shape[2]} x {array.shape[1]}; set size to bring all to one"
            )
        array[index] = pixels
    if array is None:
        raise BadInput("there are no pictures to read; give at least one")
    return array


def _pixels(
    picture: "Image.Image", size: int, grey: bool
) -> UInt8[ndarray, "height width channels"]:
    from PIL import Image

    converted = picture.convert("L" if grey else "RGB")
    if size:
        converted = converted.resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(converted, dtype=np.uint8)
    return pixels[..., None] if grey else pixels


def _to_eight_bits(name: str, picture: "Image.Image") -> "Image.Image":
    """Scale a grey picture of 16 bits to 8 bits: Pillow would clip its values to white.

    Raises:
        BadInput: The mode, such as 32-bit numbers, has no fixed range for scaling.
    """
    from PIL import Image

    # A 16-bit PNG or PGM opens as I;16 or, in earlier versions of Pillow, as I.
    has_16_bits = picture.mode.startswith("I;16") or (
        picture.mode == "I" and picture.format in ("PNG", "PPM")
    )
    if has_16_bits:
        values = np.asarray(picture).astype(np.uint32)
        return Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))
    if picture.mode not in _MODES:
        raise BadInput(
            f"{name} has the mode {picture.mode}, whose values have no fixed range; pictures of 8 "
            f"or 16 bits per channel are read ({', '.join(_MODES)}, I;16): convert it to one"
        )
    return picture


_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "La", "RGBa")
"""Modes of 8 bits per channel, whose conversion to grey or colour keeps the range."""
PICTURE_SUFFIXES = {
    *(".png", ".jpg", ".jpeg", ".bmp", ".gif"),
    *(".pgm", ".ppm", ".tif", ".tiff", ".webp"),
}
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""Formats that are read, whatever the name of a file. Pillow would open some further formats with
external programs."""
_BYTES_PER_PIXEL = 4
_MAX_DEPTH = 32
"""Limit of the nesting of folders within a class's folder."""
_MAX_ENTRIES = 10_000_000
"""Limit of the files and folders within a class's folder."""
_TEST_FOLDERS = ("test", "val")


class _Files(NamedTuple):
    """Picture files with their classes, and the folder ``root`` that contains all of them."""

    root: Path
    paths: list[Path]
    labels: Int[ndarray, " samples"]


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
        test_share: Share of each class in the test part, if no folder has the test part.
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
            BadInput: A class has no pictures or only test pictures, folders have unknown names of
                parts, pictures have several sizes, a folder is a link, cannot be read or is nested
                too deeply, or a file leads out of the folder or is not regular, such as a pipe.
            Damaged: A file is not a picture.
        """
        path, size = self.file, self.size
        names = {folder.name for folder in _subfolders(path)}
        _refuse_unknown_parts(path, names)
        train, test = _split_files(path, seed, self.test_share)
        x_train, x_test = (_read_files(part, size, self.grey) for part in (train, test))
        arrays = Arrays(x_train, train.labels, x_test, test.labels)
        dataset = from_arrays(path.name, arrays, standardise=self.standardise)
        steps = [f"resized to {size} x {size}"] if size else []
        if names == {_TRAIN_FOLDER}:
            share = f"{self.test_share:g}"
            steps.append(f"a share of {share} of each class in train held out for testing")
        return replace(dataset, normalisation=", ".join([*steps, dataset.normalisation]))


_TRAIN_FOLDER = "train"
_PART_NAMES = {
    *("train", "training", "test", "testing", "tests"),
    *("val", "valid", "validation", "dev", "eval"),
}


def _refuse_unknown_parts(path: Path, names: set[str]) -> None:
    """Raise if the folders are parts of a data set instead of classes, without train and test."""
    are_parts = {name.lower() for name in names} <= _PART_NAMES
    has_both = _TRAIN_FOLDER in names and bool(names & {*_TEST_FOLDERS})
    if are_parts and names != {_TRAIN_FOLDER} and not has_both:
        raise BadInput(
            f"{path} has the folders {', '.join(sorted(names))}, which are parts and no classes; "
            "name them train and test (or val), or keep only train, of which a share is then held "
            "out"
        )


def _split_files(path: Path, seed: int, test_share: float) -> tuple[_Files, _Files]:
    """Return the picture files of the training and the test part."""
    names = _class_names(path)
    if names == [_TRAIN_FOLDER]:
        path = path / _TRAIN_FOLDER
        names = _class_names(path)
        if not names:
            raise BadInput(f"{path} has no folder of a class; give one for each class")
    train_folder = path / _TRAIN_FOLDER
    if _TRAIN_FOLDER in names and has_annotations(path):
        classes = [folder.name for folder in _subfolders(train_folder)]
        _refuse_links([path / "val" / "images"])
        annotated = annotated_pictures(path / "val", classes)
        test = _Files(path, annotated.paths, np.array(annotated.labels, dtype=np.int64))
        return _list_files(path, train_folder, classes), test
    test_names = [name for name in _TEST_FOLDERS if name in names]
    if _TRAIN_FOLDER in names and test_names:
        classes = [folder.name for folder in _subfolders(train_folder)]
        test_folder = path / test_names[0]
        unknown = {folder.name for folder in _subfolders(test_folder)} - set(classes)
        if unknown:
            raise BadInput(
                f"{test_folder} has class {min(unknown)!r}, which {train_folder} lacks; give "
                "both the same classes"
            )
        train = _list_files(path, train_folder, classes)
        return train, _list_files(path, test_folder, classes, may_lack_classes=True)
    files = _list_files(path, path, names)
    train, test = (
        _Files(path, [files.paths[index] for index in part], files.labels[part])
        for part in split(files.labels, test_share, rng=seeded_numpy(seed, "split", path.name))
    )
    return train, test


def _class_names(path: Path) -> list[str]:
    folders = _subfolders(path)
    _refuse_links(folders)
    return [folder.name for folder in folders]


def _list_files(
    root: Path, folder: Path, classes: Sequence[str], *, may_lack_classes: bool = False
) -> _Files:
    paths: list[Path] = []
    counts = []
    for name in classes:
        is_absent = may_lack_classes and not (folder / name).is_dir()
        files = () if is_absent else _walk(folder / name)
        pictures = sorted(file for file in files if file.suffix.lower() in PICTURE_SUFFIXES)
        if not pictures and not may_lack_classes:
            raise BadInput(f"class folder {folder / name} has no pictures; fill or remove it")
        paths += pictures
        counts.append(len(pictures))
    return _Files(root, paths, np.repeat(np.arange(len(classes)), counts))


def _walk(folder: Path) -> Iterator[Path]:
    """Yield all files in a folder and its subfolders."""
    _refuse_links([folder])
    pending, count = [(folder, 0)], 0
    while pending:
        subfolder, depth = pending.pop()
        if depth > _MAX_DEPTH:
            raise BadInput(
                f"{folder} has folders nested over {_MAX_DEPTH} levels deep, the limit for "
                "pictures; move the pictures up"
            )
        for entry in _entries(subfolder):
            count += 1
            if count > _MAX_ENTRIES:
                raise BadInput(
                    f"{folder} contains over {_MAX_ENTRIES:,} files and folders, which is the "
                    "limit; give fewer"
                )
            if entry.is_dir():
                _refuse_links([entry])
                pending.append((entry, depth + 1))
            else:
                yield entry


def _entries(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            yield from (Path(entry.path) for entry in entries)
    except OSError as error:
        raise BadInput(
            f"{folder} cannot be read ({error.strerror}), so the data set would lack its "
            "contents; change the folder's permissions, or remove the folder"
        ) from error


def _refuse_links(folders: Iterable[Path]) -> None:
    for folder in folders:
        if folder.is_symlink():
            raise BadInput(
                f"{folder} is a link to a folder, which may lead anywhere on this machine; replace "
                "it with a copy of the folder, or remove it"
            )


def _read_files(
    files: _Files, size: int, grey: bool
) -> UInt8[ndarray, "samples height width channels"]:
    try:
        # The memory limit, which depends on the size of all files, applies before any is opened.
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

    Resolving every path would take long. It is needed for links only, since no folder is a link.
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
        BadInput: A picture has too many pixels for its file size or in total, or its mode has no
            fixed range of values.
        Damaged: A picture is truncated, or has a format that is not read.
    """
    from PIL import UnidentifiedImageError

    for name, open_picture in pictures:
        try:
            with open_picture() as file:
                on_disk = file.seek(0, os.SEEK_END)
                file.seek(0)
                with _read_header(file) as picture:
                    pixels = picture.width * picture.height
                    if pixels > _MAX_PIXELS:
                        raise BadInput(
                            f"{name} has {picture.width} x {picture.height} pixels, and at most "
                            f"{_MAX_PIXELS} are read; shrink it first"
                        )
                    refuse_oversized(name, _BYTES_PER_PIXEL * pixels, on_disk=on_disk)
                    picture.load()
                    yield name, _to_eight_bits(name, picture)
        except FedauditError:
            raise
        except UnidentifiedImageError as error:
            raise Damaged(
                f"{name} cannot be read as a picture: the format of its content is none of "
                f"{', '.join(_FORMATS)}; convert or replace it"
            ) from error
        # A hostile picture can raise anything.
        except Exception as error:
            raise Damaged(f"{name} cannot be read as a picture ({error}); replace it") from error


def _read_header(file: IO[bytes]) -> "Image.Image":
    """Open a picture and read only its header, without Pillow's warning about its size."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return Image.open(file, formats=_FORMATS)


def _subfolders(path: Path) -> list[Path]:
    return sorted(entry for entry in _entries(path) if entry.is_dir())
