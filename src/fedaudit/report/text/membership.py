"""Sentences about membership inference: the verdict, and findings by kind of non-member."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from fedaudit.core.metric_names import AUC, rate_of
from fedaudit.report import evidence, words
from fedaudit.report.deciding.clients import are_several, highest_auc, largest_limits
from fedaudit.report.grid import shortened
from fedaudit.report.verdict import (
    WRONG_SIGN,
    range_headline,
    reveals_owner,
    unit_of,
    wrong_sign,
)
from fedaudit.results.doubts import NOT_RELIED_ON, relied_on
from fedaudit.results.estimate import Estimate
from fedaudit.results.guessing import above_chance, by_interval_alone, by_test_alone
from fedaudit.results.record import Record


def _leaks(members: str, others: str) -> dict[evidence.Status, str]:
    """Return the headlines of a leak, from the largest to the smallest."""
    told = f"{members} can be distinguished from {others}"
    return {
        "strong leak": f"Strong leakage: {told}",
        "clear leak": f"Clear leakage: {told} clearly better than by guessing",
        "weak leak": f"Weak leakage: {told} somewhat better than by guessing",
        "trace of a leak": f"A trace of leakage: {told} slightly better than by guessing",
    }


HEADLINES: Mapping[evidence.Status, str] = {
    "void": "These figures say nothing about leakage",
    "control failed": "A control failed: do not rely on the figures that it is about",
    **_leaks("members", "non-members"),
    "inconclusive": "Inconclusive: this audit is too small to say",
    "no leak shown": "No leak shown by the attacks that were run",
}

PEOPLE_HEADLINES: Mapping[evidence.Status, str] = _leaks(
    "people whose data were trained on", "others"
)
"""Headlines where the audit was about people, each with all of their samples."""

CANARY_HEADLINES: Mapping[evidence.Status, str] = _leaks("canary samples", "others")
"""Headlines where the members are canary samples, which nobody's data are."""

CANARY_MEANINGS: Mapping[evidence.Status, str] = dict.fromkeys(
    evidence.LEAKS.values(),
    "Members here are canary samples, made to be memorised: they bound what training can leak of "
    "any one sample, and are not people. What ordinary samples leak takes an audit of these.",
)

BESIDE_OTHERS: Mapping[evidence.Status, str] = {
    "inconclusive": "Inconclusive about membership: this audit is too small to say",
    "no leak shown": "No leak of membership shown by the attacks that were run",
}
"""Headlines that would seem to speak of sources or clusters too, where a record has these."""

UNLEARNED: Mapping[evidence.Status, str] = {
    "inconclusive": "Inconclusive: the model has hardly learned the training data of all clients "
    "together, so that figures near guessing show nothing",
}
"""Headlines where the training accuracy is near guessing."""

HARDLY_LEARNED = (
    "A model that has hardly learned its training data gives little away, though a single client "
    "that trained for longer may. That is not a sign of safety, and shows neither that an attack "
    "fails nor that a defense works."
)
"""Meaning of an inconclusive verdict there."""

MEANINGS: Mapping[evidence.Status, str] = {
    "void": "The non-members were drawn anew for every round and client, as the published code "
    "does. That alone produces high figures where nothing leaks, so nothing here describes the "
    "model. Run the study with aligned evaluation.",
    "control failed": "A failed control means that the figures may measure something other than "
    "what they are called, or that the attacks do not work here. Find the cause and run the audit "
    "again before anything is decided on these figures.",
    "strong leak": "Somebody with this view can learn which samples, and so whose data, took part "
    "in the training. Treat membership as disclosed to that adversary unless a defense brings it "
    "down.",
    "clear leak": "Somebody with this view guesses which samples, and so whose data, took part in "
    "the training clearly better than chance, and may name some with confidence. Do not rely on "
    "membership staying hidden from that adversary unless a defense brings this down.",
    "weak leak": "Most single guesses about who took part would still be wrong, but they are "
    "better than chance, and a few samples may stand out. Whether that can be borne depends on "
    "the data; it is no ground for promising that membership stays hidden.",
    "trace of a leak": "On average, a guess about a sample is only slightly better than chance. It "
    "is a real leak all the same, and no ground for promising that membership stays hidden.",
    "inconclusive": "The intervals are too wide, or too many figures had to be refused, to tell a "
    "leak from none. That is not a sign of safety. More audited samples narrow them.",
    "no leak shown": "These attacks do not tell members apart here.",
}

