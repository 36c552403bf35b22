"""The ladder of adversaries: what each sees, as a deletion that runs before any signal."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from fedaudit.core import ClientId, Sees
from fedaudit.errors import NotVisible
from fedaudit.importing import named
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

    def can_offer(self, needs: Sees) -> bool:
        """Whether this view shows all that is needed of a run.

        Data of the adversary's own is nothing that a view shows: any adversary may have some.
        """
        return not needs & ~Sees.AUXILIARY_DATA & ~self.offers

    def refuse_unless_offered(self, needs: Sees, what: str) -> None:
        """Does nothing if this view offers all that is needed.

        Raises:
            NotVisible: Something is missing; the message names it.
        """
        missing = needs & ~self.offers
        if missing:
            names = ", ".join(part.name or "" for part in missing)
            if missing == Sees.AUXILIARY_DATA:
                raise NotVisible(
                    f"{what} needs {names}, and the adversary of the view {self.name!r} has none; "
                    "give it some with a [shadow] table, or name the attack"
                )
            able = [v.name for v in VIEWS.values() if v.can_offer(needs)]
            if self.name in able:
                hint = "leave it out, or use an algorithm whose clients send updates"
            elif able:
                hint = f"it can run in the view {', '.join(able)}"
            else:
                hint = "no passive view has it"
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
    """The view of that name, of an installed package, or of the user's own as ``module:object``.

    Raises:
        BadInput: There is none; the nearest is named.
    """
    return named(
        "view",
        name,
        VIEWS,
        wanted="a fedaudit.views.View",
        fits=lambda found: isinstance(found, View),
    )


def with_own_data(view: View) -> View:
    """The adversary of a view, with data of its own to learn from."""
    return replace(view, offers=view.offers | Sees.AUXILIARY_DATA)


def as_one(view: View, members: Collection[ClientId]) -> View:
    """The adversary who sees every upload and attacks some clients through their aggregate.

    Raises:
        NotVisible: The view does not show single uploads, so that nothing is there to merge.

    Source: CoFedMID section 5.4 (adaptive attacks on the coalition's aggregated model).
    """
    if Sees.UPLOADS not in view.offers:
        raise NotVisible(
            f"audit.merge needs UPLOADS, which is hidden in the view {view.name!r} "
            f"({view.description}); leave it out, or use the view 'uploads'"
        )
    names = ", ".join(str(client) for client in sorted(members))
    return replace(
        view,
        name="merged",
        description=f"{view.description}, and attacks clients {names} as one, through the "
        "weighted mean of what they send",
        of=partial(merged, members=tuple(members)),
    )


def of_outputs(view: View) -> View:
    """The adversary of a view, where clients send outputs on public samples and no updates.

    Raises:
        NotVisible: The view shows no single uploads, and nobody has a model that all have.
    """
    if view.name != "uploads":
        raise NotVisible(
            "clients of this algorithm send outputs on public samples and have no model in "
            f"common, so that the view {view.name!r} shows nothing to attack; use the view "
            "'uploads', without audit.merge, or another algorithm"
        )
    return replace(
        view,
        offers=view.offers & ~(Sees.GLOBAL_MODEL | Sees.UPDATE),
        description=f"{view.description}: outputs on public samples",
    )


def of_several_models(view: View) -> View:
    """The adversary of a view, where clients choose among several models.

    Raises:
        NotVisible: The view follows one model, or adds up changes of different ones.
    """
    if view.name != "uploads":
        raise NotVisible(
            "clients of this algorithm train different models, and the view "
            f"{view.name!r} follows one that all have; use the view 'uploads', without "
            "audit.merge, or another algorithm"
        )
    return view


def seen_from(rounds: Iterable[Round], view: View) -> Iterator[Round]:
    """The rounds as this adversary sees them."""
    return view.of(rounds)
