"""The federations of a study, for machines that train its clients and deal its data themselves."""

from copy import deepcopy
from pathlib import Path

from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seed_for
from fedaudit.fl.simulate import prepared
from fedaudit.fl.visits import TurnContext
from fedaudit.fl.wire.checkpoint import fingerprint_of
from fedaudit.study.settings.sections import Study
from fedaudit.study.setup.build import setup
from fedaudit.study.setup.examples import shadow_seed
from fedaudit.study.setup.parts import Setup


def federation_seeds(study: Study) -> frozenset[int]:
    """Seeds of all federations that :func:`federation_of` can deal: audited ones and shadows."""
    runs = {*study.seeds, *map(shadow_seed, study.seeds)}
    return frozenset(seed_for(seed, "federation") for seed in runs)


def federation_of(study: Study, seed: int, data_dir: Path | None) -> TurnContext:
    """One federation of a study, with its data as they are once defenses have prepared them.

    Args:
        study: Its settings.
        seed: That the federation is simulated with; it tells which one is meant.
        data_dir: Folder with data sets; by default what ``FEDAUDIT_DATA`` says.

    Raises:
        Refusal: As :func:`fedaudit.study.setup.build.setup`; or no federation of the study has the
            seed.
    """
    run = _run(study, seed, data_dir)
    defenses = deepcopy(dict(run.defenses))
    data = prepared(run.deal.clients, defenses, study.training.rounds, seed)
    return TurnContext(run.algorithm, data, defenses)


def data_key(federation: TurnContext) -> str:
    """Names what clients train on, so that machines with other data are found out."""
    return fingerprint_of((federation.algorithm.nets,), federation.data, {})


def _run(study: Study, seed: int, data_dir: Path | None) -> Setup:
    for one in study.seeds:
        if seed == seed_for(one, "federation"):
            return setup(study, one, data_dir)
        if seed == seed_for(shadow_seed(one), "federation"):
            shadow = setup(study, one, data_dir).shadow
            if shadow is not None:
                return shadow
    raise BadInput(
        f"no federation of the study {study.name!r} has the seed {seed}; use the same study on "
        "every machine"
    )
