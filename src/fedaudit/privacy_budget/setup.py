"""Privacy set-up of a federation: what is protected, and the mechanism in each training phase."""

from math import ceil
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedaudit.core.errors import BadInput
from fedaudit.fl.accounting import sampling_rate, steps_per_epoch

Unit: TypeAlias = Literal["sample", "person", "client"]
"""Unit of privacy: what an adversary must not be able to detect; see :class:`PrivacySetup`."""
UNITS: tuple[Unit, ...] = ("sample", "person", "client")

Adjacency: TypeAlias = Literal["add-or-remove", "zero-out", "replace"]
"""Difference between neighbouring data sets; see :class:`PrivacySetup`."""
Sampling: TypeAlias = Literal["all", "poisson", "fixed", "shuffle"]
Step: TypeAlias = Literal["clip", "noise", "sum"]
Precision: TypeAlias = Literal["float64", "float32", "float16", "bfloat16"]

SMALLEST_DELTA = 1e-12
"""Smallest delta that sums of probabilities in double precision can represent."""

MAX_ROUNDS = 10**6
_MAX_RELEASES = 10**9

_RESOLUTION: dict[Precision, float] = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
}
"""Distance between 1 and the next larger number, by type."""

_Count = Annotated[int, Field(ge=1, le=10**9, strict=True)]
_Rounds = Annotated[int, Field(ge=1, le=MAX_ROUNDS, strict=True)]
_AboveZero = Annotated[float, Field(gt=0, le=1e15, strict=True)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Phase(_Table):
    """Consecutive rounds with the same settings.

    Attributes:
        rounds: Number of rounds.
        protects: Contribution that is clipped: "client" for the update of a client (DP-FedAvg),
            "sample" for the gradient of a sample in the local training (DP-SGD).
        noise_multiplier: Standard deviation of the noise divided by ``clip``, at least 0. The noise
            is added to the sum, or to each update if ``order`` has "noise" before "sum".
        clip: Largest Euclidean norm of a clipped contribution, above 0; None without clipping.
        order: Steps from contributions to the released sum, in the order in which they are applied.
        sampling: Rule that selects the clients of a round, or the samples in a step of DP-SGD.
            "all": all of them; also for any selection of clients that an adversary knows.
            "poisson": each one independently, with probability ``rate``. "fixed": a random subset
            of fixed size. "shuffle", only for samples: each sample is in one step of an epoch.
        rate: Probability of Poisson sampling, in (0, 1]. Alternatives are ``clients_per_round``, or
            ``batch_size`` for samples.
        clients_per_round: Number of clients in a round; its mean for Poisson sampling.
        batch_size: Number of a client's samples in a step; its mean for Poisson sampling.
        steps: Number of local steps in a round, for samples.
        epochs: Number of local epochs in a round, as an alternative to ``steps``.
        participations: Largest number of rounds of this phase in which one client takes part; all
            rounds by default. With random sampling of clients, it needs ``amplification = false``.
        least_separation: Smallest number of rounds from one round in which a client takes part to
            its next one, for ``tree_aggregation``; 1 by default.
        tree_aggregation: Whether the noise is that of DP-FTRL: the sums of all rounds are the
            leaves of a binary tree, and each node whose leaves are complete is released with noise.
            ``noise_multiplier`` is that of a node.
        amplification: Whether random sampling lowers epsilon. Set it to false if an adversary
            learns which clients take part in a round.
        adaptive_clipping: Whether the clipping norm follows a quantile of the norms.
        clipped_count_stddev: Standard deviation of the noise on the number of contributions that
            are shorter than the clipping norm, for adaptive clipping. ``noise_multiplier`` is then
            that of the sum only.
        secure_aggregation: Whether an adversary sees only the sum of the updates.
        least_honest_clients: Smallest number of clients that add noise to a sum and do not collude
            with the adversary, if clients add the noise under secure aggregation.
        precision: Type of the numbers that noise is added to.
    """

    rounds: _Rounds
    protects: Literal["client", "sample"]
    noise_multiplier: Annotated[float, Field(ge=0, le=1e9, strict=True)]
    clip: _AboveZero | None = None
    order: Annotated[tuple[Step, ...], Field(min_length=1, max_length=10)] = (
        "clip",
        "sum",
        "noise",
    )
    sampling: Sampling = "all"
    rate: Annotated[float, Field(gt=0, strict=True)] | None = None
    clients_per_round: _Count | None = None
    batch_size: _Count | None = None
    steps: _Rounds | None = None
    epochs: _Rounds | None = None
    participations: _Rounds | None = None
    least_separation: _Rounds | None = None
    tree_aggregation: bool = False
    amplification: bool = True
    adaptive_clipping: bool = False
    clipped_count_stddev: _AboveZero | None = None
    secure_aggregation: bool = False
    least_honest_clients: _Count | None = None
    precision: Precision = "float32"

    @field_validator("rate")
    @classmethod
    def _possible_rate(cls, rate: float | None) -> float | None:
        if rate is not None and rate > 1:
            raise ValueError("a sampling rate is a probability in (0, 1]")
        return rate

    @property
    def noise_at_clients(self) -> bool:
        """True if each client adds noise to its own update."""
        return (
            self.protects == "client"
            and "noise" in self.order
            and "sum" in self.order
            and self.order.index("noise") < self.order.index("sum")
        )

    @model_validator(mode="after")
    def _raise_if_invalid_mechanism(self) -> "Phase":
        """Raise if the steps give no differential privacy, or a setting has no effect."""
        _check_noise(self)
        _check_order(self)
        _check_sampling(self)
        _check_clients(self)
        _check_local_training(self)
        _check_tree(self)
        return self

    @property
    def total_noise_multiplier(self) -> float:
        """Noise multiplier of a single sum that is equivalent to all releases of one round.

        With adaptive clipping, a round also releases a noisy count of contributions. Each of them
        adds 1/2 or -1/2 to this count.

        Source: Andrew et al. 2021, Theorem 1, solved for the total noise multiplier.
        """
        noise = self.noise_multiplier
        if self.noise_at_clients and self.secure_aggregation:
            # The variances of independent noise add up.
            noise *= (self.least_honest_clients or 1) ** 0.5
        if self.clipped_count_stddev is None:
            return noise
        return float((noise**-2 + (2 * self.clipped_count_stddev) ** -2) ** -0.5)


def _check_noise(phase: Phase) -> None:
    if phase.noise_multiplier == 0 or "noise" not in phase.order:
        raise BadInput(
            "this is no mechanism: without noise no epsilon is finite; give a noise_multiplier "
            "above 0, and the step 'noise' in order"
        )
    if phase.noise_multiplier < _RESOLUTION[phase.precision]:
        raise BadInput(
            f"this is no mechanism: noise of {phase.noise_multiplier:g} times the clip is below "
            f"the resolution of {phase.precision} ({_RESOLUTION[phase.precision]:.3g}), so that "
            "rounding removes it; add more noise, or use a wider type"
        )
    if phase.adaptive_clipping and phase.clipped_count_stddev is None:
        raise BadInput(
            "this is no mechanism: adaptive clipping releases how many updates were clipped, and "
            "no noise is added to this number; give clipped_count_stddev"
        )
    if phase.clipped_count_stddev is not None and not phase.adaptive_clipping:
        raise BadInput("clipped_count_stddev has an effect only with adaptive_clipping = true")


def _check_order(phase: Phase) -> None:
    order = phase.order
    if len({*order}) < len(order):
        raise BadInput(
            f"order names a step twice: {', '.join(order)}; name each step once, and leave out "
            "steps after the noise, which change no epsilon"
        )
    if phase.clip is None or "clip" not in order:
        raise BadInput(
            "this is no mechanism: without clipping, one contribution may be larger than any "
            "noise; give clip, and the step 'clip' in order"
        )
    if order.index("clip") > order.index("noise"):
        raise BadInput(
            "this is no mechanism: clipping after the noise scales the noise with the update, and "
            "does not bound what the noise must hide; clip before the noise"
        )
    if "sum" not in order:
        raise BadInput("order needs the step 'sum', before or after 'noise'")
    if order.index("sum") < order.index("clip"):
        raise BadInput(
            "this is no mechanism: the sum is clipped instead of each contribution, so that the "
            "noise is not in units of one contribution; clip before the sum"
        )
    if phase.protects == "sample" and order != ("clip", "sum", "noise"):
        raise BadInput(
            "DP-SGD clips each sample's gradient, adds them up and adds noise to the sum; give "
            "order = ['clip', 'sum', 'noise'], or leave it out"
        )


def _check_sampling(phase: Phase) -> None:
    sizes = {
        "rate": phase.rate,
        "clients_per_round": phase.clients_per_round,
        "batch_size": phase.batch_size,
    }
    given_sizes = [name for name, value in sizes.items() if value is not None]
    size = "clients_per_round" if phase.protects == "client" else "batch_size"
    if phase.sampling == "shuffle" and phase.protects == "client":
        raise BadInput(
            "sampling = 'shuffle' is for samples in epochs of local training; for clients, give "
            "sampling = 'all' and participations"
        )
    sizes_of_sampling = {"poisson": ["rate", size], "fixed": [size]}
    allowed = sizes_of_sampling.get(phase.sampling, [])
    without_effect = [name for name in given_sizes if name not in allowed]
    if without_effect:
        raise BadInput(
            f"{without_effect[0]} has no effect on {phase.protects}s with sampling = "
            f"{phase.sampling!r}; leave it out"
        )
    if allowed and len(given_sizes) != 1:
        raise BadInput(
            f"sampling = {phase.sampling!r} needs {' or '.join(allowed)}, and exactly one of them"
        )


def _check_clients(phase: Phase) -> None:
    if phase.noise_at_clients and not phase.secure_aggregation:
        if phase.sampling != "all" and phase.amplification:
            raise BadInput(
                "each client adds noise and the server sees each update, so that random sampling "
                "hides no client; give amplification = false, and participations if one client "
                "takes part in fewer rounds"
            )
    elif phase.noise_at_clients and phase.least_honest_clients is None:
        raise BadInput(
            "this is no mechanism: under secure aggregation, the noise in a sum depends on how "
            "many clients add theirs; give least_honest_clients, the smallest number of them that "
            "do not collude"
        )
    has_hidden_noise = phase.noise_at_clients and phase.secure_aggregation
    if phase.least_honest_clients is not None and not has_hidden_noise:
        raise BadInput(
            "least_honest_clients has an effect only if clients add noise under secure "
            "aggregation: secure_aggregation = true and order = ['clip', 'noise', 'sum']"
        )
    if phase.protects == "sample" and phase.secure_aggregation:
        raise BadInput(
            "secure_aggregation is for updates of clients; the epsilon of DP-SGD holds against an "
            "adversary that sees each update, so leave it out"
        )
    is_amplified = phase.sampling != "all" and phase.amplification
    if phase.protects == "client" and phase.participations is not None and is_amplified:
        raise BadInput(
            "participations counts only if an adversary knows who takes part: with random "
            "sampling of clients, give amplification = false or leave participations out"
        )
    if phase.participations is not None and phase.participations > phase.rounds:
        raise BadInput(
            f"participations is at most the phase's {phase.rounds} rounds, got "
            f"{phase.participations}"
        )


def _check_local_training(phase: Phase) -> None:
    n_given = (phase.steps is not None) + (phase.epochs is not None)
    if phase.protects == "client" and n_given:
        raise BadInput(
            "steps and epochs of the local training have no effect on the epsilon of clipped "
            "updates of clients; leave them out"
        )
    if phase.protects == "sample" and n_given != 1:
        raise BadInput(
            "DP-SGD needs steps or epochs of the local training in a round, and exactly one of them"
        )
    if phase.protects == "sample" and phase.sampling == "shuffle" and phase.epochs is None:
        raise BadInput("sampling = 'shuffle' needs epochs: each sample is used once in each")
    if phase.rounds * (phase.steps or 1) > _MAX_RELEASES:
        raise BadInput(
            f"a phase has at most {_MAX_RELEASES:,} local steps over all rounds, got "
            f"{phase.rounds * (phase.steps or 1):,}"
        )


def _check_tree(phase: Phase) -> None:
    if not phase.tree_aggregation:
        if phase.least_separation is not None:
            raise BadInput("least_separation has an effect only with tree_aggregation = true")
        return
    if phase.participations is None:
        raise BadInput(
            "tree_aggregation needs participations, the largest number of rounds of the phase in "
            "which one client takes part"
        )
    if (phase.protects, phase.sampling, phase.order) != ("client", "all", ("clip", "sum", "noise")):
        raise BadInput(
            "tree_aggregation is noise of the server on sums of clipped updates; give protects = "
            "'client', and leave out sampling and order"
        )
    if phase.adaptive_clipping:
        raise BadInput(
            "the noisy count of adaptive clipping is not accounted for with tree_aggregation; give "
            "the total noise multiplier and leave out adaptive_clipping"
        )


def _tree_releases(rounds: int, participations: int, separation: int) -> int:
    """Return the largest sum of squares of a client's contributions to all nodes of a tree.

    All nodes together are one Gaussian release, whose sensitivity is the square root of this sum.
    It is an upper bound: for each level of the tree, it assumes the worst positions of the rounds
    in which the client takes part.

    Source: Kairouz et al. 2021 ("Practical and private (deep) learning without sampling or
        shuffling"), appendix D, which maximises over one choice of positions for all levels.
    """
    participations = min(participations, ceil(rounds / separation))
    total, node_rounds = 0, 1
    while node_rounds <= rounds:
        nodes = rounds // node_rounds
        # The worst case concentrates the client's rounds in as few nodes as possible.
        most_in_node = min(participations, ceil(node_rounds / separation))
        full_nodes, remaining = divmod(participations, most_in_node)
        total += most_in_node**2 * min(full_nodes, nodes)
        if full_nodes < nodes:
            total += remaining**2
        node_rounds *= 2
    return total


class PrivacySetup(_Table):
    """Privacy set-up of a federation.

    Attributes:
        name: Name of the federation, for the output.
        delta: Failure probability of the guarantee, below 1 / number of protected clients (or
            samples).
        adjacency: Difference between neighbouring data sets. "add-or-remove": a unit is in only one
            of them. "zero-out": in one of them, the contributions of a unit are zero. "replace": a
            unit has different data. If updates of clients are clipped, a change of one sample or
            person always counts as a replacement of the client's update.
        clients: Number of clients.
        samples: Number of samples of a client, needed for DP-SGD. If clients differ in it, give the
            smallest number: this client uses each sample most often.
        most_samples: Number of samples of the largest client; ``samples`` by default.
        person_samples: Largest number of samples of one person, over all clients.
        person_clients: Largest number of clients that have samples of one person.
        target: Largest epsilon that is accepted; None for no limit.
        unit: Unit of privacy to which the target applies: "sample", "person" or "client". By
            default, it is what the first phase protects.
        phase: Phases in the order of training.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._=,+-]{0,199}$")] = "federation"
    delta: Annotated[float, Field(strict=True)]
    adjacency: Adjacency = "add-or-remove"
    clients: _Count
    samples: _Count | None = None
    most_samples: _Count | None = None
    person_samples: _Count = 1
    person_clients: _Count = 1
    target: _AboveZero | None = None
    unit: Unit | None = None
    phase: Annotated[tuple[Phase, ...], Field(min_length=1, max_length=1000)]

    @property
    def rounds(self) -> int:
        """Number of rounds of all phases."""
        return sum(phase.rounds for phase in self.phase)

    @property
    def protected(self) -> Unit:
        """Unit of privacy to which the target applies."""
        return self.unit or self.phase[0].protects

    @model_validator(mode="after")
    def _raise_if_contradictions(self) -> "PrivacySetup":
        for number, phase in enumerate(self.phase):
            try:
                self._check_phase(phase)
            except BadInput as error:
                raise BadInput(f"phase.{number}: {error}") from error
        if self.samples is not None and self.largest_client < self.samples:
            raise BadInput(
                f"most_samples is at least samples ({self.samples}), got {self.most_samples}"
            )
        if self.person_clients > self.clients:
            raise BadInput(
                f"person_clients is at most the number of clients ({self.clients}), got "
                f"{self.person_clients}"
            )
        self._check_delta()
        return self

    def _check_delta(self) -> None:
        protects_samples = any(phase.protects == "sample" for phase in self.phase)
        units = self.clients * (self.samples or 1) if protects_samples else self.clients
        noun = "samples" if protects_samples else "clients"
        if not 0 < self.delta < 1 / units:
            raise BadInput(
                f"delta is above 0 and below 1 / {units:,} (the number of {noun}), got "
                f"{self.delta:g}: at 1/n, a mechanism that publishes one of n {noun} passes; give "
                "a smaller delta"
            )
        if self.delta < SMALLEST_DELTA:
            raise BadInput(
                f"delta is at least {SMALLEST_DELTA:g}, which double precision resolves, got "
                f"{self.delta:g}"
            )

    def _check_phase(self, phase: Phase) -> None:
        if phase.protects == "sample" and self.samples is None:
            raise BadInput(
                "DP-SGD needs samples, the number of samples of the client that has the fewest"
            )
        if phase.sampling == "fixed" and self.adjacency != "replace":
            raise BadInput(
                "random subsets of a fixed size have a guarantee for units that are replaced; give "
                "adjacency = 'replace', or Poisson sampling"
            )
        if phase.sampling == "shuffle" and self.adjacency == "add-or-remove":
            raise BadInput(
                "without one sample, shuffled batches contain other samples; give adjacency = "
                "'zero-out' or 'replace'"
            )
        if phase.noise_at_clients and self.adjacency == "add-or-remove":
            raise BadInput(
                "if each client adds noise, the amount of noise reveals whether a client takes "
                "part; give adjacency = 'zero-out' or 'replace'"
            )
        for name, size, population in (
            ("clients_per_round", phase.clients_per_round, self.clients),
            ("batch_size", phase.batch_size, self.samples),
        ):
            if size is not None and population is not None and size > population:
                raise BadInput(
                    f"the sampling rate would be above 1: {name} is at most {population}, got "
                    f"{size}"
                )
        if phase.least_honest_clients is not None and phase.least_honest_clients > self.clients:
            raise BadInput(
                f"least_honest_clients is at most the number of clients ({self.clients}), got "
                f"{phase.least_honest_clients}"
            )

    @property
    def largest_client(self) -> int:
        """Number of samples of the largest client."""
        return self.most_samples or self.samples or 1

    def rate(self, phase: Phase) -> float:
        """Return the probability that a unit takes part in a round or step of a phase."""
        if phase.sampling in ("all", "shuffle") or not phase.amplification:
            return 1.0
        if phase.rate is not None:
            return phase.rate
        if phase.protects == "client":
            return (phase.clients_per_round or self.clients) / self.clients
        samples = self.samples or 1
        return sampling_rate(phase.batch_size or samples, samples)

    def releases(self, phase: Phase, rounds: int, further: int = 0) -> int:
        """Return the largest number of releases to which a unit contributes.

        Releases of a tree are converted to an equivalent number of independent releases.

        Args:
            phase: The phase.
            rounds: Number of rounds that are counted, from the start of the phase.
            further: Number of rounds after the phase, in each of which the unit takes part.
        """
        if phase.tree_aggregation:
            separation = phase.least_separation or 1
            participations = (phase.participations or rounds) + further
            return _tree_releases(rounds + further * separation, participations, separation)
        rounds = min(rounds, phase.participations or rounds) + further
        if phase.protects == "client":
            return rounds
        if phase.sampling == "shuffle":
            return rounds * (phase.epochs or 1)
        return rounds * self._steps(phase)

    def _steps(self, phase: Phase) -> int:
        if phase.steps is not None:
            return phase.steps
        epochs = phase.epochs or 1
        if phase.rate is not None:
            return epochs * ceil(1 / phase.rate)
        samples = self.samples or 1
        return epochs * steps_per_epoch(phase.batch_size or samples, samples)
