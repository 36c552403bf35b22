"""From a study's settings to the parts of one run, with everything refused that cannot work."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import cast

import torch

from fedaudit.attacks import attack_named, attack_set
from fedaudit.attacks.base import Attack
from fedaudit.core import modules
from fedaudit.core.errors import BadInput, FedauditError, NotVisible, setting
from fedaudit.core.importing import refusing_exits
from fedaudit.core.pretrained import pretrained_file
from fedaudit.core.seeds import seed_for
from fedaudit.core.tasks import Task, lacking
from fedaudit.core.values import ClientId, Sees, Setting
from fedaudit.datasets.catalog import load
from fedaudit.datasets.dataset import Dataset
from fedaudit.extensions import extensions_of
from fedaudit.fl.algorithms.base import Algorithm, ChoosesModels
from fedaudit.fl.hooks import Defense, Plan
from fedaudit.metrics.table import metric_named
from fedaudit.observe.round import Logits
from fedaudit.observe.views import (
    View,
    merged_view,
    output_view,
    several_models_view,
    view_named,
)
from fedaudit.plan.algorithm import algorithm_of, refuse_unmeasured
from fedaudit.plan.dealing import (
    GroupedData,
    HoldOutRule,
    dealt,
    exclude_held_out,
    grouped,
    left_to_train,
    refuse_one_sided,
)
from fedaudit.plan.identity import PlanKind, with_code
from fedaudit.plan.named import (
    algorithm_maker,
    assigns_classes,
    defenses_of,
    named_entries,
    noisy_tail,
    partition_of,
    refuse_unfit,
    server_of,
    task_of,
)
from fedaudit.plan.options import refuse_missing
from fedaudit.plan.parts import Extension, Parts, Setup
from fedaudit.plan.sections import Study
from fedaudit.signals.base import ReadsLayers


def setup(study: Study, seed: int, data_dir: Path | None) -> Setup:
    """Load the data and assemble one run.

    Raises:
        FedauditError: What :func:`resolve` refuses, or data that do not suffice.
    """
    return run_of(resolve(study), seed, data_dir)


def run_of(parts: Parts, seed: int, data_dir: Path | None) -> Setup:
    """Load the data and assemble one run of a study whose parts are known.

    Raises:
        FedauditError: Data that do not suffice, or that do not fit the parts.
    """
    dataset = dataset_of(parts.study, parts.task, seed, data_dir)
    return _setup(parts, seed, dataset, _dealt(parts, dataset, seed), data_dir)


def resolve(study: Study) -> Parts:
    """Look up every part that a study names, and refuse what is wrong without any data.

    Required settings that are missing are refused first, all together.

    Raises:
        BadInput: A name or setting that does not exist, or custom code that was changed.
        NotVisible: The study names an attack that needs more than the view offers.
    """
    study = with_code(study)
    refuse_missing(named_entries(study))
    named = _attacks_of(study)
    extensions = tuple(extensions_of(study, named))
    view, task, defenses = _view_of(study, extensions), task_of(study.task), defenses_of(study)
    attacks = _informed(study, named, extensions, defenses)
    possible, _ = _allowed(study, attacks, task, view)
    return Parts(
        study=_with_source_samples(study, possible.values()),
        task=task,
        view=view,
        attacks=attacks,
        metrics={name: metric_named(name) for name in study.figures.metrics},
        make_algorithm=algorithm_maker(study),
        defenses=defenses,
        measured_rounds=_measured_rounds(study, view, extensions),
        partition=partition_of(study),
        server=server_of(study),
        extensions=extensions,
    )


def completed(study: PlanKind) -> PlanKind:
    """Return a study or games as they are carried out, with settings that follow from others.

    Raises:
        FedauditError: As :func:`resolve` and :func:`fedaudit.plan.identity.with_code`.
    """
    completed = resolve(study).study if isinstance(study, Study) else with_code(study)
    return cast(PlanKind, completed)


def _setup(
    parts: Parts, seed: int, dataset: Dataset, world: GroupedData, data_dir: Path | None
) -> Setup:
    """Assemble one run on data that were loaded and dealt."""
    study, defenses = parts.study, parts.defenses
    algorithm = _fitting_algorithm(parts, world, seed, data_dir)
    view = _as_sent(parts.view, algorithm)
    if world.dataset.train.has_whole_numbers:
        # The largest token or concept may be in either part, and of any client.
        for net, part in product(algorithm.nets, (world.dataset.train, world.dataset.test)):
            if len(part):
                modules.refuse_unfit(net.initial(0), part)
    attacks, refused = _allowed(study, parts.attacks, parts.task, view)
    _refuse_unmeasured_signals(attacks, algorithm)
    parts.server.refuse_misfit(world.deal.clients.keys(), study.training.rounds)
    holdout = HoldOutRule(defenses, algorithm, study.training.rounds, seed_for(seed, "federation"))
    refuse_one_sided(world.deal.clients, holdout)
    deal = exclude_held_out(world.deal, holdout)
    if study.audit.sources:
        left = left_to_train(world.deal.clients, holdout)
        # As they were dealt: a defense may have changed what it left.
        trained = {c: d.take(torch.isin(d.ids, left[c].ids)) for c, d in deal.clients.items()}
        deal = deal.with_own_samples(trained, study.audit.sources, seed=seed)
    run = Setup(
        study=study,
        seed=seed,
        dataset=world.dataset,
        deal=deal,
        algorithm=algorithm,
        defenses=defenses,
        view=view,
        attacks=attacks,
        refused=refused,
        measured_rounds=parts.measured_rounds,
        groups=world.groups,
        server=parts.server,
        parts=parts,
    )
    run = _without_uninformed(run, parts)
    for kind in parts.extensions:
        run = kind.added(run, dataset)
    for one in (run, *run.own_federations):
        _refuse_absent_targets(one)
    return run


def _with_source_samples(study: Study, attacks: Iterable[Attack]) -> Study:
    """Return the study with the number of each client's samples that source inference gets."""
    audit = study.audit
    if audit.sources is not None:
        return study
    count = 0
    # Elsewhere the audited samples of each client are random ones of its data, or few are its.
    random = audit.draw == "fair" and not study.has_equal_clients
    if random and any(attack.infers_source for attack in attacks):
        count = audit.fair // (3 * study.partition.clients)
    return study.model_copy(update={"audit": audit.model_copy(update={"sources": count})})


