"""Canary clients of a run: how many there are, which of them take part, and what they send."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from jaxtyping import Bool
from numpy import ndarray

from fedaudit.core.errors import BadInput, Unsupported
from fedaudit.core.seeds import seed_for, seeded_numpy
from fedaudit.core.values import ClientId, Params, Samples
from fedaudit.defenses.accounting import gaussian_epsilon
from fedaudit.defenses.base import Defense
from fedaudit.defenses.canary import CanaryUpload, canary_direction
from fedaudit.defenses.chain import Chain
from fedaudit.defenses.clip import ClientDP
from fedaudit.fl.algorithms.base import Algorithm, ChoosesModels
from fedaudit.fl.visits import cohort_of
from fedaudit.observe.round import Update
from fedaudit.study.settings.sections import Study


@dataclass(frozen=True)
class Canaries:
    """The canary clients of one run.

    Attributes:
        clients: The number of each as a client.
        sends: Whether each sends its direction, as a fair coin decided; the others send zeros, with
            the same weight and noise.
        length: Of what is sent.
        seed: Of their directions.
        size: Samples that each is counted with in the average, as many as other clients have.
        claimed: Epsilon of one client's update that the defense claims for the released models, the
            canaries' noise among that of all; None where it claims none.
        claimed_without: The same of the federation without canaries, whose noise is less.
        unclaimed: Reason why there is no claim; empty where there is one, or no defense.
    """

    clients: tuple[ClientId, ...]
    sends: Bool[ndarray, " canaries"]
    length: float
    seed: int
    size: int
    claimed: float | None = None
    claimed_without: float | None = None
    unclaimed: str = ""

    def direction(self, like: Params, number: int) -> Params:
        """Of one canary, at length 1, in the shapes of a model's parameters."""
        return canary_direction(like, self.seed, number)

    def data(self, like: Samples) -> dict[ClientId, Samples]:
        """Data that they are counted with: a sample of some client's, which none reads."""
        one = like.take(slice(0, 1))
        held = one.each(lambda part: part.expand(self.size, *part.shape[1:]))
        return dict.fromkeys(self.clients, held)

    def defenses(self, others: Mapping[ClientId, Defense]) -> dict[ClientId, Defense]:
        """Uploads of all canaries, with the other clients' defense applied to them."""
        shared = next(iter(others.values()), None)
        found: dict[ClientId, Defense] = {}
        for number, (client, sends) in enumerate(zip(self.clients, self.sends, strict=True)):
            own = CanaryUpload(self.seed, number, self.length if sends else 0.0)
            found[client] = Chain((own, shared)) if shared is not None else own
        return found


def canaries_of(
    study: Study,
    seed: int,
    sizes: Mapping[ClientId, int],
    algorithm: Algorithm,
    defenses: Mapping[ClientId, Defense],
    delta: float,
) -> Canaries | None:
    """The canary clients that a study asks for.

    Args:
        study: Its settings.
        seed: Of the run.
        sizes: Training samples of each other client.
        algorithm: It averages updates of one model.
        defenses: Of the other clients; one that acts on uploads alone, the same for all.
        delta: At which the claimed epsilon is stated.

    Raises:
        BadInput: Coins that all fall on one side, or no length that canaries could have.
        Unsupported: An algorithm or a defense under which a canary would not be what a client is.
    """
    given = study.canaries
    if given is None:
        return None
    if algorithm.upload_kind is not Update or isinstance(algorithm, ChoosesModels):
        raise Unsupported(
            f"canary clients send an update of the one model that all train, and "
            f"{type(algorithm).__name__} has no such; use fedavg, or leave [canaries] out"
        )
    if study.audit.merge:
        raise Unsupported(
            "canary clients are clients of their own; leave audit.merge or [canaries] out"
        )
    private = client_dp_of(defenses)
    if len(defenses) not in (0, len(sizes)) or (defenses and private is None):
        raise Unsupported(
            "canary clients tell what every client's own clipping and noise do for its update; "
            'use defense.name = "client-dp" for all clients, or none'
        )
    length = given.length or (private.clip if private else 0.0)
    if not 0 < length < math.inf:
        raise BadInput(
            "canaries.length is what each canary's upload is long; give it where no clip of a "
            "defense says so"
        )
    if private is not None and length < private.clip:
        raise BadInput(
            f"canaries.length is {length:g} and the clip {private.clip:g}: what a shorter "
            "direction moves says nothing of what an update may; leave it out, or give the clip"
        )
    sends = seeded_numpy(seed, "canary coins").random(given.count) < 0.5
    if sends.all() or not sends.any():
        raise BadInput(
            f"with seed {seed} the coins of all {given.count} canaries fall on one side; raise "
            "canaries.count, or take another seed"
        )
    size = max(sizes.values())
    found = Canaries(
        tuple(range(study.partition.clients, study.partition.clients + given.count)),
        sends,
        length,
        seed_for(seed, "canaries"),
        size,
    )
    if private is None:
        return found
    if any(net.initial(0).buffers for net in algorithm.nets):
        return replace(
            found,
            unclaimed="the network has buffers (batch normalisation), which clients send unclipped "
            "and without noise",
        )
    everybody = {**sizes, **dict.fromkeys(found.clients, size)}
    return replace(
        found,
        claimed=_claimed(study, seed, everybody, private, delta),
        claimed_without=_claimed(study, seed, sizes, private, delta),
    )


def client_dp_of(defenses: Mapping[ClientId, Defense]) -> ClientDP | None:
    """The one defense of all clients that bounds what a client contributes; None for another."""
    one = next(iter(defenses.values()), None)
    alike = isinstance(one, ClientDP) and all(other == one for other in defenses.values())
    return one if alike and isinstance(one, ClientDP) else None


def _claimed(
    study: Study, seed: int, sizes: Mapping[ClientId, int], private: ClientDP, delta: float
) -> float:
    """Epsilon of one client's update to who sees every global model, without amplification.

    Adjacency: the update or zero in its place, while the client's weight and noise stay. Each
    client's noise goes into the average with the client's share. The least noise of all rounds
    counts, beside the largest share of a client.
    """
    largest, least = max(sizes.values()), math.inf
    share, root = study.training.participation, seed_for(seed, "federation")
    for index in range(1, study.training.rounds + 1):
        asked = cohort_of(sorted(sizes), share, root, index)
        least = min(least, math.sqrt(sum(sizes[client] ** 2 for client in asked)) / largest)
    return gaussian_epsilon(private.noise_multiplier * least, study.training.rounds, delta=delta)
