"""The record of a study: figures, controls and usage of its runs, put together and written."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from fedaudit.attacks.catalog import attack_named
from fedaudit.core.files import RECORD_FILE, SCORES_FILE
from fedaudit.core.values import Sees
from fedaudit.metrics.intervals import FEWEST_RUNS
from fedaudit.observe.measurements import Stored, stacked
from fedaudit.observe.usage import Usage, read_usage
from fedaudit.results.aggregate import corrected as corrected_by_hypothesis
from fedaudit.results.aggregate import each_over_runs
from fedaudit.results.estimate import Estimate
from fedaudit.results.record import (
    AttackRow,
    ClientRow,
    ControlResult,
    Environment,
    Record,
    UsageRow,
    ViewRow,
    write_record,
)
from fedaudit.results.sources import SourceResult
from fedaudit.results.text import plain
from fedaudit.study.controls.membership import controls
from fedaudit.study.controls.planted import planted_leak
from fedaudit.study.controls.source import source_controls
from fedaudit.study.figures.accuracy import accuracy_by_round, utility
from fedaudit.study.figures.analysis import analyse
from fedaudit.study.figures.cluster_results import clusters_of
from fedaudit.study.figures.guarantees import formal_epsilons
from fedaudit.study.figures.sample_scores import write_scores
from fedaudit.study.figures.significance import corrected
from fedaudit.study.figures.source import SourceFound, source_results
from fedaudit.study.figures.truth import Findings
from fedaudit.study.running.environment import Clock, environment
from fedaudit.study.running.identity import config_of, run_key, settings_of
from fedaudit.study.running.observing import measured_on
from fedaudit.study.settings.sections import ServerSection
from fedaudit.study.setup.defenses import assigns_classes
from fedaudit.study.setup.parts import Setup, Work

MOST_CLIENTS = 50
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
) -> Record:
    """Makes figures, controls and record from what was measured, and writes record and scores.

    Args:
        runs: The runs of one study.
        stored: For each run, its measured rounds.
        out: Folder of the record.
        work: How controls train and measure.
        clock: For the record's times.
        log: Takes lines of text for the user.
        places: Folder of each run, by seed.
    """
    # First, so that a folder that cannot be written is found out before the work.
    out.mkdir(parents=True, exist_ok=True)
    findings, checks, sources = Findings(), list[ControlResult](), list[SourceFound]()
    for run, rounds in zip(runs, stored, strict=True):
        log(f"seed {run.seed}: attacks and their figures")
        measured = stacked(one.measured for one in rounds)
        if run.on_membership:
            analyse(run, measured, findings, work.progress)
        sources += source_results(run, measured, findings.failed, rounds[-1].notes, work.progress)
        log(f"seed {run.seed}: controls")
        if run.on_membership:
            checks += controls(run, findings, work.device, work.progress)
        checks += source_controls(run, work.device)
        if run.study.figures.planted_leak:
            log(f"seed {run.seed}: a twin run with a planted leak")
            checks += planted_leak(run, work)
    usage = [
        row
        for run, rounds in zip(runs, stored, strict=True)
        for row in usage_rows(run, places[run.seed], rounds)
    ]
    made = environment(clock, work.device)
    record = assembled(runs, stored, findings, checks, made, usage, sources)
    # The record first: scores without one are taken for somebody else's.
    write_record(record, out / RECORD_FILE)
    write_scores(runs, findings, out / SCORES_FILE)
    return record


def assembled(
    runs: Sequence[Setup],
    stored: Sequence[Sequence[Stored]],
    findings: Findings,
    checks: list[ControlResult],
    environment: Environment,
    usage: Sequence[UsageRow] = (),
    sources: Sequence[SourceFound] = (),
) -> Record:
    """The record of runs of one study."""
    first, study = runs[0], runs[0].study
    clusters = clusters_of(runs, stored)
    alpha = study.figures.alpha
    figures = corrected(findings, alpha) + formal_epsilons(runs)
    on_sources = [figure for one in sources for figure in one.figures]
    on_clusters = [figure for one in clusters for figure in one.figures]
    answers = [one.answers for one in sources]
    return Record(
        name=study.name,
        content_hash=_content_hash(first, stored, [*figures, *on_sources, *answers]),
        config=config_of(study) if first.watched is None else dict(first.watched.config),
        seeds=list(study.seeds),
        evaluation=study.figures.evaluation,
        nobody_is_a_member=study.figures.nobody_is_a_member,
        watched=first.watched is not None,
        environment=environment,
        view=ViewRow(
            name=first.view.name,
            sees=_names(first.view.offers),
            description=first.view.description,
        ),
        attacks=_attack_rows(first, findings),
        clients=_clients(first),
        estimates=[
            *figures,
            *findings.groups,
            *(
                one
                for run, rounds in zip(runs, stored, strict=True)
                for one in utility(run, rounds)
            ),
            *on_sources,
            *corrected_by_hypothesis(each_over_runs(on_sources), alpha),
            *on_clusters,
            *each_over_runs(on_clusters),
        ],
        curves=findings.curves,
        trajectories=findings.trajectories,
        histograms=findings.histograms,
        exposed=findings.exposed,
        controls=[c.model_copy(update={"note": plain(c.note)}) for c in checks],
        accuracies=[
            accuracy_by_round(run, rounds) for run, rounds in zip(runs, stored, strict=True)
        ],
        usage=list(usage),
        sources=answers,
        clusters=[one.choices for one in clusters],
        untested=_untested(first),
    )


def _attack_rows(run: Setup, findings: Findings) -> list[AttackRow]:
    rows = []
    for name in [*run.attacks, *run.refused]:
        attack = run.attacks.get(name) or attack_named(name)
        failed = findings.failed.get(name, {})
        places = 1 if attack.infers_source else len(run.study.audit.targets)
        everywhere = len(failed) == len(run.study.seeds) * places
        reason = "; ".join(failed.values()) or run.refused.get(name, "")
        rows.append(
            AttackRow(
                name=name,
                signals=[signal.name for signal in attack.signals],
                over_clients=attack.rule.over_clients,
                over_rounds=attack.rule.over_rounds,
                needs=_names(attack.needs),
                source=attack.source,
                status=("failed" if everywhere else "refused" if name in run.refused else "run"),
                note=plain(reason),
            )
        )
    return rows


def _names(sees: Sees) -> list[str]:
    return [(part.name or "").lower() for part in sees]


def _clients(run: Setup) -> list[ClientRow]:
    counts = run.deal.class_counts(run.dataset.classes)
    return [
        ClientRow(
            client=client,
            samples=size,
            audited=run.deal.audited[client],
            class_counts=counts[client],
        )
        for client, size in run.deal.sizes.items()
    ]


def _untested(run: Setup) -> list[str]:
    study = run.study
    names = run.watched.names if run.watched else {}
    targets = ", ".join(
        f"client {target}" + (f" ({plain(names[target])})" if target in names else "")
        for target in study.audit.targets
    )
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
    if run.shadow is None and run.known is None:
        said.append("Attacks that learn from a federation of their own, or from known members.")
    if study.defense.label != "none":
        said.append(
            "An adversary that adapts to the defense in other ways than the attacks here."
            if _adapted(run)
            else "An adversary that knows of the defense and adapts to it."
        )
    if len(study.seeds) < FEWEST_RUNS:
        seeds = "one seed" if len(study.seeds) == 1 else f"{len(study.seeds)} seeds"
        said.append(f"Another run of the same procedure: this is {seeds}, and it takes five.")
    if run.watched is not None:
        said.append("How the federation trained: it was watched, and its settings are not known.")
        said += run.watched.missing
    elif not study.figures.planted_leak:
        said.append("Whether the attacks find a planted leak (figures.planted_leak = true).")
    return said


def _adapted(run: Setup) -> bool:
    """True if the coalition is attacked as one, or an attack knows which classes it deals out."""
    audit = run.study.audit
    assigned = any(assigns_classes(run.defenses.get(c)) for c in (*audit.targets, *audit.merge))
    return bool(audit.merge) or (
        assigned and any(a.needs_side_information for a in run.attacks.values())
    )


def _content_hash(
    run: Setup,
    stored: Sequence[Sequence[Stored]],
    figures: Sequence[Estimate | SourceResult],
) -> str:
    """Over what was measured: settings, rounds and figures.

    Of a federation that was watched, its name and the random key of its recording are left out, so
    that two recordings of one run have the same.
    """
    watched = run.watched is not None
    study = run.study.model_copy(update={"name": ""}) if watched else run.study
    apart = {"run"} if watched else set()
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


def usage_rows(run: Setup, place: Path, stored: Sequence[Stored]) -> list[UsageRow]:
    """Uses of each client's samples, and the cost of its defense.

    Args:
        run: The run.
        place: Its folder; one that an older fedaudit wrote tells nothing.
        stored: Its measured rounds, for the kind of device.
    """
    usage = read_usage(place, run_key(run.study, run.seed, measured_on(stored)))
    if usage is None:
        return []
    targets = run.study.audit.targets
    told = usage.clients if len(usage.clients) <= MOST_CLIENTS else targets
    return [_row(run, usage, client) for client in usage.clients if client in told]


def _row(run: Setup, usage: Usage, client: int) -> UsageRow:
    at = usage.clients.index(client)
    return UsageRow(
        defense=run.study.defense.label,
        seed=run.seed,
        client=client,
        defended=client in run.defenses,
        samples=len(usage.ids[client]),
        distinct=usage.distinct[:, at].tolist(),
        times_used=_histogram(usage.used[client]),
        times_recycled=_histogram(usage.recycled[client]),
        extra_bytes=int(usage.extra_bytes[:, at].sum()),
        seconds=float(usage.seconds[:, at].sum()),
        filter_cosine=_mean(usage.filter_cosine[:, at]),
    )


def _mean(cosines: Tensor) -> float | None:
    """Over the rounds that have one."""
    known = cosines[~cosines.isnan()]
    # Rounding may leave a cosine just outside of what it can be.
    return float(known.mean().clamp(-1, 1)) if len(known) else None


def _histogram(times: Tensor) -> list[int]:
    """Counts of samples used 0 times, once, twice ..."""
    return np.bincount(times.numpy()).tolist() if len(times) else []