def dataset_of(study: Study, task: Task, seed: int, data_dir: Path | None) -> Dataset:
    """Load the data that a study names, with the classes that it asks for."""
    given = study.data
    kept = given.classes, given.first_class
    return load(given.name, task, *kept, data_dir=data_dir, seed=seed, **given.options)


def _nothing_more(run: Setup) -> None:
    """Check nothing more."""


def refuse_misfits(
    studies: Iterable[Study],
    data_dir: Path | None = None,
    check: Callable[[Setup], None] = _nothing_more,
) -> None:
    """Refuse studies that cannot work, all before any is trained.

    Args:
        studies: That are to be carried out one after another, each under its own name.
        data_dir: Where their data lie.
        check: Is given every run of them, and refuses more.

    Raises:
        FedauditError: What :func:`setup` or the check refuses, for every study that is refused.
    """
    refused = dict[str, FedauditError]()
    # Points of a grid share their data nearly always, and reading is what takes long.
    sharing = dict[tuple[str, int], list[Parts]]()
    for study in studies:
        try:
            with refusing_exits():
                parts = resolve(study)
        except FedauditError as error:
            refused[study.name] = error
            continue
        for seed in study.seeds:
            sharing.setdefault((repr((study.data, study.task)), seed), []).append(parts)
    for (_, seed), together in sharing.items():
        dataset, deal, world = None, "", None
        for parts in (one for one in together if one.study.name not in refused):
            study = parts.study
            try:
                if dataset is None:
                    dataset = dataset_of(study, parts.task, seed, data_dir)
                wanted = repr((study.partition, study.audit, study.shift))
                if world is None or wanted != deal:
                    deal, world = wanted, _dealt(parts, dataset, seed)
                with refusing_exits():
                    if _lacks_pretraining(study):
                        _fitting_algorithm(parts, world, seed, data_dir)
                    else:
                        check(_setup(parts, seed, dataset, world, data_dir))
            except FedauditError as error:
                refused[study.name] = error
    if refused:
        raise _as_one(refused)


