"""Security games in Python, and their conversion to studies of games."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

from torch import Tensor

from fedaudit.api.federation import (
    AuditPlan,
    DataLike,
    DefenseLike,
    section_settings,
    whole_numbers,
)
from fedaudit.api.references import (
    Register,
    check_data,
    check_mechanism,
    check_part,
    data_reference,
    mechanism_reference,
    reference,
    registering,
)
from fedaudit.core.arguments import Count, dataclass, raise_if_invalid
from fedaudit.core.errors import BadInput, called_by
from fedaudit.core.importing import RegisteredObject
from fedaudit.core.values import short_repr
from fedaudit.plan.file import points_of
from fedaudit.plan.games import DetectorSection as Detector
from fedaudit.plan.games import GameSection as Game
from fedaudit.plan.games import GameStudy
from fedaudit.plan.games import NeuronSection as Neuron
from fedaudit.plan.games import RoundsSection as Rounds

Grid: TypeAlias = Mapping[str, Sequence[object]]
"""Lists of values by dotted name of the setting."""


@short_repr
@dataclass(frozen=True, eq=False)
class Games:
    """Security games (AMI): a server plants a neuron to detect whether a sample is in a batch.

    Attributes:
        data: Data set, as in :class:`fedaudit.Federation`.
        features: Name of a feature extractor, such as "pixels", or a function from samples to rows
            of features.
        mechanism: Defense that clients apply to their samples: a name, or an object of
            :mod:`fedaudit.defenses`, such as ``BitRandPublished(nominal_epsilon=8.0)``.
        defense: Defense that clients apply to their gradients: a name, or an object of
            :mod:`fedaudit.defenses`. Games are then played in rounds.
        clients: Number of samples from which batches and targets are drawn; 0 for half of the
            training part.
        servers: Number of other samples that the server knows; 0 for all remaining samples.
        classes: Classes to keep, which are renumbered in this order; all if empty.
        game: Rules of games, such as numbers of games and targets: ``fedaudit.Game``.
        neuron: Training of neurons: ``fedaudit.Neuron``.
        rounds: Games in rounds of training: ``fedaudit.Rounds``. If this and ``defense`` are left
            out, the server reads the sign of the neuron's value.
        detector: A client that tries to detect planted models: ``fedaudit.Detector``.
        variants: Variants by name. Each is a dictionary of changes of ``features``, ``mechanism``
            or ``defense``, or of settings by dotted name ("game.batch").
        grid: Lists of values by dotted name; every combination is a variant. A list of such
            dictionaries is a list of grids.

    Raises:
        BadInput: A part is of another type, out of range, or a name that does not exist.

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

    @called_by("objects")
    def __post_init__(self) -> None:
        check_data(self.data)
        check_part("extractor", self.features)
        check_mechanism(self.mechanism)
        if self.defense is not None:
            check_mechanism(self.defense)
        for name in ("clients", "servers"):
            raise_if_invalid(f"{name} of Games", getattr(self, name), Count, 0)
        classes = whole_numbers("classes of Games", self.classes)
        raise_if_invalid("classes of Games", classes, Sequence[Count], ())
        self._sections()
        raise_if_invalid("variants of Games", self.variants, Mapping, {})
        for name, changes in self.variants.items():
            raise_if_invalid(f"variant {name!r} of Games", changes, Mapping)
        raise_if_invalid(
            "grid of Games", self.grid, Mapping | Sequence[Mapping[str, object]] | None
        )

    def _sections(self) -> dict[str, dict[str, object]]:
        return section_settings(
            game=self.game, neuron=self.neuron, rounds=self.rounds, detector=self.detector
        )


def plan_of_games(
    games: Games, *, seeds: int | Sequence[int] = (1,), name: str, about: str = ""
) -> AuditPlan[GameStudy]:
    """Return the study of security games; see :func:`fedaudit.audit` for the arguments.

    Raises:
        BadInput: A setting does not exist, or there are several seeds.
    """
    objects: dict[str, RegisteredObject] = {}
    register = registering(objects)
    seed = whole_numbers("seeds", seeds)
    if len(seed) != 1:
        raise BadInput(f"games have one seed, got {seed}; call audit for each seed")
    data, folder = data_reference(games.data)
    sections = games._sections()
    rounds = sections.pop("rounds", {})
    values: dict[str, object] = {
        "name": name,
        "about": about,
        "seed": seed[0],
        "data": {**register(data), "classes": whole_numbers("classes", games.classes)},
        "samples": {
            "features": register(reference("extractor", games.features))["name"],
            "clients": games.clients,
            "servers": games.servers,
        },
        "mechanism": register(mechanism_reference(games.mechanism)),
        **sections,
    }
    if games.defense is not None:
        part = register(mechanism_reference(games.defense))
        rounds |= {"defense": part["name"], "options": part["options"]}
    if rounds:
        values["rounds"] = {"play": "rounds", **rounds}
    values["variants"] = {
        label: _variant_settings(changes, register, values)
        for label, changes in games.variants.items()
    }
    if games.grid is not None:
        values["grid"] = games.grid
    points = points_of(values, GameStudy, "the games")
    return AuditPlan(points[0].study, objects, folder, points)


def _variant_settings(
    changes: Mapping[str, object], register: Register, values: Mapping[str, object]
) -> dict[str, object]:
    """Return the changes of a variant as settings by dotted name.

    If a part is changed, its new options replace all of its old options.
    """
    settings: dict[str, object] = {}
    for name, value in changes.items():
        if name == "features":
            settings["samples.features"] = register(reference("extractor", value))["name"]
        elif name in ("mechanism", "defense"):
            part, is_mechanism = register(mechanism_reference(value)), name == "mechanism"
            section, key = ("mechanism", "name") if is_mechanism else ("rounds", "defense")
            old_settings, options = values.get(section), part["options"]
            assert isinstance(options, dict)
            if not (is_mechanism or old_settings):
                settings["rounds.play"] = "rounds"
            settings[f"{section}.{key}"] = part["name"]
            if isinstance(old_settings, dict) and old_settings.get("options"):
                settings[f"{section}.options"] = options
            else:
                settings |= {f"{section}.options.{key}": option for key, option in options.items()}
        else:
            settings[name] = value
    return settings
