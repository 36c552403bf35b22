"""From a study's settings to the parts of one run, with everything refused that cannot work."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch

from fedaudit.algorithms import algorithm_named
from fedaudit.attacks import attack_named, attack_set
from fedaudit.attacks.base import Attack
from fedaudit.core import modules
from fedaudit.core.errors import BadInput, FedauditError, NotVisible
from fedaudit.core.importing import called, named, refusing_exits
from fedaudit.core.naming import Copies
from fedaudit.core.pretrained import pretrained_file
from fedaudit.core.seeds import seed_for
from fedaudit.core.tasks import lacking
from fedaudit.core.values import ClientId, Sees, Setting
from fedaudit.datasets.catalog import load
from fedaudit.datasets.dataset import Dataset
from fedaudit.fl.algorithms.base import Algorithm, ChoosesModels, Server
from fedaudit.fl.hooks import Defense, Plan
from fedaudit.metrics.table import metric_named
from fedaudit.observe.round import Logits
from fedaudit.observe.views import (
    View,
    as_one,
    of_outputs,
    of_several_models,
    view_named,
)
from fedaudit.signals.base import ReadsLayers
from fedaudit.study.extensions.attacker import Attacker
from fedaudit.study.extensions.canaries import Canaries, CanaryRecords
from fedaudit.study.extensions.examples import LearnedFrom
from fedaudit.study.extensions.references import References
from fedaudit.study.extensions.secure_sum import SecureSum
from fedaudit.study.extensions.unlearning import Unlearning
from fedaudit.study.settings.options import Entry, check_options, refuse_missing, task_of
from fedaudit.study.settings.sections import Study
from fedaudit.study.setup.algorithm import algorithm_of, check_algorithm, refuse_unmeasured
from fedaudit.study.setup.dealing import GroupedData, dealt, grouped, scheme_named
from fedaudit.study.setup.defenses import (
    assigns_classes,
    defenses_of,
    entries_of,
    noisy_tail,
    refuse_unfit,
)
from fedaudit.study.setup.holdout import (
    HoldOutRule,
    exclude_held_out,
    left_to_train,
    refuse_one_sided,
)
from fedaudit.study.setup.parts import Extension, Setup

EXTENSIONS: tuple[type[Extension], ...] = (
    Attacker,
    Canaries,
    CanaryRecords,
    SecureSum,
    LearnedFrom,
    References,
    Unlearning,
)
"""What optional tables add to a run, in the order in which they do so."""

SERVERS: dict[str, Callable[..., Server]] = {"honest": Server}
"""Who may send the models, by name."""


def setup(study: Study, seed: int, data_dir: Path | None) -> Setup:
    """Loads the data and builds the parts of one run.

    Raises:
        BadInput: A name or setting that does not exist, or data that does not suffice.
        NotVisible: The study names an attack that needs more than the view offers.
    """
    _refuse_without_data(study)
    study = with_source_samples(study)
    dataset = dataset_of(study, seed, data_dir)
    return _setup(study, seed, dataset, _dealt(study, dataset, seed), data_dir)


def _refuse_without_data(study: Study) -> None:
    """Refuse what needs no data to be found wrong, required settings that are missing first."""
    refuse_missing(_entries(study))
    view = _view_of(study)
    _attacks_seen(study, view)
    for name in study.figures.metrics:
        metric_named(name)
    check_algorithm(study)
    defenses_of(study)
    _measured_rounds(study, view)


def _entries(study: Study) -> Iterator[Entry]:
    """Entries of catalogues that may have required settings; unknown ones are left out."""
    partition, algorithm = study.partition, study.algorithm
    with suppress(FedauditError):
        make = scheme_named(partition.scheme)
        yield Entry(
            "partition",
            partition.scheme,
            make,
            partition.options,
            "partition",
            partition.set_elsewhere,
        )
    with suppress(FedauditError):
        learns = algorithm_named(algorithm.name)
        yield Entry("algorithm", algorithm.name, learns, algorithm.options, "algorithm")
    yield from entries_of(study)


def _setup(
    study: Study, seed: int, dataset: Dataset, world: GroupedData, data_dir: Path | None
) -> Setup:
    """The parts of one run on data that were loaded and dealt."""
    algorithm, defenses = _algorithm_and_defenses(study, world, seed, data_dir)
    view = _as_sent(_view_of(study), algorithm)
    if world.dataset.train.has_whole_numbers:
        # The largest token or concept may be in either part, and of any client.
        for net, part in product(algorithm.nets, (world.dataset.train, world.dataset.test)):
            if len(part):
                modules.refuse_unfit(net.initial(0), part)
    attacks, refused = _attacks_seen(study, view)
    _refuse_unmeasured_signals(attacks, algorithm)
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
        measured_rounds=_measured_rounds(study, view),
        groups=world.groups,
        server=_server_of(study, world),
    )
    run = _without_uninformed(run)
    for kind in EXTENSIONS:
        run = kind.added(run, dataset)
    for one in (run, *run.own_federations):
        _refuse_absent_targets(one)
    return run


def with_source_samples(study: Study) -> Study:
    """Return the study with the number of samples of each client that source inference asks about.

    Raises:
        BadInput: The study names an attack that does not exist.
        NotVisible: It names one that needs more than the view offers.
    """
    audit = study.audit
    if audit.sources is not None:
        return study
    count = 0
    # Elsewhere the audited samples of each client are random ones of its data, or few are its.
    if audit.draw == "fair" and not study.has_equal_clients:
        attacks, _ = attacks_of(study, _view_of(study))
        if any(attack.infers_source for attack in attacks.values()):
            count = audit.fair // (3 * study.partition.clients)
    return study.model_copy(update={"audit": audit.model_copy(update={"sources": count})})


def _server_of(study: Study, world: GroupedData) -> Server:
    """The server that sends clients their models.

    Raises:
        BadInput: No such server, or one that tampers with what never comes.
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
    server.refuse_misfit(world.deal.clients.keys(), study.training.rounds)
    return server


