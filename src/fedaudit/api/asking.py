"""Answers to questions about one audited sample or person, from the result of an audit.

A *unit* is what the audit decides membership for: a sample, or a person with several samples.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from fedaudit.api.asked_sources import posteriors, raise_if_other_labels
from fedaudit.api.matching import (
    AuditedSamples,
    audited_samples,
    audited_table,
    rows_in_question,
    same_units,
    unit_of,
    unit_of_row,
)
from fedaudit.api.tables import measurements_of
from fedaudit.core.display import describe, repr_html
from fedaudit.core.errors import BadInput, FedauditError, format_option, unknown_name
from fedaudit.core.files import MANIFEST_FILE, SCORES_FILE
from fedaudit.core.naming import number_of_client
from fedaudit.core.values import ClientId
from fedaudit.datasets.formats.single import SingleSample, read_sample
from fedaudit.evaluation.individual_membership import (
    choose_nonmember_group,
    evaluate_membership_of_unit,
    is_flagged,
    p_value_over_runs,
    reason_against_comparison,
    smallest_p_value_over_runs,
)
from fedaudit.evaluation.sample_scores import (
    SampleScores,
    Scores,
    raise_if_scores_of_another_record,
    read_scores,
)
from fedaudit.formatting.wording import client_name, client_names
from fedaudit.report.deciding.caveats import WRONG_SIGN, people_caveat, wrong_sign
from fedaudit.results.answer import AnswerFields, Contrast
from fedaudit.results.guessing import HIDES_LEAKS, control_name, mark_doubts
from fedaudit.results.record import Record

_ASSUMED_PRIOR = 0.5
_MAX_NEAREST = 3


class Answer(AnswerFields):
    """Answer about one sample or person; ``print`` shows it as a text."""

    _repr_html_ = repr_html

    def __repr__(self) -> str:
        return describe(self)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Question, result and its meaning, one sentence each."""
        from fedaudit.api.answer_text import answer_summary

        return tuple(answer_summary(self))

    def __str__(self) -> str:
        """Return the answer as a text."""
        from fedaudit.api.answer_text import answer_lines

        return "\n".join(answer_lines(self))


@dataclass(frozen=True)
class Question:
    """Question about one sample or person.

    Attributes:
        row: Row in the scores of the first run.
        line: Line of the sample in its CSV file, of which the header is the first.
        sample: File of the sample, or its features.
        person: Number of the person.
        target: Client under audit, by number or name; None if there is only one.
        seed: Seed of the run to use; None for all runs.
        prior: Probability of membership before the attacks; None for 0.5.
        false_alarm_rate: Maximum probability of flagging a non-member.
    """

    row: int | None = None
    line: int | None = None
    sample: Path | SingleSample | None = None
    person: int | None = None
    target: ClientId | str | None = None
    seed: int | None = None
    prior: float | None = None
    false_alarm_rate: float = 0.05

    def __post_init__(self) -> None:
        """Raise unless exactly one unit is named and all probabilities are in range."""
        references = [self.row, self.line, self.sample, self.person]
        if sum(value is not None for value in references) != 1:
            raise BadInput(
                f"a question is about one sample or person; give one of {format_option('row')}, "
                f"{format_option('line')}, {format_option('sample')} and {format_option('person')}"
            )
        for name, value in (("prior", self.prior), ("false-alarm-rate", self.false_alarm_rate)):
            if value is not None and not 0 < value < 1:
                raise BadInput(
                    f"{format_option(name)} is a probability between 0 and 1, got {value}"
                )


class _TargetScores(NamedTuple):
    """Scores of one target in each run, by seed."""

    target: ClientId
    by_seed: dict[int, SampleScores]

    @property
    def first_seed(self) -> int:
        return min(self.by_seed)


