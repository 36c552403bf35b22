"""Construction of a study's parts (such as defenses and the partition) before data are loaded."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from inspect import signature

from fedaudit.algorithms import algorithm_named
from fedaudit.core.errors import (
    BadInput,
    FedauditError,
    Unsupported,
    format_setting,
    similar_names,
    type_of,
)
from fedaudit.core.importing import call_reporting_errors, look_up
from fedaudit.core.naming import CopyFactory
from fedaudit.core.objects import canonical_repr
from fedaudit.core.options import ConfiguredPart, check_options
from fedaudit.core.task_catalogue import TASKS, task_named
from fedaudit.core.tasks import Task, missing_outputs_message
from fedaudit.core.values import ClientId
from fedaudit.datasets.partitions.schemes import PARTITIONS, Partition
from fedaudit.fl.algorithms.base import Algorithm, Server
from fedaudit.fl.chain import Chain, custom_parts
from fedaudit.fl.hooks import HOOKS, Defense, Plan
from fedaudit.plan.base import Settings
from fedaudit.plan.optional import Group
from fedaudit.plan.sections import Study, TaskSection

SERVERS: dict[str, Callable[..., Server]] = {"honest": Server}
"""Servers by name."""


def task_of(section: TaskSection) -> Task:
    """Construct a study's task.

    Raises:
        BadInput: The task does not exist, or an option is unknown or of the wrong type.
    """
    if section.name in TASKS:
        check_options("task", section.name, TASKS[section.name], section.options)
    return task_named(section.name, section.options)


def partition_of(study: Study) -> Partition:
    """Construct the partition of training samples among clients.

    Raises:
        BadInput: The partition or an option does not exist.
    """
    section = study.partition
    scheme = _scheme_named(section.scheme)
    options: Settings = dict(section.options)
    if "samples_per_client" in signature(scheme).parameters:
        options |= {"samples_per_client": section.samples_per_client}
    elif section.samples_per_client:
        raise BadInput(
            f"the partition {section.scheme!r} divides all samples among clients, but "
            f"partition.samples_per_client is {section.samples_per_client}; set it to 0"
        )
    check_options("partition", section.scheme, scheme, options, set_elsewhere=section.set_elsewhere)
    partition = call_reporting_errors("partition", section.scheme, scheme, **options)
    if not isinstance(partition, Partition):
        raise BadInput(
            f"the partition {section.scheme!r} returned {type_of(partition)}, which is not a "
            "partition, since it has no method quotas; return an object with the methods of "
            "fedaudit.datasets.partitions.schemes.Partition"
        )
    return partition


def _scheme_named(name: str) -> Callable[..., object]:
    return look_up(
        "partition",
        name,
        PARTITIONS,
        expected="a class or function that returns a "
        "fedaudit.datasets.partitions.schemes.Partition",
        is_valid=callable,
    )


def algorithm_factory(study: Study) -> Callable[..., Algorithm]:
    """Return the function or class that constructs a study's algorithm after data are loaded.

    Raises:
        BadInput: The algorithm or an option does not exist.
    """
    section = study.algorithm
    factory = algorithm_named(section.name)
    check_options("algorithm", section.name, factory, section.options)
    study.training.local()
    return factory


def server_of(study: Study) -> Server:
    """Construct the server, which sends clients their models.

    Raises:
        BadInput: The server or an option does not exist.
    """
    name = study.server.name
    factory = look_up(
        "server",
        name,
        SERVERS,
        expected="a class derived from fedaudit.fl.algorithms.base.Server",
        is_valid=lambda factory: (
            isinstance(factory, CopyFactory)
            or (isinstance(factory, type) and issubclass(factory, Server))
        ),
    )
    check_options("server", name, factory, study.server.options)
    server = call_reporting_errors("server", name, factory, **study.server.options)
    assert isinstance(server, Server)
    return server


def defenses_of(study: Study) -> dict[ClientId, Defense]:
    """Construct the defense of each defended client; several defenses become one chain.

    Raises:
        BadInput: A defense, option or client does not exist, a client is in two groups, or
            no client is available for a defense.
    """
    defenses: dict[ClientId, Defense] = {}
    for group in study.defense.groups(study.partition.clients):
        _raise_if_wrong_clients(group, study.partition.clients, defenses)
        defenses |= _group_defenses(group)
    return defenses


def raise_if_unfit_defenses(defenses: Mapping[ClientId, Defense], plan: Plan) -> None:
    """Raise if a defense cannot be used with the task or plan of a federation."""
    # Check equal defenses of several clients only once.
    distinct = {canonical_repr(defense): defense for defense in defenses.values()}
    for defense in distinct.values():
        task = plan.architecture.task
        if defense.needed_outputs & ~task.output_kinds:
            name = f"the defense {type(defense).__name__}"
            raise Unsupported(
                f"{missing_outputs_message(name, defense.needed_outputs, task)}; remove it, or use "
                "a defense that needs no probabilities, such as dp-sgd"
            )
        for part in custom_parts(defense):
            _raise_if_unfit_hooks(type(part))
        defense.raise_if_misfit(plan)


def _raise_if_unfit_hooks(kind: type[Defense]) -> None:
    """Raise if a custom defense overrides no hook, or overrides a hook with other arguments."""
    overridden = [hook for hook in HOOKS if getattr(kind, hook) is not getattr(Defense, hook)]
    for hook in overridden:
        expected = [*signature(getattr(Defense, hook)).parameters]
        try:
            signature(getattr(kind, hook)).bind(*expected)
        except TypeError:
            raise BadInput(
                f"the hook {hook} of {kind.__name__} has the wrong arguments; define it as "
                f"def {hook}({', '.join(expected)})"
            ) from None
    if not overridden:
        similar = [hook for name in vars(kind) for hook in similar_names(name, HOOKS, limit=1)]
        hint = f"did you mean {similar[0]!r}? " if similar else ""
        raise BadInput(
            f"the defense {kind.__name__} overrides no hook, so it changes nothing; "
            f"{hint}hooks are {', '.join(HOOKS)}"
        )


def _raise_if_wrong_clients(group: Group, clients: int, defenses: dict[ClientId, Defense]) -> None:
    unknown = [client for client in group.clients if client >= clients]
    if unknown:
        raise BadInput(
            f"{format_setting('defense.clients')} names {unknown}, but clients are numbered 0 to "
            f"{clients - 1}"
        )
    repeated = [client for client in group.clients if client in defenses]
    if repeated:
        raise BadInput(
            f"clients {repeated} are in two groups of defended clients; list each client in one "
            "group, and several defenses of a client in the chain of its group"
        )


def _group_defenses(group: Group) -> dict[ClientId, Defense]:
    if not group.parts:
        return {}
    # Imported here, since the module loads all defenses, and most studies have none.
    from fedaudit.defenses import create_defense, defense_named

    factories = [defense_named(part.name) for part in group.parts]
    for part, factory in zip(group.parts, factories, strict=True):
        check_options("defense", part.name, factory, part.options)
    if not group.clients:
        # Raise an error, since the record would otherwise name a defense that no client uses.
        raise BadInput(
            f"no client uses the defense {group.parts[0].name!r}; give at least one client in "
            f'{format_setting("defense.clients")}, or set {format_setting("defense.name")} = "none"'
        )
    defenses: dict[ClientId, Defense] = {}
    for client in group.clients:
        # Create separate objects for every client, because defenses have a state.
        chain = tuple(
            create_defense(part.name, part.options, coalition=group.clients) for part in group.parts
        )
        defenses[client] = chain[0] if len(chain) == 1 else Chain(chain)
    return defenses


def configured_parts(study: Study) -> Iterator[ConfiguredPart]:
    """Yield a study's partition, algorithm and defenses with their options.

    Parts with unknown names are left out; another check reports them.
    """
    partition, algorithm = study.partition, study.algorithm
    with suppress(FedauditError):
        factory = _scheme_named(partition.scheme)
        name, options, elsewhere = partition.scheme, partition.options, partition.set_elsewhere
        yield ConfiguredPart("partition", name, factory, options, "partition", elsewhere)
    with suppress(FedauditError):
        factory = algorithm_named(algorithm.name)
        yield ConfiguredPart("algorithm", algorithm.name, factory, algorithm.options, "algorithm")
    groups = study.defense.groups(study.partition.clients)
    for part in (part for group in groups for part in group.parts):
        from fedaudit.defenses import defense_named

        with suppress(FedauditError):
            factory = defense_named(part.name)
            yield ConfiguredPart("defense", part.name, factory, part.options, "defense")


def defense_key(
    study: Study, defenses: Mapping[ClientId, Defense], client: ClientId
) -> tuple[bool, tuple[str, ...]]:
    """Return a key of a client's defense; clients with equal defenses have equal keys.

    The clients in ``audit.merge``, which are attacked as one client, have the same key.
    """
    is_merged = client in study.audit.merge
    members = study.audit.merge if is_merged else (client,)
    return is_merged, tuple(canonical_repr(defenses[c]) if c in defenses else "" for c in members)


def representatives(study: Study, defenses: Mapping[ClientId, Defense]) -> dict[ClientId, ClientId]:
    """Map each audited client to the first audited client with an equal defense."""
    first_targets = dict[tuple[bool, tuple[str, ...]], ClientId]()
    return {
        target: first_targets.setdefault(defense_key(study, defenses, target), target)
        for target in study.audit.targets
    }


def assigns_classes(defense: Defense | None) -> bool:
    """Return True if a defense assigns classes to clients."""
    return defense is not None and defense.acts_in("assigned_classes")


def neutral_noise_ratio(defense: Defense | None) -> float | None:
    """Return the fraction of a model's last parameters to which aggregation-neutral noise is added.

    Return None without such noise.
    """
    if defense is None:
        return None
    from fedaudit.defenses.cofedmid.neutral import NeutralNoise  # Loads all other defenses.

    parts = defense.parts if isinstance(defense, Chain) else (defense,)
    noise = (part for part in parts if isinstance(part, NeutralNoise) and part.sigma > 0)
    return next((part.ratio for part in noise), None)
