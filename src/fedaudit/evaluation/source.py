"""Source inference in one run: attack success rate, its baselines, and membership first.

Attacks are asked for the client of equally many samples of each: random samples of each client's
own training data, as in the paper. Where a fair draw for membership gave all clients the target's
label distribution, its samples are asked about too. The label-distribution baseline and the other
samples of each class say what label distributions alone explain.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from fedaudit.attacks.base import Attack
from fedaudit.core.devices import CPU
from fedaudit.core.errors import BadInput, FedauditError, setting
from fedaudit.core.progress import Progress, quiet
from fedaudit.core.seeds import seeded_numpy
from fedaudit.core.values import NOBODY, ClientId, Sees, positions_of
from fedaudit.datasets.draws.fair import OF_EACH_CLIENT
from fedaudit.evaluation.accuracy import overfitting
from fedaudit.evaluation.controls import Outcome, attempted, cubes_for, measured_untrained
from fedaudit.evaluation.truth import run_coordinates, view_coordinates
from fedaudit.metrics import Limited
from fedaudit.metrics.source import (
    LabelExcess,
    beyond_labels,
    by_label_distribution,
    confusion,
    inferred_source,
    paired,
    source_null,
    source_success,
)
from fedaudit.observe.measurements import Measurements
from fedaudit.plan.parts import Setup
from fedaudit.results.estimate import GUESSING, SUCCESS_RATE, Estimate, Test
from fedaudit.results.record import ControlResult
from fedaudit.results.runs import (
    FAIR,
    LABEL_BASELINE,
    LABELS,
    LABELS_METHOD,
    OWN,
    Answered,
    Chained,
    ClassSuccess,
    SourceResult,
)

LEAST_CHANCES = (0.2, 0.3, 0.5, 0.7, 0.9)
"""Posteriors that an adversary may ask for before it answers (selective prediction)."""

CHAINED_FPRS = (0.01, 0.1)
"""False-positive rates of the membership decision that comes before source inference."""


class SourceQueries(NamedTuple):
    """Samples whose owner is asked for, as many of each client.

    Attributes:
        kept: Their positions in the audit set.
        owner: Their clients, as positions among all clients.
        labels: Their classes.
        clients: All clients, ascending.
        at_random: Whether they are random samples of each client's training data, so that the
            clients' label distributions are theirs.
    """

    kept: Int[ndarray, " samples"]
    owner: Int[ndarray, " samples"]
    labels: Int[ndarray, " samples"]
    clients: tuple[ClientId, ...]
    at_random: bool = False


def source_queries(run: Setup) -> SourceQueries | None:
    """Return the samples of the leading draw; None if a client has none."""
    return next(iter(source_draws(run).values()), None)


def source_draws(run: Setup) -> dict[str, SourceQueries]:
    """Return the samples that source inference asks about, by their draw, the leading one first.

    The draws are "own", random samples of each client's own training data, and "fair", those of a
    fair draw with the label distribution of its target. Where all clients have equal label
    distributions, and in recordings, audited samples are the clients' own. Empty if a client has
    no sample.
    """
    study, deal = run.study, run.deal
    audited = _audited_queries(run)
    of_each = study.audit.draw in OF_EACH_CLIENT
    is_own = run.recorded is not None or of_each or study.has_equal_clients
    found = {} if audited is None else {OWN if is_own else FAIR: audited}
    if deal.own is None or not len(deal.own.place):
        return found
    own, clients = deal.own, tuple(sorted(deal.clients))
    order = own.place.argsort()
    kept = own.place[order]
    owner = np.searchsorted(clients, own.owner[order])
    labels = deal.measured.labels.numpy()[kept]
    leading = SourceQueries(kept, owner, labels, clients, at_random=True)
    return {OWN: leading, **{draw: one for draw, one in found.items() if draw != OWN}}


def _audited_queries(run: Setup) -> SourceQueries | None:
    """Return as many audited samples of every client as the one with fewest has; None if none."""
    audit, clients = run.deal.audit, tuple(sorted(run.deal.clients))
    rng = seeded_numpy(run.seed, "source")
    positions, none = positions_of(audit.owner), np.zeros(0, dtype=np.int64)
    theirs = [rng.permutation(positions.get(client, none)) for client in clients]
    each = min(len(positions) for positions in theirs)
    if not each:
        return None
    kept = np.sort(np.concatenate([positions[:each] for positions in theirs]))
    owner = np.searchsorted(clients, audit.owner[kept])
    at_random = run.study.audit.draw in OF_EACH_CLIENT
    return SourceQueries(kept, owner, audit.samples.labels.numpy()[kept], clients, at_random)


def at_queries(
    attack: Attack, measured: Mapping[str, Measurements], samples: SourceQueries
) -> dict[str, Measurements]:
    """Return the signals of an attack at the samples whose owner is asked for."""
    kept, names = torch.from_numpy(samples.kept), {signal.name for signal in attack.signals}
    return {
        name: replace(m, values=m.values[:, :, kept])
        for name, m in measured.items()
        if name in names
    }


def posteriors(
    run: Setup, attack: Attack, cubes: Mapping[str, Measurements], samples: SourceQueries
) -> Float[ndarray, "clients samples"]:
    """Return chances of all clients, in their order; zero for one that was never measured."""
    found = attack.posterior(cubes, run.deal.sizes).numpy()
    clients = cubes[attack.signals[0].name].clients
    chances = np.zeros((len(samples.clients), len(samples.kept)))
    chances[np.searchsorted(samples.clients, clients)] = found
    return chances


def round_by_round(
    attack: Attack, cubes: Mapping[str, Measurements]
) -> list[dict[str, Measurements]]:
    """Return the measurements of each round alone, for an attack that needs no more."""
    if Sees.ROUNDS in attack.needs:
        return []
    rows = range(len(next(iter(cubes.values())).rounds))
    return [
        {
            name: replace(
                m,
                values=m.values[row : row + 1],
                rounds=m.rounds[row : row + 1],
                bases=m.bases[row : row + 1],
                stands_for=m.stands_for[row : row + 1],
            )
            for name, m in cubes.items()
        }
        for row in rows
    ]


class SourceFound(NamedTuple):
    """The answers of one source attack in one run, and its figures.

    Attributes:
        answers: On the leading draw of samples.
        figures: Of these.
        others: Figures on samples of the fair draw, where these are not the leading ones.
    """

    answers: SourceResult
    figures: list[Estimate]
    others: Sequence[Estimate] = ()


def source_results(
    run: Setup,
    measured: Mapping[str, Measurements],
    failed: dict[str, dict[str, str]],
    notes: Mapping[str, str],
    progress: Progress = quiet,
) -> list[SourceFound]:
    """Return the result of each source attack of a run.

    Args:
        run: The run.
        measured: Its measurements by signal.
        failed: Grown in place: by attack and run, why it failed.
        notes: Of the last measured round.
        progress: Called after each attack.
    """
    queries, found = source_draws(run), list[SourceFound]()
    phase, where = f"seed {run.seed}: source inference", f"seed {run.seed}"
    for done, (name, attack) in enumerate(run.on_source.items()):
        progress(phase, done, len(run.on_source))
        try:
            if not queries:
                raise BadInput(
                    "a client has no audited sample and none drawn for source inference; set "
                    "audit.sources to the samples of each client, or audit more "
                    f"({setting('audit.fair')})"
                )
            found.append(_result(run, name, attack, measured, queries, notes))
        except FedauditError as refusal:
            failed.setdefault(name, {})[where] = f"{where}: {refusal}"
    if run.on_source:
        progress(phase, len(run.on_source), len(run.on_source))
    return found


def _result(
    run: Setup,
    name: str,
    attack: Attack,
    measured: Mapping[str, Measurements],
    queries: Mapping[str, SourceQueries],
    notes: Mapping[str, str],
) -> SourceFound:
    samples = next(iter(queries.values()))
    cubes = at_queries(attack, measured, samples)
    posterior = posteriors(run, attack, cubes, samples)
    named = inferred_source(posterior)
    right = named == samples.owner
    sure = {
        least: source_success(inferred_source(posterior, least=least), samples.owner)
        for least in LEAST_CHANCES
    }
    answers = SourceResult(
        attack=name,
        **view_coordinates(run),
        clients=list(samples.clients),
        samples=len(samples.owner),
        confusion=confusion(named, samples.owner, len(samples.clients)).tolist(),
        classes=[
            ClassSuccess(label=label, samples=len(places), right=int(right[places].sum()))
            for label, places in positions_of(samples.labels).items()
        ],
        answers=[
            Answered(least=least, answered=one.total, right=one.hits) for least, one in sure.items()
        ],
        chained=chained(run, attack, measured, right, samples),
        rounds=list(run.measured_rounds),
        by_round=[
            source_success(
                inferred_source(posteriors(run, attack, one, samples)), samples.owner
            ).value
            for one in round_by_round(attack, cubes)
        ],
        overfitting=overfitting(notes, samples.clients),
        absent=sorted({*samples.clients}.difference(*(m.clients for m in cubes.values()))),
    )
    by_draw = []
    for draw, asked in queries.items():
        if asked is not samples:
            posterior = posteriors(run, attack, at_queries(attack, measured, asked), asked)
        by_draw.append(_figures(run, answers, draw, inferred_source(posterior), asked))
    figures, *others = by_draw
    return SourceFound(answers, figures, [figure for one in others for figure in one])


def _figures(
    run: Setup,
    answers: SourceResult,
    draw: str,
    named: Int[ndarray, " samples"],
    samples: SourceQueries,
) -> list[Estimate]:
    """Return the figures of an attack's answers on the samples of one draw."""
    owner, labels = samples.owner, samples.labels
    success = source_success(named, owner)
    counts = run.deal.class_counts(run.dataset.classes)
    held = np.array([counts[c] for c in samples.clients])
    baseline = named_by_labels(run, held, samples)
    change = paired(named == owner, baseline == owner)
    rng = seeded_numpy(run.seed, "shuffled owners")
    null = source_null(named, owner, rng=rng)
    mixed = source_null(named, owner, within=labels, rng=rng)
    return source_figures(
        answers.model_copy(update={"samples": len(owner)}),
        success,
        Test(null=GUESSING, level=answers.chance, high=null.high, p_value=null.p_value),
        beyond_labels(named, owner, labels, held if samples.at_random else None),
        mixed.p_value,
        Baseline(source_success(baseline, owner).value, change.difference, change.p_value),
        draw,
    )


