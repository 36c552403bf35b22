"""The record of a study: figures, controls and usage of its runs, put together and written."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fedaudit.attacks import attack_named
from fedaudit.core.files import PICTURES_FILE, RECORD_FILE, SCORES_FILE, alone_in
from fedaudit.core.metric_names import EPSILON
from fedaudit.core.values import Architecture, Sees
from fedaudit.evaluation.accuracy import accuracy_by_round, utility
from fedaudit.evaluation.analysis import analyse
from fedaudit.evaluation.controls import controls, planted_leak
from fedaudit.evaluation.sample_scores import write_scores
from fedaudit.evaluation.truth import Findings, run_coordinates
from fedaudit.evaluation.uploads import peer_controls, reported_controls
from fedaudit.fl.algorithms.base import ChoosesModels
from fedaudit.metrics.intervals import FEWEST_RUNS
from fedaudit.observe.measurements import Stored, rounds_with, stacked
from fedaudit.observe.usage import Usage, read_usage
from fedaudit.plan.identity import config_of, settings_of
from fedaudit.plan.named import assigns_classes
from fedaudit.plan.parts import Extension, MeasuredRun, Setup, Work
from fedaudit.plan.sections import ServerSection
from fedaudit.results import aggregate
from fedaudit.results.aggregate import average_each, average_runs
from fedaudit.results.aggregate import correct_tests as corrected_by_hypothesis
from fedaudit.results.estimate import Estimate, tests_of
from fedaudit.results.record import (
    MOST_CLIENTS,
    AttackRow,
    ClientRow,
    ControlResult,
    Environment,
    OtherClients,
    Record,
    UsageRow,
    ViewRow,
    write_record,
)
from fedaudit.results.runs import ClientCoverage, Coverage, SourceResult
from fedaudit.results.text import plain
from fedaudit.study.running.environment import Clock, environment
from fedaudit.study.running.observing import measured_on
from fedaudit.study.running.pictures import write_pictures

if TYPE_CHECKING:
    from fedaudit.evaluation.clusters import ClusterFound
    from fedaudit.evaluation.source import SourceFound

_MOST_CLIENTS = 50
"""Of larger federations, only the audited clients have rows."""


def conclude(
    runs: Sequence[Setup],
    stored: Sequence[Sequence[Stored]],
    out: Path,
    work: Work,
    clock: Clock,
    log: Callable[[str], None] = lambda text: None,
    *,
    places: Mapping[int, Path],
    notes: Sequence[str] = (),
    check: Callable[[], object] = lambda: None,
) -> Record:
    """Make figures, controls and record from what was measured, and write record and scores.

    Args:
        runs: The runs of one study.
        stored: For each run, its measured rounds.
        out: Folder of the record.
        work: How controls train and measure.
        clock: For the record's times.
        log: Takes lines of text for the user.
        places: Folder of each run, by seed.
        notes: Sentences on what was not tested, or not as in a separate run.
        check: Called before anything is written, with the folder kept to this process. It raises
            if a record would be lost that another process has written in the meantime.
    """
    # First, so that a folder that cannot be written is found out before the work.
    out.mkdir(parents=True, exist_ok=True)
    findings, checks, sources = Findings(), list[ControlResult](), list["SourceFound"]()
    usage = list[UsageRow]()
    for run, rounds in zip(runs, stored, strict=True):
        log(f"seed {run.seed}: attacks and their figures")
        # Whom a sample is from is asked of all clients, and rounds redrawn as published were all.
        whole = run.on_source or run.study.figures.evaluation == "redraw"
        targets = () if whole else run.study.audit.targets
        measured = stacked((one.measured for one in rounds), about=targets)
        if run.on_membership:
            analyse(run, measured, findings, work.progress)
        if run.on_source:
            from fedaudit.evaluation.source import source_controls, source_results

            end = rounds[-1].notes
            sources += source_results(run, measured, findings.failed, end, work.progress)
        log(f"seed {run.seed}: controls")
        if run.on_membership:
            checks += controls(run, findings, work.device, work.progress)
        if run.on_source:
            checks += source_controls(run, work.device)
        checks += reported_controls(run, rounds)
        checks += peer_controls(run, rounds)
        if run.study.figures.planted_leak:
            log(f"seed {run.seed}: a twin run with a planted leak")
            checks += planted_leak(run, work)
        used = read_usage(places[run.seed], run.key(measured_on(rounds)))
        usage += [] if used is None else usage_rows(run, used)
    besides = list[Estimate]()
    for kind, having in _extended(runs, stored, places).items():
        found = kind.conclude(having, findings.scores)
        besides += found.figures
        checks += found.checks
    made = environment(clock, work.device)
    record = assembled(runs, stored, findings, checks, made, usage, sources, besides, notes)
    with alone_in(out):
        check()
        # The record first: scores without one are taken for somebody else's.
        write_record(record, out / RECORD_FILE)
        write_scores(runs, findings, out / SCORES_FILE)
        write_pictures(runs[0], places[runs[0].seed], findings, out / PICTURES_FILE)
    return record


def _extended(
    runs: Sequence[Setup], stored: Sequence[Sequence[Stored]], places: Mapping[int, Path]
) -> dict[type[Extension], list[MeasuredRun]]:
    """Return the runs that have an extension of a kind, by kind."""
    having: dict[type[Extension], list[MeasuredRun]] = {}
    for run, rounds in zip(runs, stored, strict=True):
        key = run.key(measured_on(rounds))
        for one in run.extensions:
            measured = MeasuredRun(run, rounds, places[run.seed], key)
            having.setdefault(type(one), []).append(measured)
    return having


def assembled(
    runs: Sequence[Setup],
    stored: Sequence[Sequence[Stored]],
    findings: Findings,
    checks: list[ControlResult],
    environment: Environment,
    usage: Sequence[UsageRow] = (),
    sources: "Sequence[SourceFound]" = (),
    besides: Sequence[Estimate] = (),
    notes: Sequence[str] = (),
) -> Record:
    """Assemble the record of the runs of one study."""
    first, study, recorded = runs[0], runs[0].study, runs[0].recorded
    measured = list(zip(runs, stored, strict=True))
    clusters: list[ClusterFound] = []
    if isinstance(first.algorithm, ChoosesModels):
        from fedaudit.evaluation.clusters import cluster_result

        clusters = [found for run, rounds in measured if (found := cluster_result(run, rounds))]
    alpha = study.figures.alpha
    figures = [*corrected(findings, alpha), *_formal_epsilons(runs), *besides]
    on_sources = [figure for one in sources for figure in one.figures]
    on_fair_draws = [figure for one in sources for figure in one.others]
    on_clusters = [figure for one in clusters for figure in one.figures]
    answers = [one.answers for one in sources]
    rows, others = _clients(first)
    attacks = _attack_rows(first, findings)
    uncovered = [
        f"What {row.name} shows of some clients: {row.uncovered}."
        for row in attacks
        if row.uncovered
    ]
    return Record(
        name=study.name,
        content_hash=_content_hash(
            first, stored, [*figures, *on_sources, *on_fair_draws, *answers]
        ),
        config=dict(recorded.config) if recorded else config_of(study),
        seeds=list(study.seeds),
        evaluation=study.figures.evaluation,
        nobody_is_a_member=study.figures.nobody_is_a_member,
        watched=recorded is not None,
        environment=environment,
        view=ViewRow(
            name=first.view.name, sees=_names(first.view.offers), description=first.view.description
        ),
        attacks=attacks,
        clients=rows,
        other_clients=others,
        parameters=None if recorded else max(_parameters(net) for net in first.algorithm.nets),
        estimates=[
            *figures,
            *findings.groups,
            *(figure for run, rounds in measured for figure in utility(run, rounds)),
            *on_sources,
            *corrected_by_hypothesis(average_each(on_sources), alpha),
            *on_fair_draws,
            # A family of its own: the leading figures are judged as if there were no others.
            *corrected_by_hypothesis(average_each(on_fair_draws), alpha),
            *on_clusters,
            *average_each(on_clusters),
        ],
        curves=findings.curves,
        trajectories=findings.trajectories,
        histograms=findings.histograms,
        exposed=findings.exposed,
        controls=[c.model_copy(update={"note": plain(c.note)}) for c in checks],
        accuracies=[accuracy_by_round(run, rounds) for run, rounds in measured],
        usage=list(usage),
        sources=answers,
        clusters=[one.choices for one in clusters],
        coverage=recorded.coverage if recorded else _coverage(runs, stored),
        untested=[*_untested(first), *uncovered, *notes],
    )


def _formal_epsilons(runs: Sequence[Setup]) -> list[Estimate]:
    if not any(run.defenses for run in runs):
        return []
    from fedaudit.evaluation.guarantees import formal_epsilons

    return formal_epsilons(runs)


def _coverage(runs: Sequence[Setup], stored: Sequence[Sequence[Stored]]) -> Coverage:
    """Return the coverage of a study; of several runs the least of each client.

    A study measures the rounds that its settings name, or ends in an error: none is missing.
    """
    study, total = runs[0].study, runs[0].study.training.rounds
    measured = [[one.measured for one in rounds] for rounds in stored]
    clients = []
    for client in sorted({*study.audit.targets}):
        of_runs = []
        for run, rounds in zip(runs, measured, strict=True):
            answered = total
            if study.training.participation < 1:
                answered = sum(client in run.cohort(index) for index in range(1, total + 1))
            of_runs.append(ClientCoverage.of(client, answered, rounds_with(client, rounds)))
        clients.append(min(of_runs, key=lambda one: (one.measured, one.answered)))
    return Coverage(
        rounds=total,
        measured=min(len(rounds) for rounds in measured),
        last_measured=min(rounds[-1].index for rounds in measured),
        every=study.measured_every,
        clients=clients,
    )


def _parameters(net: Architecture) -> int:
    """Return how many numbers a model learns."""
    return sum(value.numel() for value in net.initial(0).params.values())


def _attack_rows(run: Setup, findings: Findings) -> list[AttackRow]:
    rows = []
    for name in [*run.attacks, *run.refused]:
        attack = run.attacks.get(name) or attack_named(name)
        failed, uncovered, alone = (
            found.get(name, {}) for found in (findings.failed, findings.uncovered, findings.alone)
        )
        places = 1 if attack.infers_source else len(run.study.audit.targets)
        total = len(run.study.seeds) * places
        refused = run.refused.get(name, "")
        if not refused and len(alone) == total:
            # What compares clients cannot run on any of two: its view does not show that.
            refused = next(iter(alone.values()))
        few = {**uncovered, **alone}
        everywhere = not refused and len(failed | few) == total
        reason = refused or "; ".join(({**failed, **few} if everywhere else failed).values())
        rows.append(
            AttackRow(
                name=name,
                signals=[signal.name for signal in attack.signals],
                over_clients=_undefended(run, name, attack.rule.over_clients),
                over_rounds=_undefended(run, name, attack.rule.over_rounds),
                needs=_names(attack.needs),
                source=attack.source,
                status="failed" if everywhere else "refused" if refused else "run",
                note=plain(reason),
                uncovered="" if everywhere or refused else plain("; ".join(few.values())),
            )
        )
    return rows


_UNDEFENDED = {
    "against reference models": "against undefended reference models",
    "learned": "learned on an undefended federation",
}


def _undefended(run: Setup, name: str, way: str) -> str:
    """Return what an attack does, with undefended models of the adversary named as such."""
    attack = attack_named(name)
    ignorant = any(one.ignores_defense and one.is_needed_by(attack) for one in run.extensions)
    return _UNDEFENDED.get(way, way) if ignorant else way


def _names(sees: Sees) -> list[str]:
    return [(part.name or "").lower() for part in sees]


def _clients(run: Setup) -> tuple[list[ClientRow], OtherClients | None]:
    """Return rows of the targets and of as many other clients as fit, and one of all others."""
    counts, audited = run.deal.class_counts(run.dataset.classes), run.deal.audited
    sizes = run.deal.sizes
    first = sorted(sizes, key=lambda c: (c not in run.study.audit.targets, -audited[c], c))
    shown, rest = set(first[:MOST_CLIENTS]), first[MOST_CLIENTS:]
    rows = [
        ClientRow(client=client, samples=size, audited=audited[client], class_counts=counts[client])
        for client, size in sizes.items()
        if client in shown
    ]
    if not rest:
        return rows, None
    held = [sizes[client] for client in rest]
    return rows, OtherClients(
        clients=len(rest),
        samples=sum(held),
        fewest=min(held),
        most=max(held),
        audited=sum(audited[client] for client in rest),
        class_counts=[
            sum(column) for column in zip_longest(*(counts[c] for c in rest), fillvalue=0)
        ],
    )


def _untested(run: Setup) -> list[str]:
    study = run.study
    targets = ", ".join(run.client_name(target) for target in study.audit.targets)
    said = [
        f"Other adversaries than this one: {run.view.description}.",
        f"Other clients than the audited {targets}."
        if run.on_membership
        else "Whether a sample was in any client's data: only whose it was.",
        "A server that tampers with the model it sends out."
        if study.server == ServerSection()
        else "Other changes that a server can make to the model it sends out.",
        "Attacks published after this version.",
        "Reconstruction of samples, and inference of properties of a client's data.",
    ]
    if study.shift is not None and run.on_membership:
        said.append(
            "Members against other clients' samples: a shift makes these differ from the audited "
            "client's, and what tells them apart need not be membership."
        )
    said += [sentence for one in run.extensions if (sentence := one.untested())]
    if run.on_membership and not any(one.needs_references for one in run.attacks.values()):
        said.append("Attacks that compare with reference models (RMIA, LiRA).")
    if not any(one.table == "shadow" for one in run.extensions):
        said.append(
            "Attacks that train a classifier on a federation of their own, or on known members."
        )
    if study.defense.label != "none":
        said.append(
            "An adversary that adapts to the defense in other ways than the attacks here."
            if _adapted(run)
            else "An adversary that knows of the defense and adapts to it."
        )
    if len(study.seeds) < FEWEST_RUNS:
        seeds = "one seed" if len(study.seeds) == 1 else f"{len(study.seeds)} seeds"
        said.append(f"Another run of the same procedure: this is {seeds}, and it takes five.")
    if run.recorded is not None:
        said += run.recorded.missing
    elif not study.figures.planted_leak:
        said.append("Whether the attacks find a planted leak (figures.planted_leak = true).")
    return said


def _adapted(run: Setup) -> bool:
    """Return True if an attack uses the defense.

    It attacks the coalition as one, knows which classes are dealt out, or uses models that were
    trained with the defense.
    """
    audit = run.study.audit
    assigned = any(assigns_classes(run.defenses.get(c)) for c in (*audit.targets, *audit.merge))
    return (
        any(one.knows_defense for one in run.extensions)
        or bool(audit.merge)
        or (assigned and any(a.needs_side_information for a in run.attacks.values()))
    )


def _content_hash(
    run: Setup, stored: Sequence[Sequence[Stored]], figures: Sequence[Estimate | SourceResult]
) -> str:
    """Return a hash over what was measured: settings, rounds and figures.

    Of a recorded federation, its name and the random key of its recording are left out, so
    that two recordings of one run have the same.
    """
    study = run.study.model_copy(update={"name": ""}) if run.recorded else run.study
    apart = {"run"} if run.recorded else set()
    digest = hashlib.sha256(json.dumps(settings_of(study), sort_keys=True).encode())
    for rounds in stored:
        for one in rounds:
            digest.update(repr((one.measured.index, one.measured.clients)).encode())
            digest.update(one.measured.bases.numpy().tobytes())
            notes = {name: note for name, note in one.notes.items() if name not in apart}
            digest.update(json.dumps(notes, sort_keys=True).encode())
            for name in sorted(one.measured.signals):
                digest.update(name.encode())
                digest.update(one.measured.signals[name].contiguous().numpy().tobytes())
    for figure in figures:
        digest.update(figure.model_dump_json(exclude_defaults=True).encode())
    return digest.hexdigest()


def usage_rows(run: Setup, usage: Usage) -> Iterator[UsageRow]:
    """Yield uses of each client's samples, and the cost of its defense."""
    for at, client in enumerate(usage.clients):
        if len(usage.clients) > _MOST_CLIENTS and client not in run.study.audit.targets:
            continue
        cosines = usage.filter_cosine[:, at]
        cosines = cosines[~cosines.isnan()]
        yield UsageRow(
            **run_coordinates(run),
            client=client,
            defended=client in run.defenses,
            samples=len(usage.ids[client]),
            distinct=usage.distinct[:, at].tolist(),
            times_used=_histogram(usage.used[client]),
            times_recycled=_histogram(usage.recycled[client]),
            extra_bytes=int(usage.extra_bytes[:, at].sum()),
            seconds=float(usage.seconds[:, at].sum()),
            # Rounding may leave a cosine just outside of what it can be.
            filter_cosine=float(cosines.mean().clamp(-1, 1)) if len(cosines) else None,
            rounds_acted=_rounds(usage.acted[:, at]),
            rounds_decided_by_risk=_rounds(usage.risk_decided[:, at]),
        )


def _rounds(asked: Tensor) -> int | None:
    """Return the number of rounds with a yes; None if there was no question."""
    known = asked[~asked.isnan()]
    return int(known.sum()) if len(known) else None


def _histogram(times: Tensor) -> list[int]:
    """Return counts of samples used 0 times, once, twice and so on."""
    return np.bincount(times.numpy()).tolist() if len(times) else []


def corrected(findings: Findings, alpha: float) -> list[Estimate]:
    """Return all figures and their means over runs, with significance corrected over the study.

    Means make a family of their own: a reader looks at them or at single runs, not at the
    largest of both.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, figure in enumerate(findings.figures):
        if figure.metric != EPSILON:
            key = (figure.attack, figure.contrast, figure.unit, figure.target, figure.metric)
            groups.setdefault(key, []).append(place)
    means = [
        average_runs(
            [findings.figures[place] for place in places],
            [findings.limits[place] for place in places if place in findings.limits],
        )
        for places in groups.values()
        if len(places) > 1
    ]
    # The outcome alone is kept: a study tests thousands of figures.
    return [
        figure.model_copy(update={"tests": tests_of(figure.significant)})
        for family in (findings.figures, means)
        for figure in aggregate.correct_tests(family, alpha)
    ]
