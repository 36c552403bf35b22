"""Questions about one sample or person to the result of an audit."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from fedaudit.core.errors import BadInput, FedauditError, option, unknown_name
from fedaudit.core.files import MANIFEST_FILE, SCORES_FILE
from fedaudit.core.naming import number_of_client
from fedaudit.core.values import ClientId
from fedaudit.datasets.formats.single import SingleSample, read_sample
from fedaudit.evaluation.asking import (
    answer_in_run,
    choose_contrast,
    flag,
    p_value_over_runs,
    reason_against_comparison,
    smallest_over_runs,
)
from fedaudit.evaluation.sample_scores import (
    SampleScores,
    Scores,
    read_scores,
    refuse_scores_of_another_record,
)
from fedaudit.report.deciding.caveats import WRONG_SIGN, people_caveat, wrong_sign
from fedaudit.report.wording import client_name, client_names
from fedaudit.results.answer import AnswerFields, Contrast
from fedaudit.results.guessing import HIDES_LEAKS, control_name, mark_doubts
from fedaudit.results.record import Record
from fedaudit.study.front.asked_sources import (
    measurements_of,
    posteriors,
    refuse_other_labels,
)
from fedaudit.study.front.matching import (
    AuditedSamples,
    audited_samples,
    audited_table,
    rows_asked,
    same_units,
    unit_of,
    unit_of_row,
)

_ASSUMED_PRIOR = 0.5
_MOST_NEAR = 3


class Answer(AnswerFields):
    """Answer about one sample or person; ``print`` shows it in sentences."""

    def __str__(self) -> str:
        """Return the answer in sentences."""
        from fedaudit.study.front.answer_text import answer_lines

        return "\n".join(answer_lines(self))


@dataclass(frozen=True)
class Question:
    """A question about one sample or person.

    Attributes:
        row: Row in the scores of the first run.
        line: Line of the sample in its CSV file, of which the header is the first.
        sample: File of the sample, or its features.
        person: Number of the person.
        target: Client under audit, by number or name; None if there is only one.
        seed: The only run to ask about; None for all.
        prior: Probability of membership before the attacks; None for the assumption of 0.5.
        false_alarm_rate: Largest probability with which a non-member is flagged.
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
        """Raise if not exactly one unit is named, or a probability is out of range."""
        named = [self.row, self.line, self.sample, self.person]
        if sum(value is not None for value in named) != 1:
            raise BadInput(
                f"a question is about one sample or person; give one of {option('row')}, "
                f"{option('line')}, {option('sample')} and {option('person')}"
            )
        for name, value in (("prior", self.prior), ("false-alarm-rate", self.false_alarm_rate)):
            if value is not None and not 0 < value < 1:
                raise BadInput(f"{option(name)} is a share between 0 and 1, got {value}")


class _Tables(NamedTuple):
    """Scores of one target in each run, the first run first."""

    target: ClientId
    by_seed: dict[int, SampleScores]

    @property
    def first(self) -> int:
        return min(self.by_seed)


def answer_to(
    question: Question, folder: Path, record: Record, data_dir: Path | None = None
) -> Answer:
    """Answer a question by the scores and controls of a result.

    Args:
        question: The question.
        folder: Folder of the result.
        record: Its record.
        data_dir: Folder of data sets. The data set is read only to match a sample, or the runs of
            several seeds.

    Raises:
        BadInput: The folder is a pack or has no scores; the unit was not audited; or no attack can
            be relied on.
        Damaged: The scores are not those of the record.
    """
    _refuse_unanswerable(folder, record)
    stored = read_scores(folder / SCORES_FILE)
    refuse_scores_of_another_record(record, stored)
    tables = _scores_of_target(record, stored, question)
    units, caveats = _locate(folder, record, tables, question, data_dir)
    seed_of_first = next(iter(units))
    first = tables.by_seed[seed_of_first]
    contrast = choose_contrast(first)
    prior = _ASSUMED_PRIOR if question.prior is None else question.prior
    runs, reasons = [], list[str]()
    for seed, unit in units.items():
        samples = tables.by_seed[seed]
        withdrawn = _withdrawn(record, tables.target, seed, contrast)
        row = int(np.flatnonzero(samples.ids == unit)[0])
        attacks = [name for name in samples.by_attack if name not in withdrawn]
        reason = reason_against_comparison(samples, row, contrast)
        if reason or not attacks:
            reasons.append(f"seed {seed}: {reason or '; '.join(withdrawn.values())}")
            continue
        runs.append(
            answer_in_run(
                seed,
                samples,
                row,
                attacks,
                contrast,
                prior=prior,
                false_alarm_rate=question.false_alarm_rate,
                withdrawn={name: why for name, why in withdrawn.items() if name not in attacks},
            )
        )
    if not runs:
        raise BadInput(
            f"the answer is withdrawn ({'; '.join(reasons)[:500]}); see the report's controls, "
            "correct the audit and run it again"
        )
    caveats += [f"Not answered: {reason}" for reason in reasons]
    caveats += _caveats(record, tables.target, contrast)
    sources, doubts = posteriors(folder, record, units)
    names = client_names(record)
    p_value = p_value_over_runs(runs)
    return Answer(
        record=record.name,
        content_hash=record.content_hash,
        unit=record.unit,
        number=units[seed_of_first],
        row=int(np.flatnonzero(first.ids == units[seed_of_first])[0]),
        client=client_name(names.get(tables.target, tables.target)),
        contrast=contrast,
        false_alarm_rate=question.false_alarm_rate,
        prior=prior,
        prior_is_assumed=question.prior is None,
        runs=runs,
        p_value=p_value,
        flagged=flag(p_value, smallest_over_runs(runs), question.false_alarm_rate),
        sources=sources,
        caveats=[*caveats, *doubts],
    )