def answer_to(
    question: Question, folder: Path, record: Record, data_dir: Path | None = None
) -> Answer:
    """Answer a question from the scores and controls of a result.

    Args:
        question: The question.
        folder: Folder of the result.
        record: Record of the result.
        data_dir: Folder of data sets. The data set is read only to find a sample by its features,
            or to find the same unit in runs of several seeds.

    Raises:
        BadInput: The folder is a pack or has no scores, the unit was not audited, or no attack is
            reliable.
        Damaged: The scores do not belong to the record.
    """
    _raise_if_unanswerable(folder, record)
    stored = read_scores(folder / SCORES_FILE)
    raise_if_scores_of_another_record(record, stored)
    scores = _scores_of_target(record, stored, question)
    units, caveats = _locate(folder, record, scores, question, data_dir)
    first_seed = next(iter(units))
    first = scores.by_seed[first_seed]
    contrast = choose_nonmember_group(first)
    prior = _ASSUMED_PRIOR if question.prior is None else question.prior
    runs, unanswered = [], list[str]()
    for seed, unit in units.items():
        run_scores = scores.by_seed[seed]
        withdrawn = _withdrawn_attacks(record, scores.target, seed, contrast)
        row = int(np.flatnonzero(run_scores.ids == unit)[0])
        attacks = [name for name in run_scores.by_attack if name not in withdrawn]
        reason = reason_against_comparison(run_scores, row, contrast)
        if reason or not attacks:
            unanswered.append(f"seed {seed}: {reason or '; '.join(withdrawn.values())}")
            continue
        runs.append(
            evaluate_membership_of_unit(
                seed,
                run_scores,
                row,
                attacks,
                contrast,
                prior=prior,
                false_alarm_rate=question.false_alarm_rate,
                excluded={name: why for name, why in withdrawn.items() if name not in attacks},
            )
        )
    if not runs:
        raise BadInput(
            f"the answer is withdrawn ({'; '.join(unanswered)[:500]}); see the report's controls, "
            "correct the audit and run it again"
        )
    caveats += [f"Not answered: {reason}" for reason in unanswered]
    caveats += _caveats(record, scores.target, contrast)
    sources, source_caveats = posteriors(folder, record, units)
    names = client_names(record)
    p_value = p_value_over_runs(runs)
    return Answer(
        record=record.name,
        content_hash=record.content_hash,
        unit=record.unit,
        number=units[first_seed],
        row=int(np.flatnonzero(first.ids == units[first_seed])[0]),
        client=client_name(names.get(scores.target, scores.target)),
        contrast=contrast,
        false_alarm_rate=question.false_alarm_rate,
        prior=prior,
        prior_is_assumed=question.prior is None,
        runs=runs,
        p_value=p_value,
        flagged=is_flagged(p_value, smallest_p_value_over_runs(runs), question.false_alarm_rate),
        sources=sources,
        caveats=[*caveats, *source_caveats],
    )


def _raise_if_unanswerable(folder: Path, record: Record) -> None:
    """Raise if the folder is a pack, or the record has no scores of samples."""
    if (folder / MANIFEST_FILE).exists():
        raise BadInput(
            f"{folder} is a pack, which contains no samples or scores; give the folder of the "
            "audit's result, on the machine where the audit ran"
        )
    if record.kind == "games":
        raise BadInput(
            f"{folder} has the record of security games, which score no samples; give the folder "
            "of an audit"
        )
    if record.null_members or record.evaluation == "redraw":
        setting = "null_members" if record.null_members else 'evaluation = "redraw"'
        raise BadInput(
            f"{folder} is a demonstration (figures.{setting}), whose scores are not evidence about "
            "its samples; run the study without that setting"
        )
    if not (folder / SCORES_FILE).exists():
        raise BadInput(
            f"{folder} has no {SCORES_FILE}, because no membership attack ran or the file was "
            "removed; write it with `fedaudit attack`, or restore it from a copy"
        )


def _scores_of_target(record: Record, stored: Scores, question: Question) -> _TargetScores:
    targets = sorted({target for _, target in stored})
    names = client_names(record)
    target = question.target
    if target is None and len(targets) != 1:
        audited_names = ", ".join(client_name(names.get(t, t)) for t in targets[:10])
        raise BadInput(
            f"{len(targets)} clients were audited ({audited_names}), but a question is about one "
            f"client; give {format_option('target')}"
        )
    audited = targets[0] if target is None else audited_client(record, target, targets)
    seeds = sorted(seed for seed, client in stored if client == audited)
    if question.seed is not None and question.seed not in seeds:
        raise unknown_name("run", f"seed {question.seed}", [f"seed {seed}" for seed in seeds])
    used_seeds = seeds if question.seed is None else [question.seed]
    return _TargetScores(audited, {seed: stored[seed, audited] for seed in used_seeds})


def audited_client(
    record: Record, target: ClientId | str, targets: Collection[ClientId]
) -> ClientId:
    """Return the number of an audited client by number or name, as reports print it."""
    names = {number: str(name) for number, name in client_names(record).items()}
    return number_of_client(target, names, targets, kind="audited client")


class _LocatedUnits(NamedTuple):
    """Unit of a question in each run that audited it, by seed, and caveats for the answer."""

    units: Mapping[int, int]
    caveats: list[str]


def _locate(
    folder: Path, record: Record, scores: _TargetScores, question: Question, data_dir: Path | None
) -> _LocatedUnits:
    """Find the unit of a question in all runs. The data set is read only if necessary."""
    first, unit = scores.first_seed, _unit_of_number(record, scores, question)
    if unit is not None and len(scores.by_seed) == 1:
        return _LocatedUnits({first: unit}, [])
    try:
        samples_by_seed = {
            seed: _read_audited(folder, record, seed, run_scores.ids, data_dir)
            for seed, run_scores in scores.by_seed.items()
        }
    except FedauditError as error:
        if unit is None:
            raise
        return _LocatedUnits({first: unit}, [f"Only the run of seed {first} was used: {error}"])
    units = _units_in_table(record, question, samples_by_seed, data_dir)
    if units is None:
        if question.sample is not None:
            first, unit = _unit_of_sample(
                _read_if_path(question.sample, samples_by_seed[first]), samples_by_seed
            )
        assert unit is not None
        units = same_units(unit, {first: samples_by_seed[first], **samples_by_seed})
    other_seeds = [str(seed) for seed in scores.by_seed if seed not in units]
    caveats = [f"Not audited in the run of seed {', '.join(other_seeds)}"] if other_seeds else []
    return _LocatedUnits({seed: units[seed] for seed in scores.by_seed if seed in units}, caveats)


