"""The ladder of adversaries: what each sees, as a deletion that runs before any signal."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from fedaudit.core import Sees
from fedaudit.errors import NotVisible, unknown_name
from fedaudit.observe.round import Round
from fedaudit.observe.transforms import between_globals, merged, only_after


@dataclass(frozen=True)
class View:
    """What an adversary sees of a run.

    Attributes:
        name: Catalogue name.
        offers: Knowledge that attacks can count on.
        description: The adversary in one plain sentence.
        of: Deletes from a stream of rounds whatever this adversary does not see.
    """

    name: str
    offers: Sees
    description: str
    of: Callable[[Iterable[Round]], Iterator[Round]]

    def refuse_unless_offered(self, needs: Sees, what: str) -> None:
        """Does nothing if this view offers all that is needed.

        Raises:
            NotVisible: Something is missing; the message names it.
        """
        missing = needs & ~self.offers
        if missing:
            names = ", ".join(part.name or "" for part in missing)
            able = [v.name for v in VIEWS.values() if not needs & ~v.offers]
            hint = f"it can run in the view {', '.join(able)}" if able else "no passive view has it"
            raise NotVisible(
                f"{what} needs {names}, which is hidden in the view {self.name!r} "
                f"({self.description}); {hint}"
            )


def _everything(rounds: Iterable[Round]) -> Iterator[Round]:
    return iter(rounds)


def _summed(rounds: Iterable[Round]) -> Iterator[Round]:
    for round in rounds:
        yield from merged([round], tuple(round.exposed))


_WATCHED = Sees.PREDICTIONS | Sees.GLOBAL_MODEL | Sees.UPDATE | Sees.ROUNDS

VIEWS: dict[str, View] = {
    view.name: view
    for view in (
        View(
            "uploads",
            _WATCHED | Sees.UPLOADS,
            "the server sees what every client sends",
            _everything,
        ),
        View(
            "sum",
            _WATCHED,
            "the server sees only the sum of the clients' uploads, under secure aggregation",
            _summed,
        ),
        View(
            "globals",
            _WATCHED,
            "a participant sees each round's global model and nothing of the others' uploads",
            between_globals,
        ),
        View(
            "final",
            Sees.PREDICTIONS,
            "somebody is given the final model and nothing else",
            only_after,
        ),
    )
}


def view_named(name: str) -> View:
    """The view of that name, or a refusal that names the nearest."""
    if name not in VIEWS:
        raise unknown_name("view", name, VIEWS)
    return VIEWS[name]


def seen_from(rounds: Iterable[Round], view: View) -> Iterator[Round]:
    """The rounds as this adversary sees them."""
    return view.of(rounds)
