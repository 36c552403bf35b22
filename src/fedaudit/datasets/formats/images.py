"""Decoding of picture files, and data sets in folders with a folder of pictures for each class."""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int, Shaped
from numpy import ndarray

from fedaudit.core import arguments
from fedaudit.core.arguments import Count, ProperFraction
from fedaudit.core.errors import BadInput, Damaged, FedauditError
from fedaudit.core.files import TooLarge, open_regular, raise_if_oversized, read_text, regular_size
from fedaudit.core.seeds import seeded_numpy
from fedaudit.datasets.arrays import MAX_VALUES, Arrays, from_arrays, stratified_split
from fedaudit.datasets.dataset import DataFile, Dataset

if TYPE_CHECKING:
    from PIL import Image


_MAX_PIXELS = 2**26


class Pictures(NamedTuple):
    """Pictures of one size in an array.

    Attributes:
        values: Pixels as bytes, or as wider numbers if files have more than 8 bits per value.
        n_truncated: Number of pictures of which only the highest 8 bits per colour were read.
    """

    values: Shaped[ndarray, "samples height width channels"]
    n_truncated: int


def stack_pictures(
    pictures: "Iterable[DecodedPicture]",
    count: int,
    *,
    size: int,
    grey: bool,
    file_bytes: int,
) -> Pictures:
    """Return all pictures in one array.

    Args:
        pictures: The pictures; see :func:`decode_pictures`.
        count: Number of pictures.
        size: Height and width in pixels to which every picture is resized. With 0, all pictures
            must have one size.
        grey: Whether to convert pictures to one channel, their brightness.
        file_bytes: Size of all files in bytes, which limits the memory of the array.

    Raises:
        BadInput: Pictures have several sizes or depths, or are too many or too large.
    """
    array: Shaped[ndarray, "samples height width channels"] | None = None
    n_truncated = 0
    for index, (name, picture, is_truncated) in enumerate(pictures):
        pixels = _pixels(name, picture, size, grey)
        n_truncated += is_truncated
        if array is None:
            what = f"{count} pictures of {pixels.shape[1]} x {pixels.shape[0]} pixels"
            if count * pixels.size > MAX_VALUES:
                raise BadInput(
                    f"{what} are more than the limit of {MAX_VALUES} values; set a smaller size"
                )
            # Features become 32-bit numbers.
            raise_if_oversized(what, 4 * count * pixels.size, file_bytes=file_bytes)
            array = np.empty((count, *pixels.shape), dtype=pixels.dtype)
        if pixels.shape != array.shape[1:]:
            raise BadInput(
                f"{name} is {pixels.shape[1]} x {pixels.shape[0]} pixels and the first "
                f"{array.shape[2]} x {array.shape[1]}; set size to bring all to one"
            )
        if pixels.dtype != array.dtype:
            raise BadInput(
                f"{name} has {_DEPTHS[pixels.dtype.name]} per value and the first picture "
                f"{_DEPTHS[array.dtype.name]}; convert all pictures to one depth"
            )
        array[index] = pixels
    if array is None:
        raise BadInput("there are no pictures to read; give at least one")
    return Pictures(array, n_truncated)


_DEPTHS = {
    "uint8": "8 bits",
    "uint16": "16 bits",
    "int32": "32 bits",
    "float32": "a floating-point number",
}
"""Descriptions of the depth of pictures, by the data type of their array."""


def _pixels(
    name: str, picture: "Image.Image", size: int, grey: bool
) -> Shaped[ndarray, "height width channels"]:
    from PIL import Image

    deep_type = _deep_type(picture)
    if deep_type is None:
        picture = picture.convert("L" if grey else "RGB")
    if size:
        picture = picture.resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(picture).astype(deep_type or np.uint8)
    if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
        raise BadInput(f"{name} has values that are infinite or no numbers; correct or remove it")
    if pixels.ndim == 3:
        return pixels
    return pixels[..., None] if grey else np.repeat(pixels[..., None], 3, axis=2)


def _deep_type(picture: "Image.Image") -> type[np.generic] | None:
    """Return the data type of a grey picture with more than 8 bits per value; None for others.

    Pillow would clip the values of such a picture if it were converted to "L" or "RGB".
    """
    # Pillow opens a 16-bit PGM in mode I, and earlier versions a 16-bit PNG too.
    if picture.mode.startswith("I;16") or (
        picture.mode == "I" and picture.format in ("PNG", "PPM")
    ):
        return np.uint16
    return {"I": np.int32, "F": np.float32}.get(picture.mode)