NOBODY = (
    "Nobody is a member here: half of the unseen samples were called members, to show what this "
    "evaluation finds where there is nothing to find. A sound evaluation finds an AUC of 0.5."
)


ALARMS = {"tpr@0.001": "1,000", "tpr@0.01": "100"}
"""Rates that are told as members of a thousand, and how many non-members a false alarm is in."""


class Sentence(NamedTuple):
    """Whom members were told from, and what was found."""

    against: str
    found: str


class Bullet(NamedTuple):
    """Findings under one setting: a heading and a sentence or two for each contrast."""

    label: str
    sentences: tuple[Sentence, ...]


def bullets(figures: list[Estimate]) -> tuple[Bullet, ...]:
    """One bullet for each defense and view; clients and seeds are named where they matter."""
    whole = evidence.distinct(
        setting._replace(target=None, seed=None) for setting in evidence.settings_of(figures)
    )
    of = evidence.grouped(figures, lambda figure: (figure.defense, figure.view))
    return tuple(
        Bullet(
            _title(label),
            tuple(_contrast(*found) for found in evidence.by_contrast(of[setting[:2]]).items()),
        )
        for setting, label in zip(whole, evidence.differing(whole), strict=True)
    )


def against_single_samples(record: Record) -> tuple[Bullet, ...]:
    """AUCs of the samples of people one by one, beside those of people; empty without people.

    By the attack that tells people best.
    """
    singles = {
        (f.attack, *evidence.setting_of(f), f.contrast): f for f in evidence.single_samples(record)
    }
    people = [figure for figure in evidence.headline(record) if figure.metric == AUC]
    sentences = []
    for contrast, figures in evidence.by_contrast(people).items():
        best = evidence.strongest(figures, AUC)
        if best is None:
            continue
        single = singles.get((best.attack, *evidence.setting_of(best), contrast))
        if single is None or single.value is None:
            continue
        sentences.append(
            Sentence(
                f"Against {words.contrast_meaning(contrast)}",
                f"{shortened(best.attack, 60)} has an AUC of {words.with_interval(single)} on "
                f"their samples one by one, and of {words.with_interval(best)} on people.",
            )
        )
    return (Bullet("People and their single samples", tuple(sentences)),) if sentences else ()


def upper_bounds(figures: list[Estimate]) -> str:
    """Return the largest upper confidence limits in words; empty without any.

    With several clients each limit names whose it is, pooled clients first.
    """
    parts = [f"an AUC {said}" for said in _limit(figures, AUC, words.number)]
    for metric, alarms in reversed(ALARMS.items()):
        long = not any("one in" in part or "one false alarm" in part for part in parts)
        price = f" at one in {alarms}"
        if long:
            price = f" of 1,000 members identified at one false alarm in {alarms} non-members"
        parts += _limit(figures, metric, of_thousand, price)
    return words.listed(parts)


def _limit(
    figures: list[Estimate], metric: str, shown: Callable[[float], str], price: str = ""
) -> list[str]:
    """Return "up to 0.596 for pooled clients (0.774 for hospital-a)"; nothing without any."""
    limits = largest_limits(figures, metric)
    if not limits:
        return []
    if not are_several(figures):
        return [f"up to {shown(limits[0].value)}{price}"]
    first, *others = [(shown(limit.value), limit.name) for limit in limits]
    more = "".join(f" ({value} for {whose})" for value, whose in others)
    return [f"up to {first[0]}{price} for {first[1]}{more}"]


def of_thousand(share: float) -> str:
    """Number of of a thousand members a share is."""
    return words.count(round(1000 * min(max(share, 0.0), 1.0)))


def _title(label: str) -> str:
    """A setting as a heading; names of defenses keep their own capitals."""
    label = shortened(label, 120)
    own = ("no defense", "defense unknown", "view:", "client", "seed", "pooled", "over")
    if not label or label.startswith(own):
        return label[:1].upper() + label[1:]
    return f"With {label}"


