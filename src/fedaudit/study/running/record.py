"""The record of a study: estimates, controls and usage of its runs."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedaudit.attacks import resolve_attack
from fedaudit.core.files import PICTURES_FILE, RECORD_FILE, SCORES_FILE, exclusive_access
from fedaudit.core.metric_names import EPSILON
from fedaudit.core.values import Capability, flat
from fedaudit.evaluation.accuracy import accuracy_by_round, utility_estimates
from fedaudit.evaluation.analysis import evaluate_attacks
from fedaudit.evaluation.controls import announce_evaluation, evaluate_controls, planted_leak
from fedaudit.evaluation.final_models import read_digests
from fedaudit.evaluation.sample_scores import write_scores
from fedaudit.evaluation.truth import EvaluationResults, fields_of_run
from fedaudit.evaluation.uploads import peer_controls, reported_controls
from fedaudit.fl.algorithms.base import ChoosesModels
from fedaudit.metrics.intervals import FEWEST_RUNS
from fedaudit.observe.measurements import StoredRound, rounds_with, stacked
from fedaudit.observe.usage import Usage, read_usage
from fedaudit.plan.identity import config_of, settings_of
from fedaudit.plan.named import assigns_classes
from fedaudit.plan.parts import Extension, MeasuredRun, Resources, Setup
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
from fedaudit.results.text import clean_text
from fedaudit.signals.reconstruction import NearestReconstruction
from fedaudit.study.running.environment import Clock, describe_environment

if TYPE_CHECKING:
    from fedaudit.evaluation.clusters import ClusterEvaluation
    from fedaudit.evaluation.source import SourceEvaluation

_MOST_CLIENTS = 50
"""Largest number of clients that all get a row of usage; above it, only targets get a row."""


def evaluate_and_write(
    measured_runs: Sequence[MeasuredRun],
    out: Path,
    resources: Resources,
    clock: Clock,
    log: Callable[[str], None],
    *,
    notes: Sequence[str] = (),
    before_writing: Callable[[], str | None],
) -> Record:
    """Compute estimates and controls from measured rounds, and write record and scores.

    Args:
        measured_runs: Runs of one study, with their measured rounds.
        out: Folder of the record.
        resources: Engine, device and progress of controls.
        clock: Clock for the times in the record.
        log: Called with lines of text for the user.
        notes: Sentences on what was not tested, or differs from a separate run.
        before_writing: Called before anything is written, while the folder is locked. It raises if
            another process has written a record in the meantime, since that record would be lost.
            It returns a description of the record that is replaced.
    """
    # Create the folder first, so that an unwritable folder fails before the work.
    out.mkdir(parents=True, exist_ok=True)
    evaluation = _Evaluation()
    announce_evaluation((run for run, _ in measured_runs), resources.progress)
    for measured_run in measured_runs:
        _evaluate_run(measured_run, evaluation, resources, log)
    by_extension: dict[type[Extension], list[MeasuredRun]] = {}
    for measured_run in measured_runs:
        for extension in measured_run.run.extensions:
            by_extension.setdefault(type(extension), []).append(measured_run)
    for kind, extended_runs in by_extension.items():
        results = kind.evaluate(extended_runs, evaluation.results.scores)
        evaluation.extension_estimates += results.figures
        evaluation.controls += results.checks
    record = _assemble(
        measured_runs, evaluation, describe_environment(clock, resources.device), notes
    )
    with exclusive_access(out):
        replaced = before_writing()
        # The record is written first, because scores without a record are never replaced.
        write_record(record, out / RECORD_FILE)
        runs = [run for run, _ in measured_runs]
        write_scores(runs, evaluation.results, out / SCORES_FILE)
        if runs[0].dataset.train.inputs is not None:
            from fedaudit.study.running.pictures import write_pictures

            write_pictures(runs[0], evaluation.results, out / PICTURES_FILE)
    if replaced:
        log(f"replaced in {out}: {replaced}")
    return record


@dataclass
class _Evaluation:
    """Results of all runs of a study.

    Attributes:
        results: Estimates of membership inference attacks.
        controls: Results of controls.
        sources: Estimates of source inference attacks, by run.
        usage: How often samples were used.
        extension_estimates: Estimates of extensions.
    """

    results: EvaluationResults = field(default_factory=EvaluationResults)
    controls: list[ControlResult] = field(default_factory=list)
    sources: "list[SourceEvaluation]" = field(default_factory=list)
    usage: list[UsageRow] = field(default_factory=list)
    extension_estimates: list[Estimate] = field(default_factory=list)


def _evaluate_run(
    measured_run: MeasuredRun,
    evaluation: _Evaluation,
    resources: Resources,
    log: Callable[[str], None],
) -> None:
    """Add the estimates and controls of a run to an evaluation."""
    run, rounds = measured_run
    results = evaluation.results
    log(f"seed {run.seed}: attacks and their figures")
    # Source inference and the published redrawn evaluation compare all clients.
    needs_all = run.source_attacks or run.study.figures.evaluation == "redraw"
    targets = () if needs_all else run.study.audit.targets
    signals = stacked((round.measured for round in rounds), about=targets)
    if run.membership_attacks:
        evaluate_attacks(run, signals, results, resources.progress)
    if run.source_attacks:
        from fedaudit.evaluation.source import source_controls, source_results

        evaluation.sources += source_results(
            run, signals, results, rounds[-1].notes, resources.progress
        )
    log(f"seed {run.seed}: controls")
    if run.membership_attacks:
        evaluation.controls += evaluate_controls(run, results, resources.device, resources.progress)
    if run.source_attacks:
        evaluation.controls += source_controls(run, resources.device)
    evaluation.controls += reported_controls(run, rounds)
    evaluation.controls += peer_controls(run, rounds)
    if run.study.figures.planted_leak:
        log(f"seed {run.seed}: a twin run with a planted leak")
        evaluation.controls += planted_leak(run, resources)
    usage = read_usage(run.folder, measured_run.key)
    if usage is not None:
        evaluation.usage += usage_rows(run, usage)


def _assemble(
    measured_runs: Sequence[MeasuredRun],
    evaluation: _Evaluation,
    environment: Environment,
    notes: Sequence[str],
) -> Record:
    runs = [run for run, _ in measured_runs]
    stored = [rounds for _, rounds in measured_runs]
    results, sources = evaluation.results, evaluation.sources
    first, study, recording_info = runs[0], runs[0].study, runs[0].recording_info
    clusters: list[ClusterEvaluation] = []
    if isinstance(first.algorithm, ChoosesModels):
        from fedaudit.evaluation.clusters import cluster_result

        cluster_results = [cluster_result(run, rounds) for run, rounds in measured_runs]
        clusters = [result for result in cluster_results if result]
    alpha = study.figures.alpha
    figures = [
        *corrected_estimates(results, alpha),
        *_formal_epsilons(runs),
        *evaluation.extension_estimates,
    ]
    source_estimates = [estimate for source in sources for estimate in source.estimates]
    on_fair_draws = [estimate for source in sources for estimate in source.of_second_draw]
    on_clusters = [estimate for cluster in clusters for estimate in cluster.estimates]
    answers = [source.answers for source in sources]
    rows, other_clients = _client_rows(first)
    attacks = _attack_rows(first, results)
    uncovered = [
        f"What {row.name} shows of some clients: {row.uncovered}."
        for row in attacks
        if row.uncovered
    ]
    return Record(
        name=study.name,
        content_hash=_content_hash(
            first, stored, [*figures, *source_estimates, *on_fair_draws, *answers]
        ),
        config=dict(recording_info.config) if recording_info else config_of(study),
        seeds=list(study.seeds),
        evaluation=study.figures.evaluation,
        null_members=study.figures.null_members,
        watched=recording_info is not None,
        environment=environment,
        view=ViewRow(
            name=first.view.name, sees=_names(first.view.offers), description=first.view.description
        ),
        attacks=attacks,
        clients=rows,
        other_clients=other_clients,
        people=_count_people(first, first.assignment.clients),
        parameters=None
        if recording_info
        else max(len(flat(net.initial(0).params)) for net in first.algorithm.nets),
        estimates=[
            *figures,
            *results.groups,
            *(figure for run, rounds in measured_runs for figure in utility_estimates(run, rounds)),
            *source_estimates,
            *corrected_by_hypothesis(average_each(source_estimates), alpha),
            *on_fair_draws,
            # A separate family of tests, so that the main estimates do not depend on it.
            *corrected_by_hypothesis(average_each(on_fair_draws), alpha),
            *on_clusters,
            *average_each(on_clusters),
        ],
        curves=results.curves,
        trajectories=results.trajectories,
        histograms=results.histograms,
        exposed=results.exposed,
        controls=[
            check.model_copy(update={"note": clean_text(check.note)})
            for check in evaluation.controls
        ],
        accuracies=[accuracy_by_round(run, rounds) for run, rounds in measured_runs],
        usage=evaluation.usage,
        sources=answers,
        clusters=[cluster.clusters for cluster in clusters],
        coverage=recording_info.coverage if recording_info else _coverage(measured_runs),
        untested=[*_untested(first), *uncovered, *notes],
    )


def _formal_epsilons(runs: Sequence[Setup]) -> list[Estimate]:
    if not any(run.defenses for run in runs):
        return []
    from fedaudit.evaluation.guarantees import formal_epsilons

    return formal_epsilons(runs)


def _coverage(measured_runs: Sequence[MeasuredRun]) -> Coverage:
    """Return the coverage of a study, with each client's smallest coverage over the runs.

    A study measures all rounds that its settings name, or ends in an error.
    """
    runs = [run for run, _ in measured_runs]
    study, total = runs[0].study, runs[0].study.training.rounds
    measured = [[round.measured for round in rounds] for _, rounds in measured_runs]
    final = read_digests(measured_runs)
    clients = []
    for client in sorted({*study.audit.targets}):
        of_runs = []
        for run, rounds in zip(runs, measured, strict=True):
            answered = total
            if study.training.participation < 1:
                answered = sum(client in run.cohort(index) for index in range(1, total + 1))
            of_runs.append(ClientCoverage.of(client, answered, rounds_with(client, rounds)))
        clients.append(min(of_runs, key=lambda coverage: (coverage.measured, coverage.answered)))
    return Coverage(
        rounds=total,
        measured=min(len(rounds) for rounds in measured),
        last_measured=min(rounds[-1].index for rounds in measured),
        every=study.measured_every,
        clients=clients,
        models=final.models,
        adapter=final.adapter,
        tied=final.tied,
        unidentified=final.unidentified,
    )


def _attack_rows(run: Setup, results: EvaluationResults) -> list[AttackRow]:
    rows = []
    for name in [*run.attacks, *run.refused]:
        attack = run.attacks.get(name) or resolve_attack(name)
        failed, uncovered, alone = (
            reasons.get(name, {})
            for reasons in (results.failed, results.too_few_rounds, results.too_few_peers)
        )
        targets = 1 if attack.infers_source else len(run.study.audit.targets)
        total = len(run.study.seeds) * targets
        refused = run.refused.get(name, "")
        if not refused and len(alone) == total:
            # An attack that compares clients cannot run with too few clients, in any view.
            refused = next(iter(alone.values()))
        coverage = run.recording_info.coverage if run.recording_info else None
        if len(uncovered) == total and coverage is not None and coverage.guard is not None:
            # A guard measures every upload that it sends, so no adversary has more rounds.
            refused = (
                "it compares uploads of several rounds, and the guard sent uploads of one round, "
                "so that no adversary can run it here"
            )
        unmeasured = {**uncovered, **alone}
        everywhere = not refused and len(failed | unmeasured) == total
        reasons = {**failed, **unmeasured} if everywhere else failed
        reason = refused or "; ".join(reasons.values())
        rows.append(
            AttackRow(
                name=name,
                signals=[signal.name for signal in attack.signals],
                over_clients=_describe_training(run, name, attack.rule.client_aggregation),
                over_rounds=_describe_training(run, name, attack.rule.round_aggregation),
                needs=_names(attack.needs),
                source=attack.source,
                status="failed" if everywhere else "refused" if refused else "run",
                note=clean_text(reason),
                uncovered=""
                if everywhere or refused
                else clean_text("; ".join(unmeasured.values())),
            )
        )
    return rows


_UNDEFENDED = {
    "against reference models": "against undefended reference models",
    "learned": "learned on an undefended federation",
}


def _describe_training(run: Setup, name: str, way: str) -> str:
    """Describe an attack; note whether the adversary's models train without the defense."""
    attack = resolve_attack(name)
    is_undefended = any(
        extension.ignores_defense and extension.is_needed_by(attack) for extension in run.extensions
    )
    return _UNDEFENDED.get(way, way) if is_undefended else way


