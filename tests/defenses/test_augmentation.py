import sys
from dataclasses import replace

import pytest
import torch

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Batch, Samples
from fedaudit.defenses.augment import Augmentation
from tests.defenses.turns import context

OFF = Augmentation(
    padding=0, horizontal_flip=0.0, vertical_flip=0.0, rotation=0.0, brightness=0.0, contrast=0.0
)


def images(channels: int = 1, samples: int = 5, dtype: torch.dtype = torch.float32) -> Samples:
    """Return images with pixels from 0 to 1 that were standardised."""
    rng = seeded(3, "images", channels)
    pixels = torch.rand(samples, channels, 6, 8, generator=rng, dtype=dtype)
    pixels[0, :, 0, 0], pixels[0, :, 0, 1] = 0.0, 1.0
    moments = torch.arange(1, channels + 1, dtype=dtype)[:, None, None] / 10
    features = (pixels - moments) / (2 * moments)
    return Samples(features, torch.arange(samples) % 3, torch.arange(samples) + 7)


def augmented(defense: Augmentation, data: Samples, seed: int = 0) -> Batch:
    training_context = context(shape=tuple(data.features.shape[1:]), seed=seed)
    assert defense.prepare(data, training_context) is data
    return defense.batch(Batch(data.features, data.labels, data.ids), training_context)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("channels", [1, 3])
def test_augmentation_keeps_shape_dtype_range_labels_and_ids(
    channels: int, dtype: torch.dtype
) -> None:
    data = images(channels, dtype=dtype)
    before = data.features.clone()
    batch = augmented(Augmentation(), data)
    assert (batch.x.shape, batch.x.dtype) == (data.features.shape, dtype)
    assert not torch.allclose(batch.x, data.features)
    assert batch.y is data.labels
    assert batch.ids is data.ids
    for channel in range(channels):
        ours, pixels = batch.x[:, channel], data.features[:, channel]
        assert float(ours.min()) >= float(pixels.min()) - 1e-5
        assert float(ours.max()) <= float(pixels.max()) + 1e-5
    assert torch.equal(data.features, before)


def test_each_batch_is_augmented_independently() -> None:
    data, defense, training_context = images(), Augmentation(), context(shape=(1, 6, 8))
    defense.prepare(data, training_context)
    batch = Batch(data.features, data.labels, data.ids)
    assert not torch.equal(
        defense.batch(batch, training_context).x, defense.batch(batch, training_context).x
    )


def test_flips_with_probability_one_mirror_every_image() -> None:
    data = images(3)
    across = augmented(replace(OFF, horizontal_flip=1.0), data).x
    torch.testing.assert_close(across, data.features.flip(3))
    over = augmented(replace(OFF, vertical_flip=1.0), data).x
    torch.testing.assert_close(over, data.features.flip(2))


def test_crops_are_windows_of_the_image_with_a_black_border() -> None:
    data = images(1, samples=40)
    black = data.features.min()
    padded = torch.nn.functional.pad(data.features, (2, 2, 2, 2), value=float(black))
    windows = {
        (top, offset): padded[:, :, top : top + 6, offset : offset + 8]
        for top in range(5)
        for offset in range(5)
    }
    cropped = augmented(replace(OFF, padding=2), data).x
    places = set()
    for row in range(40):
        (place,) = (
            key
            for key, window in windows.items()
            if torch.allclose(cropped[row], window[row], atol=1e-5)
        )
        places.add(place)
    assert len(places) > 10


def test_rotation_keeps_the_centre_and_blackens_corners() -> None:
    white = torch.ones(20, 1, 9, 9)
    white[0, 0, 0, 0] = -1.0
    data = Samples(white, torch.zeros(20, dtype=torch.int64), torch.arange(20))
    turned = augmented(replace(OFF, rotation=45.0), data).x
    torch.testing.assert_close(turned[:, 0, 4, 4], torch.ones(20))
    corners = turned[1:, 0, 0, 0]
    assert float(corners.min()) == -1.0
    assert len(set(corners.tolist())) > 5