def _refuse_unanswerable(folder: Path, record: Record) -> None:
    """Raise if the folder is a pack, or the record has no scores of samples."""
    if (folder / MANIFEST_FILE).exists():
        raise BadInput(
            f"{folder} is a pack, which holds no samples or scores; ask where the audit ran, with "
            "the folder of its result"
        )
    if record.kind == "games":
        raise BadInput(f"{folder} holds security games, which score no samples; give an audit")
    if record.nobody_is_a_member or record.evaluation == "redraw":
        setting = "nobody_is_a_member" if record.nobody_is_a_member else 'evaluation = "redraw"'
        raise BadInput(
            f"{folder} is a demonstration (figures.{setting}), whose scores say nothing about its "
            "samples; run the study without that setting"
        )
    if not (folder / SCORES_FILE).exists():
        raise BadInput(
            f"{folder} has no {SCORES_FILE}, because no membership attack ran or the file was "
            "removed; write it with `fedaudit attack`, or restore it from a copy"
        )


def _scores_of_target(record: Record, stored: Scores, question: Question) -> _Tables:
    """Return the scores of the target that the question is about."""
    targets = sorted({target for _, target in stored})
    names = client_names(record)
    target = question.target
    if target is None and len(targets) != 1:
        listed = ", ".join(client_name(names.get(t, t)) for t in targets[:10])
        raise BadInput(
            f"{len(targets)} clients were audited ({listed}), but a question is about one; give "
            f"{option('target')}"
        )
    chosen = targets[0] if target is None else audited_client(record, target, targets)
    seeds = sorted(seed for seed, client in stored if client == chosen)
    if question.seed is not None and question.seed not in seeds:
        raise unknown_name("run", f"seed {question.seed}", [f"seed {seed}" for seed in seeds])
    asked_seeds = seeds if question.seed is None else [question.seed]
    return _Tables(chosen, {seed: stored[seed, chosen] for seed in asked_seeds})


def audited_client(
    record: Record, target: ClientId | str, targets: Collection[ClientId]
) -> ClientId:
    """Return the number of an audited client by number or name, as reports print it."""
    names = {number: str(name) for number, name in client_names(record).items()}
    return number_of_client(target, names, targets, kind="audited client")


class _LocatedUnits(NamedTuple):
    """The unit of a question by seed, in each run that audited it, and caveats of the search."""

    units: Mapping[int, int]
    caveats: list[str]


def _locate(
    folder: Path, record: Record, tables: _Tables, question: Question, data_dir: Path | None
) -> _LocatedUnits:
    """Find the unit of a question in the runs; read its samples only if necessary."""
    first, unit = tables.first, _unit_of_number(record, tables, question)
    if unit is not None and len(tables.by_seed) == 1:
        return _LocatedUnits({first: unit}, [])
    try:
        audited = {
            seed: _read_audited(folder, record, seed, table.ids, data_dir)
            for seed, table in tables.by_seed.items()
        }
    except FedauditError as refusal:
        if unit is None:
            raise
        return _LocatedUnits({first: unit}, [f"Only the run of seed {first} was asked: {refusal}"])
    units = _units_in_table(record, question, audited, data_dir)
    if units is None:
        if question.sample is not None:
            first, unit = _unit_of_sample(_read(question.sample, audited[first]), audited)
        assert unit is not None
        units = same_units(unit, {first: audited[first], **audited})
    absent = [str(seed) for seed in tables.by_seed if seed not in units]
    caveats = [f"It was not audited in the run of seed {', '.join(absent)}"] if absent else []
    return _LocatedUnits({seed: units[seed] for seed in tables.by_seed if seed in units}, caveats)


