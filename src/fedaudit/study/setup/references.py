"""Reference federations: what an adversary trains itself, to compare models with."""

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool
from numpy import ndarray

from fedaudit.attacks.catalog import attack_named, attack_set
from fedaudit.core.errors import BadInput
from fedaudit.core.seeds import seed_for, seeded_numpy
from fedaudit.core.values import NOBODY, ClientId, Samples, Sees
from fedaudit.datasets.dataset import Dataset
from fedaudit.datasets.draws.audit_set import AuditSet, Deal
from fedaudit.observe.views import View
from fedaudit.study.settings.sections import ReferencesSection, Study
from fedaudit.study.setup.examples import own_federation
from fedaudit.study.setup.parts import Setup


def references_section(study: Study, view: View) -> ReferencesSection | None:
    """Reference federations as the study says, or those that its attacks need without a table.

    Args:
        study: Its settings.
        view: Where no attack is named, attacks that need references run by default in a view
            that shows no client's uploads: little else tells members from others there.
    """
    named = any(attack_named(name).needs_references for name in study.attacks)
    default = not study.attacks and Sees.UPLOADS not in view.offers
    by_default = default and any(
        attack.needs_references for attack in attack_set(study.attack_set).values()
    )
    return study.references or (ReferencesSection() if named or by_default else None)


def with_references(run: Setup, dataset: Dataset) -> Setup:
    """The run with its reference federations, if an attack compares with some.

    Args:
        run: The audited one.
        dataset: Its data as they are without a shift.

    Raises:
        BadInput: Too few samples are left for federations of the audited one's size, and the study
            names an attack that needs them or has a table; attacks of the set are refused instead.
    """
    needing = {name: attack for name, attack in run.attacks.items() if attack.needs_references}
    given = references_section(run.study, run.view)
    if given is None or not needing:
        return run
    trains = _trained_on(given, run.deal.audit, run.seed)
    try:
        found = tuple(_reference(run, dataset, index, mask) for index, mask in enumerate(trains))
    except BadInput as error:
        reason = f"no reference federation can be dealt: {error}"
        if run.study.attacks or run.study.references is not None:
            raise BadInput(reason) from error
        attacks = {name: one for name, one in run.attacks.items() if name not in needing}
        refused = {**run.refused, **dict.fromkeys(needing, reason)}
        return replace(run, attacks=attacks, refused=refused)
    return replace(run, references=found)


def reference_name(index: int) -> str:
    """Of a reference federation among those of its run, from which its seed follows."""
    return f"reference {index}"


def _trained_on(
    given: ReferencesSection, audit: AuditSet, seed: int
) -> Bool[ndarray, "references samples"]:
    """The samples that each reference trains on: each in half of the references, or in none.

    Of a person all samples are in the same ones.
    """
    if not given.online:
        return np.zeros((given.count, len(audit)), dtype=bool)
    unit = np.arange(len(audit))
    if audit.subject is not None:
        unit = np.unique(audit.subject, return_inverse=True)[1]
    drawn = seeded_numpy(seed, "reference halves").random((given.count, int(unit.max()) + 1))
    half: Bool[ndarray, "references units"] = drawn.argsort(0).argsort(0) < given.count // 2
    return half[:, unit]


def _reference(
    run: Setup, dataset: Dataset, index: int, trained_on: Bool[ndarray, " samples"]
) -> Setup:
    """One reference, whose audited samples are the run's."""
    # Its own draw audits nothing: all that it is dealt is trained on, but for these.
    reference = own_federation(
        run,
        dataset,
        what=reference_name(index),
        audited=_FEWEST,
        attacks={name: one for name, one in run.attacks.items() if one.needs_references},
    )
    samples = run.deal.audit.samples
    clients, owner = _with_some_in(
        reference.deal, samples, trained_on, seed_for(reference.seed, "references")
    )
    nobody = np.full(len(samples), NOBODY, dtype=np.int64)
    return replace(
        reference, deal=Deal(clients, AuditSet(samples, owner, nobody), reference.deal.told)
    )


_FEWEST = 4


def _with_some_in(
    deal: Deal, samples: Samples, chosen: Bool[ndarray, " samples"], seed: int
) -> tuple[dict[ClientId, Samples], ndarray]:
    """The clients' samples with some others in the place of as many of their own, and whose."""
    rng = seeded_numpy(seed, "in their place")
    places = np.repeat(list(deal.sizes), list(deal.sizes.values()))
    wanted = np.flatnonzero(chosen)
    if len(wanted) > len(places):
        raise BadInput(
            f"a reference federation trains on {len(wanted)} of the audited samples, and its "
            f"clients hold {len(places)}; audit fewer samples"
        )
    owner = np.full(len(samples), NOBODY, dtype=np.int64)
    owner[wanted] = rng.permutation(places)[: len(wanted)]
    clients = {}
    for client, own in deal.clients.items():
        given = np.flatnonzero(owner == client)
        kept = rng.permutation(len(own))[len(given) :]
        order = torch.from_numpy(rng.permutation(len(own)))
        parts = [own.take(torch.from_numpy(kept)), samples.take(torch.from_numpy(given))]
        clients[client] = Samples.joined(*parts).take(order) if len(given) else own
    return clients, owner
