"""Turning pictures of any kind into arrays of bytes."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray
from PIL import Image

from fedaudit.datasets.arrays import MAX_VALUES
from fedaudit.errors import BadInput
from fedaudit.files import hold_to_budget

_MAX_PIXELS = 2**26


def stacked(
    pictures: Iterable[Image.Image],
    count: int,
    *,
    size: int,
    grey: bool,
    on_disk: int | None = None,
) -> UInt8[ndarray, "samples height width channels"]:
    """All pictures in one array of bytes.

    Args:
        pictures: As many pictures as ``count`` says.
        count: Their number.
        size: Side in pixels that every picture is resized to, whatever its form; 0 keeps them,
            and they must then be of one size.
        grey: Whether to keep brightness only, instead of three colours.
        on_disk: Bytes that all of them have there, which bound those that they may take; None
            where they come from elsewhere.

    Raises:
        BadInput: Pictures of several sizes, or more or larger ones than can be held.
    """
    block: UInt8[ndarray, "samples height width channels"] | None = None
    for at, picture in enumerate(pictures):
        pixels = _pixels(picture, size, grey)
        if block is None:
            if count * pixels.size > MAX_VALUES:
                raise BadInput(
                    f"{count} pictures of {pixels.shape[1]} x {pixels.shape[0]} pixels are more "
                    f"than the {MAX_VALUES} values that can be held; set a smaller size"
                )
            if on_disk is not None:
                # As 32-bit numbers, which features become.
                what = f"{count} pictures of {pixels.shape[1]} x {pixels.shape[0]} pixels"
                hold_to_budget(what, 4 * count * pixels.size, on_disk=on_disk)
            block = np.empty((count, *pixels.shape), dtype=np.uint8)
        if pixels.shape != block.shape[1:]:
            raise BadInput(
                f"picture {at} is {pixels.shape[1]} x {pixels.shape[0]} pixels and the first "
                f"{block.shape[2]} x {block.shape[1]}; set size to bring all to one"
            )
        block[at] = pixels
    if block is None:
        raise BadInput("there are no pictures to read; give at least one")
    return block


def check_size(picture: Image.Image) -> None:
    """Refuses a picture whose header announces more pixels than are read."""
    if picture.width * picture.height > _MAX_PIXELS:
        raise BadInput(
            f"a picture of {picture.width} x {picture.height} pixels is larger than the "
            f"{_MAX_PIXELS} that are read; shrink it first"
        )


def _pixels(picture: Image.Image, size: int, grey: bool) -> UInt8[ndarray, "height width channels"]:
    check_size(picture)
    converted = picture.convert("L" if grey else "RGB")
    if size:
        converted = converted.resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(converted, dtype=np.uint8)
    return pixels[..., None] if grey else pixels