def test_every_image_is_rotated_by_an_independent_angle() -> None:
    # A bright dot to the right of the centre shows the angle of a rotation.
    pictures = torch.zeros(400, 1, 41, 41)
    pictures[:, 0, 20, 38:41] = 1.0
    data = Samples(pictures, torch.zeros(400, dtype=torch.int64), torch.arange(400))
    seen = augmented(replace(OFF, rotation=30.0), data).x[:, 0]
    away = torch.arange(41) - 20.0
    down, right = (seen.sum(2) * away).sum(1), (seen.sum(1) * away).sum(1)
    angles = torch.atan2(down, right).rad2deg()
    assert all(
        not torch.equal(rotated, before)
        for rotated, before in zip(seen, pictures[:, 0], strict=True)
    )
    assert float(angles.abs().min()) > 0
    assert len(set(angles.tolist())) == 400
    assert -31 < float(angles.min()) < -29
    assert 29 < float(angles.max()) < 31
    # Half of the uniform angles are below half of the maximum, up to four standard deviations.
    assert abs(int((angles.abs() < 15).sum()) - 200) < 40


def test_brightness_scales_each_image_by_one_factor() -> None:
    data = images(3, samples=200)
    black = data.features.amin(dim=(0, 2, 3))[:, None, None]
    span = data.features.amax(dim=(0, 2, 3))[:, None, None] - black
    dark = Samples(black + 0.5 * (data.features - black), data.labels, data.ids)
    reference = Samples.concatenate(dark, data)
    factors = ((augmented(replace(OFF, brightness=0.25), reference).x - black) / span)[:200] / (
        (dark.features - black) / span
    )
    each = factors.flatten(1).nanmedian(dim=1).values
    spread = (factors - each[:, None, None, None]).abs()
    assert float(spread[spread.isfinite()].max()) < 1e-3
    assert float(each.min()) < 0.78
    assert float(each.max()) > 1.22
    assert float(each.min()) >= 0.75
    assert float(each.max()) <= 1.25


def test_contrast_does_not_change_uniform_images() -> None:
    data = images(1)
    data.features[3] = data.features[0].median()
    jittered = augmented(replace(OFF, contrast=0.8), data).x
    torch.testing.assert_close(jittered[3], data.features[3])
    assert not torch.allclose(jittered[1], data.features[1])


def test_an_image_without_contrast_stays_finite() -> None:
    data = Samples(torch.zeros(3, 1, 6, 8), torch.arange(3), torch.arange(3))
    assert torch.equal(augmented(Augmentation(), data).x, data.features)


def test_neutral_augmentation_accepts_any_features() -> None:
    data = Samples(torch.zeros(2, 4), torch.arange(2), torch.arange(2))
    batch = Batch(data.features, data.labels, data.ids)
    off, training_context = replace(OFF), context()
    assert off.neutral
    assert off.prepare(data, training_context) is data
    assert off.batch(batch, training_context) is batch
    assert off.state() == {}


def test_an_empty_batch_is_not_changed() -> None:
    data = images()
    defense, training_context = Augmentation(), context(shape=(1, 6, 8))
    defense.prepare(data, training_context)
    nobody = data.take(slice(0, 0))
    empty = Batch(nobody.features, nobody.labels, nobody.ids)
    assert defense.batch(empty, training_context) is empty


@pytest.mark.parametrize("shape", [(4,), (2, 6, 8), (6, 8)])
def test_features_that_are_no_images_raise(shape: tuple[int, ...]) -> None:
    data = Samples(torch.zeros(2, *shape), torch.arange(2), torch.arange(2))
    spelled = "x".join(map(str, shape))
    with pytest.raises(BadInput, match=f"works on images .* got samples of shape {spelled};"):
        Augmentation().prepare(data, context())


def test_the_missing_extra_raises_with_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kornia", None)
    with pytest.raises(BadInput, match=r"pip install 'fedaudit\[augment\]'"):
        Augmentation()
    assert replace(OFF).neutral
