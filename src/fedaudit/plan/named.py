"""Parts that a study names, each constructed from its name and settings without any data."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from inspect import signature

from fedaudit.algorithms import algorithm_named
from fedaudit.core.errors import BadInput, FedauditError, Unsupported, setting, type_of
from fedaudit.core.importing import called, named
from fedaudit.core.naming import Copies
from fedaudit.core.objects import canonical_repr
from fedaudit.core.tasks import TASKS, Task, lacking, task_named
from fedaudit.core.values import ClientId
from fedaudit.datasets.partitions.schemes import PARTITIONS, Partition
from fedaudit.fl.algorithms.base import Algorithm, Server
from fedaudit.fl.hooks import Chain, Defense, Plan
from fedaudit.plan.base import Settings
from fedaudit.plan.optional import Group
from fedaudit.plan.options import Entry, check_options
from fedaudit.plan.sections import Study, TaskSection

SERVERS: dict[str, Callable[..., Server]] = {"honest": Server}
"""Servers that send clients their models, by name."""


def task_of(section: TaskSection) -> Task:
    """Return the task that a study names.

    Raises:
        BadInput: There is none, or a setting is unknown or of the wrong type.
    """
    if section.name in TASKS:
        check_options("task", section.name, TASKS[section.name], section.options)
    return task_named(section.name, section.options)


def partition_of(study: Study) -> Partition:
    """Return the partition of training samples among clients.

    Raises:
        BadInput: A scheme or setting that does not exist.
    """
    given = study.partition
    scheme = _scheme_named(given.scheme)
    options: Settings = dict(given.options)
    if "samples_per_client" in signature(scheme).parameters:
        options |= {"samples_per_client": given.samples_per_client}
    elif given.samples_per_client:
        raise BadInput(
            f"the partition {given.scheme!r} deals everything; leave samples_per_client at 0"
        )
    check_options("partition", given.scheme, scheme, options, set_elsewhere=given.set_elsewhere)
    made = called("partition", given.scheme, scheme, **options)
    if not isinstance(made, Partition):
        raise BadInput(
            f"the partition {given.scheme!r} made {type_of(made)}, which has no method "
            "quotas; give a fedaudit.datasets.partitions.schemes.Partition"
        )
    return made


def _scheme_named(name: str) -> Callable[..., object]:
    return named(
        "partition",
        name,
        PARTITIONS,
        wanted="a class or function that makes a fedaudit.datasets.partitions.schemes.Partition",
        fits=callable,
    )


def algorithm_maker(study: Study) -> Callable[..., Algorithm]:
    """Return what constructs the algorithm that a study names, once there are data.

    Raises:
        BadInput: No such algorithm or setting.
    """
    given = study.algorithm
    make = algorithm_named(given.name)
    check_options("algorithm", given.name, make, given.options)
    study.training.local()
    return make


def server_of(study: Study) -> Server:
    """Return the server that sends clients their models.

    Raises:
        BadInput: No such server or setting.
    """
    name = study.server.name
    make = named(
        "server",
        name,
        SERVERS,
        wanted="a class derived from fedaudit.fl.algorithms.base.Server",
        fits=lambda found: (
            isinstance(found, Copies) or (isinstance(found, type) and issubclass(found, Server))
        ),
    )
    check_options("server", name, make, study.server.options)
    server = called("server", name, make, **study.server.options)
    assert isinstance(server, Server)
    return server


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
    for defense in {canonical_repr(one): one for one in defenses.values()}.values():
        task = plan.architecture.task
        if defense.reads & ~task.readings:
            said = lacking(f"the defense {type(defense).__name__}", defense.reads, task)
            raise Unsupported(f"{said}; leave it out, or take one that does not, such as dp-sgd")
        defense.refuse_misfit(plan)


def _refuse_misplaced(group: Group, clients: int, found: dict[ClientId, Defense]) -> None:
    strangers = [client for client in group.clients if client >= clients]
    if strangers:
        raise BadInput(
            f"{setting('defense.clients')} names {strangers}, but clients are numbered 0 to "
            f"{clients - 1}"
        )
    twice = [client for client in group.clients if client in found]
    if twice:
        raise BadInput(
            f"clients {twice} are in two groups of defended clients; put each client "
            "into one, and several defenses of one client into a chain"
        )


def _made(group: Group) -> dict[ClientId, Defense]:
    if not group.parts:
        return {}
    # All defenses that there are, of which most studies use none.
    from fedaudit.defenses import create_defense, defense_named

    makes = [defense_named(part.name) for part in group.parts]
    for part, make in zip(group.parts, makes, strict=True):
        check_options("defense", part.name, make, part.options)
    if not group.clients:
        # Nobody would be defended, and the record would still name the defense.
        raise BadInput(
            f"no client is left to use the defense {group.parts[0].name!r}; name at least one in "
            f'{setting("defense.clients")}, or set {setting("defense.name")} = "none"'
        )
    chains = {
        client: tuple(
            create_defense(p.name, p.options, coalition=group.clients) for p in group.parts
        )
        for client in group.clients
    }
    return {c: chain[0] if len(chain) == 1 else Chain(chain) for c, chain in chains.items()}


def named_entries(study: Study) -> Iterator[Entry]:
    """Yield catalogue entries that may have required settings; unknown names are left out."""
    partition, algorithm = study.partition, study.algorithm
    with suppress(FedauditError):
        make = _scheme_named(partition.scheme)
        name, options, elsewhere = partition.scheme, partition.options, partition.set_elsewhere
        yield Entry("partition", name, make, options, "partition", elsewhere)
    with suppress(FedauditError):
        learns = algorithm_named(algorithm.name)
        yield Entry("algorithm", algorithm.name, learns, algorithm.options, "algorithm")
    groups = study.defense.groups(study.partition.clients)
    for part in (part for group in groups for part in group.parts):
        from fedaudit.defenses import defense_named

        with suppress(FedauditError):
            defends = defense_named(part.name)
            yield Entry("defense", part.name, defends, part.options, "defense")


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
    return is_merged, tuple(canonical_repr(defenses[c]) if c in defenses else "" for c in members)


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
    from fedaudit.defenses.cofedmid.neutral import NeutralNoise  # loads all other defenses

    parts = defense.parts if isinstance(defense, Chain) else (defense,)
    noise = (part for part in parts if isinstance(part, NeutralNoise) and part.sigma > 0)
    return next((part.ratio for part in noise), None)
