"""Suppressed estimates of a pack cannot be recovered from the remaining ones.

An AUC is a share of pairs of a member and a non-member that are in order. The pairs are counted by
target, seed, class of both and source of the non-member: these counts are the unknowns of a linear
system, and each figure is one known sum of them. A suppressed figure can be recovered if it is a
combination of figures that are shown, numbers of samples being known.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import NamedTuple

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedaudit.pack.suppressing import suppressed
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
    **at: object,
) -> Iterator[Figure]:
    """A figure over some pairs, if there are any; within classes if these are given."""
    weights = np.zeros(len(PAIRS))
    for seed in seeds:
        mine = np.zeros(len(PAIRS))
        for place, (target, other_seed, one, other, source) in enumerate(PAIRS):
            counts = not classes or (one == other and one in classes)
            if target in targets and seed == other_seed and source in sources and counts:
                mine[place] = audited.pairs(target, one, other, source)
        if not mine.any():
            return
        # Mean over seeds of shares of pairs in order; unknowns are shares of each kind.
        weights += mine / mine.sum() / len(seeds)
    members, others = [], []
    for target, label in product(targets, classes or CLASSES):
        within = (label,) if classes else tuple(CLASSES)
        there = [source for source in sources if source != target]
        # Samples that are in no pair are behind no figure.
        if any(audited.counts[source, other] for source in there for other in within):
            members.append(audited.counts[target, label])
        if any(audited.counts[target, other] for other in within):
            others += [audited.counts[source, label] for source in there]
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
            **at,  # type: ignore[arg-type]
        ),
        weights,
    )


CONTRASTS = {"mixed": SOURCES, "unseen": (UNSEEN,), "other_client": tuple(CLIENTS)}


def figures(audited: Audited, targets: tuple[int, ...]) -> Iterator[Figure]:
    """All figures of one attack: by contrast, group and seed, and over clients and seeds."""
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


def key(one: Estimate) -> tuple[object, ...]:
    return (one.by, one.group, one.within, one.contrast, one.target, one.seed)


def recovered(given: list[Figure], left: Record) -> list[Estimate]:
    """Figures that are gone and that those which are left determine."""
    shown = {key(one) for one in left.estimates if one.value is not None}
    rows = [one.weights for one in given if key(one.estimate) in shown]
    found = []
    known = np.array(rows).T if rows else np.zeros((len(PAIRS), 0))
    for one in given:
        if key(one.estimate) in shown:
            continue
        solved, *_ = np.linalg.lstsq(known, one.weights, rcond=None)
        if np.abs(known @ solved - one.weights).max() < 1e-9:
            found.append(one.estimate)
    return found


def packed(audited: Audited, targets: tuple[int, ...]) -> tuple[list[Figure], Record]:
    given = list(figures(audited, targets))
    whole = FULL.model_copy(
        update={"estimates": [one.estimate for one in given], "curves": [], "controls": []}
    )
    return given, suppressed(whole, SMALLEST).record


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
def test_no_suppressed_figure_follows_from_those_that_are_shown(
    audited: Audited, targets: tuple[int, ...]
) -> None:
    given, left = packed(audited, targets)
    assert [key(one) for one in recovered(given, left)] == []
    again = suppressed(left, SMALLEST)
    assert again.record == left
    assert not any(again.counts.values())


def test_large_groups_are_all_shown() -> None:
    given, left = packed(audit(*[20] * 8), (0, 1, 2))
    assert len(left.estimates) == len(given)
    assert all(one.value is not None for one in left.estimates)


def test_small_clients_are_shown_together() -> None:
    _, left = packed(audit(20, 20, 4, 4, 4, 4, 4, 4), (0, 1, 2))
    pooled = [one for one in left.estimates if one.target is None]
    assert {one.contrast for one in pooled if one.value is not None} >= {"unseen"}
    assert all(one.value is None for one in left.findings if one.target is not None)