def _raise_if_mode_unknown(name: str, picture: "Image.Image") -> None:
    """Raise if a picture has an unknown mode, because its conversion could clip values."""
    if _deep_type(picture) is None and picture.mode not in _MODES:
        raise BadInput(
            f"{name} has the mode {picture.mode}, which is not read; convert it to one of "
            f"{', '.join(_MODES)}, I;16, I and F"
        )


def picture_statement(name: str, *parts: Pictures) -> str:
    """Return a sentence on what was read. It describes no single picture."""
    count = sum(len(part.values) for part in parts)
    height, width, channels = parts[0].values.shape[1:]
    low = min(part.values.min() for part in parts)
    high = max(part.values.max() for part in parts)
    n_truncated = sum(part.n_truncated for part in parts)
    note = f"; {n_truncated:,} have 16 bits per colour, of which 8 are read" if n_truncated else ""
    return (
        f"data {name}: {count:,} pictures of {width} x {height} pixels, "
        f"{'grey' if channels == 1 else 'colour'}, {_DEPTHS[parts[0].values.dtype.name]} per "
        f"value, values from {low:g} to {high:g}{note}"
    )


_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "La", "RGBa")
"""Pillow's modes with 8 bits per channel, whose conversion to grey or colour keeps the range."""
_DEEP_COLOUR_SUFFIXES = (";16L", ";16B", ";16N")
"""Suffixes of Pillow's names of file layouts with 16 bits per colour, of which Pillow reads 8."""
PICTURE_SUFFIXES = {
    *(".png", ".jpg", ".jpeg", ".bmp", ".gif"),
    *(".pgm", ".ppm", ".tif", ".tiff", ".webp"),
}
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""Formats that are read, whatever the suffix of a file. Others are excluded, because Pillow would
start external programs to read some of them."""
_BYTES_PER_PIXEL = 4
_MAX_DEPTH = 32
"""Limit of the nesting of folders within a class's folder."""
_MAX_ENTRIES = 10_000_000
"""Limit of the files and folders within a class's folder."""
_TEST_FOLDERS = ("test", "val")
_ANNOTATIONS_FILE = "val_annotations.txt"
_ANNOTATED_FOLDER = "images"
_MAX_ANNOTATION_BYTES = 64 * 2**20


class _PictureFiles(NamedTuple):
    """Picture files with their classes; ``root`` is the folder that contains all files."""

    root: Path
    paths: list[Path]
    labels: Int[ndarray, " samples"]


@arguments.dataclass(frozen=True)
class images(DataFile):
    """Data set in a folder of pictures, with a folder for each class.

    Classes are numbered by the sorted names of their folders, samples by sorted file names. Folders
    within a class's folder are searched too. ``val`` is used if there is no ``test``. If there is
    only ``train``, ``test_share`` of each class is held out for testing. Tiny-ImageNet can be read,
    too: its file ``val/val_annotations.txt`` has the class of each picture in ``val/images``. Its
    folder ``test`` has no classes and is not read.

    Grey pictures keep a depth of more than 8 bits. Values of 8 and of 16 bits are divided by their
    largest possible value, and others are scaled by the range of the training pictures.

    Attributes:
        path: Folder with ``train/CLASS/*`` and ``test/CLASS/*``, or with ``CLASS/*``.
        size: Height and width in pixels to which every picture is resized; 0 if all pictures have
            one size.
        grey: Whether pictures are converted to one channel, their brightness.
        test_share: Fraction of each class in the test part, if there is no folder ``test`` or
            ``val``.
        standardise: Whether pixels are scaled to mean 0 and standard deviation 1 for each channel.

    Examples:
        >>> import fedaudit as fa
        >>> fa.datasets.images("pictures", size=32).named_part().options
        {'size': 32}
    """

    expected_layout: ClassVar[str] = "NAME/CLASS/ or NAME/train/CLASS/"

    _: KW_ONLY
    size: Count = 0
    grey: bool = False
    test_share: ProperFraction = 0.2
    standardise: bool = True

    @classmethod
    def find(cls, folder: Path, name: str) -> Path | None:
        """Return the folder ``NAME`` if it has sub-folders."""
        path = folder / name
        return path if path.is_dir() and _subfolders(path) else None

    def read(self, seed: int) -> Dataset:
        """Return the data set.

        Raises:
            BadInput: A class has no training pictures, pictures have several sizes, or the folders
                are unusable: they are links, have unknown names of parts, cannot be read or are
                nested too deeply. Or a file is a link out of the folder, or no regular file.
            Damaged: A file is not a picture.
        """
        path, size = self.file, self.size
        names = {folder.name for folder in _subfolders(path)}
        _raise_if_unknown_parts(path, names)
        train, test = _split_files(path, seed, self.test_share)
        parts = [_read_files(part, size, self.grey) for part in (train, test)]
        arrays = Arrays(parts[0].values, train.labels, parts[1].values, test.labels)
        dataset = from_arrays(path.name, arrays, standardise=self.standardise, are_images=True)
        steps = [f"resized to {size} x {size}"] if size else []
        if names == {_TRAIN_FOLDER}:
            share = f"{self.test_share:g}"
            steps.append(f"a share of {share} of each class in train held out for testing")
        return replace(
            dataset,
            normalisation=", ".join([*steps, dataset.normalisation]),
            statement=(picture_statement(path.name, *parts),),
        )


