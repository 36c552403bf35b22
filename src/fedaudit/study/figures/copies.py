"""Control that counts non-members with an exact copy among training samples."""

from collections.abc import Iterator

import numpy as np

from fedaudit.core.metric_names import Origin
from fedaudit.core.values import NOBODY
from fedaudit.datasets.copies import number_rows
from fedaudit.results.record import ControlResult
from fedaudit.study.figures.truth import origin_of
from fedaudit.study.setup.parts import Setup

_TOLERATED = 0.05
"""Tables have a few copies by nature (Adult: 0.1 %), which move an AUC by as much at most."""


def exact_copies(setup: Setup) -> Iterator[ControlResult]:
    """Report each target's non-members that are exact copies of training samples, if any are.

    Of unseen samples the training samples of all clients count, and of other clients' samples those
    of the target. The draw of samples stays as it is.
    """
    audit, clients = setup.deal.audit, setup.deal.clients
    audited, *held = number_rows(audit.samples, *clients.values())
    # A client may hold samples that a defense keeps out of its training: these are no copies.
    unused = audit.samples.ids.numpy()[audit.owner == NOBODY]
    trained = [
        rows[~np.isin(samples.ids.numpy(), unused)]
        for rows, samples in zip(held, clients.values(), strict=True)
    ]
    by_client = dict(zip(clients, trained, strict=True))
    everywhere = np.isin(audited, np.concatenate(trained))
    for target in setup.study.audit.targets:
        origin = origin_of(setup, target)
        own = np.isin(audited, by_client.get(target, []))
        unseen, others = origin == Origin.UNSEEN, origin == Origin.OTHER_CLIENT
        copies = int((unseen & everywhere).sum() + (others & own).sum())
        nonmembers = int((unseen | others).sum())
        if copies:
            yield ControlResult(
                control="exact copies",
                defense=setup.study.defense.label,
                target=target,
                seed=setup.seed,
                expected="fewer than 5 % of non-members are exact copies of training samples",
                value=copies / nonmembers,
                passed=copies / nonmembers < _TOLERATED,
                note=f"{copies} of {nonmembers} non-members are exact copies of training samples, "
                "which hides leakage; remove copies from the data set",
            )