def _names(sees: Capability) -> list[str]:
    return [(part.name or "").lower() for part in sees]


def _client_rows(run: Setup) -> tuple[list[ClientRow], OtherClients | None]:
    """Return rows of targets and other clients up to a limit, and one row for the rest."""
    counts, n_audited = run.assignment.class_counts(run.dataset.classes), run.assignment.audited
    sizes, targets = run.assignment.sizes, run.study.audit.targets
    ranked = sorted(sizes, key=lambda client: (client not in targets, -n_audited[client], client))
    listed_clients, other_clients = set(ranked[:MOST_CLIENTS]), ranked[MOST_CLIENTS:]
    rows = [
        ClientRow(
            client=client,
            samples=size,
            audited=n_audited[client],
            class_counts=counts[client],
            people=_count_people(run, [client]),
            name="" if run.recording_info else clean_text(run.names.get(client, "")),
        )
        for client, size in sizes.items()
        if client in listed_clients
    ]
    if not other_clients:
        return rows, None
    samples = [sizes[client] for client in other_clients]
    columns = zip_longest(*(counts[client] for client in other_clients), fillvalue=0)
    return rows, OtherClients(
        clients=len(other_clients),
        samples=sum(samples),
        fewest=min(samples),
        most=max(samples),
        audited=sum(n_audited[client] for client in other_clients),
        class_counts=[sum(column) for column in columns],
    )