_TRAIN_FOLDER = "train"
_PART_NAMES = {
    *("train", "training", "test", "testing", "tests"),
    *("val", "valid", "validation", "dev", "eval"),
}


def _raise_if_unknown_parts(path: Path, names: set[str]) -> None:
    """Raise if folders seem to be parts of a data set, but not under the names that are read."""
    are_parts = {name.lower() for name in names} <= _PART_NAMES
    has_both_parts = _TRAIN_FOLDER in names and bool(names & {*_TEST_FOLDERS})
    if are_parts and names != {_TRAIN_FOLDER} and not has_both_parts:
        raise BadInput(
            f"{path} has the folders {', '.join(sorted(names))}, which are parts and no classes; "
            "name them train and test (or val), or keep only train, of which a fraction is then "
            "held out"
        )


def _split_files(path: Path, seed: int, test_share: float) -> tuple[_PictureFiles, _PictureFiles]:
    """Return the picture files of the training and the test part."""
    names = _class_names(path)
    if names == [_TRAIN_FOLDER]:
        path = path / _TRAIN_FOLDER
        names = _class_names(path)
        if not names:
            raise BadInput(f"{path} has no folder of a class; give one for each class")
    train_folder = path / _TRAIN_FOLDER
    if _TRAIN_FOLDER in names and _has_annotations(path):
        classes = [folder.name for folder in _subfolders(train_folder)]
        test = _list_annotated(path, classes)
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
        _PictureFiles(path, [files.paths[index] for index in part], files.labels[part])
        for part in stratified_split(
            files.labels, test_share, rng=seeded_numpy(seed, "split", path.name)
        )
    )
    return train, test


def _class_names(path: Path) -> list[str]:
    folders = _subfolders(path)
    _raise_if_links(folders)
    return [folder.name for folder in folders]


def _list_files(
    root: Path, folder: Path, classes: Sequence[str], *, may_lack_classes: bool = False
) -> _PictureFiles:
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
    return _PictureFiles(root, paths, np.repeat(np.arange(len(classes)), counts))


def _has_annotations(path: Path) -> bool:
    """Return whether a folder has annotated pictures in ``val``, and no classes in ``test``."""
    test = path / "test"
    folders = {entry.name for entry in test.iterdir() if entry.is_dir()} if test.is_dir() else set()
    return (path / "val" / _ANNOTATIONS_FILE).is_file() and folders <= {_ANNOTATED_FOLDER}