def _lacks_pretraining(study: Study) -> bool:
    """True if a study's networks begin with values that are still to be trained."""
    return study.pretraining is not None and not pretrained_file(study.pretrained_name).is_file()


def _as_one(refused: Mapping[str, FedauditError]) -> FedauditError:
    """Return one refusal for several studies; a reason that several share is given once."""
    named = dict[str, list[str]]()
    for name, error in refused.items():
        named.setdefault(str(error), []).append(name)
    said = [f"{', '.join(names)}: {reason}" for reason, names in named.items()]
    first = next(iter(refused.values()))
    found = type(first)("\n".join(said))
    found.__cause__ = first
    return found


def _dealt(parts: Parts, dataset: Dataset, seed: int) -> GroupedData:
    """Deal training and audited samples, as the groups of clients have them."""
    deal = dealt(parts.study, parts.partition, dataset, seed)
    return grouped(parts.study, dataset, deal, seed)


def _refuse_unmeasured_signals(attacks: Mapping[str, Attack], algorithm: Algorithm) -> None:
    """Refuses attacks whose signals read layers that a network has not."""
    for (name, attack), net in product(attacks.items(), algorithm.nets):
        for signal in attack.signals:
            if isinstance(signal, ReadsLayers):
                try:
                    signal.refuse_misfit(net.initial(0))
                except FedauditError as error:
                    raise type(error)(f"the attack {name!r}: {error}") from error


def _fitting_algorithm(
    parts: Parts, world: GroupedData, seed: int, data_dir: Path | None
) -> Algorithm:
    """Construct the algorithm, and refuse defenses that do not fit its networks."""
    algorithm = algorithm_of(parts, world, seed, data_dir)
    for plan in _plans(parts.study, world.dataset, algorithm):
        refuse_unfit(parts.defenses, plan)
    refuse_unmeasured(parts.study, world, seed, algorithm)
    return algorithm


def _without_uninformed(run: Setup, parts: Parts) -> Setup:
    """Drop attacks of the default set that need side information where there is none."""
    audit = run.study.audit
    if run.study.attacks or any(
        assigns_classes(run.defenses.get(client)) for client in (*audit.targets, *audit.merge)
    ):
        return run
    uninformed = {name for name, one in parts.attacks.items() if one.needs_side_information}
    return replace(
        run,
        attacks={name: one for name, one in run.attacks.items() if name not in uninformed},
        refused={name: why for name, why in run.refused.items() if name not in uninformed},
    )


def _plans(study: Study, dataset: Dataset, algorithm: Algorithm) -> list[Plan]:
    """Plans that defenses have to fit: one for each of the networks that clients train."""
    return [
        Plan(
            architecture=net,
            shape=tuple(dataset.train.features.shape[1:]),
            classes=dataset.classes,
            rounds=study.training.rounds,
            whole=dataset.train.has_whole_numbers,
        )
        for net in algorithm.nets
    ]


def _refuse_absent_targets(run: Setup) -> None:
    """Refuses a run in which the adversary would never see a client under audit."""
    if Sees.UPLOADS not in run.view.offers or not run.on_membership:
        return
    rounds = [run.cohort(index) for index in run.measured_rounds]
    seen = {client for cohort in rounds for client in cohort}
    merged = set(run.study.audit.merge)
    for target in run.study.audit.targets:
        if not seen & (merged if target in merged else {target}):
            raise BadInput(
                f"client {target} takes part in no measured round of seed {run.seed} (rounds "
                f"measured: {len(rounds)}), so that nothing of it would be seen; raise "
                f"{setting('training.participation')}, measure more rounds "
                f"({setting('training.rounds')}, audit.every), or audit another client"
            )


def _view_of(study: Study, extensions: Iterable[type[Extension]]) -> View:
    """The adversary's view, and what else it has."""
    view = view_named(study.audit.view)
    strangers = [c for c in study.audit.merge if c >= study.partition.clients]
    if strangers:
        raise BadInput(
            f"audit.merge names {strangers}, but clients are numbered 0 to "
            f"{study.partition.clients - 1}"
        )
    if study.audit.merge:
        view = merged_view(view, study.audit.merge)
    for kind in extensions:
        view = kind.seen(study, view)
    return view