def _count_people(run: Setup, clients: Iterable[int]) -> int | None:
    """Return the number of people in the data of some clients; None if it is unknown.

    The data of a recording are only its audited samples.
    """
    person = run.dataset.person
    if person is None or run.recording_info or run.assignment.reported_sizes:
        return None
    ids = [run.assignment.clients[client].ids for client in clients]
    return len({*person[torch.cat(ids)].tolist()}) if ids else 0


def _untested(run: Setup) -> list[str]:
    study = run.study
    targets = ", ".join(run.client_name(target) for target in study.audit.targets)
    signals = [signal for attack in run.membership_attacks.values() for signal in attack.signals]
    is_reconstructed = any(isinstance(signal, NearestReconstruction) for signal in signals)
    by_optimisation = " by optimisation" if is_reconstructed else ""
    sentences = [
        f"Adversaries other than this one. As the adversary here, {run.view.description}.",
        f"Other clients than the audited {targets}."
        if run.membership_attacks
        else "Whether a sample was in any client's data: the audit infers only which client's.",
        "A server that tampers with the model it sends out."
        if study.server == ServerSection()
        else "Other changes that a server can make to the model it sends out.",
        "Attacks published after this version.",
        f"Reconstruction of samples{by_optimisation}, and inference of properties of a client's "
        "data.",
    ]
    if study.shift is not None and run.membership_attacks:
        sentences.append(
            "Members against other clients' samples: a shift makes these differ from the audited "
            "client's, so an attack can distinguish them without any sign of membership."
        )
    sentences += [text for extension in run.extensions if (text := extension.untested())]
    if run.membership_attacks and not any(
        attack.needs_references for attack in run.attacks.values()
    ):
        sentences.append("Attacks that compare with reference models (RMIA, LiRA).")
    if not any(extension.table == "shadow" for extension in run.extensions):
        sentences.append(
            "Attacks by somebody who trains comparable models on similar data, or who already "
            "knows some members."
        )
    if study.defense.label != "none":
        sentences.append(
            "An adversary that adapts to the defense in other ways than the attacks here."
            if _has_adaptive_attack(run)
            else "An adversary that knows of the defense and adapts to it."
        )
    if len(study.seeds) < FEWEST_RUNS:
        seeds = "one seed" if len(study.seeds) == 1 else f"{len(study.seeds)} seeds"
        sentences.append(
            "Other models that are trained in the same way: this needs five seeds, and this is "
            f"{seeds}."
        )
    if run.recording_info is not None:
        sentences += run.recording_info.limitations
    elif not study.figures.planted_leak:
        sentences.append("Whether the attacks find a planted leak (figures.planted_leak = true).")
    return sentences


