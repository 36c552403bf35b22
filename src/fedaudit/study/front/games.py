"""Security games of objects, and the study of games that says the same in names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from fedaudit.core.errors import BadInput
from fedaudit.core.importing import GivenObject
from fedaudit.core.values import short_repr
from fedaudit.plan.file import Point, points_of
from fedaudit.plan.games import (
    DetectorSection,
    GameSection,
    GameStudy,
    NeuronSection,
    RoundsSection,
)
from fedaudit.study.front.federation import DataGiven, DefenseGiven, numbers, sections
from fedaudit.study.front.spelling import (
    Register,
    data_spelled,
    extractor_spelled,
    mechanism_spelled,
    registering,
)


@short_repr
@dataclass(frozen=True, eq=False)
class Games:
    """Security games (AMI): a server plants a neuron and says whether a record is in a batch.

    Attributes:
        data: As of a :class:`fedaudit.Federation`.
        features: An extractor by name, or a function from samples to a row of features each.
        mechanism: What clients do to their records: a name, or what ``fedaudit.defenses`` makes,
            such as ``BitRandPublished(nominal_epsilon=8.0)``.
        defense: What clients do to their gradients, likewise; games are then played in rounds.
        clients: Records that batches and targets are drawn from; 0 for half of the training part.
        servers: Others of it that the server knows; 0 for all the rest.
        classes: Only samples of these are kept, and they are numbered in this order; all if empty.
        game: The rules: how many games, about how many targets, against batches of which size.
        neuron: Training of neurons.
        rounds: How games are played in rounds; by signs if this and ``defense`` are left out.
        detector: Of a client that looks for planted models.
        variants: Further points by name, each a dictionary of what differs: ``features``,
            ``mechanism`` or ``defense``, or a setting by its dotted name ("game.batch").
        grid: Lists of values by dotted name, every combination of which is a point.

    Examples:
        >>> import fedaudit as fa
        >>> games = fa.Games("digits", mechanism=fa.defenses.BitRandPublished(nominal_epsilon=5.0))
        >>> games.features
        'pixels'
    """

    data: DataGiven
    features: str | Callable[..., Tensor] = "pixels"
    mechanism: DefenseGiven = "none"
    defense: DefenseGiven | None = None
    clients: int = 0
    servers: int = 0
    classes: Sequence[int] = ()
    game: GameSection | None = None
    neuron: NeuronSection | None = None
    rounds: RoundsSection | None = None
    detector: DetectorSection | None = None
    variants: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    grid: Mapping[str, Sequence[object]] | Sequence[Mapping[str, Sequence[object]]] | None = None


class GamesPlan(NamedTuple):
    """The games that are played; see :class:`fedaudit.study.front.federation.AuditPlan`.

    Attributes:
        points: All settings, in names: of the study itself, and after it of each variant.
        objects: What those names stand for that no catalogue has.
        data_dir: Folder of the data set's file; None where nothing is said of it.
    """

    points: Sequence[Point[GameStudy]]
    objects: dict[str, GivenObject]
    data_dir: Path | None

    @property
    def study(self) -> GameStudy:
        """The study itself."""
        return self.points[0].study


def games_plan(games: Games, *, seeds: object, name: str, about: str = "") -> GamesPlan:
    """The study of games that says the same as objects do.

    Args:
        games: What is played.
        seeds: One, of every draw.
        name: Of the study.
        about: A sentence for the reader of its report.

    Raises:
        BadInput: A part that is none, or a setting that does not exist.
    """
    objects: dict[str, GivenObject] = {}
    register = registering(objects)
    seed = numbers("seeds", seeds)
    if len(seed) != 1:
        raise BadInput(f"games have one seed, of every draw, got {seed}; audit them once for each")
    data, folder = data_spelled(games.data)
    values: dict[str, object] = {
        "name": name,
        "about": about,
        "seed": seed[0],
        "data": {**register(data), "classes": numbers("classes", games.classes)},
        "records": {
            "features": register(extractor_spelled(games.features))["name"],
            "clients": games.clients,
            "servers": games.servers,
        },
        "mechanism": register(mechanism_spelled(games.mechanism)),
        **sections(
            game=(GameSection, games.game),
            neuron=(NeuronSection, games.neuron),
            detector=(DetectorSection, games.detector),
        ),
    }
    rounds = sections(rounds=(RoundsSection, games.rounds)).get("rounds", {})
    if games.defense is not None:
        part = register(mechanism_spelled(games.defense))
        rounds |= {"defense": part["name"], "options": part["options"]}
    if rounds:
        values["rounds"] = {"play": "rounds", **rounds}
    values["variants"] = {
        label: _changes(changes, register, values) if isinstance(changes, Mapping) else changes
        for label, changes in games.variants.items()
    }
    if games.grid is not None:
        values["grid"] = games.grid
    return GamesPlan(points_of(values, GameStudy, "the games"), objects, folder)


def _changes(
    given: Mapping[str, object], register: Register, values: Mapping[str, object]
) -> dict[str, object]:
    """Changes of a variant by dotted names; a part's options are all that it has."""
    found: dict[str, object] = {}
    for name, value in given.items():
        if name == "features":
            found["records.features"] = register(extractor_spelled(value))["name"]
        elif name in ("mechanism", "defense"):
            part, of_records = register(mechanism_spelled(value)), name == "mechanism"
            section, key = ("mechanism", "name") if of_records else ("rounds", "defense")
            before, options = values.get(section), part["options"]
            assert isinstance(options, dict)
            if not (of_records or before):
                found["rounds.play"] = "rounds"
            found[f"{section}.{key}"] = part["name"]
            if isinstance(before, dict) and before.get("options"):
                found[f"{section}.options"] = options
            else:
                found |= {f"{section}.options.{one}": set_to for one, set_to in options.items()}
        else:
            found[name] = value
    return found