def _as_sent(view: View, algorithm: Algorithm) -> View:
    """A view less what the algorithm's clients do not send."""
    if algorithm.upload_kind is Logits:
        return output_view(view)
    return several_models_view(view) if isinstance(algorithm, ChoosesModels) else view


def _attacks_of(study: Study) -> dict[str, Attack]:
    """Return the attacks that a study names, or those of its set, whatever the view offers."""
    if study.attacks:
        return {name: attack_named(name) for name in study.attacks}
    return attack_set(study.attack_set)


def _informed(
    study: Study,
    attacks: Mapping[str, Attack],
    extensions: Iterable[type[Extension]],
    defenses: Mapping[ClientId, Defense],
) -> Mapping[str, Attack]:
    """Return attacks with what a study says, or its parts know, about those that it names."""
    found = dict(attacks)
    for name, given in study.attacks.items():
        attack = attacks[name]
        for kind in extensions:
            attack = kind.informed(study, attack)
        found[name] = attack.with_settings(_noise_tail(study, name, attack, defenses) | given)
    return found


def _allowed(
    study: Study, attacks: Mapping[str, Attack], task: Task, view: View
) -> tuple[dict[str, Attack], dict[str, str]]:
    """Return the attacks that a view allows, and for each other one what is missing."""
    if study.audit.keep == "full":
        view.refuse_unless_offered(Sees.GLOBAL_MODEL | Sees.UPDATE, 'audit.keep = "full"')
    possible, refused = {}, {}
    for name, attack in attacks.items():
        try:
            _refuse_impossible(name, attack, study, task, view)
            possible[name] = attack
        except NotVisible as error:
            if study.attacks:
                raise
            refused[name] = str(error)
    return possible, refused


def _noise_tail(
    study: Study, name: str, attack: Attack, defenses: Mapping[ClientId, Defense]
) -> dict[str, Setting]:
    """Side information on a defense's noise for an attack that uses it, if a study gives none."""
    if "tail" not in attack.settings():
        return {}
    audited = {*study.audit.targets, *study.audit.merge}
    tails = [noisy_tail(defenses.get(client)) for client in audited]
    found = {tail for tail in tails if tail is not None}
    if len(found) > 1:
        raise BadInput(
            f"the audited clients add noise to the shares {sorted(found)} of their parameters, and "
            f"the attack {name!r} is told of one; set attacks.{name}.tail, or audit them one by one"
        )
    return {"tail": found.pop()} if found else {}


def _refuse_impossible(name: str, attack: Attack, study: Study, task: Task, view: View) -> None:
    view.refuse_unless_offered(attack.needs, f"the attack {name!r}")
    if attack.reads & ~task.readings:
        raise NotVisible(lacking(f"the attack {name!r}", attack.reads, task))
    if attack.infers_source and study.audit.unit == "person":
        raise NotVisible(
            f"the attack {name!r} asks of single samples whose they are, and samples of one person "
            'are not independent; leave it out, or audit.unit at "sample"'
        )
    if attack.infers_source and study.audit.merge:
        raise NotVisible(
            f"the attack {name!r} tells single clients apart, and audit.merge attacks "
            f"{list(study.audit.merge)} as one; leave audit.merge out"
        )
    if attack.infers_source and study.figures.nobody_is_a_member:
        raise NotVisible(
            f"the attack {name!r} asks whose a sample is, which has no answer where "
            "figures.nobody_is_a_member calls samples of nobody members"
        )


def _measured_rounds(
    study: Study, view: View, extensions: Iterable[type[Extension]]
) -> tuple[int, ...]:
    """The rounds in which the adversary looks."""
    last = study.training.rounds
    if Sees.ROUNDS not in view.offers:
        return (last,)
    step = study.measured_every
    if step > last:
        raise BadInput(
            f"audit.every is {step}, but there are only {last} rounds, so that nothing would be "
            f"measured; give at most {last}, or 0 for a tenth of the rounds"
        )
    more = (kind.measured_in(study) for kind in extensions)
    return tuple(sorted({*range(step, last + 1, step)}.union(*more)))
