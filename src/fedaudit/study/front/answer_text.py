"""Sentences of an answer about one sample or person."""

from collections.abc import Iterator, Sequence
from math import ceil
from textwrap import wrap

from fedaudit.report.evidence import grouped
from fedaudit.report.grid import shortened
from fedaudit.report.wording import join_and, number, percent, plural, sentence
from fedaudit.results.answer import AnswerFields, AttackAnswer, RunAnswer, SourceAnswer

_WIDTH = 80
_MOST_CLIENTS = 3
_NONMEMBERS = {
    "unseen": "held-out samples",
    "other_client": "samples of other clients",
}
_NONMEMBER_PEOPLE = {"unseen": "held-out people", "other_client": "people of other clients"}
_COLUMNS = (30, 10, 12, 16)


def answer_lines(answer: AnswerFields) -> list[str]:
    """Return an answer in lines of at most 80 characters.

    Args:
        answer: The answer.
    """
    lines = [line for text in _summary(answer) for line in _paragraph(text)]
    for run in answer.runs:
        lines += ["", *_paragraph(_heading(answer, run)), *_table(answer, run)]
    texts = [*_reading(answer), *_sources(answer.sources)]
    lines += ["", *(line for text in texts for line in _paragraph(text))]
    return lines + [line for text in answer.caveats for line in _paragraph(f"! {sentence(text)}")]


def _paragraph(text: str) -> list[str]:
    return wrap(text, _WIDTH, subsequent_indent="  ")


def _nonmembers(answer: AnswerFields) -> str:
    names = _NONMEMBERS if answer.unit == "sample" else _NONMEMBER_PEOPLE
    return names[answer.contrast]


def _summary(answer: AnswerFields) -> Iterator[str]:
    yield (
        f"Did {answer.client} train on {answer.unit} {answer.number} (row {answer.row})? Result: "
        f"{shortened(answer.record, 60)}, {plural(len(answer.runs), 'run')}."
    )
    rate = _rate(answer.false_alarm_rate)
    attacks = plural(len({a.attack for run in answer.runs for a in run.attacks}), "attack")
    by = f"by {attacks} in {plural(len(answer.runs), 'run')} together: p = "
    by += f"{_p_value(answer.p_value)}, at a false-alarm rate of {rate}."
    if answer.flagged is None:
        enough = ceil(len(answer.runs) / answer.false_alarm_rate) - 1
        most = max(run.nonmembers for run in answer.runs)
        yield (
            f"UNDECIDED: with only {most} {_nonmembers(answer)}, no score can be flagged at a "
            f"false-alarm rate of {rate}; at least {enough} are needed."
        )
    elif answer.flagged:
        yield f"FLAGGED {by}"
        yield (
            "A flag is evidence that the models would betray membership to this adversary. It is "
            f"not proof: up to {rate} of {_nonmembers(answer)} are flagged as well."
        )
    else:
        yield f"NOT FLAGGED {by}"
        flagged = [f"{run.members_flagged} of {run.members}" for run in answer.runs]
        yield (
            f"No flag is not proof of absence: the attacks flag {join_and(flagged)} other "
            "audited members."
        )


def _rate(share: float) -> str:
    return f"{100 * share:.6g}%"


def _p_value(value: float) -> str:
    return f"{value:.1g}" if value < 0.001 else number(value)


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
    others = ["others"] if _has_others(answer, run) else []
    yield _row(["attack", "above", "p-value", "chance", *others])
    for attack in run.attacks:
        cells = [
            shortened(attack.attack, _COLUMNS[0] - 2),
            percent(attack.above_nonmembers, -1),
            _p_value(attack.p_value) + " *" * (attack.flagged is True),
            f"{percent(attack.chance_low, -1)[:-1]}–{percent(attack.chance_high, 1)}",
        ]
        yield _row([*cells, *(f"{attack.others_as_high} of {run.others}" for _ in others)])
    for name, reason in run.withdrawn.items():
        yield from _paragraph(f"✗ {shortened(name, 60)}: not relied on, because {reason}.")


def _has_others(answer: AnswerFields, run: RunAnswer) -> bool:
    return answer.contrast == "unseen" and run.others > 0


def _row(cells: Sequence[str]) -> str:
    fixed = "".join(f"{cell:<{width}}" for cell, width in zip(cells, _COLUMNS, strict=False))
    return (fixed + "".join(cells[len(_COLUMNS) :])).rstrip()


def _reading(answer: AnswerFields) -> Iterator[str]:
    """Yield how to read the table."""
    each = [_agreement(run.attacks, run.seed) for run in answer.runs]
    yield f"Agreement: flagged alone (*) by {join_and(each)}."
    yield f"Above: share of {_nonmembers(answer)} with a lower score."
    assumed = ", which is assumed" if answer.prior_is_assumed else ""
    yield (
        f"Chance: 95% range of the probability that one who scores at least as high is a member, "
        f"at a prior of {_rate(answer.prior)}{assumed}."
    )
    if any(_has_others(answer, run) for run in answer.runs):
        others = [f"{run.others_flagged} of {run.others}" for run in answer.runs]
        yield (
            "Others: members of other clients that score at least as high. The attacks together "
            f"flag {join_and(others)} of them. If they are many, a flag may mean that another "
            "client trained on it."
        )


def _agreement(attacks: Sequence[AttackAnswer], seed: int) -> str:
    return f"{sum(a.flagged is True for a in attacks)} of {len(attacks)} attacks in seed {seed}"


def _sources(sources: Sequence[SourceAnswer]) -> Iterator[str]:
    """Yield the posteriors over clients, which suppose that one of them trained on the sample."""
    for seed, same in grouped(sources, lambda source: source.seed).items():
        text = f"Which client, if one trained on it (seed {seed})"
        first = same[0]
        if first.by_labels:
            labels = _ranked(first.clients, first.by_labels)
            text += f". By label distributions alone: {labels}"
        yield sentence(text)
        for source in same:
            line = f"- {shortened(source.attack, 60)}: {_ranked(source.clients, source.posterior)}"
            if source.with_labels:
                line += f"; with label distributions: {_ranked(source.clients, source.with_labels)}"
            yield sentence(line)


def _ranked(clients: Sequence[str], shares: Sequence[float]) -> str:
    order = sorted(range(len(clients)), key=lambda place: -shares[place])
    named = [f"{clients[place]} {percent(shares[place])}" for place in order[:_MOST_CLIENTS]]
    return ", ".join(named) + " …" * (len(order) > _MOST_CLIENTS)
