"""Construction of a run's parts from a study's settings, with checks that they fit together."""

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
    left_to_train,
    refuse_one_sided,
    shifted_groups,
)
from fedaudit.plan.identity import PlanKind, with_code
from fedaudit.plan.named import (
    algorithm_maker,
    assigns_classes,
    defenses_of,
    named_entries,
    noisy_tail,
    partition_of,
    refuse_missing,
    refuse_unfit_defenses,
    server_of,
    task_of,
)
from fedaudit.plan.parts import Extension, Parts, Setup
from fedaudit.plan.sections import DataSection, Study
from fedaudit.signals.base import ReadsLayers


def setup(study: Study, seed: int, data_dir: Path | None) -> Setup:
    """Load the data and assemble one run.

    Raises:
        FedauditError: As :func:`resolve`, or there are too few samples.
    """
    return run_of(resolve(study), seed, data_dir)


def run_of(parts: Parts, seed: int, data_dir: Path | None) -> Setup:
    """Load the data and assemble one run from the parts of a study.

    Raises:
        FedauditError: There are too few samples, or they do not fit the parts.
    """
    dataset = dataset_of(parts.study.data, parts.task, seed, data_dir)
    return _setup(parts, seed, dataset, _deal_data(parts, dataset, seed), data_dir)


def resolve(study: Study) -> Parts:
    """Construct every part that a study names, without any data.

    All missing settings are reported together, before anything else.

    Raises:
        BadInput: A name or setting does not exist, or custom code has changed.
        NotVisible: The study names an attack that needs more than the view offers.
    """
    study = with_code(study)
    refuse_missing(named_entries(study))
    named = {name: attack_named(name) for name in study.attacks}
    defaults = named or attack_set(study.attack_set)
    extensions = tuple(extensions_of(study, defaults))
    view, task, defenses = _view_of(study, extensions), task_of(study.task), defenses_of(study)
    attacks = _with_side_information(study, defaults, extensions, defenses)
    possible, _ = _select_attacks(study, attacks, task, view)
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
    """Return a study or games with the settings that follow from others.

    Raises:
        FedauditError: As :func:`resolve` and :func:`fedaudit.plan.identity.with_code`.
    """
    complete = resolve(study).study if isinstance(study, Study) else with_code(study)
    return cast(PlanKind, complete)


def _setup(
    parts: Parts, seed: int, dataset: Dataset, data: GroupedData, data_dir: Path | None
) -> Setup:
    study, defenses = parts.study, parts.defenses
    algorithm = _fitting_algorithm(parts, data, seed, data_dir)
    view = _view_of_uploads(parts.view, algorithm)
    if data.dataset.train.has_whole_numbers:
        # The largest token or concept may be a training or a test sample of any client.
        for net, part in product(algorithm.nets, (data.dataset.train, data.dataset.test)):
            if len(part):
                modules.refuse_unfit(net.initial(0), part)
    attacks, refused = _select_attacks(study, parts.attacks, parts.task, view)
    _refuse_unmeasured_signals(attacks, algorithm)
    parts.server.refuse_misfit(data.deal.clients.keys(), study.training.rounds)
    holdout = HoldOutRule(defenses, algorithm, study.training.rounds, seed_for(seed, "federation"))
    refuse_one_sided(data.deal.clients, holdout)
    deal = exclude_held_out(data.deal, holdout)
    if study.audit.sources:
        trainable = left_to_train(data.deal.clients, holdout)
        # Use the samples as dealt, since a defense may have changed the samples that it keeps.
        trained = {c: d.take(torch.isin(d.ids, trainable[c].ids)) for c, d in deal.clients.items()}
        deal = deal.with_source_samples(trained, study.audit.sources, seed=seed)
    run = Setup(
        study=study,
        seed=seed,
        dataset=data.dataset,
        deal=deal,
        algorithm=algorithm,
        defenses=defenses,
        view=view,
        attacks=attacks,
        refused=refused,
        measured_rounds=parts.measured_rounds,
        groups=data.groups,
        server=parts.server,
        parts=parts,
    )
    run = _without_uninformed(run, parts)
    for kind in parts.extensions:
        run = kind.add_to(run, dataset)
    for federation in (run, *run.additional_federations):
        _refuse_absent_targets(federation)
    return run


def _with_source_samples(study: Study, attacks: Iterable[Attack]) -> Study:
    """Set the number of each client's samples for source inference, if the study does not."""
    audit = study.audit
    if audit.sources is not None:
        return study
    count = 0
    # Other draws audit random samples of each client, or few samples of a client.
    needs_samples = audit.draw == "fair" and not study.has_equal_clients
    if needs_samples and any(attack.infers_source for attack in attacks):
        count = audit.samples // (3 * study.partition.clients)
    return study.model_copy(update={"audit": audit.model_copy(update={"sources": count})})


