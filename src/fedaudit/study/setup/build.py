"""From a study's settings to the parts of one run, with everything refused that cannot work."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from fedaudit.attacks.base import Attack
from fedaudit.attacks.catalog import attack_named
from fedaudit.core.errors import BadInput, Refusal
from fedaudit.core.importing import called, named
from fedaudit.core.naming import Copies
from fedaudit.core.seeds import seed_for
from fedaudit.core.tasks import task_named
from fedaudit.core.values import ClientId, Sees
from fedaudit.datasets.catalog import load
from fedaudit.datasets.dataset import Dataset, some_classes
from fedaudit.defenses.base import Defense, Plan
from fedaudit.fl.algorithms.base import Algorithm, Server
from fedaudit.fl.visits import cohort_of
from fedaudit.metrics.table import EVERY_EVALUATION, METRICS, Exact, Metric, OfScores
from fedaudit.observe.views import View
from fedaudit.study.settings.options import check_options
from fedaudit.study.settings.sections import Study
from fedaudit.study.setup.adversary import as_sent, attacks_of, measured_rounds, view_of
from fedaudit.study.setup.algorithm import algorithm_of, check_algorithm, refuse_unmeasured
from fedaudit.study.setup.dealing import GroupedData, dealt, grouped
from fedaudit.study.setup.defenses import assigns_classes, defenses_of, refuse_unfit
from fedaudit.study.setup.examples import with_examples
from fedaudit.study.setup.holdout import HoldOutRule, exclude_held_out, refuse_one_sided
from fedaudit.study.setup.parts import Setup

SERVERS: dict[str, Callable[..., Server]] = {"honest": Server}
"""Who may send the models, by name."""


def setup(study: Study, seed: int, data_dir: Path | None) -> Setup:
    """Loads the data and builds the parts of one run.

    Raises:
        BadInput: A name or setting that does not exist, or data that does not suffice.
        NotVisible: The study names an attack that needs more than the view offers.
    """
    _attacks_seen(study, view_of(study))
    for name in study.figures.metrics:
        metric_named(name)
    dataset = dataset_of(study, seed, data_dir)
    world = _dealt(study, dataset, seed)
    algorithm, defenses = _algorithm_and_defenses(study, world, seed, data_dir)
    view = as_sent(view_of(study), algorithm)
    attacks, refused = _attacks_seen(study, view)
    holdout = HoldOutRule(defenses, algorithm, study.training.rounds, seed_for(seed, "federation"))
    refuse_one_sided(world.deal.clients, holdout)
    run = Setup(
        study=study,
        seed=seed,
        dataset=world.dataset,
        deal=exclude_held_out(world.deal, holdout),
        algorithm=algorithm,
        defenses=defenses,
        view=view,
        attacks=attacks,
        refused=refused,
        measured_rounds=measured_rounds(study, view),
        groups=world.groups,
        server=server_of(study, world),
    )
    run = with_examples(_without_uninformed(run), dataset)
    for one in (run, run.shadow):
        if one is not None:
            refuse_absent_targets(one)
    return run


def server_of(study: Study, world: GroupedData) -> Server:
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


def metric_named(name: str) -> Exact | Metric:
    """The metric of that name, of an installed package, or of the user's own.

    Raises:
        BadInput: There is none, and the nearest is named; or every evaluation has it.
    """
    if name in EVERY_EVALUATION:
        raise BadInput(
            f"{name!r} is among the figures of every evaluation; leave it out of figures.metrics"
        )
    found: Exact | Metric | OfScores = named(
        "metric",
        name,
        METRICS,
        wanted="a fedaudit.metrics.Metric, or a function of scores and membership",
        fits=lambda one: isinstance(one, Exact | Metric) or callable(one),
    )
    return found if isinstance(found, Exact | Metric) else Metric(found)


def dataset_of(study: Study, seed: int, data_dir: Path | None) -> Dataset:
    """The data that a study names, with the classes that it asks for."""
    given = study.data
    task = task_named(study.task.name, study.task.options)
    whole = load(given.name, data_dir=data_dir, seed=seed, task=task, **given.options)
    return some_classes(whole, given.classes, first=given.first_class)


def refuse_misfits(studies: Iterable[Study], data_dir: Path | None = None) -> None:
    """Refuses studies that cannot work, all before any is trained; data are dealt by one seed.

    Args:
        studies: That are to be carried out one after another.
        data_dir: Where their data lie.

    Raises:
        Refusal: What :func:`setup` would refuse, nearly always; the study is named.
    """
    data, dataset, deal, world = None, None, "", None
    for study in studies:
        seed = study.seeds[0]
        try:
            view = view_of(study)
            _attacks_seen(study, view)
            check_algorithm(study)
            defenses_of(study)
            measured_rounds(study, view)
            # Points of a grid share their data nearly always, and reading is what takes long.
            if dataset is None or study.data != data:
                data, dataset, world = study.data, dataset_of(study, seed, data_dir), None
            wanted = repr((study.partition, study.audit, study.shift))
            if world is None or wanted != deal:
                deal, world = wanted, _dealt(study, dataset, seed)
            algorithm, _ = _algorithm_and_defenses(study, world, seed, data_dir)
            _attacks_seen(study, as_sent(view, algorithm))
        except Refusal as error:
            raise type(error)(f"{study.name}: {error}") from error


def _dealt(study: Study, dataset: Dataset, seed: int) -> GroupedData:
    """Training and audited samples, as the groups of clients have them."""
    return grouped(study, dataset, dealt(study, dataset, seed), seed)


def _attacks_seen(study: Study, view: View) -> tuple[dict[str, Attack], dict[str, str]]:
    """The attacks that a view allows, as :func:`attacks_of`, where it also shows what is kept."""
    if study.audit.keep == "full":
        view.refuse_unless_offered(Sees.GLOBAL_MODEL | Sees.UPDATE, 'audit.keep = "full"')
    return attacks_of(study, view)


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
        )
        for net in algorithm.nets
    ]


def refuse_absent_targets(run: Setup) -> None:
    """Refuses a run in which the adversary would never see a client under audit.

    Args:
        run: Who is asked when follows from its seed alone.

    Raises:
        BadInput: A target is asked in none of the measured rounds.
    """
    if Sees.UPLOADS not in run.view.offers or not run.on_membership:
        return
    clients, share = sorted(run.deal.clients), run.study.training.participation
    seed = run.holdout.seed
    rounds = [cohort_of(clients, share, seed, index) for index in run.measured_rounds]
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