def _list_annotated(path: Path, classes: Sequence[str]) -> _PictureFiles:
    """Return the pictures in ``val``, with the classes that their annotations state.

    The annotations have one line per picture: its name and its class, separated by a tabulator.

    Raises:
        BadInput: A line has no name and class, a class is unknown, or annotations and pictures do
            not match.
    """
    folder = path / "val"
    _raise_if_links([folder / _ANNOTATED_FOLDER])
    file = folder / _ANNOTATIONS_FILE
    try:
        lines = read_text(file, max_bytes=_MAX_ANNOTATION_BYTES).splitlines()
        entries = (folder / _ANNOTATED_FOLDER).iterdir()
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
            f"{file} and {folder / _ANNOTATED_FOLDER} differ in {len(unmatched)} pictures"
            f"{f', such as {unmatched[0][:80]!r}' if unmatched else ' and have none'}; give "
            "one line for each picture"
        )
    names = sorted(labels)
    paths = [folder / _ANNOTATED_FOLDER / name for name in names]
    return _PictureFiles(path, paths, np.array([labels[name] for name in names], dtype=np.int64))


def _walk(folder: Path) -> Iterator[Path]:
    """Yield all files in a folder and its subfolders."""
    _raise_if_links([folder])
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
                _raise_if_links([entry])
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


def _raise_if_links(folders: Iterable[Path]) -> None:
    for folder in folders:
        if folder.is_symlink():
            raise BadInput(
                f"{folder} is a link to a folder, which may lead anywhere on this machine; replace "
                "it with a copy of the folder, or remove it"
            )


def _read_files(files: _PictureFiles, size: int, grey: bool) -> Pictures:
    try:
        # The memory limit depends on the size of all files, so it is known before one is opened.
        file_bytes = sum(regular_size(path, within=_bounds(path, files)) for path in files.paths)
    except OSError as error:
        raise BadInput(
            f"{error.filename} cannot be read as a picture ({error.strerror}); replace it with a "
            "regular file, or remove it"
        ) from error
    encoded = (
        EncodedPicture(str(path), partial(open_regular, path, within=_bounds(path, files)))
        for path in files.paths
    )
    return stack_pictures(
        decode_pictures(encoded), len(files.paths), size=size, grey=grey, file_bytes=file_bytes
    )


def _bounds(path: Path, files: _PictureFiles) -> Path | None:
    """Return the folder that a link must not leave; None for a file that is not a link.

    Only links need the slow check of their target. Folders that are links were refused before.
    """
    return files.root if path.is_symlink() else None


class EncodedPicture(NamedTuple):
    """Picture before decoding.

    Attributes:
        name: Name of the picture, for messages.
        open: Function that opens the picture's bytes.
    """

    name: str
    open: Callable[[], IO[bytes]]


class DecodedPicture(NamedTuple):
    """Picture after decoding.

    Attributes:
        name: Name of the picture, for messages.
        picture: The picture.
        is_truncated: Whether only the highest 8 bits per colour were read.
    """

    name: str
    picture: "Image.Image"
    is_truncated: bool


def decode_pictures(pictures: Iterable[EncodedPicture]) -> Iterator[DecodedPicture]:
    """Decode pictures one by one, each within a memory budget for its file size.

    Raises:
        BadInput: A picture has too many pixels for its file size or in total, or its mode is not
            read.
        Damaged: A picture is truncated, or has a format that is not read.
    """
    from PIL import UnidentifiedImageError

    for name, open_picture in pictures:
        try:
            with open_picture() as file:
                file_bytes = file.seek(0, os.SEEK_END)
                file.seek(0)
                with _read_header(file) as picture:
                    pixels = picture.width * picture.height
                    if pixels > _MAX_PIXELS:
                        raise BadInput(
                            f"{name} has {picture.width} x {picture.height} pixels, and at most "
                            f"{_MAX_PIXELS} are read; shrink it first"
                        )
                    raise_if_oversized(name, _BYTES_PER_PIXEL * pixels, file_bytes=file_bytes)
                    # The layout of the file, such as "RGB;16B". Pillow removes it in load().
                    layout = str(getattr(picture, "tile", ""))
                    picture.load()
                    _raise_if_mode_unknown(name, picture)
                    is_deep = any(suffix in layout for suffix in _DEEP_COLOUR_SUFFIXES)
                    yield DecodedPicture(name, picture, is_deep and _deep_type(picture) is None)
        except FedauditError:
            raise
        except UnidentifiedImageError as error:
            raise Damaged(
                f"{name} cannot be read as a picture: the format of its content is none of "
                f"{', '.join(_FORMATS)}; convert or replace it"
            ) from error
        # A malicious file can make Pillow raise any exception.
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