def _has_adaptive_attack(run: Setup) -> bool:
    """Return whether an attack adapts to the defense.

    Such an attack merges the coalition, knows which classes the defense assigns, or uses models
    that were trained with the defense.
    """
    audit = run.study.audit
    clients = (*audit.targets, *audit.merge)
    has_assigned_classes = any(assigns_classes(run.defenses.get(client)) for client in clients)
    return (
        any(extension.knows_defense for extension in run.extensions)
        or bool(audit.merge)
        or (
            has_assigned_classes
            and any(attack.needs_side_information for attack in run.attacks.values())
        )
    )


def _content_hash(
    run: Setup,
    stored: Sequence[Sequence[StoredRound]],
    estimates: Sequence[Estimate | SourceResult],
) -> str:
    """Return a hash of settings, measured rounds and estimates.

    The hash of a recorded federation leaves out the name and the random key of the recording, so
    that two recordings of one run have the same hash.
    """
    study = run.study.model_copy(update={"name": ""}) if run.recording_info else run.study
    ignored = {"run"} if run.recording_info else set()
    digest = hashlib.sha256(json.dumps(settings_of(study), sort_keys=True).encode())
    for rounds in stored:
        for measured, round_notes in rounds:
            digest.update(repr((measured.index, measured.clients)).encode())
            digest.update(measured.bases.numpy().tobytes())
            notes = {name: note for name, note in round_notes.items() if name not in ignored}
            digest.update(json.dumps(notes, sort_keys=True).encode())
            for name in sorted(measured.signals):
                digest.update(name.encode())
                digest.update(measured.signals[name].contiguous().numpy().tobytes())
    for estimate in estimates:
        digest.update(estimate.model_dump_json(exclude_defaults=True).encode())
    return digest.hexdigest()