def _contrast(contrast: str, figures: list[Estimate]) -> Sentence:
    """The strongest attack of a contrast, and what it means among 1,000 members.

    An attack is said to identify members only where that is above guessing; where none is, the
    sentence says how much upper confidence limits allow.
    """
    against = f"Against {words.contrast_meaning(contrast, figures[0].unit)}"
    if not any(figure.fair for figure in figures):
        against += f" ({words.NO_FAIR_DRAW})"
    trusted, taken = relied_on(figures), evidence.distinct(f.attack for f in figures if f.doubt)
    aside = _not_relied_on(taken) if taken else ""
    if not trusted:
        return Sentence(against, aside)
    figures = trusted
    above = [figure for figure in figures if above_chance(figure)]
    first = evidence.leading(figures)
    auc = next((figure for figure in first if figure.metric == AUC), None)
    best = auc or highest_auc(figures)
    if best is None and not above:
        return Sentence(against, "no attack gave a usable figure.")
    sentences = [_auc_sentence(best, figures)] if best else []
    if not above:
        sentences.append(_left_open(figures))
    elif first and first[0].metric != AUC:
        # The larger leak stands first, and what was found before what was not.
        sentences.insert(0, _identified(above, None))
    else:
        sentences.append(_identified(above, best) or _none_identified(figures))
    text = " ".join(words.capital(sentence) for sentence in (*sentences, aside) if sentence)
    return Sentence(against, text[:1].lower() + text[1:])


def _not_relied_on(attacks: list[str]) -> str:
    named = words.listed([shortened(name, 60) for name in attacks])
    return f"figures of {named} are {NOT_RELIED_ON}."


def _auc_sentence(best: Estimate, figures: list[Estimate]) -> str:
    name = f"{shortened(best.attack, 60)}{_where(best, figures)}"
    figure = f"AUC {words.with_interval(best)}"
    alone = labels_alone(best)
    if above_chance(best):
        size = evidence.size_words(best)
        word = f", {size}" if size else ""
        return f"the strongest attack is {name}, {figure}{word}{alone}."
    if any(above_chance(one) for one in figures):
        by_auc = f"by AUC, no attack is shown above guessing{_allowing(best)}"
        return f"{by_auc}: the highest is {name}, {figure}{alone}."
    none = f"no attack is shown above guessing{_allowing(best)}"
    return f"{none}; the highest is {name}, {figure}{alone}."


def labels_alone(figure: Estimate) -> str:
    """Return "; labels alone reach 0.500": the baseline of a score that sees no model."""
    if figure.labels_alone is None:
        return ""
    return f"; labels alone reach {words.number(figure.labels_alone)}"


def _allowing(best: Estimate) -> str:
    """Reason why a figure whose interval lies above 0.5 is still not called above guessing."""
    alone = by_interval_alone(best)
    return " once the number of figures tested is allowed for" if alone else ""


def _where(figure: Estimate, figures: list[Estimate]) -> str:
    """Client and seed of a figure, where there is more than one of them."""
    label = evidence.label_among(figure, figures)
    return f" ({label})" if label else ""


def _identified(above: list[Estimate], told: Estimate | None) -> str:
    """ "Of 1,000 members, N ..." at the rate that shows most of a leak."""
    best = evidence.rate_found(above)
    if best is None:
        return ""
    name = f"{shortened(best.attack, 60)}{_where(best, above)}"
    if told is not None and above_chance(told) and _is_same(told, best):
        name = "it"
    size = evidence.size_words(best)
    return (
        f"Of 1,000 members, {name} identifies {_with_limits(best)} at the price of one false "
        f"alarm in {ALARMS[best.metric]} "
        f"non-members{f', {size}' if size else ''}; guessing would find "
        f"{of_thousand(rate_of(best.metric) or 0)}."
    )


def _is_same(one: Estimate, other: Estimate) -> bool:
    return (one.attack, *evidence.setting_of(one)) == (other.attack, *evidence.setting_of(other))


def _none_identified(figures: list[Estimate]) -> str:
    """For a leak that the AUC shows and no rate at few false alarms."""
    left = upper_bounds([figure for figure in figures if figure.metric != AUC])
    if not left:
        return ""
    return (
        "At few false alarms, no attack is shown above guessing; upper confidence limits allow "
        f"{left}."
    )


