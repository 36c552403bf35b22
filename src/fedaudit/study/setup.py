"""From a study's settings to the parts of one run, with everything refused that cannot work."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from inspect import Parameter, signature
from pathlib import Path
from types import UnionType
from typing import get_args

from fedaudit.attacks.base import Attack
from fedaudit.attacks.catalog import ATTACKS, attack_named
from fedaudit.core import ClientId, Sees, Setting
from fedaudit.data.dataset import Dataset
from fedaudit.data.deal import Deal
from fedaudit.data.draws import DRAWS
from fedaudit.data.partition import PARTITIONS, Partition
from fedaudit.data.shadow import Known, known_split, shadow_deal
from fedaudit.data.sources import load
from fedaudit.defenses.base import Defense
from fedaudit.defenses.catalog import DEFENSES, made
from fedaudit.defenses.chain import Chain
from fedaudit.errors import BadInput, NotVisible, Refusal, unknown_name
from fedaudit.fl.fedavg import FedAvg
from fedaudit.fl.training import LocalTraining
from fedaudit.models import architecture
from fedaudit.observe.views import View, as_one, view_named, with_own_data
from fedaudit.seeds import seed_for
from fedaudit.signals.base import Signal
from fedaudit.study.config import (
    DefenseSection,
    GroupSection,
    PartSection,
    Settings,
    ShadowSection,
    Study,
)
from fedaudit.study.guided import class_guided
from fedaudit.study.holdout import as_trained, trained_on

_LARGEST_SEED = 10**9


@dataclass(frozen=True)
class Setup:
    """The parts of one run of a study.

    Attributes:
        study: The settings.
        seed: Root seed of this run.
        dataset: Where samples come from.
        deal: Who trains on what, and what is audited.
        algorithm: How the federation learns.
        defenses: One instance for each defended client.
        view: What the adversary sees.
        attacks: Those that the view allows.
        refused: For each other attack, what is missing.
        measured_rounds: Rounds to be measured, ascending.
        shadow: The undefended run on other data that attacks learn from, if they do so.
        known: The samples of this run that attacks learn from, if they do so.
    """

    study: Study
    seed: int
    dataset: Dataset
    deal: Deal
    algorithm: FedAvg
    defenses: Mapping[ClientId, Defense]
    view: View
    attacks: Mapping[str, Attack]
    refused: Mapping[str, str]
    measured_rounds: tuple[int, ...]
    shadow: "Setup | None" = None
    known: Known | None = None

    @property
    def signals(self) -> tuple[Signal, ...]:
        """Every signal that an attack needs, each once."""
        found = {s.name: s for attack in self.attacks.values() for s in attack.signals}
        return tuple(found.values())


def setup(study: Study, seed: int, data_dir: Path | None) -> Setup:
    """Loads the data and builds the parts of one run.

    Raises:
        BadInput: A name or setting that does not exist, or data that does not suffice.
        NotVisible: The study names an attack that needs more than the view offers.
    """
    view = _view(study)
    if study.audit.keep == "full":
        view.refuse_unless_offered(Sees.GLOBAL_MODEL | Sees.UPDATE, 'audit.keep = "full"')
    attacks, refused = _attacks(study, view)
    dataset = load(study.data.name, data_dir=data_dir, seed=seed, **study.data.options)
    shape = tuple(dataset.train.features.shape[1:])
    net = architecture(
        study.model.name, shape=shape, classes=dataset.classes, **study.model.options
    )
    algorithm = FedAvg(net, _local_training(study))
    defenses = _defenses(study)
    federation = {"rounds": study.training.rounds, "seed": seed_for(seed, "federation")}
    deal = as_trained(_deal(study, dataset, seed), defenses, **federation)
    run = Setup(
        study=study,
        seed=seed,
        dataset=dataset,
        deal=deal,
        algorithm=algorithm,
        defenses=defenses,
        view=view,
        attacks=attacks,
        refused=refused,
        measured_rounds=_measured_rounds(study, view),
    )
    return _with_examples(_without_idle(run))


def refuse_misfits(studies: Iterable[Study]) -> None:
    """Refuses what can be refused of studies without their data, all before any is trained.

    Raises:
        BadInput: A name or setting that does not exist; the study is named.
        NotVisible: A study names an attack that needs more than its view offers.
    """
    for study in studies:
        try:
            view = _view(study)
            _attacks(study, view)
            _partition(study)
            _local_training(study)
            _defenses(study)
            _measured_rounds(study, view)
        except Refusal as error:
            raise type(error)(f"{study.name}: {error}") from error


def _without_idle(run: Setup) -> Setup:
    """The run without attacks that nobody asked for and that a defense gives nothing to know."""
    audit = run.study.audit
    if run.study.attacks or any(
        class_guided(run.defenses.get(client)) for client in (*audit.targets, *audit.merge)
    ):
        return run
    idle = {name for name, attack in ATTACKS.items() if attack.informed}
    return replace(
        run,
        attacks={name: attack for name, attack in run.attacks.items() if name not in idle},
        refused={name: why for name, why in run.refused.items() if name not in idle},
    )


def _view(study: Study) -> View:
    """What the adversary sees, and whether it has data of its own to learn from."""
    view = view_named(study.audit.view)
    strangers = [c for c in study.audit.merge if c >= study.partition.clients]
    if strangers:
        raise BadInput(
            f"audit.merge names {strangers}, but clients are numbered 0 to "
            f"{study.partition.clients - 1}"
        )
    if study.audit.merge:
        view = as_one(view, study.audit.merge)
    return view if _examples(study) is None else with_own_data(view)


def _examples(study: Study) -> ShadowSection | None:
    """Where attacks learn from: as the study says, or by default where it names one that learns."""
    named = any(attack_named(name).learns for name in study.attacks)
    return study.shadow or (ShadowSection() if named else None)


def _with_examples(run: Setup) -> Setup:
    """The run with what its attacks learn from, if one of them learns."""
    given = _examples(run.study)
    if given is None or not any(attack.learns for attack in run.attacks.values()):
        return run
    if given.mode == "federation":
        return replace(run, shadow=_shadow(run, given))
    audit, clients = run.study.audit, run.deal.clients
    free = [c for c in clients if c not in (*audit.targets, *audit.merge)]
    client = given.client if given.client is not None else max(free, default=-1)
    if client not in free:
        raise BadInput(
            f"shadow.client is {given.client}; give a client that is neither audited nor merged: "
            f"one of {free}"
        )
    known = known_split(
        run.dataset,
        run.deal,
        client=client,
        trained_on=trained_on(
            run.deal,
            run.defenses,
            client,
            rounds=run.study.training.rounds,
            seed=seed_for(run.seed, "federation"),
        ),
        size=given.known,
        seed=run.seed,
    )
    return replace(run, known=known)


def _shadow(run: Setup, given: ShadowSection) -> Setup:
    """The same federation without a defense, on data that the run does not touch."""
    # Beyond the seeds that a study can name: no run of somebody's draws as a shadow does.
    seed = _LARGEST_SEED + 1 + seed_for(run.seed, "shadow") % _LARGEST_SEED
    audit = run.study.audit
    target = audit.targets[0]
    own = audit.fair if audit.draw == "fair" else 2 * run.deal.sizes[target]
    study = run.study.model_copy(
        update={
            "seeds": (seed,),
            "defense": DefenseSection(),
            "shadow": None,
            "audit": audit.model_copy(
                update={
                    "draw": "fair",
                    "targets": (target,),
                    "fair": given.fair or own,
                    "extra_other": 0,
                    "extra_unseen": 0,
                    "options": {},
                    "keep": "signals",
                }
            ),
        }
    )
    deal = shadow_deal(run.dataset, run.deal, lambda rest: _deal(study, rest, seed))
    learned = {name: attack for name, attack in run.attacks.items() if attack.learns}
    return replace(run, study=study, seed=seed, deal=deal, defenses={}, attacks=learned, refused={})


def _local_training(study: Study) -> LocalTraining:
    given = study.training
    return LocalTraining(
        epochs=given.epochs,
        batch_size=given.batch_size,
        lr=given.lr,
        momentum=given.momentum,
        weight_decay=given.weight_decay,
        schedule=given.schedule,
        optimizer=given.optimizer,
    )


def _attacks(study: Study, view: View) -> tuple[dict[str, Attack], dict[str, str]]:
    """Named attacks must be possible; of the whole catalogue, the possible ones are taken."""
    if study.attacks:
        named = {n: attack_named(n).with_settings(s) for n, s in study.attacks.items()}
        for name, attack in named.items():
            view.refuse_unless_offered(attack.needs, f"the attack {name!r}")
        return named, {}
    possible, refused = {}, {}
    for name, attack in ATTACKS.items():
        try:
            view.refuse_unless_offered(attack.needs, f"the attack {name!r}")
            possible[name] = attack
        except NotVisible as error:
            refused[name] = str(error)
    return possible, refused


def _deal(study: Study, dataset: Dataset, seed: int) -> Deal:
    audit = study.audit
    if audit.draw not in DRAWS:
        raise unknown_name("draw", audit.draw, DRAWS)
    settings: dict[str, object] = {
        "clients": study.partition.clients,
        "partition": _partition(study),
        "seed": seed,
        "targets": audit.targets,
    }
    if audit.draw == "fair":
        settings |= {
            "n_fair": audit.fair,
            "extra_other": audit.extra_other,
            "extra_unseen": audit.extra_unseen,
            "background": audit.background,
        }
    if audit.options:
        _check_options("draw", audit.draw, DRAWS[audit.draw], audit.options, complete=False)
    return DRAWS[audit.draw](dataset, **settings, **audit.options)


def _partition(study: Study) -> Partition:
    given = study.partition
    if given.scheme not in PARTITIONS:
        raise unknown_name("partition", given.scheme, PARTITIONS)
    scheme = PARTITIONS[given.scheme]
    options: Settings = dict(given.options)
    if "samples_per_client" in signature(scheme).parameters:
        options |= {"samples_per_client": given.samples_per_client}
    elif given.samples_per_client:
        raise BadInput(
            f"the partition {given.scheme!r} deals everything; leave samples_per_client at 0"
        )
    _check_options("partition", given.scheme, scheme, options)
    return scheme(**options)


def _defenses(study: Study) -> dict[ClientId, Defense]:
    given, everybody = study.defense, range(study.partition.clients)
    elsewhere = {client for group in given.also for client in group.clients}
    others = tuple(client for client in everybody if client not in elsewhere)
    found: dict[ClientId, Defense] = {}
    groups: tuple[DefenseSection | GroupSection, ...] = (given, *given.also)
    for group in groups:
        clients = others if group.clients is None else tuple(sorted(set(group.clients)))
        strangers = [client for client in clients if client not in everybody]
        if strangers:
            raise BadInput(
                f"defense.clients names {strangers}, but clients are numbered 0 to "
                f"{len(everybody) - 1}"
            )
        twice = [client for client in clients if client in found]
        if twice:
            raise BadInput(
                f"clients {twice} are in two groups of defense.also; put each client into one, and "
                "several defenses of one client into a chain"
            )
        found |= _defended(group, clients)
    return found


def _defended(
    group: DefenseSection | GroupSection, clients: tuple[ClientId, ...]
) -> dict[ClientId, Defense]:
    """Each client's own instance of a group's defense, or nothing without one."""
    parts: tuple[DefenseSection | PartSection, ...] = (group, *group.chain)
    for part in parts:
        if part.name not in DEFENSES:
            raise unknown_name("defense", part.name, DEFENSES)
    # A variant that takes a study's defense away may leave its options where they are.
    parts = tuple(part for part in parts if part.name != "none")
    for part in parts:
        _check_options("defense", part.name, DEFENSES[part.name], part.options)
    if not parts:
        return {}
    if not clients:
        # Nobody would be defended, and the record would still name the defense.
        raise BadInput(
            f"no client is left to use the defense {parts[0].name!r}; name at least one in "
            'defense.clients, or set defense.name = "none"'
        )
    chains = {c: tuple(made(p.name, p.options, coalition=clients) for p in parts) for c in clients}
    return {c: chain[0] if len(chain) == 1 else Chain(chain) for c, chain in chains.items()}


def _check_options(
    kind: str, name: str, make: object, options: Settings, *, complete: bool = True
) -> None:
    """Refuses options that the function does not take, of the wrong type, or left out."""
    if not callable(make):
        raise TypeError(f"{name} cannot be made")
    parameters = {n: p for n, p in signature(make).parameters.items() if n != "coalition"}
    for option in options:
        if option not in parameters:
            raise unknown_name(f"setting of the {kind} {name!r}", option, parameters)
        _check_type(f"{option} of the {kind} {name!r}", options[option], parameters[option])
    if not complete:
        return
    missing = [
        p.name for p in parameters.values() if p.default is p.empty and p.name not in options
    ]
    if missing:
        raise BadInput(
            f"the {kind} {name!r} needs {', '.join(missing)}; "
            f"give it as {kind}.options.{missing[0]}"
        )


def _check_type(what: str, value: Setting, parameter: Parameter) -> None:
    """Whole numbers may stand for floats; nothing else may stand for another type."""
    annotation = parameter.annotation
    kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    taken = [kind for kind in _IN_WORDS if kind in kinds]
    if not taken:
        raise BadInput(f"{what} cannot be set in a study; leave it out")
    if type(value) not in taken and not (float in taken and type(value) is int):
        names = " or ".join(_IN_WORDS[kind] for kind in taken)
        raise BadInput(f"{what} takes {names}, got {value!r}")


_IN_WORDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
}


def _measured_rounds(study: Study, view: View) -> tuple[int, ...]:
    last = study.training.rounds
    if Sees.ROUNDS not in view.offers:
        return (last,)
    step = study.measured_every
    if step > last:
        raise BadInput(
            f"audit.every is {step}, but there are only {last} rounds, so that nothing would be "
            f"measured; give at most {last}, or 0 for a tenth of the rounds"
        )
    return tuple(range(step, last + 1, step))
