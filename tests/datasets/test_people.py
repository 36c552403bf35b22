"""Person-level audits: reading, drawing and partitioning people."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import fedaudit as fa
from fedaudit.api.references import data_reference
from fedaudit.core.errors import BadInput
from fedaudit.core.metric_names import Origin
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import NO_CLIENT
from fedaudit.datasets.arrays import samples
from fedaudit.datasets.catalog import load
from fedaudit.datasets.dataset import Dataset, select_classes
from fedaudit.datasets.draws.audit_set import Assignment, shadow_assignment
from fedaudit.datasets.draws.fair import draw
from fedaudit.datasets.partitions.schemes import IID

DATA = load("synthetic", seed=1, samples=4000, people=200, dimensions=5, classes=3)
assert DATA.person is not None
SUBJECT = DATA.person.numpy()


def drawn(
    seed: int = 0, *, people: int = 60, targets: tuple[int, ...] = (0,), each: int = 1
) -> Assignment:
    return draw(
        DATA,
        clients=5,
        partition=IID(samples_per_client=400),
        n_fair=people,
        seed=seed,
        targets=targets,
        unit="person",
        clients_per_person=each,
    )


def holders(assignment: Assignment) -> dict[int, set[int]]:
    """By audited person, who has samples of it."""
    audit = assignment.audit
    assert audit.person is not None
    return {int(p): set(audit.owner[audit.person == p].tolist()) for p in np.unique(audit.person)}


def test_all_samples_of_a_person_are_audited_and_have_one_holder() -> None:
    assignment = drawn()
    audit = assignment.audit
    assert audit.person is not None
    assert (audit.fair_target == 0).all()
    assert np.array_equal(audit.person, SUBJECT[audit.samples.ids.numpy()])
    training = SUBJECT[: len(DATA.train)]
    for person, who in holders(assignment).items():
        assert (audit.person == person).sum() == (training == person).sum()
        assert len(who) == 1
    client_of_sample = {
        i: c for c, samples in assignment.clients.items() for i in samples.ids.tolist()
    }
    for sample, owner in zip(audit.samples.ids.tolist(), audit.owner, strict=True):
        assert client_of_sample.get(sample, NO_CLIENT) == owner


def test_people_are_members_others_or_held_out_with_equal_probability() -> None:
    counts = np.zeros(3)
    elsewhere = np.zeros(5)
    for seed in range(30):
        for (who,) in holders(drawn(seed)).values():
            counts[0 if who == 0 else 2 if who == NO_CLIENT else 1] += 1
            elsewhere[who] += who != NO_CLIENT
    assert stats.chisquare(counts).pvalue > 0.001
    assert stats.chisquare(elsewhere[1:]).pvalue > 0.001


def test_the_background_does_not_depend_on_how_the_coins_fell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fedaudit.datasets.draws import fair

    def background(assignment: Assignment) -> list[list[int]]:
        audited = set(assignment.audit.samples.ids.tolist())
        return [
            sorted(set(samples.ids.tolist()) - audited) for samples in assignment.clients.values()
        ]

    seeded = seeded_numpy
    first = background(drawn())
    monkeypatch.setattr(
        fair,
        "seeded_numpy",
        lambda seed, *draw: seeded(seed + 99 * (draw[0] == "owners"), *draw),
    )
    other = drawn()
    assert background(other) == first
    assert holders(other) != {}


def test_samples_of_a_person_at_several_clients_are_divided() -> None:
    assignment = drawn(each=2, people=120)
    clients_of_person = holders(assignment)
    assert {len(who) for who in clients_of_person.values() if who != {NO_CLIENT}} == {2}
    members = [person for person, who in clients_of_person.items() if 0 in who]
    assert len(members) == pytest.approx(40, abs=16)
    audit = assignment.audit
    for person in members:
        owners = audit.owner[audit.person == person]
        assert abs((owners == 0).sum() - (owners != 0).sum()) <= 1


def test_several_targets_have_disjoint_people() -> None:
    audit = drawn(targets=(0, 3)).audit
    assert audit.person is not None
    first, second = (set(audit.person[audit.fair_for(t)].tolist()) for t in (0, 3))
    assert len(first) == len(second) == 60
    assert not first & second


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"people": 3}, "at least 4"),
        ({"people": 999}, r"999 people are audited .* has samples of 200; lower"),
        ({"each": 5}, "give 1 to 4"),
        ({"each": 0}, "give 1 to 4"),
    ],
)
def test_draws_of_too_many_people_raise(changes: dict[str, int], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        drawn(**changes)  # type: ignore[arg-type]


def test_data_without_people_and_extra_samples_are_refused() -> None:
    settings = {
        "clients": 3,
        "partition": IID(samples_per_client=100),
        "n_fair": 30,
        "seed": 0,
        "unit": "person",
    }
    with pytest.raises(BadInput, match=r"data\.options\.person"):
        draw(replace(DATA, person=None), **settings)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="single samples"):
        draw(DATA, **settings, extra_unseen=5)  # type: ignore[arg-type]


def test_a_stored_audit_set_keeps_its_people() -> None:
    audit = drawn().audit
    assert np.array_equal(audit.tensors()["subject"].numpy(), SUBJECT[audit.samples.ids.numpy()])
    assert "subject" not in replace(audit, person=None).tensors()


def test_a_shadow_federation_draws_remaining_people() -> None:
    assignment = draw(
        DATA, clients=3, partition=IID(samples_per_client=200), n_fair=40, seed=0, unit="person"
    )

    def again(remaining: Dataset) -> Assignment:
        return draw(
            remaining,
            clients=3,
            partition=IID(samples_per_client=200),
            n_fair=20,
            seed=1,
            unit="person",
        )

    shadow = shadow_assignment(DATA, assignment, again).audit
    assert shadow.person is not None
    assert np.array_equal(shadow.person, SUBJECT[shadow.samples.ids.numpy()])
    assert not set(shadow.person.tolist()) & set(holders(assignment))


def test_selecting_classes_keeps_people_with_their_samples() -> None:
    fewer = select_classes(DATA, [2, 0])
    assert fewer.person is not None
    is_kept = np.isin(torch.cat([DATA.train.labels, DATA.test.labels]).numpy(), [0, 2])
    assert np.array_equal(fewer.person.numpy(), SUBJECT[is_kept])


def write(folder: Path, **arrays: np.ndarray) -> None:
    np.savez(folder / "d.npz", **arrays)  # type: ignore[arg-type]


X = np.arange(120, dtype=np.float64).reshape(60, 2)
Y = np.arange(60) % 2
NAMES = np.array([f"p{i // 6}" for i in range(60)])


def of(dataset: Dataset, row: int) -> int:
    """The person of the sample that was this row of X."""
    features = torch.cat([dataset.train.features, dataset.test.features])
    (row_found,) = (features[:, 0] == X[row, 0]).nonzero().flatten().tolist()
    assert dataset.person is not None
    return int(dataset.person[row_found])


@pytest.mark.parametrize("setting", ["person", "subject"])
def test_a_file_names_the_person_of_each_sample(setting: str, tmp_path: Path) -> None:
    write(tmp_path, x=X, y=Y, patient=NAMES)
    people: dict[str, Any] = {setting: "patient"}
    dataset = load("d", data_dir=tmp_path, seed=3, standardise=False, **people)
    assert [of(dataset, row) for row in range(60)] == [i // 6 for i in range(60)]
    features_with_repeat = np.concatenate([X[:1], X])
    write(
        tmp_path,
        x=features_with_repeat,
        y=np.concatenate([Y[:1], Y]),
        patient=np.concatenate([["p0"], NAMES]),
    )
    distinct = load(
        "d", data_dir=tmp_path, seed=3, person="patient", standardise=False, distinct=True
    )
    assert [of(distinct, row) for row in range(60)] == [i // 6 for i in range(60)]


def test_a_file_with_a_test_part_names_people_twice(tmp_path: Path) -> None:
    parts = {"x_train": X[:40], "y_train": Y[:40], "x_test": X[40:], "y_test": Y[40:]}
    write(tmp_path, **parts, who_train=NAMES[:40], who_test=NAMES[40:])
    dataset = load("d", data_dir=tmp_path, seed=0, person="who", standardise=False)
    assert [of(dataset, row) for row in range(60)] == [i // 6 for i in range(60)]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "no array of people named 'patient'"),
        ({"patient": NAMES[:50]}, "one person for each sample"),
        ({"patient": X}, "one person for each sample"),
        ({"patient": X[:, 0]}, "one name or whole number for each sample"),
    ],
)
def test_person_arrays_of_wrong_length_raise(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    write(tmp_path, x=X, y=Y, **arrays)
    with pytest.raises(BadInput, match=message):
        load("d", data_dir=tmp_path, seed=0, person="patient")


def test_arrays_in_memory_have_people_with_and_without_a_test_part() -> None:
    dataset = samples(X, Y, person=NAMES)(seed=2)
    assert [of(dataset, row) for row in range(60)] == [i // 6 for i in range(60)]
    dataset = samples(X[:40], Y[:40], X[40:], Y[40:], subject=list(NAMES))(seed=2)
    assert [of(dataset, row) for row in range(60)] == [i // 6 for i in range(60)]
    with pytest.raises(BadInput, match="60 samples and people of shape"):
        samples(X[:40], Y[:40], X[40:], Y[40:], person=NAMES[:40])


def test_person_and_subject_are_one_setting_and_one_argument(tmp_path: Path) -> None:
    write(tmp_path, x=X, y=Y, patient=NAMES)
    with pytest.raises(BadInput, match="two names of one setting; give person only"):
        load("d", data_dir=tmp_path, person="patient", subject="patient")
    with pytest.raises(BadInput, match="two names of one argument; give person only"):
        samples(X, Y, person=NAMES, subject=NAMES)
    # Studies keep their identity, whichever name they use.
    assert fa.datasets.npz("d", subject="patient").named_part().options == {"subject": "patient"}
    by_name = [samples(X, Y, person=NAMES), samples(X, Y, subject=NAMES)]
    first, second = (data_reference(source)[0].name for source in by_name)
    assert first == second


def test_person_names_of_object_type_are_read_as_text() -> None:
    dataset = samples(X, Y, subject=NAMES.astype(object))(seed=2)
    assert [of(dataset, row) for row in range(60)] == [i // 6 for i in range(60)]


def test_one_valid_person_number_per_sample_is_required() -> None:
    codes = torch.from_numpy(SUBJECT)
    for wrong in (codes[:-1], codes - 1):
        with pytest.raises(BadInput, match="one person for each sample"):
            replace(DATA, person=wrong)


def test_generated_people_have_the_requested_similarity() -> None:
    for similarity, lower, upper in ((0.0, 0.0, 0.05), (0.5, 0.35, 0.65), (1.0, 0.8, 1.2)):
        dataset = load(
            "synthetic", seed=0, samples=5000, people=100, dimensions=1, alike=similarity
        )
        assert dataset.person is not None
        x = torch.cat([dataset.train.features, dataset.test.features])[:, 0].numpy()
        means = np.array([x[dataset.person.numpy() == p].mean() for p in range(100)])
        assert lower <= means.var() / x.var() <= upper
    with pytest.raises(BadInput, match="some people would have none"):
        load("synthetic", seed=0, samples=50, people=60)


def test_origins_of_people_cover_all_kinds() -> None:
    audit = drawn().audit
    origin = audit.origin(0)
    assert {Origin(o) for o in np.unique(origin)} == set(Origin)