def named_by_labels(
    run: Setup, held: Int[ndarray, "clients classes"], samples: SourceQueries
) -> Int[ndarray, " samples"]:
    """Return the answers of the label-distribution baseline.

    The data that clients of a recording train on are not known beyond its audited samples. There a
    random half of the samples is named by the label distributions of the rest, and the other half
    likewise: no sample counts for its own client.

    Args:
        run: The run.
        held: Training samples of each class that each client has.
        samples: Asked about.
    """
    owner, labels = samples.owner, samples.labels
    if run.recorded is None or len(owner) < 2 * len(samples.clients):
        return by_label_distribution(held, labels)
    order = seeded_numpy(run.seed, "halves of sources").permutation(len(owner))
    half = np.zeros(len(owner), dtype=bool)
    for client in range(len(samples.clients)):
        half[order[owner[order] == client][::2]] = True
    named = np.zeros_like(owner)
    for side in (half, ~half):
        others = held.copy()
        np.subtract.at(others, (owner[side], labels[side]), 1)
        named[side] = by_label_distribution(others, labels[side])
    return named


def chained(
    run: Setup,
    attack: Attack,
    measured: Mapping[str, Measurements],
    right: Bool[ndarray, " samples"],
    samples: SourceQueries,
) -> list[Chained]:
    """Infer membership first, and the client of samples called members; empty without non-members.

    A sample counts for a member where the attack's signal is high at some client: the largest
    over the clients of its mean over the rounds.
    """
    nobodys = np.flatnonzero(run.deal.audit.owner == NOBODY)
    if not len(nobodys):
        return []
    values = measured[attack.signals[0].name].values.double()
    score = values.nanmean(0).nan_to_num(-torch.inf).amax(0).numpy()
    found = []
    for fpr in CHAINED_FPRS:
        allowed = int(fpr * len(nobodys))
        threshold = np.sort(score[nobodys])[::-1][allowed] if allowed < len(nobodys) else -np.inf
        called = score[samples.kept] > threshold
        found.append(
            Chained(
                fpr=fpr,
                realised_fpr=float((score[nobodys] > threshold).mean()),
                called=int(called.sum()),
                right=int((called & right).sum()),
            )
        )
    return found