def dataset_of(study: Study, seed: int, data_dir: Path | None) -> Dataset:
    """The data that a study names, with the classes that it asks for."""
    given = study.data
    task = task_of(study.task)
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
    sharing = dict[tuple[str, int], list[Study]]()
    for study in studies:
        try:
            with refusing_exits():
                _refuse_without_data(study)
            study = with_source_samples(study)
        except FedauditError as error:
            refused[study.name] = error
            continue
        for seed in study.seeds:
            sharing.setdefault((repr((study.data, study.task)), seed), []).append(study)
    for (_, seed), together in sharing.items():
        dataset, deal, world = None, "", None
        for study in (one for one in together if one.name not in refused):
            try:
                if dataset is None:
                    dataset = dataset_of(study, seed, data_dir)
                wanted = repr((study.partition, study.audit, study.shift))
                if world is None or wanted != deal:
                    deal, world = wanted, _dealt(study, dataset, seed)
                with refusing_exits():
                    if _lacks_pretraining(study):
                        _algorithm_and_defenses(study, world, seed, data_dir)
                    else:
                        check(_setup(study, seed, dataset, world, data_dir))
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


def _dealt(study: Study, dataset: Dataset, seed: int) -> GroupedData:
    """Training and audited samples, as the groups of clients have them."""
    return grouped(study, dataset, dealt(study, dataset, seed), seed)


def _attacks_seen(study: Study, view: View) -> tuple[dict[str, Attack], dict[str, str]]:
    """The attacks that a view allows, as :func:`attacks_of`, where it also shows what is kept."""
    if study.audit.keep == "full":
        view.refuse_unless_offered(Sees.GLOBAL_MODEL | Sees.UPDATE, 'audit.keep = "full"')
    return attacks_of(study, view)


def _refuse_unmeasured_signals(attacks: Mapping[str, Attack], algorithm: Algorithm) -> None:
    """Refuses attacks whose signals read layers that a network has not."""
    for (name, attack), net in product(attacks.items(), algorithm.nets):
        for signal in attack.signals:
            if isinstance(signal, ReadsLayers):
                try:
                    signal.refuse_misfit(net.initial(0))
                except FedauditError as error:
                    raise type(error)(f"the attack {name!r}: {error}") from error


def _algorithm_and_defenses(
    study: Study, world: GroupedData, seed: int, data_dir: Path | None
) -> tuple[Algorithm, dict[ClientId, Defense]]:
    """The algorithm and the clients' defenses, which fit its networks."""
    algorithm, defenses = algorithm_of(study, world, seed, data_dir), defenses_of(study)
    for plan in _plans(study, world.dataset, algorithm):
        refuse_unfit(defenses, plan)
    refuse_unmeasured(study, world, seed, algorithm)
    return algorithm, defenses


