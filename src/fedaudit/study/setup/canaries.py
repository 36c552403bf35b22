"""Canary clients of a run: how many there are, which of them take part, and what they send."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

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
from fedaudit.metrics.canaries import FEWEST_CANARIES
from fedaudit.observe.round import Update
from fedaudit.study.settings.sections import Study


@dataclass(frozen=True)
class Canaries:
    """The canary clients of one run.

    Attributes:
        clients: The number of each as a client, whether it takes part or not.
        took_part: As a fair coin decided.
        length: Of what each sends.
        seed: Of their directions.
        size: Samples that each is counted with in the average, as many as other clients have.
        claimed: Epsilon of a client's presence that the defense claims for the released models;
            None where it claims none.
    """

    clients: tuple[ClientId, ...]
    took_part: Bool[ndarray, " canaries"]
    length: float
    seed: int
    size: int
    claimed: float | None

    @property
    def taking_part(self) -> tuple[ClientId, ...]:
        """Those that the coins let in."""
        return tuple(c for c, there in zip(self.clients, self.took_part, strict=True) if there)

    def direction(self, like: Params, number: int) -> Params:
        """Of one canary, at length 1, in the shapes of a model's parameters."""
        return canary_direction(like, self.seed, number)

    def data(self, like: Samples) -> dict[ClientId, Samples]:
        """Data that those that take part are counted with: a client's sample, which none reads."""
        one = like.take(slice(0, 1))
        held = one.each(lambda part: part.expand(self.size, *part.shape[1:]))
        return dict.fromkeys(self.taking_part, held)

    def defenses(self, others: Mapping[ClientId, Defense]) -> dict[ClientId, Defense]:
        """Uploads of those that take part, with the other clients' defense applied to them."""
        shared = next(iter(others.values()), None)
        found: dict[ClientId, Defense] = {}
        for number, (client, there) in enumerate(zip(self.clients, self.took_part, strict=True)):
            if there:
                own = CanaryUpload(self.seed, number, self.length)
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
        BadInput: Too few canaries, or no length that they could have.
        Unsupported: An algorithm or a defense under which a canary would not be what a client is.
    """
    given = study.canaries
    if given is None:
        return None
    if given.count < FEWEST_CANARIES:
        raise BadInput(
            f"canaries.count is {given.count}, and bounds on a client's presence take at least "
            f"{FEWEST_CANARIES}"
        )
    if algorithm.upload_kind is not Update or isinstance(algorithm, ChoosesModels):
        raise Unsupported(
            f"canary clients send an update of the one model that all train, and "
            f"{type(algorithm).__name__} has no such; use fedavg, or leave [canaries] out"
        )
    if study.audit.merge:
        raise Unsupported(
            "canary clients are clients of their own; leave audit.merge or [canaries] out"
        )
    private = _private(defenses)
    if len(defenses) not in (0, len(sizes)) or (defenses and private is None):
        raise Unsupported(
            "canary clients tell what every client's own clipping and noise do for its presence; "
            'use defense.name = "client-dp" for all clients, or none'
        )
    length = given.length or (private.clip if private else 0.0)
    if not 0 < length < math.inf:
        raise BadInput(
            "canaries.length is what each canary's upload is long; give it where no clip of a "
            "defense says so"
        )
    took_part = seeded_numpy(seed, "canary coins").random(given.count) < 0.5
    size = max(sizes.values())
    return Canaries(
        tuple(range(study.partition.clients, study.partition.clients + given.count)),
        took_part,
        length,
        seed_for(seed, "canaries"),
        size,
        None if private is None else _claimed(study, seed, sizes, took_part, private, delta),
    )


def _private(defenses: Mapping[ClientId, Defense]) -> ClientDP | None:
    """The one defense of all clients that bounds what a client contributes; None for another."""
    one = next(iter(defenses.values()), None)
    alike = isinstance(one, ClientDP) and all(other == one for other in defenses.values())
    return one if alike and isinstance(one, ClientDP) else None


def _claimed(
    study: Study,
    seed: int,
    sizes: Mapping[ClientId, int],
    took_part: Bool[ndarray, " canaries"],
    private: ClientDP,
    delta: float,
) -> float:
    """Epsilon of a client's presence to who sees every global model, without amplification.

    Each client's noise goes into the average with the client's share. The least noise of all
    rounds counts, beside the largest share of a client.
    """
    largest = max(sizes.values())
    everybody = {**sizes}
    first = max(sizes) + 1
    everybody |= {first + n: largest for n, there in enumerate(took_part) if there}
    share, root = study.training.participation, seed_for(seed, "federation")
    least = math.inf
    for index in range(1, study.training.rounds + 1):
        asked = cohort_of(sorted(everybody), share, root, index)
        squares = sum(everybody[client] ** 2 for client in asked)
        least = min(least, math.sqrt(squares) / largest)
    return gaussian_epsilon(private.noise_multiplier * least, study.training.rounds, delta=delta)
