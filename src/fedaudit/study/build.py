"""Construction of a run's parts from a study's settings, with checks that they can be combined."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import cast

import torch

from fedaudit.attacks import attack_set, resolve_attack
from fedaudit.attacks.base import Attack
from fedaudit.core import modules
from fedaudit.core.errors import BadInput, FedauditError, NotVisible, format_setting
from fedaudit.core.importing import convert_exits_to_errors
from fedaudit.core.options import raise_if_missing_options
from fedaudit.core.pretrained import pretrained_file
from fedaudit.core.seeds import seed_for
from fedaudit.core.tasks import Task, missing_outputs_message
from fedaudit.core.values import Capability, ClientId, Setting
from fedaudit.datasets.catalog import load
from fedaudit.datasets.dataset import Dataset
from fedaudit.extensions import extensions_of
from fedaudit.fl.algorithms.base import Algorithm, ChoosesModels, SendsControlVariates
from fedaudit.fl.hooks import Defense, Plan
from fedaudit.metrics.catalogue import resolve_metric
from fedaudit.observe.round import Logits
from fedaudit.observe.views import (
    View,
    merged_view,
    output_view,
    several_models_view,
    updates_view,
    view_named,
)
from fedaudit.plan.algorithm import algorithm_of, raise_if_risk_unmeasured
from fedaudit.plan.assignment import (
    GroupedData,
    HoldOutRule,
    draw_assignment,
    raise_if_empty_split,
    shifted_groups,
    training_samples,
    treat_held_out_as_unseen,
)
from fedaudit.plan.identity import StudyKind, with_code
from fedaudit.plan.named import (
    algorithm_factory,
    assigns_classes,
    configured_parts,
    defenses_of,
    neutral_noise_ratio,
    partition_of,
    raise_if_unfit_defenses,
    server_of,
    task_of,
)
from fedaudit.plan.parts import Extension, Parts, Setup
from fedaudit.plan.sections import DataSection, Study
from fedaudit.signals.base import LayerSignal


def build_setup(study: Study, seed: int, data_dir: Path | None) -> Setup:
    """Load the data and construct a run of a study.

    Raises:
        FedauditError: As :func:`resolve` or :func:`run_of`.
    """
    return run_of(resolve(study), seed, data_dir)


def run_of(parts: Parts, seed: int, data_dir: Path | None) -> Setup:
    """Load the data and construct a run from the parts of a study.

    Raises:
        FedauditError: There are too few samples, or the parts cannot be used with the data.
    """
    dataset = dataset_of(parts.study.data, parts.task, seed, data_dir)
    return _setup(parts, seed, dataset, _assign_data(parts, dataset, seed), data_dir)


def resolve(study: Study) -> Parts:
    """Construct every part that a study names, before data are loaded.

    All missing settings are reported together, before any other error.

    Raises:
        BadInput: A name or setting does not exist, or custom code has changed.
        NotVisible: The study names an attack that needs more than the view offers.
    """
    study = with_code(study)
    raise_if_missing_options(configured_parts(study))
    named_attacks = {name: resolve_attack(name) for name in study.attacks}
    default_attacks = named_attacks or attack_set(study.attack_set)
    extensions = tuple(extensions_of(study, default_attacks))
    view, task, defenses = _view_of(study, extensions), task_of(study.task), defenses_of(study)
    attacks = _configure_attacks(study, default_attacks, extensions, defenses)
    possible_attacks, _ = _select_attacks(study, attacks, task, view)
    return Parts(
        study=_with_source_samples(study, possible_attacks.values()),
        task=task,
        view=view,
        attacks=attacks,
        measured_rounds=_measured_rounds(study, view, extensions),
        metrics={name: resolve_metric(name) for name in study.figures.metrics},
        defenses=defenses,
        make_algorithm=algorithm_factory(study),
        partition=partition_of(study),
        server=server_of(study),
        extensions=extensions,
    )


def with_derived_settings(study: StudyKind) -> StudyKind:
    """Return a study or games with the settings that are derived from others.

    Raises:
        FedauditError: As :func:`resolve` and :func:`fedaudit.plan.identity.with_code`.
    """
    derived = resolve(study).study if isinstance(study, Study) else with_code(study)
    return cast(StudyKind, derived)


def _setup(
    parts: Parts, seed: int, dataset: Dataset, data: GroupedData, data_dir: Path | None
) -> Setup:
    study, defenses = parts.study, parts.defenses
    algorithm = _checked_algorithm(parts, data, seed, data_dir)
    view = _restrict_view_to_uploads(parts.view, algorithm)
    if data.dataset.train.has_whole_numbers:
        # The embedding must have a row for the largest token of training and test samples.
        for net, samples in product(algorithm.nets, (data.dataset.train, data.dataset.test)):
            if len(samples):
                modules.raise_if_unusable_model(net.initial(0), samples)
    attacks, refused = _select_attacks(study, parts.attacks, parts.task, view)
    _raise_if_unmeasured_signals(attacks, algorithm)
    parts.server.raise_if_misfit(data.assignment.clients.keys(), study.training.rounds)
    holdout = HoldOutRule(defenses, algorithm, study.training.rounds, seed_for(seed, "federation"))
    raise_if_empty_split(data.assignment.clients, holdout)
    assignment = treat_held_out_as_unseen(data.assignment, holdout)
    if study.audit.sources:
        prepared = training_samples(data.assignment.clients, holdout)
        # Source inference uses the original samples, since a defense may change prepared samples.
        originals = {
            client: samples.take(torch.isin(samples.ids, prepared[client].ids))
            for client, samples in assignment.clients.items()
        }
        assignment = assignment.with_source_samples(originals, study.audit.sources, seed=seed)
    run = Setup(
        study=study,
        seed=seed,
        dataset=data.dataset,
        assignment=assignment,
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
    run = _drop_uninformed_attacks(run, parts)
    for kind in parts.extensions:
        run = kind.add_to(run, dataset)
    for federation in (run, *run.additional_federations):
        _raise_if_absent_targets(federation)
    return run


def _with_source_samples(study: Study, attacks: Iterable[Attack]) -> Study:
    """Set the default number of each client's samples for source inference."""
    audit = study.audit
    if audit.sources is not None:
        return study
    count = 0
    # The other draws already audit random samples of each client, or audit few samples.
    needs_samples = audit.draw == "fair" and not study.has_iid_clients
    if needs_samples and any(attack.infers_source for attack in attacks):
        count = audit.samples // (3 * study.partition.clients)
    return study.model_copy(update={"audit": audit.model_copy(update={"sources": count})})