def _without_uninformed(run: Setup) -> Setup:
    """The run without attacks of the default set that need side information there is none of."""
    audit = run.study.audit
    if run.study.attacks or any(
        assigns_classes(run.defenses.get(client)) for client in (*audit.targets, *audit.merge)
    ):
        return run
    return replace(
        run,
        attacks={
            name: attack
            for name, attack in run.attacks.items()
            if not attack.needs_side_information
        },
        refused={
            name: why
            for name, why in run.refused.items()
            if not attack_named(name).needs_side_information
        },
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
    """Refuses a run in which the adversary would never see a client under audit.

    Args:
        run: Who is asked when follows from its seed alone.

    Raises:
        BadInput: A target is asked in none of the measured rounds.
    """
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
                "training.participation, measure more rounds (training.rounds, audit.every), or "
                "audit another client"
            )


def _view_of(study: Study) -> View:
    """The adversary's view, and whether it has data of its own to learn from.

    Raises:
        BadInput: No such view, or audit.merge names clients that are not there.
    """
    view = view_named(study.audit.view)
    strangers = [c for c in study.audit.merge if c >= study.partition.clients]
    if strangers:
        raise BadInput(
            f"audit.merge names {strangers}, but clients are numbered 0 to "
            f"{study.partition.clients - 1}"
        )
    if study.audit.merge:
        view = as_one(view, study.audit.merge)
    for kind in EXTENSIONS:
        view = kind.seen(study, view)
    return view


def _as_sent(view: View, algorithm: Algorithm) -> View:
    """A view less what the algorithm's clients do not send.

    Raises:
        NotVisible: Nothing.
    """
    if algorithm.upload_kind is Logits:
        return of_outputs(view)
    return of_several_models(view) if isinstance(algorithm, ChoosesModels) else view


def attacks_of(study: Study, view: View) -> tuple[dict[str, Attack], dict[str, str]]:
    """Named attacks must be possible; of the study's set of attacks, the possible ones are taken.

    Returns:
        The attacks, and for each other one what is missing.

    Raises:
        BadInput: No such attack, setting or set.
        NotVisible: The study names an attack that needs more than the view offers.
    """
    if study.attacks:
        named = {
            name: _informed(study, attack_named(name)).with_settings(
                _noise_tail(study, name) | given
            )
            for name, given in study.attacks.items()
        }
        for name, attack in named.items():
            _refuse_impossible(name, attack, study, view)
        return named, {}
    possible, refused = {}, {}
    for name, attack in attack_set(study.attack_set).items():
        try:
            _refuse_impossible(name, attack, study, view)
            possible[name] = attack
        except NotVisible as error:
            refused[name] = str(error)
    return possible, refused


def _informed(study: Study, attack: Attack) -> Attack:
    """The attack, told of what it must know of the study's extensions."""
    for kind in EXTENSIONS:
        attack = kind.informed(study, attack)
    return attack


def _noise_tail(study: Study, name: str) -> dict[str, Setting]:
    """Side information on a defense's noise for an attack that uses it, where a study gives none.

    Raises:
        BadInput: The audited clients' noise lies in tails of several sizes.
    """
    if "tail" not in attack_named(name).settings():
        return {}
    defenses = defenses_of(study)
    audited = {*study.audit.targets, *study.audit.merge}
    tails = [noisy_tail(defenses.get(client)) for client in audited]
    found = {tail for tail in tails if tail is not None}
    if len(found) > 1:
        raise BadInput(
            f"the audited clients add noise to the shares {sorted(found)} of their parameters, and "
            f"the attack {name!r} is told of one; set attacks.{name}.tail, or audit them one by one"
        )
    return {"tail": found.pop()} if found else {}


def _refuse_impossible(name: str, attack: Attack, study: Study, view: View) -> None:
    view.refuse_unless_offered(attack.needs, f"the attack {name!r}")
    task = task_of(study.task)
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


def _measured_rounds(study: Study, view: View) -> tuple[int, ...]:
    """The rounds in which the adversary looks.

    Raises:
        BadInput: Measured rounds are further apart than there are rounds.
    """
    last = study.training.rounds
    if Sees.ROUNDS not in view.offers:
        return (last,)
    step = study.measured_every
    if step > last:
        raise BadInput(
            f"audit.every is {step}, but there are only {last} rounds, so that nothing would be "
            f"measured; give at most {last}, or 0 for a tenth of the rounds"
        )
    more = (kind.measured_in(study) for kind in EXTENSIONS)
    return tuple(sorted({*range(step, last + 1, step)}.union(*more)))
