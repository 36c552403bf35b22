"""Suppressed estimates of a pack cannot be recovered from the remaining ones.

An AUC is a share of pairs of a member and a non-member that are in order. The pairs are counted by
target, seed, class of both and source of the non-member: these counts are the unknowns of a linear
system, and each figure is a known sum of them. A suppressed figure can be recovered if it is a
combination of visible figures, since numbers of samples are known.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import NamedTuple

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedaudit.pack.suppressing import suppress_small_groups
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Record
from tests.report.records import record

FULL = record(strengths=(1.5, 1.0), seeds=(1,), defenses=(("none", 1.0),))
CLIENTS, CLASSES, SEEDS, UNSEEN = range(3), range(2), (1, 2), -1
SOURCES = (UNSEEN, *CLIENTS)
PAIRS = list(product(CLIENTS, SEEDS, CLASSES, CLASSES, SOURCES))
SMALLEST = 10


class Audited(NamedTuple):
    """Numbers of audited samples by source and class."""

    counts: Mapping[tuple[int, int], int]

    def pairs(self, target: int, member_class: int, other_class: int, source: int) -> int:
        if source == target:
            return 0
        return self.counts[target, member_class] * self.counts[source, other_class]

    def sum(self, source: int) -> int:
        return sum(self.counts[source, label] for label in CLASSES)


class Figure(NamedTuple):
    """A figure, and the weight of each kind of pairs in it."""

    estimate: Estimate
    weights: np.ndarray


def figure(
    audited: Audited,
    targets: tuple[int, ...],
    seeds: tuple[int, ...],
    sources: tuple[int, ...],
    *,
    classes: tuple[int, ...] = (),
    **fields: object,
) -> Iterator[Figure]:
    """Yield the figure over some pairs, if there are any, optionally within classes."""
    weights = np.zeros(len(PAIRS))
    for seed in seeds:
        mine = np.zeros(len(PAIRS))
        for place, (target, other_seed, member_class, other_class, source) in enumerate(PAIRS):
            counts = not classes or (member_class == other_class and member_class in classes)
            if target in targets and seed == other_seed and source in sources and counts:
                mine[place] = audited.pairs(target, member_class, other_class, source)
        if not mine.any():
            return
        # Mean over seeds of shares of pairs in order; unknowns are shares of each kind.
        weights += mine / mine.sum() / len(seeds)
    members, others = [], []
    for target, label in product(targets, classes or CLASSES):
        within = (label,) if classes else tuple(CLASSES)
        other_sources = [source for source in sources if source != target]
        # Samples in no pair contribute to no figure.
        if any(audited.counts[source, other] for source in other_sources for other in within):
            members.append(audited.counts[target, label])
        if any(audited.counts[target, other] for other in within):
            others += [audited.counts[source, label] for source in other_sources]
    yield Figure(
        Estimate(
            attack="fedmia-2",
            metric="auc",
            value=0.5,
            low=0.4,
            high=0.6,
            n_members=sum(members) * len(seeds),
            n_nonmembers=sum(others) * len(seeds),
            target=targets[0] if len(targets) == 1 else None,
            seed=seeds[0] if len(seeds) == 1 else None,
            **fields,  # type: ignore[arg-type]
        ),
        weights,
    )


CONTRASTS = {"mixed": SOURCES, "unseen": (UNSEEN,), "other_client": tuple(CLIENTS)}


def figures(audited: Audited, targets: tuple[int, ...]) -> Iterator[Figure]:
    """Yield all figures of one attack: by contrast, group and seed, over clients and seeds."""
    for seeds in ((1,), (2,), SEEDS):
        for contrast, sources in CONTRASTS.items():
            for target in targets:
                yield from figure(audited, (target,), seeds, sources, contrast=contrast)
                yield from figure(
                    audited,
                    (target,),
                    seeds,
                    sources,
                    classes=tuple(CLASSES),
                    contrast=contrast,
                    within="class",
                )
            if len(targets) > 1:
                yield from figure(
                    audited, targets, seeds, sources, contrast=contrast, within="client"
                )
        if len(seeds) == 1:
            for target in targets:
                for label in CLASSES:
                    yield from figure(
                        audited,
                        (target,),
                        seeds,
                        SOURCES,
                        classes=(label,),
                        by="class",
                        group=str(label),
                    )
                for client in CLIENTS:
                    if client != target:
                        yield from figure(
                            audited,
                            (target,),
                            seeds,
                            (client,),
                            contrast="other_client",
                            by="client",
                            group=str(client),
                        )


def key(estimate: Estimate) -> tuple[object, ...]:
    return (
        estimate.by,
        estimate.group,
        estimate.within,
        estimate.contrast,
        estimate.target,
        estimate.seed,
    )


def recovered(complete: list[Figure], packed_record: Record) -> list[Estimate]:
    """Return the suppressed figures that the visible ones determine."""
    visible = {key(estimate) for estimate in packed_record.estimates if estimate.value is not None}
    rows = [row.weights for row in complete if key(row.estimate) in visible]
    determined = []
    visible_weights = np.array(rows).T if rows else np.zeros((len(PAIRS), 0))
    for row in complete:
        if key(row.estimate) in visible:
            continue
        solved, *_ = np.linalg.lstsq(visible_weights, row.weights, rcond=None)
        if np.abs(visible_weights @ solved - row.weights).max() < 1e-9:
            determined.append(row.estimate)
    return determined


def packed(audited: Audited, targets: tuple[int, ...]) -> tuple[list[Figure], Record]:
    complete = list(figures(audited, targets))
    full_record = FULL.model_copy(
        update={"estimates": [row.estimate for row in complete], "curves": [], "controls": []}
    )
    return complete, suppress_small_groups(full_record, SMALLEST).record


def audit(*counts: int) -> Audited:
    return Audited(dict(zip(product(SOURCES, CLASSES), counts, strict=True)))


FEW_OF_ONE_CLIENT = audit(20, 20, 20, 20, 20, 20, 4, 5)
FEW_UNSEEN = audit(4, 4, 20, 20, 20, 20, 20, 20)
FEW_OF_ONE_CLASS = audit(30, 30, 30, 5, 30, 30, 30, 30)
SIZES = st.sampled_from([1, 4, 5, 6, 9, 10, 11, 20, 40])


@settings(max_examples=60, deadline=None)
@given(
    audited=st.lists(SIZES, min_size=8, max_size=8).map(lambda counts: audit(*counts)),
    targets=st.sampled_from([(0,), (1, 2), (0, 1, 2)]),
)
@example(audited=FEW_OF_ONE_CLIENT, targets=(0,))
@example(audited=FEW_OF_ONE_CLIENT, targets=(0, 1, 2))
@example(audited=FEW_UNSEEN, targets=(0, 1, 2))
@example(audited=FEW_OF_ONE_CLASS, targets=(0, 1))
def test_no_suppressed_figure_follows_from_visible_ones(
    audited: Audited, targets: tuple[int, ...]
) -> None:
    complete, packed_record = packed(audited, targets)
    assert [key(estimate) for estimate in recovered(complete, packed_record)] == []
    repeated = suppress_small_groups(packed_record, SMALLEST)
    assert repeated.record == packed_record
    assert not any(repeated.counts.values())


def test_large_groups_are_not_suppressed() -> None:
    complete, packed_record = packed(audit(*[20] * 8), (0, 1, 2))
    assert len(packed_record.estimates) == len(complete)
    assert all(estimate.value is not None for estimate in packed_record.estimates)


def test_small_clients_are_shown_only_together() -> None:
    _, packed_record = packed(audit(20, 20, 4, 4, 4, 4, 4, 4), (0, 1, 2))
    pooled = [estimate for estimate in packed_record.estimates if estimate.target is None]
    assert {estimate.contrast for estimate in pooled if estimate.value is not None} >= {"unseen"}
    assert all(
        estimate.value is None for estimate in packed_record.findings if estimate.target is not None
    )