def dataset_of(section: DataSection, task: Task, seed: int, data_dir: Path | None) -> Dataset:
    """Load the data set that a table of a study names."""
    classes = section.classes, section.first_class
    return load(section.name, task, *classes, data_dir=data_dir, seed=seed, **section.options)


def refuse_misfits(
    studies: Iterable[Study],
    data_dir: Path | None = None,
    check: Callable[[Setup], None] = lambda run: None,
) -> None:
    """Raise if any of several studies, which have different names, cannot run.

    ``check`` is called with every run, and raises if the run is not possible.
    """
    refused = dict[str, FedauditError]()
    # Points of a grid nearly always share their data, and reading takes longest.
    by_data = dict[tuple[str, int], list[Parts]]()
    for study in studies:
        try:
            with refusing_exits():
                parts = resolve(study)
        except FedauditError as error:
            refused[study.name] = error
            continue
        for seed in study.seeds:
            by_data.setdefault((repr((study.data, study.task)), seed), []).append(parts)
    for (_, seed), sharing in by_data.items():
        dataset, dealt_settings, data = None, "", None
        for parts in sharing:
            study = parts.study
            if study.name in refused:
                continue
            try:
                if dataset is None:
                    dataset = dataset_of(study.data, parts.task, seed, data_dir)
                settings = repr((study.partition, study.audit, study.shift))
                if data is None or settings != dealt_settings:
                    dealt_settings, data = settings, _deal_data(parts, dataset, seed)
                pretrained = study.pretraining and pretrained_file(study.pretrained_name)
                with refusing_exits():
                    # Networks that have to be pretrained first cannot be tried.
                    if pretrained and not pretrained.is_file():
                        _fitting_algorithm(parts, data, seed, data_dir)
                    else:
                        check(_setup(parts, seed, dataset, data, data_dir))
            except FedauditError as error:
                refused[study.name] = error
    if refused:
        raise _merge_refusals(refused)


def _merge_refusals(refused: Mapping[str, FedauditError]) -> FedauditError:
    """Return one error for several studies, which states each reason once."""
    by_reason = dict[str, list[str]]()
    for name, error in refused.items():
        by_reason.setdefault(str(error), []).append(name)
    lines = [f"{', '.join(names)}: {reason}" for reason, names in by_reason.items()]
    first = next(iter(refused.values()))
    merged = type(first)("\n".join(lines))
    merged.__cause__ = first
    return merged


def _deal_data(parts: Parts, dataset: Dataset, seed: int) -> GroupedData:
    """Divide training and audited samples among the clients and groups."""
    deal = dealt(parts.study, parts.partition, dataset, seed)
    return shifted_groups(parts.study, dataset, deal, seed)


def _refuse_unmeasured_signals(attacks: Mapping[str, Attack], algorithm: Algorithm) -> None:
    """Raise if a signal of an attack reads layers that a network does not have."""
    for (name, attack), net in product(attacks.items(), algorithm.nets):
        for signal in attack.signals:
            if isinstance(signal, ReadsLayers):
                try:
                    signal.refuse_misfit(net.initial(0))
                except FedauditError as error:
                    raise type(error)(f"the attack {name!r}: {error}") from error


def _fitting_algorithm(
    parts: Parts, data: GroupedData, seed: int, data_dir: Path | None
) -> Algorithm:
    """Construct the algorithm; raise if a defense does not fit its networks."""
    algorithm = algorithm_of(parts, data, seed, data_dir)
    train = data.dataset.train
    for net in algorithm.nets:
        plan = Plan(
            architecture=net,
            shape=tuple(train.features.shape[1:]),
            classes=data.dataset.classes,
            rounds=parts.study.training.rounds,
            whole=train.has_whole_numbers,
        )
        refuse_unfit_defenses(parts.defenses, plan)
    refuse_unmeasured(parts.study, data, seed, algorithm)
    return algorithm


def _without_uninformed(run: Setup, parts: Parts) -> Setup:
    """Drop attacks of the default set that need side information, unless a defense provides it."""
    audit = run.study.audit
    if run.study.attacks or any(
        assigns_classes(run.defenses.get(client)) for client in (*audit.targets, *audit.merge)
    ):
        return run
    uninformed = {name for name, attack in parts.attacks.items() if attack.needs_side_information}
    return replace(
        run,
        attacks={name: attack for name, attack in run.attacks.items() if name not in uninformed},
        refused={name: reason for name, reason in run.refused.items() if name not in uninformed},
    )


