"""What a report calls points that were played in real rounds: by what hides the neuron."""

from collections.abc import Sequence

from fedaudit.report.grid import shortened
from fedaudit.report.reading import InRounds, PointPlayed
from fedaudit.report.words import count, plural

NO_DEFENSE = "none"
IN_ROUNDS = "in rounds"

_SHORT = {"noise_multiplier": "noise"}
_OTHERS = {
    "honest": "others honest",
    "planted": "all sent the neuron",
    "dead": "others’ neuron dead",
}


def defended(rounds: InRounds) -> bool:
    """Whether anything stands between a client's gradient and the server."""
    return rounds.defense != NO_DEFENSE or rounds.clients > 1


def defense_words(rounds: InRounds) -> str:
    """The defense with its settings: "dp-sgd, clip 1, noise 0.5"."""
    if rounds.defense == NO_DEFENSE:
        return "no defense"
    options = [
        f"{shortened(_SHORT.get(name, name), 30)} {_trimmed(value)}"
        for name, value in rounds.options.items()
    ]
    return ", ".join([shortened(rounds.defense), *options])


def plan_words(rounds: InRounds) -> str:
    """What the server does beside averaging: copies, louder neurons, sums."""
    parts = []
    if rounds.neurons > 1:
        parts.append(plural(rounds.neurons, "neuron"))
    if rounds.louder != 1:
        parts.append("louder")
    if rounds.clients > 1:
        parts.append(f"sum of {count(rounds.clients)}, {_OTHERS[rounds.others]}")
    return ", ".join(parts)


def round_family(point: PointPlayed, rounds: InRounds, points: Sequence[PointPlayed]) -> str:
    """The points that differ from it only in how many rounds are averaged, by name."""
    mixed = any(one.rounds is None for one in points)
    parts = [IN_ROUNDS * mixed, defense_words(rounds), plan_words(rounds)]
    # A study's own batch goes without saying.
    if point.batch != next(one.batch for one in points if one.rounds):
        parts.append(f"batch {count(point.batch)}")
    return ", ".join(part for part in parts if part)


def rounds_words(rounds: InRounds) -> str:
    """How many rounds were averaged."""
    return plural(rounds.averaged, "round")


def _trimmed(value: str) -> str:
    return shortened(value.removesuffix(".0"), 30)