class Baseline(NamedTuple):
    """Success of naming the client of whose data a sample's class is the largest share.

    Attributes:
        success: Share of samples whose client that names.
        change: The attack's success less that.
        p_value: Two-sided, exact, on the same samples; None where only both successes are known.
    """

    success: float
    change: float
    p_value: float | None


def source_figures(
    found: SourceResult,
    success: Limited[float],
    guessing: Test,
    labels: LabelExcess,
    p_value: float,
    baseline: Baseline | None,
    draw: str = OWN,
) -> list[Estimate]:
    """Return success of one attack in one run, and what label distributions leave of it.

    Args:
        found: The answers.
        success: Share of samples whose client was named, with Clopper-Pearson limits.
        guessing: Against shuffled owners, with their mean and 95 % quantile.
        labels: What label distributions alone explain, and what is beyond that.
        p_value: Of the test with owners shuffled within each class.
        baseline: None where it is not known.
        draw: Of the samples: "own" or "fair".
    """
    of_answers = {
        name: getattr(found, name) for name in ("attack", "defense", "view", "seed", "samples")
    }
    whole = Estimate(
        **of_answers,
        topic="source",
        contrast=draw,
        metric=SUCCESS_RATE,
        value=success.value,
        low=success.low,
        high=success.high,
        method="Clopper-Pearson 95%",
        tests=[guessing],
    )
    excess = {
        "against": LABELS,
        "value": labels.value,
        "low": labels.low,
        "high": labels.high,
        "method": LABELS_METHOD,
        "tests": [Test(null=LABELS, level=labels.level, p_value=p_value)],
    }
    figures = [whole, whole.model_copy(update=excess)]
    if baseline is not None:
        level, change, p_value_of_change = baseline
        test = Test(null=LABEL_BASELINE, level=level, p_value=p_value_of_change, two_sided=True)
        over = {"against": LABEL_BASELINE, "value": change, "method": "", "tests": [test]}
        figures.append(whole.model_copy(update={"low": None, "high": None, **over}))
    return figures


