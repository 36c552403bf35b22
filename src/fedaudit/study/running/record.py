"""The record of a study, put together from its runs and what was found in them."""

import hashlib
import json
from collections.abc import Sequence

from fedaudit.attacks.catalog import attack_named
from fedaudit.core.values import Sees
from fedaudit.metrics.intervals import FEWEST_RUNS
from fedaudit.observe.measurements import Stored
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
)
from fedaudit.results.sources import SourceResult
from fedaudit.results.text import made_plain, plain
from fedaudit.study.figures.accuracy import accuracy_by_round, utility
from fedaudit.study.figures.cluster_results import clusters_of
from fedaudit.study.figures.guarantees import formal_epsilons
from fedaudit.study.figures.significance import corrected
from fedaudit.study.figures.source import SourceFound
from fedaudit.study.figures.truth import Findings
from fedaudit.study.running.identity import settings_of
from fedaudit.study.settings.sections import ServerSection, Study
from fedaudit.study.setup.defenses import assigns_classes
from fedaudit.study.setup.parts import Setup


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
        config=_config(study) if first.watched is None else dict(first.watched.config),
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


def _config(study: Study) -> dict[str, object]:
    """The settings as they are printed: what a user wrote may hold any character."""
    # Most studies have no parts of their own.
    values = study.model_dump(mode="json", exclude=set() if study.code else {"code"})
    return {name: made_plain(value) for name, value in values.items()}


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
