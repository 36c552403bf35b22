"""Sums of the other clients' uploads, drawn anew: whether a run can have them."""

import torch

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.values import ClientId, Samples
from fedaudit.fl.algorithms.base import ChoosesModels
from fedaudit.observe.round import Update
from fedaudit.study.setup.canaries import client_dp_of
from fedaudit.study.setup.parts import Setup


def refuse_sum_misfit(run: Setup) -> None:
    """Refuses a run of which no sums can be drawn that hide an upload as its own do.

    Raises:
        BadInput: Another view, several clients that are audited as one, clients that are asked in
            some rounds only, or too few training samples for everybody's data to be drawn anew.
        Unsupported: Canary clients, another algorithm, or a defense that keeps something.
    """
    study = run.study
    if study.secure_sum is None:
        return
    if run.view.name != "sum" or study.audit.merge or study.training.participation < 1:
        raise BadInput(
            "[secure_sum] is asked for whoever sees one round's sum and nothing else, of single "
            'clients that take part in every round; use audit.view = "sum", without audit.merge '
            "and with training.participation = 1"
        )
    if run.algorithm.upload_kind is not Update or isinstance(run.algorithm, ChoosesModels):
        raise Unsupported(
            "[secure_sum] takes clients that send an update of the one model that all train, and "
            f"{type(run.algorithm).__name__} has no such; use fedavg"
        )
    private = client_dp_of(run.defenses)
    if run.canaries is not None or (
        run.defenses and (private is None or len(run.defenses) != len(run.deal.clients))
    ):
        raise Unsupported(
            "[secure_sum] draws what every client sends anew, with its own clipping and noise; use "
            'defense.name = "client-dp" for all clients, or none, and leave [canaries] out'
        )
    for target in study.audit.targets:
        needed = sum(size for client, size in run.deal.sizes.items() if client != target)
        there = len(others_pool(run, target))
        if there < needed:
            raise BadInput(
                f"[secure_sum] draws {needed} samples for the clients beside {target} from "
                f"training samples that are not its own, and there are {there}; lower "
                "partition.samples_per_client or partition.clients"
            )


def others_pool(run: Setup, target: ClientId) -> Samples:
    """The training samples that are not the target's, of which the others' are drawn anew."""
    train = run.dataset.train
    return train.take(~torch.isin(train.ids, run.deal.clients[target].ids))
