"""Federations of unlearning: the one that goes on without forgotten samples, and the retrained."""

import json
from collections.abc import Collection
from dataclasses import replace

import numpy as np
import torch

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.values import NOBODY, ClientId
from fedaudit.datasets.draws.audit_set import Deal
from fedaudit.fl.algorithms.base import Algorithm
from fedaudit.fl.algorithms.fedavg import FedAvg, FedProx
from fedaudit.study.settings.sections import ServerSection, Study, UnlearningSection
from fedaudit.study.setup.examples import own_seed
from fedaudit.study.setup.parts import Setup

_RETRAINED = "retrained"
TRAINS_ON = ("continue", "ascent")
"""Methods that go on from the released model."""


def with_unlearning(run: Setup) -> Setup:
    """The run with the federations that its unlearning trains, if its study asks for unlearning.

    The audited samples that the audited clients trained on are forgotten. All federations beside
    the run are without them; a client that has no others is not in them.

    Args:
        run: The audited one, with its attacks.

    Raises:
        BadInput: Another view than of the final model, samples that no fair draw chose, or nobody
            left to train.
        Unsupported: An algorithm whose server has more than a model to go on from.
    """
    given = run.study.unlearning
    if given is None:
        return run
    _refuse_unfit(run.study, given, run.algorithm)
    deal = without_members(run.deal, run.study.audit.targets)
    if not deal.clients:
        raise BadInput("without the forgotten samples no client has any; audit fewer clients")
    retrained = _beside(run, deal, _RETRAINED, run.study.training.rounds)
    if given.method == "nothing":
        return replace(run, retrained=retrained)
    rounds = given.rounds if given.method in TRAINS_ON else run.study.training.rounds
    return replace(
        run,
        unlearned=_beside(run, deal, _name_of(run.study, given), rounds),
        retrained=retrained,
    )


def unlearning_names(study: Study) -> list[str]:
    """Of the federations of unlearning beside a run, from which their seeds follow."""
    given = study.unlearning
    return [] if given is None else [_RETRAINED, _name_of(study, given)]


def without_members(deal: Deal, targets: Collection[ClientId]) -> Deal:
    """The same deal without the audited samples that some clients train on; nobody has these.

    Args:
        deal: Who trains on what.
        targets: The clients that give them up; one that is left without samples is no more in it.
    """
    gone = np.isin(deal.audit.owner, list(targets))
    ids = deal.audit.samples.ids[torch.from_numpy(gone)]
    clients = {
        client: data.take(~torch.isin(data.ids, ids)) if client in targets else data
        for client, data in deal.clients.items()
    }
    owner = np.where(gone, NOBODY, deal.audit.owner)
    left = {client: data for client, data in clients.items() if len(data)}
    return Deal(left, replace(deal.audit, owner=owner))


def _name_of(study: Study, given: UnlearningSection) -> str:
    """Names what is trained after a run, by all settings that its own study does not hold."""
    if given.method not in TRAINS_ON:
        return f"unlearning by {given.method}"
    of_method = given.model_dump(mode="json", exclude={"margin"})
    return f"unlearning after {study.training.rounds} rounds: {json.dumps(of_method)}"


def _beside(run: Setup, deal: Deal, what: str, rounds: int) -> Setup:
    """A federation with the run's settings on what is left of its data."""
    seed = own_seed(run.seed, what)
    none = dict.fromkeys(
        ("shadow", "references", "canaries", "unlearning", "secure_sum", "attacker")
    )
    study = run.study.model_copy(
        update={
            **none,
            "seeds": (seed,),
            "training": run.study.training.model_copy(update={"rounds": rounds}),
            "audit": run.study.audit.model_copy(update={"keep": "signals", "every": 0}),
        }
    )
    return replace(
        run,
        study=study,
        seed=seed,
        deal=deal,
        defenses={client: one for client, one in run.defenses.items() if client in deal.clients},
        measured_rounds=(rounds,),
        shadow=None,
        references=(),
        known=None,
        is_shadow=True,
        refused={},
    )


def _refuse_unfit(study: Study, given: UnlearningSection, algorithm: Algorithm) -> None:
    if study.audit.view != "final":
        raise BadInput(
            f"unlearning is judged by the models before and after it, and audit.view is "
            f'{study.audit.view!r}, which shows more; set audit.view = "final"'
        )
    others = {
        "audit.draw": study.audit.draw != "fair",
        "audit.merge": bool(study.audit.merge),
        "[shift]": study.shift is not None,
        "[canaries]": study.canaries is not None,
        "server": study.server != ServerSection(),
        "figures.evaluation": study.figures.evaluation != "aligned",
        "figures.nobody_is_a_member": study.figures.nobody_is_a_member,
    }
    for setting, asked in others.items():
        if asked:
            raise BadInput(
                f"unlearning holds samples that a fair draw gave to a client against unseen ones; "
                f"leave {setting} as it is by default, or leave [unlearning] out"
            )
    if given.method in TRAINS_ON and type(algorithm) not in (FedAvg, FedProx):
        raise Unsupported(
            f"unlearning by {given.method!r} goes on from the released model, and the server of "
            f"{type(algorithm).__name__} keeps more than that; use fedavg or fedprox, or another "
            "unlearning.method"
        )