_SPREADS = 5
"""So far above shuffled owners no sound control lies, once in millions."""


def source_controls(run: Setup, device: torch.device = CPU) -> Iterator[ControlResult]:
    """Infer sources from untrained models: attacks can know no more than label distributions.

    Args:
        run: The run.
        device: Where untrained models are measured.
    """
    samples = source_queries(run)
    if not run.on_source or samples is None:
        return
    measured = measured_untrained(run, samples.kept, device)

    def outcome(attack: Attack) -> Outcome:
        named = inferred_source(posteriors(run, attack, cubes_for(attack, measured), samples))
        rng = seeded_numpy(run.seed, "untrained owners")
        null = source_null(named, samples.owner, within=samples.labels, rng=rng)
        limit = min(null.mean + _SPREADS * null.spread, 1.0)
        value = source_success(named, samples.owner).value
        note = (
            f"shuffles of owners within classes: {null.mean:.3f}, and {_SPREADS} of their "
            f"standard deviations above it {limit:.3f}"
        )
        return Outcome(value, None, limit, value <= limit, note)

    for name, attack in run.on_source.items():
        control = partial(
            ControlResult,
            **run_coordinates(run),
            control="untrained model",
            attack=name,
            expected="owners named no more often than label distributions explain, on models that "
            "nobody trained",
        )
        yield attempted(control, partial(outcome, attack))