def usage_rows(run: Setup, usage: Usage) -> Iterator[UsageRow]:
    """Yield how often each client's samples were used, and the cost of its defense."""
    for index, client in enumerate(usage.clients):
        if len(usage.clients) > _MOST_CLIENTS and client not in run.study.audit.targets:
            continue
        cosines = usage.filter_cosine[:, index]
        cosines = cosines[~cosines.isnan()]
        yield UsageRow(
            **fields_of_run(run),
            client=client,
            defended=client in run.defenses,
            samples=len(usage.ids[client]),
            distinct=usage.distinct[:, index].tolist(),
            times_used=_histogram(usage.used[client]),
            times_recycled=_histogram(usage.recycled[client]),
            extra_bytes=int(usage.extra_bytes[:, index].sum()),
            seconds=float(usage.seconds[:, index].sum()),
            # Rounding may move a cosine slightly out of [-1, 1].
            filter_cosine=float(cosines.mean().clamp(-1, 1)) if len(cosines) else None,
            rounds_acted=_count_flags(usage.acted[:, index]),
            rounds_decided_by_risk=_count_flags(usage.risk_decided[:, index]),
        )


def _count_flags(flags: Tensor) -> int | None:
    """Return the number of rounds with a flag of 1; None if all flags are missing."""
    known_flags = flags[~flags.isnan()]
    return int(known_flags.sum()) if len(known_flags) else None


def _histogram(times: Tensor) -> list[int]:
    """Return the numbers of samples that were used 0 times, once, twice and so on."""
    return np.bincount(times.numpy()).tolist() if len(times) else []


def corrected_estimates(results: EvaluationResults, alpha: float) -> list[Estimate]:
    """Return all estimates and their means over runs, with significance corrected over the study.

    Means are corrected as a separate family, since readers look either at means or at single runs,
    but not at the largest of both.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, estimate in enumerate(results.estimates):
        if estimate.metric != EPSILON:
            key = (
                estimate.attack,
                estimate.contrast,
                estimate.unit,
                estimate.target,
                estimate.metric,
            )
            groups.setdefault(key, []).append(index)
    means = [
        average_runs(
            [results.estimates[index] for index in indices],
            [results.limits[index] for index in indices if index in results.limits],
        )
        for indices in groups.values()
        if len(indices) > 1
    ]
    # Only the outcome of a test is stored, because a study tests thousands of estimates.
    return [
        estimate.model_copy(update={"tests": tests_of(estimate.significant)})
        for family in (results.estimates, means)
        for estimate in aggregate.correct_tests(family, alpha)
    ]
