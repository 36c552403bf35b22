"""Sentences of an answer about one sample or person."""

from collections.abc import Iterator, Sequence
from math import ceil
from textwrap import wrap

from fedaudit.core.errors import with_article
from fedaudit.formatting.grid import shorten
from fedaudit.formatting.wording import (
    format_count,
    format_number,
    format_percent,
    join_and,
    with_full_stop,
)
from fedaudit.report.evidence import group_by
from fedaudit.results.answer import AnswerFields, AttackAnswer, RunAnswer, SourceAnswer

_WIDTH = 80
_MAX_CLIENTS = 3
_NONMEMBERS = {
    "unseen": "held-out samples",
    "other_client": "samples of other clients",
}
_NONMEMBER_PEOPLE = {"unseen": "held-out people", "other_client": "people of other clients"}
_COLUMN_WIDTHS = (30, 10, 12, 16)


def answer_lines(answer: AnswerFields) -> list[str]:
    """Return an answer in lines of at most 80 characters."""
    lines = [line for text in answer_summary(answer) for line in _paragraph(text)]
    for run in answer.runs:
        lines += ["", *_paragraph(_heading(answer, run)), *_table(answer, run)]
    texts = [*_explanations(answer), *_sources(answer.sources)]
    lines += ["", *(line for text in texts for line in _paragraph(text))]
    return lines + [
        line for text in answer.caveats for line in _paragraph(f"! {with_full_stop(text)}")
    ]


def _paragraph(text: str) -> list[str]:
    return wrap(text, _WIDTH, subsequent_indent="  ")


def _nonmembers(answer: AnswerFields) -> str:
    names = _NONMEMBERS if answer.unit == "sample" else _NONMEMBER_PEOPLE
    return names[answer.contrast]


def answer_summary(answer: AnswerFields) -> Iterator[str]:
    """Yield the question, its answer, and what the answer means."""
    yield (
        f"Did {answer.client} train on {answer.unit} {answer.number} (row {answer.row})? Result: "
        f"{shorten(answer.record, 60)}, {format_count(len(answer.runs), 'run')}."
    )
    rate = _rate(answer.false_alarm_rate)
    attacks = format_count(len({a.attack for run in answer.runs for a in run.attacks}), "attack")
    basis = f"by {attacks} in {format_count(len(answer.runs), 'run')} together: p = "
    basis += f"{_p_value(answer.p_value)}, at a false-alarm rate of {rate}."
    if answer.flagged is None:
        needed = ceil(len(answer.runs) / answer.false_alarm_rate) - 1
        available = max(run.nonmembers for run in answer.runs)
        yield (
            f"UNDECIDED: with {available} {_nonmembers(answer)}, no score could be flagged at a "
            f"false-alarm rate of {rate}; at least {needed} are needed."
        )
    elif answer.flagged:
        yield f"FLAGGED {basis}"
        yield (
            "A flag is evidence that the models reveal membership to this adversary. It is not "
            f"proof: up to {rate} of {_nonmembers(answer)} are flagged as well."
        )
    else:
        yield f"NOT FLAGGED {basis}"
        flagged = [f"{run.members_flagged} of {run.members}" for run in answer.runs]
        yield (
            f"This is no proof of non-membership: the attacks flag {join_and(flagged)} other "
            "audited members."
        )


def _rate(fraction: float) -> str:
    return f"{100 * fraction:.6g}%"


def _p_value(value: float) -> str:
    return f"{value:.1g}" if value < 0.001 else format_number(value)


_ORIGINS = {
    "member": "this client trained on it",
    "other_client": "another client trained on it",
    "unseen": "no client trained on it",
}


def _heading(answer: AnswerFields, run: RunAnswer) -> str:
    return (
        f"Seed {run.seed}, {run.nonmembers:,} {_nonmembers(answer)} to compare with: p = "
        f"{_p_value(run.p_value)}. True origin: {_ORIGINS[run.origin]}."
    )


def _table(answer: AnswerFields, run: RunAnswer) -> Iterator[str]:
    others_column = ["others"] if _has_others(answer, run) else []
    yield _row(["attack", "above", "p-value", "posterior", *others_column])
    for attack in run.attacks:
        cells = [
            shorten(attack.attack, _COLUMN_WIDTHS[0] - 2),
            format_percent(attack.above_nonmembers, rounding="down"),
            _p_value(attack.p_value) + " *" * (attack.flagged is True),
            # The lower limit has no per cent sign.
            f"{format_percent(attack.chance_low, rounding='down')[:-1]}–"
            f"{format_percent(attack.chance_high, rounding='up')}",
        ]
        yield _row([*cells, *(f"{attack.others_as_high} of {run.others}" for _ in others_column)])
    for name, reason in run.withdrawn.items():
        yield from _paragraph(f"✗ {shorten(name, 60)}: not used, because {reason}.")


def _has_others(answer: AnswerFields, run: RunAnswer) -> bool:
    return answer.contrast == "unseen" and run.others > 0


def _row(cells: Sequence[str]) -> str:
    columns = "".join(
        f"{cell:<{width}}" for cell, width in zip(cells, _COLUMN_WIDTHS, strict=False)
    )
    return (columns + "".join(cells[len(_COLUMN_WIDTHS) :])).rstrip()


def _explanations(answer: AnswerFields) -> Iterator[str]:
    """Yield explanations of the table's columns."""
    agreements = [_agreement(run.attacks, run.seed) for run in answer.runs]
    yield f"Agreement: flagged individually (*) by {join_and(agreements)}."
    yield f"Above: percentage of {_nonmembers(answer)} with a lower score."
    assumed = " (assumed)" if answer.prior_is_assumed else ""
    yield (
        f"Chance: 95% range of the probability that {with_article(answer.unit)} with this score "
        f"or a higher one is a member, for a prior probability of {_rate(answer.prior)}{assumed}."
    )
    if any(_has_others(answer, run) for run in answer.runs):
        others = [f"{run.others_flagged} of {run.others}" for run in answer.runs]
        yield (
            "Others: members of other clients that score at least as high. The attacks together "
            f"flag {join_and(others)} of these members. If these are many, a flag may mean that "
            "another client trained on it."
        )


def _agreement(attacks: Sequence[AttackAnswer], seed: int) -> str:
    return f"{sum(a.flagged is True for a in attacks)} of {len(attacks)} attacks in seed {seed}"


def _sources(sources: Sequence[SourceAnswer]) -> Iterator[str]:
    """Yield posteriors over clients, assuming that one of the clients trained on the sample."""
    for seed, seed_sources in group_by(sources, lambda source: source.seed).items():
        text = f"Which client, if one trained on it (seed {seed})"
        first = seed_sources[0]
        if first.by_labels:
            labels = _ranked(first.clients, first.by_labels)
            text += f". By label distributions only: {labels}"
        yield with_full_stop(text)
        for source in seed_sources:
            line = f"- {shorten(source.attack, 60)}: {_ranked(source.clients, source.posterior)}"
            if source.with_labels:
                line += f"; with label distributions: {_ranked(source.clients, source.with_labels)}"
            yield with_full_stop(line)


def _ranked(clients: Sequence[str], probabilities: Sequence[float]) -> str:
    order = sorted(range(len(clients)), key=lambda index: -probabilities[index])
    texts = [
        f"{clients[index]} {format_percent(probabilities[index])}" for index in order[:_MAX_CLIENTS]
    ]
    return ", ".join(texts) + " …" * (len(order) > _MAX_CLIENTS)