def _refuse_absent_targets(run: Setup) -> None:
    """Raise if a client under audit takes part in no measured round."""
    if Sees.UPLOADS not in run.view.offers or not run.on_membership:
        return
    rounds = [run.cohort(index) for index in run.measured_rounds]
    participants = {client for cohort in rounds for client in cohort}
    merged = set(run.study.audit.merge)
    for target in run.study.audit.targets:
        if not participants & (merged if target in merged else {target}):
            raise BadInput(
                f"client {target} takes part in no measured round of seed {run.seed} (rounds "
                f"measured: {len(rounds)}), so no update of it would be seen; raise "
                f"{setting('training.participation')}, measure more rounds "
                f"({setting('training.rounds')}, audit.every), or audit another client"
            )


def _view_of(study: Study, extensions: Iterable[type[Extension]]) -> View:
    """Return the adversary's view, with what extensions add to it."""
    view = view_named(study.audit.view)
    absent = [client for client in study.audit.merge if client >= study.partition.clients]
    if absent:
        raise BadInput(
            f"audit.merge names {absent}, but clients are numbered 0 to "
            f"{study.partition.clients - 1}"
        )
    if study.audit.merge:
        view = merged_view(view, study.audit.merge)
    for kind in extensions:
        view = kind.extend_view(study, view)
    return view


def _view_of_uploads(view: View, algorithm: Algorithm) -> View:
    """Remove values that an algorithm's clients do not send from a view."""
    if algorithm.upload_kind is Logits:
        return output_view(view)
    return several_models_view(view) if isinstance(algorithm, ChoosesModels) else view


def _with_side_information(
    study: Study,
    attacks: Mapping[str, Attack],
    extensions: Iterable[type[Extension]],
    defenses: Mapping[ClientId, Defense],
) -> Mapping[str, Attack]:
    """Set the options of attacks, from the study's table or derived from its other parts."""
    configured = dict(attacks)
    for name, options in study.attacks.items():
        attack = attacks[name]
        for kind in extensions:
            attack = kind.configure_attack(study, attack)
        tail = _noise_tail(study, name, attack, defenses)
        configured[name] = attack.with_settings(tail | options)
    return configured


def _select_attacks(
    study: Study, attacks: Mapping[str, Attack], task: Task, view: View
) -> tuple[dict[str, Attack], dict[str, str]]:
    """Return the attacks that are possible in a view, and the reason for each excluded attack."""
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
    """Return the option ``tail`` of an attack that uses it: the share of parameters with noise."""
    if "tail" not in attack.settings():
        return {}
    audited = {*study.audit.targets, *study.audit.merge}
    tails = [noisy_tail(defenses.get(client)) for client in audited]
    distinct = {tail for tail in tails if tail is not None}
    if len(distinct) > 1:
        raise BadInput(
            f"the audited clients add noise to the shares {sorted(distinct)} of their parameters, "
            f"but the attack {name!r} takes one share; set attacks.{name}.tail, or audit the "
            "clients one by one"
        )
    return {"tail": distinct.pop()} if distinct else {}


def _refuse_impossible(name: str, attack: Attack, study: Study, task: Task, view: View) -> None:
    view.refuse_unless_offered(attack.needs, f"the attack {name!r}")
    if attack.reads & ~task.readings:
        raise NotVisible(lacking(f"the attack {name!r}", attack.reads, task))
    if attack.infers_source and study.audit.unit == "person":
        raise NotVisible(
            f"the attack {name!r} infers the source of single samples, but samples of one person "
            'are not independent; leave it out, or leave audit.unit at "sample"'
        )
    if attack.infers_source and study.audit.merge:
        raise NotVisible(
            f"the attack {name!r} distinguishes single clients, but audit.merge attacks the "
            f"clients {list(study.audit.merge)} together; leave audit.merge out"
        )
    if attack.infers_source and study.figures.nobody_is_a_member:
        raise NotVisible(
            f"the attack {name!r} infers the client of a sample, but with "
            "figures.nobody_is_a_member samples of no client are called members; leave out either"
        )


def _measured_rounds(
    study: Study, view: View, extensions: Iterable[type[Extension]]
) -> tuple[int, ...]:
    """Return the rounds that the adversary measures."""
    last = study.training.rounds
    if Sees.ROUNDS not in view.offers:
        return (last,)
    step = study.measured_every
    if step > last:
        raise BadInput(
            f"audit.every is {step}, but there are only {last} rounds, so nothing would be "
            f"measured; give at most {last}, or 0 for a tenth of the rounds"
        )
    further = (kind.extra_rounds(study) for kind in extensions)
    return tuple(sorted({*range(step, last + 1, step)}.union(*further)))
