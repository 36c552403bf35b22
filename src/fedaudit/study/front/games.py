"""Security games of objects, and the study of games that says the same in names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor

from fedaudit.core.errors import BadInput
from fedaudit.core.importing import GivenObject
from fedaudit.core.values import short_repr
from fedaudit.plan.file import points_of
from fedaudit.plan.games import DetectorSection as Detector
from fedaudit.plan.games import GameSection as Game
from fedaudit.plan.games import GameStudy
from fedaudit.plan.games import NeuronSection as Neuron
from fedaudit.plan.games import RoundsSection as Rounds
from fedaudit.study.front.federation import AuditPlan, DataLike, DefenseLike, numbers, sections
from fedaudit.study.front.references import (
    Register,
    data_reference,
    mechanism_reference,
    reference,
    registering,
)

Grid: TypeAlias = Mapping[str, Sequence[object]]
"""Lists of values by dotted name."""


@short_repr
@dataclass(frozen=True, eq=False)
class Games:
    """Security games (AMI): a server plants a neuron and says whether a record is in a batch.

    Attributes:
        data: What a :class:`fedaudit.Federation` takes as ``data``.
        features: Name of an extractor, such as "pixels", or a function from samples to rows of
            features.
        mechanism: What clients do to their records: a name, or what :mod:`fedaudit.defenses`
            makes, such as ``BitRandPublished(nominal_epsilon=8.0)``.
        defense: What clients do to their gradients: a name, or what :mod:`fedaudit.defenses`
            makes. Games are then played in rounds.
        clients: Number of records that batches and targets are drawn from; 0 for half of the
            training part.
        servers: Number of other records that the server knows; 0 for all the rest.
        classes: Only samples of these classes are kept, and numbered in this order; all if empty.
        game: How many games, about how many targets, against which batches: ``fedaudit.Game``.
        neuron: Training of neurons: ``fedaudit.Neuron``.
        rounds: How games are played in rounds: ``fedaudit.Rounds``. Games are by signs if this and
            ``defense`` are left out.
        detector: A client that looks for planted models: ``fedaudit.Detector``.
        variants: Further points by name, each a dictionary of what differs: ``features``,
            ``mechanism`` or ``defense``, or a setting by its dotted name ("game.batch").
        grid: Lists of values by dotted name; every combination is a point. Several such
            dictionaries are several grids.

    Examples:
        >>> import fedaudit as fa
        >>> games = fa.Games("digits", mechanism=fa.defenses.BitRandPublished(nominal_epsilon=5.0))
        >>> games.features
        'pixels'
    """

    data: DataLike
    features: str | Callable[..., Tensor] = "pixels"
    mechanism: DefenseLike = "none"
    defense: DefenseLike | None = None
    clients: int = 0
    servers: int = 0
    classes: Sequence[int] = ()
    game: Game | None = None
    neuron: Neuron | None = None
    rounds: Rounds | None = None
    detector: Detector | None = None
    variants: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    grid: Grid | Sequence[Grid] | None = None


def games_plan(
    games: Games, *, seeds: int | Sequence[int] = (1,), name: str, about: str = ""
) -> AuditPlan[GameStudy]:
    """Return the study of games that says the same as objects do; see :func:`fedaudit.audit`.

    Raises:
        BadInput: An object that is no part, a setting that does not exist, or several seeds.
    """
    objects: dict[str, GivenObject] = {}
    register = registering(objects)
    seed = numbers("seeds", seeds)
    if len(seed) != 1:
        raise BadInput(f"games have one seed, of every draw, got {seed}; audit them once for each")
    data, folder = data_reference(games.data)
    values: dict[str, object] = {
        "name": name,
        "about": about,
        "seed": seed[0],
        "data": {**register(data), "classes": numbers("classes", games.classes)},
        "records": {
            "features": register(reference("extractor", games.features))["name"],
            "clients": games.clients,
            "servers": games.servers,
        },
        "mechanism": register(mechanism_reference(games.mechanism)),
        **sections(game=games.game, neuron=games.neuron, detector=games.detector),
    }
    rounds = sections(rounds=games.rounds).get("rounds", {})
    if games.defense is not None:
        part = register(mechanism_reference(games.defense))
        rounds |= {"defense": part["name"], "options": part["options"]}
    if rounds:
        values["rounds"] = {"play": "rounds", **rounds}
    values["variants"] = {
        label: _changes(changes, register, values) if isinstance(changes, Mapping) else changes
        for label, changes in games.variants.items()
    }
    if games.grid is not None:
        values["grid"] = games.grid
    points = points_of(values, GameStudy, "the games")
    return AuditPlan(points[0].study, objects, folder, points)


def _changes(
    given: Mapping[str, object], register: Register, values: Mapping[str, object]
) -> dict[str, object]:
    """Changes of a variant by dotted names; a part's options are all that it has."""
    found: dict[str, object] = {}
    for name, value in given.items():
        if name == "features":
            found["records.features"] = register(reference("extractor", value))["name"]
        elif name in ("mechanism", "defense"):
            part, of_records = register(mechanism_reference(value)), name == "mechanism"
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
