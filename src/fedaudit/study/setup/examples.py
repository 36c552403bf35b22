"""Examples that attacks learn from: a shadow federation, or a known split of the run itself."""

from collections.abc import Mapping
from dataclasses import replace

from fedaudit.attacks.base import Attack
from fedaudit.attacks.catalog import attack_named
from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.seeds import seed_for
from fedaudit.core.values import ClientId
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.shadow import Known, known_split, shadow_deal
from fedaudit.fl.algorithms.base import HONEST
from fedaudit.fl.algorithms.ifca_mir import IfcaMir
from fedaudit.study.settings.defense import DefenseSection
from fedaudit.study.settings.sections import ServerSection, ShadowSection, Study
from fedaudit.study.setup.algorithm import server_risk
from fedaudit.study.setup.dealing import dealt, grouped
from fedaudit.study.setup.holdout import HoldOutRule, exclude_held_out, left_to_train
from fedaudit.study.setup.parts import Setup

_LARGEST_SEED = 10**9


def shadow_section(study: Study) -> ShadowSection | None:
    """Source of examples: as the study says, or the default if it names an attack that learns."""
    named = any(attack_named(name).learns for name in study.attacks)
    return study.shadow or (ShadowSection() if named else None)


def own_seed(seed: int, what: str = "shadow") -> int:
    """The seed of a federation of the adversary's own beside a run."""
    # Beyond the seeds that a study can name: no run of somebody's draws as these do.
    return _LARGEST_SEED + 1 + seed_for(seed, what) % _LARGEST_SEED


def with_examples(run: Setup, dataset: Dataset) -> Setup:
    """The run with what its attacks learn from, if one of them learns.

    Args:
        run: The audited one.
        dataset: Its data as they are without a shift; a shadow federation has its own.

    Raises:
        BadInput: The client of a known split is audited or merged, or data do not suffice.
        Unsupported: A known split is asked for where clients' data are shifted.
    """
    given = shadow_section(run.study)
    if given is None or not any(attack.learns for attack in run.attacks.values()):
        return run
    if given.mode == "federation":
        return replace(run, shadow=_shadow(run, given, dataset))
    return replace(run, known=_known(run, given))


def _known(run: Setup, given: ShadowSection) -> Known:
    """Samples of one client of the run, some of which it trained on."""
    if run.study.shift is not None:
        raise Unsupported(
            "a known split holds samples of one client against samples of nobody, which a shift "
            "tells apart whoever trained on them, so that attacks would learn the shift; set "
            'shadow.mode = "federation"'
        )
    client = _known_client(run, given)
    left = left_to_train({client: run.deal.clients[client]}, run.holdout)[client]
    return known_split(
        run.dataset,
        run.deal,
        client=client,
        trained_on=left.ids.numpy(),
        size=given.known,
        seed=run.seed,
    )


def _known_client(run: Setup, given: ShadowSection) -> ClientId:
    audit, clients = run.study.audit, run.deal.clients
    free = [c for c in clients if c not in (*audit.targets, *audit.merge)]
    client = given.client if given.client is not None else max(free, default=-1)
    if client not in free:
        raise BadInput(
            f"shadow.client is {given.client}; give a client that is neither audited nor merged: "
            f"one of {free}"
        )
    return client


def _shadow(run: Setup, given: ShadowSection, dataset: Dataset) -> Setup:
    """The same federation without a defense, on data that the run does not touch."""
    audit, target = run.study.audit, run.study.audit.targets[0]
    own = audit.fair if audit.draw == "fair" else 2 * run.deal.sizes[target]
    return own_federation(
        run,
        dataset,
        what="shadow",
        audited=given.fair or own,
        attacks={name: attack for name, attack in run.attacks.items() if attack.learns},
    )


def own_federation(
    run: Setup, dataset: Dataset, *, what: str, audited: int, attacks: Mapping[str, Attack]
) -> Setup:
    """A federation of the adversary's own: undefended, on data that the run does not touch.

    Args:
        run: The audited one.
        dataset: Its data as they are without a shift.
        what: Its name; two names give two federations.
        audited: Samples of it whose owner a fair draw decides.
        attacks: Whose signals are measured.

    Raises:
        BadInput: Too few samples are left.
    """
    seed = own_seed(run.seed, what)
    audit = run.study.audit
    study = run.study.model_copy(
        update={
            "seeds": (seed,),
            "defense": DefenseSection(),
            "server": ServerSection(),
            "shadow": None,
            "references": None,
            "canaries": None,
            "secure_sum": None,
            "attacker": None,
            "audit": audit.model_copy(
                update={
                    "draw": "fair",
                    "targets": audit.targets[:1],
                    "fair": audited,
                    "extra_other": 0,
                    "extra_unseen": 0,
                    "options": {},
                    "keep": "signals",
                }
            ),
        }
    )
    deal = shadow_deal(dataset, run.deal, lambda rest: dealt(study, rest, seed))
    world = grouped(study, dataset, deal, seed)
    algorithm = run.algorithm
    if isinstance(algorithm, IfcaMir):
        # The run's own server may have samples that the shadow's clients train on.
        algorithm = replace(algorithm, risk=server_risk(study, world, seed, besides=run.deal))
    holdout = HoldOutRule({}, algorithm, study.training.rounds, seed_for(seed, "federation"))
    return replace(
        run,
        study=study,
        seed=seed,
        dataset=world.dataset,
        deal=exclude_held_out(world.deal, holdout),
        algorithm=algorithm,
        groups=world.groups,
        canaries=None,
        attacker=None,
        is_shadow=True,
        defenses={},
        server=HONEST,
        attacks=attacks,
        refused={},
    )