def dataset_of(section: DataSection, task: Task, seed: int, data_dir: Path | None) -> Dataset:
    """Load the data set that a table of a study names."""
    classes = section.classes, section.first_class
    return load(section.name, task, *classes, data_dir=data_dir, seed=seed, **section.options)


def raise_if_misfits(
    studies: Iterable[Study],
    data_dir: Path | None = None,
    check: Callable[[Setup], None] = lambda run: None,
) -> None:
    """Raise if any of several studies cannot run.

    Args:
        studies: Studies with different names.
        data_dir: Folder of data sets.
        check: Function that is called with every run, and raises if the run is not possible.

    Raises:
        FedauditError: One error that lists the errors of all studies.
    """
    errors = dict[str, FedauditError]()
    # Points of a grid usually share their data, which take longest to read. Studies are therefore
    # grouped by data.
    by_data = dict[tuple[str, int], list[Parts]]()
    for study in studies:
        try:
            with convert_exits_to_errors():
                parts = resolve(study)
        except FedauditError as error:
            errors[study.name] = error
            continue
        for seed in study.seeds:
            by_data.setdefault((repr((study.data, study.task)), seed), []).append(parts)
    for (_, seed), group in by_data.items():
        dataset, data_settings, data = None, "", None
        for parts in group:
            study = parts.study
            if study.name in errors:
                continue
            try:
                if dataset is None:
                    dataset = dataset_of(study.data, parts.task, seed, data_dir)
                settings = repr((study.partition, study.audit, study.shift))
                if data is None or settings != data_settings:
                    data_settings, data = settings, _assign_data(parts, dataset, seed)
                pretrained = study.pretraining and pretrained_file(study.pretrained_name)
                with convert_exits_to_errors():
                    # A network that is not yet pretrained cannot be tried.
                    if pretrained and not pretrained.is_file():
                        _checked_algorithm(parts, data, seed, data_dir)
                    else:
                        check(_setup(parts, seed, dataset, data, data_dir))
            except FedauditError as error:
                errors[study.name] = error
    if errors:
        raise _merge_errors(errors)