def _left_open(figures: list[Estimate]) -> str:
    alone = sum(by_test_alone(figure) for figure in figures)
    marked = (
        f" The corrected test alone speaks for a leak in {words.count(alone)} of these figures "
        "(△), the intervals do not."
        if alone
        else ""
    )
    left = upper_bounds(figures)
    return (f"Upper confidence limits allow {left}." if left else "") + marked


def _with_limits(figure: Estimate) -> str:
    middle = of_thousand(figure.value or 0)
    level = words.level_of(figure.method)
    if figure.high is None:
        return f"about {middle}"
    if figure.low is None:
        named = f"{level} upper limit" if level else "at most"
        return f"{middle} ({named} {of_thousand(figure.high)})"
    named = f"{level} interval " if level else ""
    return f"{middle} ({named}{of_thousand(figure.low)} to {of_thousand(figure.high)})"


def member_meaning(record: Record, status: evidence.Status, figures: list[Estimate]) -> str:
    """Consequences of the verdict, and their limits.

    Args:
        record: The record.
        status: The verdict on membership.
        figures: Those of its headline.
    """
    if status == "void" and record.nobody_is_a_member:
        return NOBODY
    meant = MEANINGS[status]
    if unit_of(record) == "canary sample":
        meant = CANARY_MEANINGS.get(status, meant)
    if not reveals_owner(record):
        meant = meant.replace(", and so whose data,", "")
    if status == "trace of a leak" and range_headline(figures):
        meant = (
            "How much better than chance a guess is cannot be told from these samples: the leak "
            "may be a trace or large. More non-members narrow it."
        )
    if status == "inconclusive" and wrong_sign(figures):
        meant = f"{words.capital(WRONG_SIGN)}. Check the score's sign before anything is concluded."
    if record.unit == "person":
        meant = meant.replace("which samples, and so whose data,", "whose data").replace(
            "a few samples may", "a few people may"
        )
        meant = meant.replace("a single sample", "one person").replace(
            "samples narrow", "people narrow"
        )
    parts = [meant]
    if status in evidence.LEAKS.values():
        parts += [_affected(figures), _may_be_larger(figures)]
        parts.append("Attacks not tried here may find more.")
    if status == "no leak shown":
        parts += [_power(record), _hidden(figures)]
    return " ".join(part for part in parts if part)


def _affected(figures: list[Estimate]) -> str:
    """Under which defenses there is a leak; nothing with one or none, which is said before."""
    affected = evidence.distinct(words.defense_name(f.defense) for f in figures if above_chance(f))
    every = evidence.distinct(words.defense_name(f.defense) for f in figures)
    if len(every) < 2:
        return ""
    spared = [shortened(name, 60) for name in every if name not in affected]
    with_ = words.listed([shortened(name, 60) for name in affected])
    return f"Found with {with_}" + (f", not found with {words.listed(spared)}." if spared else ".")


def _may_be_larger(figures: list[Estimate]) -> str:
    """Largest size of the leak that the limits leave room for."""
    above = [figure for figure in figures if above_chance(figure)]
    highs = [evidence.size_reached(f.high, f.metric) for f in above if f.high is not None]
    least = evidence.largest([size for figure in above if (size := evidence.size_of(figure))])
    most = evidence.largest([size for size in highs if size])
    if least is None or most is None or most == least:
        return ""
    return f"The size is by the lower limits; the upper limits allow a {most} leak."


def _power(record: Record) -> str:
    if any(c.control == "planted leak" and c.passed for c in record.controls):
        return "They do find a leak that was planted on purpose, so they work."
    return "No leak was planted on purpose to show that they could find one."


def _hidden(figures: list[Estimate]) -> str:
    """Leaks that "no leak shown" does not rule out."""
    fewest = [f.value for f in figures if f.metric == "tpr@0.001"]
    unknown = (
        "Of members named at fewer false alarms than one in 100 this audit says nothing. "
        if not fewest or None in fewest
        else ""
    )
    return (
        f"What could still be hidden: {upper_bounds(figures)}. {unknown}"
        "This is a measurement, not a proof: a stronger attack may exist."
    )