def _units_in_table(
    record: Record,
    question: Question,
    audited: Mapping[int, AuditedSamples],
    data_dir: Path | None,
) -> dict[int, int] | None:
    """Return the unit in each run, by seed, if the question has a line or the columns of a table.

    Raises:
        BadInput: The row does not exist, or was not audited.
    """
    cells = None
    if question.sample is not None:
        cells = _read_if_path(question.sample, next(iter(audited.values()))).cells
    if question.line is None and cells is None:
        return None
    try:
        stored = audited_table(record, data_dir)
    except BadInput:
        if question.line is not None:
            raise
        # Without a table, the columns of the sample are features, which the caller compares.
        return None
    has_features = question.line is None and not {*(cells or ())} & {*stored.table.columns}
    if has_features:
        return None
    in_question = rows_in_question(stored, question.line, cells)
    units = {
        seed: unit
        for seed, samples in audited.items()
        if (unit := unit_of_row(stored, in_question, samples, seed)) is not None
    }
    if not units:
        count = len(next(iter(audited.values())).ids)
        raise BadInput(
            f"{stored.table.first(in_question)} of {stored.table.name!r} was not among the {count} "
            "audited samples, so nothing is known about it; audit more samples (audit.samples), "
            "train and attack again"
        )
    return units


def _unit_of_number(record: Record, scores: _TargetScores, question: Question) -> int | None:
    """Return the unit of a row or person in the first run; None if the question has neither."""
    ids = scores.by_seed[scores.first_seed].ids
    if question.row is not None:
        if not 0 <= question.row < len(ids):
            raise BadInput(
                f"there is no row {question.row}; the scores have the rows 0 to {len(ids) - 1}"
            )
        return int(ids[question.row])
    if question.person is None:
        return None
    if record.unit != "person":
        raise BadInput(
            "the audit is about single samples, whose memberships were decided one by one; audit "
            'people with audit.unit = "person", or ask about one sample by its row or file'
        )
    if question.person not in ids:
        nearest = sorted(ids.tolist(), key=lambda number: abs(number - question.person))
        raise BadInput(
            f"person {question.person} was not audited; the nearest numbers of audited people are "
            f"{', '.join(map(str, sorted(nearest[:_MAX_NEAREST])))}"
        )
    return question.person


def _read_audited(
    folder: Path, record: Record, seed: int, units: Int[ndarray, " units"], data_dir: Path | None
) -> AuditedSamples:
    if not record.watched:
        audited = audited_samples(record, seed, units, data_dir)
        if record.unit == "sample":
            raise_if_other_labels(folder, seed, audited.units, audited.labels)
        return audited
    from fedaudit.live.files import read_audit

    measured_folder = measurements_of(folder)
    audit = None if measured_folder is None else read_audit(measured_folder)
    if audit is None or not audit.samples.features[0].numel():
        raise BadInput(
            "the recording has no samples with which the given sample could be compared; record "
            "with keep_samples=True, or ask by the row in the scores"
        )
    samples = audit.samples
    ids = samples.ids.numpy()
    return AuditedSamples([samples.features], samples.labels, ids, "", ids)


def _read_if_path(sample: Path | SingleSample, audited: AuditedSamples) -> SingleSample:
    return read_sample(sample, audited.shape) if isinstance(sample, Path) else sample


def _unit_of_sample(sample: SingleSample, audited: Mapping[int, AuditedSamples]) -> tuple[int, int]:
    """Return the seed of the first run that audited a sample, and the sample's unit in it."""
    errors = list[BadInput]()
    for seed, samples in audited.items():
        try:
            return seed, unit_of(sample, samples)
        except BadInput as error:
            errors.append(error)
    raise errors[0]


def _withdrawn_attacks(
    record: Record, target: ClientId, seed: int, contrast: Contrast
) -> dict[str, str]:
    """Map attacks whose scores in a run are not reliable to the reason."""
    reasons = dict[str, str]()
    for estimate in mark_doubts(record).findings:
        if (
            estimate.attack
            and estimate.doubt
            and (estimate.target, estimate.seed) == (target, seed)
        ):
            reasons.setdefault(estimate.attack, f"the control {estimate.doubt} failed")
    for estimate in wrong_sign([f for f in record.findings if f.contrast == contrast]):
        if (estimate.target, estimate.seed) == (target, seed):
            reasons.setdefault(estimate.attack, WRONG_SIGN)
    return reasons


def _caveats(record: Record, target: ClientId, contrast: Contrast) -> Iterator[str]:
    """Yield caveats that apply to every answer about a target."""
    figures = [f for f in record.findings if (f.target, f.contrast) == (target, contrast)]
    if any(not figure.fair for figure in figures):
        yield (
            "No fair coin decided between members and these non-members, so other differences "
            "between the two groups may look like membership"
        )
    if caveat := people_caveat(record):
        yield caveat
    failed = [c for c in record.controls if c.passed is False and c.control in HIDES_LEAKS]
    if failed:
        yield f"The control {control_name(failed[0])} failed: attacks may miss members"
