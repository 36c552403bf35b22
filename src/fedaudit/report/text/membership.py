"""Sentences on membership inference: headlines, upper limits, and what a verdict means."""

from collections.abc import Callable, Mapping

from fedaudit.core.metric_names import AUC
from fedaudit.report import evidence, words
from fedaudit.report.deciding.clients import are_several, largest_limits
from fedaudit.report.grid import shortened
from fedaudit.report.verdict import (
    WRONG_SIGN,
    range_headline,
    reveals_owner,
    unit_of,
    wrong_sign,
)
from fedaudit.results.estimate import Estimate
from fedaudit.results.guessing import above_chance
from fedaudit.results.record import Record


def _leaks(members: str, others: str) -> dict[evidence.Status, str]:
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
HEADLINES_OF_UNITS: Mapping[str, Mapping[evidence.Status, str]] = {
    "person": _leaks("people whose data were trained on", "others"),
    "canary sample": _leaks("canary samples", "others"),
}
"""Headlines where members are people, each with all of their samples, or planted samples."""
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
    "A model that has barely learned its training data leaks little. That is not a sign of safety, "
    "and shows neither that an attack fails nor that a defense works."
)

MEANINGS: Mapping[evidence.Status, str] = {
    "void": "The non-members were drawn separately for every round and client, as the published "
    "code does. That alone produces high figures, so nothing here describes the model. Run the "
    "study with aligned evaluation.",
    "control failed": "The figures may measure something other than their name says, or the "
    "attacks "
    "may not work here. Find the cause before anything is decided on these figures.",
    "strong leak": "An adversary with this view learns which samples, and so whose data, took part "
    "in the training. Treat membership as disclosed to it unless a defense lowers this.",
    "clear leak": "An adversary with this view guesses clearly better than chance which samples, "
    "and so whose data, took part. Do not rely on membership staying hidden from it.",
    "weak leak": "Most single guesses about membership would be wrong, but they are better than "
    "chance, and a few samples may stand out. Do not promise that membership stays hidden.",
    "trace of a leak": "On average, a guess about a sample is only slightly better than chance. It "
    "is a leak all the same: do not promise that membership stays hidden.",
    "inconclusive": "The intervals are too wide, or too many figures were refused, to tell a leak "
    "from none. That is not a sign of safety. More audited samples narrow them.",
    "no leak shown": "These attacks do not distinguish members here.",
}
NOBODY = (
    "Nobody is a member here: half of the unseen samples were called members. A sound evaluation "
    "finds an AUC of 0.5."
)
CANARIES = (
    "Members here are canary samples, made to be memorised: they bound what training can leak of "
    "any one sample, and are not people. What ordinary samples leak takes an audit of these."
)

ALARMS = {"tpr@0.001": "1,000", "tpr@0.01": "100"}
"""Rates that are told as members of a thousand, and how many non-members a false alarm is in."""


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
    """Return how many of a thousand members a share is."""
    return words.count(round(1000 * min(max(share, 0.0), 1.0)))


def member_meaning(record: Record, status: evidence.Status, figures: list[Estimate]) -> str:
    """Return what follows from the verdict, and what does not.

    Args:
        record: The record.
        status: The verdict on membership.
        figures: Those of its headline.
    """
    if status == "void" and record.nobody_is_a_member:
        return NOBODY
    leaks = status in evidence.LEAKS.values()
    meant = MEANINGS[status]
    if not reveals_owner(record):
        meant = meant.replace(", and so whose data,", "")
    if record.unit == "person":
        meant = meant.replace("which samples, and so whose data,", "whose data")
        meant = meant.replace("which samples", "whose data").replace("samples", "people")
        meant = meant.replace("a sample", "a person")
    if unit_of(record) == "canary sample" and leaks:
        meant = CANARIES
    if status == "trace of a leak" and range_headline(figures):
        meant = (
            "These samples do not show how much better than chance a guess is: the leak may be a "
            "trace or large. More non-members narrow it."
        )
    if status == "inconclusive" and wrong_sign(figures):
        meant = f"{words.capital(WRONG_SIGN)}. Check the score's sign before anything is concluded."
    parts = [meant]
    if leaks:
        parts += [_affected(figures), _may_be_larger(figures)]
    if status == "no leak shown":
        parts += [_power(record), _hidden(figures)]
    return " ".join(part for part in parts if part)


def _affected(figures: list[Estimate]) -> str:
    affected = evidence.distinct(words.defense_name(f.defense) for f in figures if above_chance(f))
    every = evidence.distinct(words.defense_name(f.defense) for f in figures)
    if len(every) < 2:
        return ""
    spared = [shortened(name, 60) for name in every if name not in affected]
    with_ = words.listed([shortened(name, 60) for name in affected])
    return f"Found with {with_}" + (f", not found with {words.listed(spared)}." if spared else ".")


def _may_be_larger(figures: list[Estimate]) -> str:
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
    """Return the leaks that "no leak shown" does not rule out."""
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