def _merge_errors(errors: Mapping[str, FedauditError]) -> FedauditError:
    """Return one error for several studies, which states each message once."""
    studies_by_message = dict[str, list[str]]()
    for name, error in errors.items():
        studies_by_message.setdefault(str(error), []).append(name)
    lines = [f"{', '.join(names)}: {message}" for message, names in studies_by_message.items()]
    first = next(iter(errors.values()))
    merged = type(first)("\n".join(lines))
    merged.__cause__ = first
    return merged


def _assign_data(parts: Parts, dataset: Dataset, seed: int) -> GroupedData:
    """Divide the data among clients, and apply the shift of the study."""
    assignment = draw_assignment(parts.study, parts.partition, dataset, seed)
    return shifted_groups(parts.study, dataset, assignment, seed)


def _raise_if_unmeasured_signals(attacks: Mapping[str, Attack], algorithm: Algorithm) -> None:
    """Raise if a signal of an attack reads layers that a network does not have."""
    for (name, attack), net in product(attacks.items(), algorithm.nets):
        for signal in attack.signals:
            if not isinstance(signal, LayerSignal):
                continue
            try:
                signal.raise_if_misfit(net.initial(0))
            except FedauditError as error:
                raise type(error)(f"the attack {name!r}: {error}") from error


def _checked_algorithm(
    parts: Parts, data: GroupedData, seed: int, data_dir: Path | None
) -> Algorithm:
    """Construct the algorithm, and raise if a defense cannot be used with its networks."""
    algorithm = algorithm_of(parts, data, seed, data_dir)
    train = data.dataset.train
    for net in algorithm.nets:
        plan = Plan(
            architecture=net,
            shape=tuple(train.features.shape[1:]),
            classes=data.dataset.classes,
            rounds=parts.study.training.rounds,
            has_integer_features=train.has_whole_numbers,
        )
        raise_if_unfit_defenses(parts.defenses, plan)
    raise_if_risk_unmeasured(parts.study, data, seed, algorithm)
    return algorithm


def _drop_uninformed_attacks(run: Setup, parts: Parts) -> Setup:
    """Drop attacks of the default set that need side information which no defense provides.

    The side information is the assignment of classes to clients.
    """
    audited_clients = (*run.study.audit.targets, *run.study.audit.merge)
    has_side_information = any(
        assigns_classes(run.defenses.get(client)) for client in audited_clients
    )
    if run.study.attacks or has_side_information:
        return run
    uninformed = {name for name, attack in parts.attacks.items() if attack.needs_side_information}
    return replace(
        run,
        attacks={name: attack for name, attack in run.attacks.items() if name not in uninformed},
        refused={name: reason for name, reason in run.refused.items() if name not in uninformed},
    )


def _raise_if_absent_targets(run: Setup) -> None:
    """Raise if a client under audit takes part in no measured round."""
    if Capability.UPLOADS not in run.view.offers or not run.membership_attacks:
        return
    rounds = [run.cohort(index) for index in run.measured_rounds]
    participants = {client for cohort in rounds for client in cohort}
    merged = set(run.study.audit.merge)
    for target in run.study.audit.targets:
        if not participants & (merged if target in merged else {target}):
            raise BadInput(
                f"client {target} takes part in no measured round of seed {run.seed} (rounds "
                f"measured: {len(rounds)}), so the adversary would see none of its updates; raise "
                f"{format_setting('training.participation')}, measure more rounds "
                f"({format_setting('training.rounds')}, audit.every), or audit another client"
            )


