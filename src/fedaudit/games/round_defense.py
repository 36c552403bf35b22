"""The defense of clients in games that are played in real rounds."""

from inspect import signature

from fedaudit.defenses.base import Defense
from fedaudit.defenses.catalog import defense_named, made
from fedaudit.defenses.ldp.mechanism import LocalDP
from fedaudit.errors import BadInput
from fedaudit.games.settings import RoundsSection
from fedaudit.study.options import check_options


def defense_of(section: RoundsSection) -> Defense:
    """One client's own instance of the defense that a study names.

    Raises:
        BadInput: There is none of that name, its settings are wrong, or it is of another kind.
    """
    name = section.defense
    make = defense_named(name)
    if isinstance(make, type) and issubclass(make, LocalDP):
        raise BadInput(
            f"{name!r} perturbs records before training, which neurons are to be trained for; "
            'name it as mechanism.name, with rounds.play = "signs"'
        )
    if "coalition" in signature(make).parameters:
        raise BadInput(
            f"{name!r} is for clients that act together, and the server asks one; name another "
            "defense for games in rounds"
        )
    check_options("defense", name, make, section.options, section="rounds")
    return made(name, section.options, coalition=())