def _units_in_table(
    record: Record,
    question: Question,
    audited: Mapping[int, AuditedSamples],
    data_dir: Path | None,
) -> dict[int, int] | None:
    """Return the units of a line or row of a table by seed; None if the question names none.

    Raises:
        BadInput: The row does not exist, or was not audited.
    """
    cells = None
    if question.sample is not None:
        cells = _read(question.sample, next(iter(audited.values()))).cells
    if question.line is None and cells is None:
        return None
    try:
        stored = audited_table(record, data_dir)
    except BadInput:
        if question.line is not None:
            raise
        # Columns that name features, which are compared instead.
        return None
    has_features = question.line is None and not {*(cells or ())} & {*stored.table.columns}
    if has_features:
        return None
    is_asked = rows_asked(stored, question.line, cells)
    units = {
        seed: unit
        for seed, samples in audited.items()
        if (unit := unit_of_row(stored, is_asked, samples, seed)) is not None
    }
    if not units:
        count = len(next(iter(audited.values())).ids)
        raise BadInput(
            f"{stored.table.first(is_asked)} of {stored.table.name!r} was not among the {count} "
            "audited samples, so nothing is known about it; audit more samples (audit.samples), "
            "train and attack again"
        )
    return units


def _unit_of_number(record: Record, tables: _Tables, question: Question) -> int | None:
    """Return the unit of a row or person in the first run; None for a sample."""
    ids = tables.by_seed[tables.first].ids
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
            f"there is no person {question.person} among the audited ones; the nearest numbers "
            f"are {', '.join(map(str, sorted(nearest[:_MOST_NEAR])))}"
        )
    return question.person


def _read_audited(
    folder: Path, record: Record, seed: int, units: Int[ndarray, " units"], data_dir: Path | None
) -> AuditedSamples:
    if not record.watched:
        audited = audited_samples(record, seed, units, data_dir)
        if record.unit == "sample":
            refuse_other_labels(folder, seed, audited.units, audited.labels)
        return audited
    from fedaudit.live.files import read_audit

    place = measurements_of(folder)
    audit = None if place is None else read_audit(place)
    if audit is None or not audit.samples.features[0].numel():
        raise BadInput(
            "the recording keeps no samples with which one could be compared; record with "
            "keep_samples=True, or ask by the row in the scores"
        )
    samples = audit.samples
    ids = samples.ids.numpy()
    return AuditedSamples([samples.features], samples.labels, ids, "", ids)


def _read(sample: Path | SingleSample, audited: AuditedSamples) -> SingleSample:
    return read_sample(sample, audited.shape) if isinstance(sample, Path) else sample


def _unit_of_sample(sample: SingleSample, audited: Mapping[int, AuditedSamples]) -> tuple[int, int]:
    """Return the first run that audited a sample, and the sample's unit in it."""
    refusals = list[BadInput]()
    for seed, samples in audited.items():
        try:
            return seed, unit_of(sample, samples)
        except BadInput as refusal:
            refusals.append(refusal)
    raise refusals[0]


def _withdrawn(record: Record, target: ClientId, seed: int, contrast: Contrast) -> dict[str, str]:
    """Return the reason for each attack whose scores in a run are not relied on."""
    reasons = dict[str, str]()
    for figure in mark_doubts(record).findings:
        if figure.attack and figure.doubt and (figure.target, figure.seed) == (target, seed):
            reasons.setdefault(figure.attack, f"the control {figure.doubt} failed")
    for figure in wrong_sign([f for f in record.findings if f.contrast == contrast]):
        if (figure.target, figure.seed) == (target, seed):
            reasons.setdefault(figure.attack, WRONG_SIGN)
    return reasons


def _caveats(record: Record, target: ClientId, contrast: Contrast) -> Iterator[str]:
    """Yield the caveats of every answer about a target."""
    compared = [f for f in record.findings if (f.target, f.contrast) == (target, contrast)]
    if any(not figure.fair for figure in compared):
        yield (
            "No fair coin decided between members and these non-members, so differences "
            "between both groups may look like membership"
        )
    if caveat := people_caveat(record):
        yield caveat
    hidden = [c for c in record.controls if c.passed is False and c.control in HIDES_LEAKS]
    for control in hidden[:1]:
        yield f"The control {control_name(control)} failed: attacks may miss members"
