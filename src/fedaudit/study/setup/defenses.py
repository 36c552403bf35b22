"""The defenses of a study's clients, and what an adversary could know of them."""

from collections.abc import Iterator, Mapping
from contextlib import suppress

from fedaudit.core.errors import BadInput, FedauditError, Unsupported
from fedaudit.core.objects import stated
from fedaudit.core.tasks import lacking
from fedaudit.core.values import ClientId
from fedaudit.fl.hooks import Chain, Defense, Plan
from fedaudit.study.settings.defense import Group
from fedaudit.study.settings.options import Entry, check_options
from fedaudit.study.settings.sections import Study


def defenses_of(study: Study) -> dict[ClientId, Defense]:
    """A defense, or several as one, for each client that uses any.

    Raises:
        BadInput: A defense, setting or client that does not exist, a client in two groups, or
            a defense that no client is left to use.
    """
    found: dict[ClientId, Defense] = {}
    for group in study.defense.groups(study.partition.clients):
        _refuse_misplaced(group, study.partition.clients, found)
        found |= _made(group)
    return found


def refuse_unfit(defenses: Mapping[ClientId, Defense], plan: Plan) -> None:
    """Refuses defenses that could not go through with what they are to be used for.

    Raises:
        FedauditError: What the first of them that does not fit says.
    """
    # Members of a coalition are set alike: one of them stands for all.
    for defense in {stated(one): one for one in defenses.values()}.values():
        task = plan.architecture.task
        if defense.reads & ~task.readings:
            said = lacking(f"the defense {type(defense).__name__}", defense.reads, task)
            raise Unsupported(f"{said}; leave it out, or take one that does not, such as dp-sgd")
        defense.refuse_misfit(plan)


def _refuse_misplaced(group: Group, clients: int, found: dict[ClientId, Defense]) -> None:
    strangers = [client for client in group.clients if client >= clients]
    if strangers:
        raise BadInput(
            f"defense.clients names {strangers}, but clients are numbered 0 to {clients - 1}"
        )
    twice = [client for client in group.clients if client in found]
    if twice:
        raise BadInput(
            f"clients {twice} are in two groups, of defense and its defense.also; put each client "
            "into one, and several defenses of one client into a chain"
        )


def _made(group: Group) -> dict[ClientId, Defense]:
    if not group.parts:
        return {}
    # All defenses that there are, of which most studies use none.
    from fedaudit.defenses import defense_named, made

    makes = [defense_named(part.name) for part in group.parts]
    for part, make in zip(group.parts, makes, strict=True):
        check_options("defense", part.name, make, part.options)
    if not group.clients:
        # Nobody would be defended, and the record would still name the defense.
        raise BadInput(
            f"no client is left to use the defense {group.parts[0].name!r}; name at least one in "
            'defense.clients, or set defense.name = "none"'
        )
    chains = {
        client: tuple(made(p.name, p.options, coalition=group.clients) for p in group.parts)
        for client in group.clients
    }
    return {c: chain[0] if len(chain) == 1 else Chain(chain) for c, chain in chains.items()}


def entries_of(study: Study) -> Iterator[Entry]:
    """Return the defenses that a study names, with their settings; unknown ones are left out."""
    groups = study.defense.groups(study.partition.clients)
    for part in [part for group in groups for part in group.parts]:
        from fedaudit.defenses import defense_named

        with suppress(FedauditError):
            make = defense_named(part.name)
            yield Entry("defense", part.name, make, part.options, "defense")


def alike(
    study: Study, defenses: Mapping[ClientId, Defense], client: ClientId
) -> tuple[bool, tuple[str, ...]]:
    """Return a value that is equal for clients that defend themselves in the same way.

    Args:
        study: Clients that it attacks as one are like no single client.
        defenses: By client.
        client: The client.
    """
    is_merged = client in study.audit.merge
    members = study.audit.merge if is_merged else (client,)
    return is_merged, tuple(stated(defenses[c]) if c in defenses else "" for c in members)


def representatives(study: Study, defenses: Mapping[ClientId, Defense]) -> dict[ClientId, ClientId]:
    """Map each audited client to the first audited one that defends itself in the same way.

    Args:
        study: Its audited clients.
        defenses: By client.
    """
    first = dict[tuple[bool, tuple[str, ...]], ClientId]()
    return {
        target: first.setdefault(alike(study, defenses, target), target)
        for target in study.audit.targets
    }


def assigns_classes(defense: Defense | None) -> bool:
    """True if a client's defense, if it has one, deals classes out."""
    return defense is not None and defense.acts_in("dealt")


def noisy_tail(defense: Defense | None) -> float | None:
    """Share of the last parameters to which a client's defense adds noise that cancels, if any."""
    if defense is None:
        return None
    from fedaudit.defenses.cofedmid.neutral import NeutralNoise  # with all other defenses

    parts = defense.parts if isinstance(defense, Chain) else (defense,)
    noise = (part for part in parts if isinstance(part, NeutralNoise) and part.sigma > 0)
    return next((part.ratio for part in noise), None)