def _view_of(study: Study, extensions: Iterable[type[Extension]]) -> View:
    """Return the adversary's view, including what extensions reveal."""
    view = view_named(study.audit.view)
    missing_clients = [client for client in study.audit.merge if client >= study.partition.clients]
    if missing_clients:
        raise BadInput(
            f"audit.merge names {missing_clients}, but clients are numbered 0 to "
            f"{study.partition.clients - 1}"
        )
    if study.audit.merge:
        view = merged_view(view, study.audit.merge)
    for kind in extensions:
        view = kind.extend_view(study, view)
    return view


def _restrict_view_to_uploads(view: View, algorithm: Algorithm) -> View:
    """Return a view without information that clients of an algorithm do not send."""
    if not isinstance(algorithm, SendsControlVariates):
        view = updates_view(view)
    if algorithm.upload_kind is Logits:
        return output_view(view)
    return several_models_view(view) if isinstance(algorithm, ChoosesModels) else view


def _configure_attacks(
    study: Study,
    attacks: Mapping[str, Attack],
    extensions: Iterable[type[Extension]],
    defenses: Mapping[ClientId, Defense],
) -> Mapping[str, Attack]:
    """Set options of attacks, from the study's table and from other settings."""
    configured = dict(attacks)
    for name, options in study.attacks.items():
        attack = attacks[name]
        for kind in extensions:
            attack = kind.configure_attack(study, attack)
        derived_options = _noise_options(study, name, attack, defenses)
        configured[name] = attack.with_settings(derived_options | options)
    return configured


def _select_attacks(
    study: Study, attacks: Mapping[str, Attack], task: Task, view: View
) -> tuple[dict[str, Attack], dict[str, str]]:
    """Return the attacks that are possible in a view, and the reason for each excluded attack."""
    if study.audit.keep == "full":
        view.raise_unless_offered(
            Capability.GLOBAL_MODEL | Capability.UPDATE, 'audit.keep = "full"'
        )
    possible, refused = {}, {}
    for name, attack in attacks.items():
        try:
            _raise_if_attack_impossible(name, attack, study, task, view)
            possible[name] = attack
        except NotVisible as error:
            if study.attacks:
                raise
            refused[name] = str(error)
    return possible, refused


def _noise_options(
    study: Study, name: str, attack: Attack, defenses: Mapping[ClientId, Defense]
) -> dict[str, Setting]:
    """Return the option ``tail`` of attacks that have it: the fraction of parameters with noise."""
    if "tail" not in attack.settings():
        return {}
    audited_clients = {*study.audit.targets, *study.audit.merge}
    ratios = {neutral_noise_ratio(defenses.get(client)) for client in audited_clients}
    fractions = sorted(ratio for ratio in ratios if ratio is not None)
    if len(fractions) > 1:
        raise BadInput(
            f"the audited clients add noise to different fractions of their parameters "
            f"({fractions}), but the attack {name!r} takes one fraction; set attacks.{name}.tail, "
            "or audit the clients one by one"
        )
    return {"tail": fractions[0]} if fractions else {}


def _raise_if_attack_impossible(
    name: str, attack: Attack, study: Study, task: Task, view: View
) -> None:
    view.raise_unless_offered(attack.needs, f"the attack {name!r}")
    if attack.needed_outputs & ~task.output_kinds:
        raise NotVisible(
            missing_outputs_message(f"the attack {name!r}", attack.needed_outputs, task)
        )
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
    if attack.infers_source and study.figures.null_members:
        raise NotVisible(
            f"the attack {name!r} infers the client of a sample, but with figures.null_members no "
            "client trains on the samples that are labelled as members; leave out one of them"
        )


def _measured_rounds(
    study: Study, view: View, extensions: Iterable[type[Extension]]
) -> tuple[int, ...]:
    """Return the rounds that the adversary measures."""
    last = study.training.rounds
    if Capability.ROUNDS not in view.offers:
        return (last,)
    step = study.measured_every
    if step > last:
        raise BadInput(
            f"audit.every is {step}, but there are only {last} rounds, so nothing would be "
            f"measured; give at most {last}, or 0 for a tenth of the rounds"
        )
    extra_rounds = (kind.extra_rounds(study) for kind in extensions)
    return tuple(sorted({*range(step, last + 1, step)}.union(*extra_rounds)))
