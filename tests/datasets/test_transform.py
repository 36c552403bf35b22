import numpy as np
import pytest

from fedaudit.datasets.arrays import pixel_moments, scale_columns, scale_images


def images(count: int, channels: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 4, 5, channels), dtype=np.uint8)


def test_pixel_moments_are_mean_and_standard_deviation_per_channel() -> None:
    stored = images(7, 3)
    moments = pixel_moments(stored)
    expected = stored.astype(np.float64) / 255
    np.testing.assert_allclose(moments.mean, expected.mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(moments.std, expected.std(axis=(0, 1, 2)), rtol=1e-12)


def test_training_images_are_standardised_with_channels_first() -> None:
    scaled = scale_images(images(9, 3), images(2, 3, seed=1))
    assert scaled.train.shape == (9, 3, 4, 5)
    assert scaled.train.mean(dim=(0, 2, 3)).abs().max() < 1e-5
    assert (scaled.train.std(dim=(0, 2, 3), correction=0) - 1).abs().max() < 1e-5


def test_test_images_are_scaled_by_described_training_constants() -> None:
    train = np.array([0, 255], dtype=np.uint8).reshape(2, 1, 1, 1)  # mean 0.5, spread 0.5
    scaled = scale_images(train, np.full((1, 1, 1, 1), 51, dtype=np.uint8))
    assert scaled.test.item() == pytest.approx((0.2 - 0.5) / 0.5)
    assert scaled.description == (
        "pixels / 255, minus the mean 0.5000, divided by the standard deviation 0.5000 "
        "(of each channel of the training images)"
    )


def test_an_image_without_contrast_becomes_zero() -> None:
    flat = np.full((3, 2, 2, 1), 80, dtype=np.uint8)
    assert scale_images(flat, flat).train.abs().max() < 1e-6


def test_images_can_be_left_between_zero_and_one() -> None:
    scaled = scale_images(images(3, 1), images(3, 1), standardise=False)
    assert 0 <= scaled.train.min() <= scaled.train.max() <= 1
    assert scaled.description == "pixels / 255"


def test_binary_tables_are_not_standardised() -> None:
    table = np.array([[0, 1], [1, 1]])
    scaled = scale_columns(table, table)
    assert scaled.train.tolist() == [[0, 1], [1, 1]]
    assert scaled.description == "0/1 features as stored"


def test_each_column_is_standardised_by_its_training_values() -> None:
    scaled = scale_columns(np.array([[1.0, 7.0], [3.0, 7.0]]), np.array([[5.0, 8.0]]))
    assert scaled.train.tolist() == [[-1, 0], [1, 0]]
    assert scaled.test.tolist() == [[3, 1]]
