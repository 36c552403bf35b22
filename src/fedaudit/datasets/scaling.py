"""Scaling features for a model: constants come from the training part alone, and are stated."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Shaped, UInt8
from numpy import ndarray
from torch import Tensor

from fedaudit.core import chunks

_VALUES_AT_ONCE = 2**23


class Scaled(NamedTuple):
    """Features of both parts after scaling, and what was done in words."""

    train: Tensor
    test: Tensor
    words: str


class Moments(NamedTuple):
    """Mean and spread (population standard deviation) of each channel or column."""

    mean: Float[ndarray, " channels"]
    spread: Float[ndarray, " channels"]


def pixel_moments(images: UInt8[ndarray, "samples height width channels"]) -> Moments:
    """Mean and spread of every channel of ``pixels / 255``, exact: taken from a histogram."""
    channels = images.shape[-1]
    histogram = np.zeros((channels, 256), dtype=np.int64)
    for part in chunks(len(images), max(1, _VALUES_AT_ONCE // images[0].size)):
        for channel in range(channels):
            histogram[channel] += np.bincount(images[part, :, :, channel].ravel(), minlength=256)
    levels = np.arange(256) / 255
    shares = histogram / histogram.sum(axis=1, keepdims=True)
    mean = shares @ levels
    variance = (shares * (levels - mean[:, None]) ** 2).sum(axis=1)
    return Moments(mean, np.sqrt(variance))


def scaled_images(
    train: UInt8[ndarray, "samples height width channels"],
    test: UInt8[ndarray, "others height width channels"],
    *,
    standardise: bool = True,
) -> Scaled:
    """Images as floating-point channels-first tensors, standardised per channel.

    Args:
        train: Training images; mean and spread are theirs.
        test: Test images, scaled by the same constants.
        standardise: Whether to subtract the mean and divide by the spread after ``/ 255``.
    """
    if not standardise:
        return Scaled(_channels_first(train), _channels_first(test), "pixels / 255")
    mean, spread = pixel_moments(train)
    # A channel without any contrast has no spread to divide by.
    divisor = np.where(spread > 0, spread, 1.0)
    words = (
        f"pixels / 255, then minus {_numbers(mean)} over {_numbers(divisor)} "
        "(training mean and spread per channel)"
    )
    shift = torch.tensor(mean, dtype=torch.float32)[:, None, None]
    scale = torch.tensor(divisor, dtype=torch.float32)[:, None, None]
    return Scaled(
        _channels_first(train).sub_(shift).div_(scale),
        _channels_first(test).sub_(shift).div_(scale),
        words,
    )


def scaled_columns(
    train: Shaped[ndarray, "samples ..."],
    test: Shaped[ndarray, "others ..."],
    *,
    standardise: bool = True,
) -> Scaled:
    """Features standardised one by one; tables of 0 and 1 are left as they are.

    Args:
        train: Training rows; mean and spread are theirs.
        test: Test rows, scaled by the same constants.
        standardise: Whether to subtract each mean and divide by each spread.
    """
    if not standardise or _is_binary(train):
        words = "0/1 features as stored" if _is_binary(train) else "as stored"
        return Scaled(_as_float(train), _as_float(test), words)
    mean = train.mean(axis=0, dtype=np.float64)
    spread = train.std(axis=0, dtype=np.float64)
    # A constant column has no spread to divide by; it becomes zero.
    divisor = np.where(spread > 0, spread, 1.0)
    words = "every feature minus its training mean, over its training spread"
    return Scaled(_as_float((train - mean) / divisor), _as_float((test - mean) / divisor), words)


def _channels_first(
    images: UInt8[ndarray, "samples height width channels"],
) -> Float[Tensor, "samples channels height width"]:
    # A copy, since arrays that come straight from a file cannot be written to.
    moved = np.array(np.moveaxis(images, -1, 1), order="C")
    return torch.from_numpy(moved).to(torch.float32).div_(255)


def _as_float(values: Shaped[ndarray, "samples ..."]) -> Float[Tensor, "samples ..."]:
    return torch.from_numpy(np.array(values, dtype=np.float32, order="C"))


def _is_binary(values: Shaped[ndarray, "samples ..."]) -> bool:
    return bool(((values == 0) | (values == 1)).all())


def _numbers(values: Float[ndarray, " channels"]) -> str:
    return " ".join(f"{value:.4f}" for value in values)
