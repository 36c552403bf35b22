"""Groups of clients with shifted images."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seeded
from fedaudit.datasets.dataset import Dataset, number_samples
from fedaudit.datasets.draws.audit_set import Assignment
from fedaudit.datasets.draws.fair import draw
from fedaudit.datasets.partitions.schemes import IID
from fedaudit.datasets.partitions.shifts import (
    Shift,
    apply_shift,
    brighten,
    minority_groups,
    rotate,
)
from fedaudit.plan.assignment import similar_clients

CLIENTS = 8
SHIFT = Shift("brightness", 0.25, (0.2, 0.4), (0.8, 0.9))


def pictures(count: int, first: int = 0, side: int = 4) -> torch.Tensor:
    rng = seeded(1, "pictures", first)
    return 0.5 + 0.4 * torch.rand(count, 1, side, side, generator=rng)


def dataset() -> Dataset:
    train = number_samples(pictures(200), torch.arange(200) % 3)
    return Dataset(
        "pictures", train, number_samples(pictures(40, 200), torch.arange(40) % 3, first=200), 3, ""
    )


def assignment(dataset_given: Dataset) -> Assignment:
    return draw(
        dataset_given,
        clients=CLIENTS,
        partition=IID(samples_per_client=15),
        n_fair=20,
        seed=1,
        targets=(0, 5),
        extra_unseen=5,
    )


@given(st.floats(-180, 180), st.sampled_from([(8, 8), (6, 9), (9, 5)]), st.integers(1, 3))
def test_rotated_images_match_scipy(degrees: float, size: tuple[int, int], channels: int) -> None:
    image = torch.rand(1, channels, *size, generator=seeded(3, "image"), dtype=torch.float64)
    smooth = torch.from_numpy(ndimage.gaussian_filter(image.numpy(), (0, 0, 1, 1)))
    ours = rotate(smooth, torch.tensor([degrees], dtype=torch.float64))[0]
    # As scipy has it, an edge is in the middle of a pixel; what lies further out is compared not.
    for channel in range(channels):
        theirs = ndimage.rotate(
            smooth[0, channel].numpy(), degrees, reshape=False, order=1, mode="nearest"
        )
        np.testing.assert_allclose(ours[channel].numpy(), theirs, atol=1e-5)


def test_each_image_is_rotated_by_its_client_angle() -> None:
    images = pictures(3)
    turned = rotate(images, torch.tensor([0.0, 90.0, 360.0]))
    torch.testing.assert_close(turned[0], images[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(turned[1], torch.rot90(images[1], 1, (1, 2)), atol=1e-5, rtol=0)
    torch.testing.assert_close(turned[2], images[2], atol=1e-5, rtol=0)


def test_brightness_multiplies_and_stops_at_white() -> None:
    images = torch.tensor([[[[0.25, 0.8]]], [[[0.25, 0.8]]]])
    brightened = brighten(images, torch.tensor([2.0, 0.5]))
    assert brightened.flatten().tolist() == pytest.approx([0.5, 1.0, 0.125, 0.4])


def test_brightness_of_standardised_pixels_is_refused() -> None:
    with pytest.raises(BadInput, match=r"data\.options\.standardise"):
        brighten(torch.tensor([[[[-0.5, 1.0]]]]), torch.ones(1))


@pytest.mark.parametrize(("share", "size"), [(0.25, 2), (0.01, 1), (0.99, 7), (0.5, 4)])
def test_the_minority_are_the_first_clients_and_never_all_or_none(share: float, size: int) -> None:
    group = minority_groups(CLIENTS, share)
    assert group.tolist() == [1] * size + [0] * (CLIENTS - size)


def test_clients_draw_from_their_groups_range() -> None:
    group = minority_groups(1000, 0.25)
    amounts = SHIFT.amounts(group, seed=1)
    assert 0.2 <= amounts[group == 1].min() < 0.21
    assert 0.39 < amounts[group == 1].max() <= 0.4
    assert amounts[group == 0].min() >= 0.8
    assert amounts[group == 0].max() <= 0.9
    assert len(set(amounts.tolist())) == 1000


def test_samples_get_the_shift_of_their_client_and_others_in_turn() -> None:
    world, assigned = dataset(), assignment(dataset())
    place = similar_clients(world, assigned, (0, 5), seed=1)
    for client, samples in assigned.clients.items():
        assert set(place[samples.ids.numpy()].tolist()) == {client}
    unowned_ids = assigned.audit.samples.ids.numpy()[assigned.audit.owner < 0]
    assert set(place[unowned_ids].tolist()) == {0, 5}
    tested = np.bincount(place[world.test.ids.numpy()], minlength=CLIENTS)
    assert tested.tolist() == [5] * CLIENTS


def test_a_sample_has_the_same_shift_in_all_parts_of_a_deal() -> None:
    world, assigned = dataset(), assignment(dataset())
    place = similar_clients(world, assigned, (0,), seed=1)
    amounts = SHIFT.amounts(minority_groups(CLIENTS, 0.25), seed=1)
    new, dealt = apply_shift(world, assigned, SHIFT, place, seed=1)
    for before, after in (
        (world.train, new.train),
        (world.test, new.test),
        (assigned.audit.samples, dealt.audit.samples),
        *((assigned.clients[c], dealt.clients[c]) for c in assigned.clients),
    ):
        factors = torch.from_numpy(amounts[place[before.ids.numpy()]]).float()
        expected = (before.features * factors[:, None, None, None]).clamp(max=1)
        torch.testing.assert_close(after.features, expected)
        assert torch.equal(after.ids, before.ids)
        assert torch.equal(after.labels, before.labels)


def test_a_table_cannot_be_rotated() -> None:
    flat = dataset()
    flat = replace(
        flat,
        train=replace(flat.train, features=flat.train.features.flatten(1)),
        test=replace(flat.test, features=flat.test.features.flatten(1)),
    )
    with pytest.raises(BadInput, match="applies to images"):
        apply_shift(
            flat,
            assignment(flat),
            SHIFT,
            similar_clients(flat, assignment(flat), (0,), seed=1),
            seed=1,
        )


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "shear"},
        {"minority": 0.0},
        {"minority": 1.0},
        {"minority_range": (2.0, 1.0)},
        {"majority_range": (0.0, float("inf"))},
        {"minority_range": (-0.1, 1.0)},
    ],
)
def test_invalid_shifts_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        replace(SHIFT, **wrong)  # type: ignore[arg-type]
