"""Settings of defenses and of optional tables, each of which an extension implements."""

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from fedaudit.core.arguments import LearningRate
from fedaudit.core.values import ClientId
from fedaudit.observe.tensors import MAX_ROUND
from fedaudit.plan.base import (
    Count,
    DefenseName,
    Positive,
    Rounds,
    Section,
    Settings,
    require_distinct,
    with_public_name,
)

NONE = "none"


Clients = Annotated[tuple[Count, ...], require_distinct("a client is repeated")]

COALITION: Mapping[str, str] = dict.fromkeys(("coalition", "clients"), "the clients of the defense")


class PartSection(Section):
    """Defense in a chain, by catalogue name, with its options."""

    set_elsewhere = COALITION

    name: DefenseName
    options: Settings = Field(default_factory=dict)


class Group(NamedTuple):
    """Group of clients with the same defenses, and the defenses in order."""

    clients: tuple[ClientId, ...]
    parts: tuple[PartSection, ...]


class GroupSection(PartSection):
    """Defenses of further clients, which form a coalition."""

    clients: Annotated[Clients, Field(min_length=1)]
    chain: tuple[PartSection, ...] = ()


class DefenseSection(Section):
    """The clients' defenses.

    Attributes:
        clients: Clients that use the defense; they form one coalition if the defense needs a
            coalition. If left out, all clients except the clients of ``also``.
        chain: Further defenses of the same clients, applied in order after the first. Each is a
            ``[[defense.chain]]`` table of ``name`` and ``options``.
        also: Other groups of clients with other defenses. Each is a ``[[defense.also]]`` table of
            ``name``, ``clients``, ``options`` and ``chain``.
    """

    set_elsewhere = COALITION

    name: DefenseName = NONE
    clients: Clients | None = None
    options: Settings = Field(default_factory=dict)
    chain: tuple[PartSection, ...] = ()
    also: tuple[GroupSection, ...] = ()

    @property
    def label(self) -> str:
        """Names of all defenses for records and reports; "none" without a defense."""
        groups: tuple[DefenseSection | GroupSection, ...] = (self, *self.also)
        labels = [" + ".join(part.name for part in _defenses(group)) for group in groups]
        return ", ".join(dict.fromkeys(label for label in labels if label)) or NONE

    def groups(self, clients: int) -> list[Group]:
        """Return the groups of clients with the same defense.

        The first group is that of ``name``, and the others are those of ``also``.
        """
        in_also = {client for group in self.also for client in group.clients}
        other_clients = [client for client in range(clients) if client not in in_also]
        first_group = other_clients if self.clients is None else sorted(self.clients)
        return [
            Group(tuple(first_group), _defenses(self)),
            *(Group(tuple(sorted(group.clients)), _defenses(group)) for group in self.also),
        ]


def _defenses(group: DefenseSection | GroupSection) -> tuple[PartSection, ...]:
    chain = tuple(part for part in group.chain if part.name != NONE)
    if group.name == NONE:
        # A variant that sets the name to "none" may leave the options of another defense.
        return chain
    return PartSection(name=group.name, options=group.options), *chain


MAX_CANARY_NORM = 1e6
"""Maximum norm of a canary's update, since the square of a much larger norm overflows in float32.
"""


@with_public_name
class ShadowSection(Section):
    """Training examples for attacks that learn. They never contain audited samples.

    Attributes:
        mode: "federation" trains a shadow federation with the same settings, on data that the
            audited run does not use. "known-split" assumes that the adversary knows, for some
            samples that are not audited, whether one other client of the run trained on them.
        defense: "same" gives each client of the shadow federation the defense that it has in the
            audited run, with other random choices, so the adversary knows the defense. "none"
            trains an undefended shadow federation.
        fair: Number of samples in the fair draw of the shadow federation. 0 for as many as
            ``audit.samples``, or for twice the target's number of training samples if
            ``audit.draw`` is a published draw.
        client: Client of the known split. By default, it is the last client that is not audited and
            has the same defense as the first audited client. If there is none, it is the last
            client that is not audited.
        known: Number of samples in the known split; half of them are members.

    Examples:
        >>> import fedaudit as fa
        >>> fa.Shadow(mode="known-split", known=200).known
        200
    """

    mode: Literal["federation", "known-split"] = "federation"
    defense: Literal["same", "none"] = "same"
    fair: Count = 0
    client: Count | None = None
    known: Positive = 400

    @model_validator(mode="after")
    def _check_mode(self) -> "ShadowSection":
        if self.mode == "known-split" and self.defense == "none":
            raise ValueError(
                'defense is "none", but mode is "known-split", which trains no shadow federation; '
                'remove defense, or set mode to "federation"'
            )
        return self


@with_public_name
class ReferencesSection(Section):
    """Reference federations of the adversary, for attacks that use reference models.

    Each has the same settings as the audited run, and trains on data that this run does not use.
    Training a reference federation takes as long as training the audited run.

    Attributes:
        count: Number of reference federations per run, from 1 to 256.
        defense: "same" gives each client the defense that it has in the audited run, with other
            random choices, so the adversary knows the defense. "none" trains undefended
            references.
        online: If True, each reference federation trains on a random half of the audited samples,
            so half of the federations train on each sample. ``count`` must then be even and at
            least 4. If False, no reference federation trains on audited samples.

    Examples:
        >>> import fedaudit as fa
        >>> fa.References(count=8).count
        8
    """

    count: Annotated[int, Field(ge=1, le=256, strict=True)] = 4
    defense: Literal["same", "none"] = "same"
    online: bool = False

    @model_validator(mode="after")
    def _check_count(self) -> "ReferencesSection":
        if self.online and (self.count < 4 or self.count % 2):
            raise ValueError(
                f"count is {self.count}, but with online = true, half of the federations train on "
                "each sample; give an even number of at least 4"
            )
        return self


@with_public_name
class CanariesSection(Section):
    """Canary clients, which measure how well released models hide one client's update.

    Each canary client has a random direction. A fair coin decides whether it sends this direction
    in all rounds in which it takes part, or zeros. Canary clients lower the accuracy, since their
    updates are noise.

    Attributes:
        count: Number of canary clients, at least 20; about half of them send their direction.
        length: Norm of the direction, which "client-dp" clips like any update. With 0, it is the
            clipping norm of "client-dp".

    Examples:
        >>> import fedaudit as fa
        >>> fa.Canaries(count=100).count
        100
    """

    count: Annotated[int, Field(ge=20, le=100_000, strict=True)] = 100
    length: Annotated[float, Field(ge=0, le=MAX_CANARY_NORM, allow_inf_nan=False)] = 0.0


@with_public_name
class UnlearningSection(Section):
    """Unlearning of the audited samples of audited clients, and a test of the unlearned model.

    The test compares the model with a federation that is retrained without these samples.

    Attributes:
        method: "retrain" trains a new federation without the samples. "continue" continues
            training without them. "ascent" first lets each audited client maximise the loss on its
            samples, and then continues training. "nothing" does not change the model, for
            comparison.
        rounds: Further rounds of "continue" and "ascent". The learning-rate schedule restarts over
            this many rounds.
        margin: Largest difference in AUC from the retrained federation with which the test passes.
        epochs: Number of passes of "ascent" over a client's samples.
        lr: Learning rate of "ascent".
        radius: Maximum distance by which "ascent" may move the model, as a fraction of its distance
            from a newly initialised model.

    Examples:
        >>> import fedaudit as fa
        >>> fa.Unlearning(method="ascent").method
        'ascent'
    """

    method: Literal["retrain", "continue", "ascent", "nothing"] = "retrain"
    rounds: Rounds = 5
    margin: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    epochs: Positive = 10
    lr: LearningRate = 0.1
    radius: LearningRate = 1 / 3


@with_public_name
class SecureSumSection(Section):
    """Measurement of how well the sum of a round's updates hides a single update.

    The sum of the other clients' updates acts as noise, which hides the audited client's update. It
    is simulated many times: starting from the last round's model, the other clients train on new
    random data from all training samples except the audited client's. The view must be "sum".

    Attributes:
        draws: Number of simulated sums, at least 80. Half of them fit a test, and the test's errors
            are counted on the other half. Each sum takes one round of training by the other
            clients.

    Examples:
        >>> import fedaudit as fa
        >>> fa.SecureSum(draws=400).draws
        400
    """

    draws: Annotated[int, Field(ge=80, le=100_000, strict=True)] = 400


@with_public_name
class LabelInferenceSection(Section):
    """Inference of the classes that occur in each client's training data.

    The server infers them from the change of the biases of the model's last layer. All clients are
    attacked, in all measured rounds. The unit is a client and a class, so the result is not a
    membership of samples. The view must show each client's upload.

    Attributes:
        permutations: Number of permutations in each test, at least 99. The smallest possible
            p-value of a run is 1 / (permutations + 1).

    Examples:
        >>> import fedaudit as fa
        >>> fa.LabelInference().permutations
        999
    """

    permutations: Annotated[int, Field(ge=99, le=100_000, strict=True)] = 999


@with_public_name
class AttackerSection(Section):
    """A malicious client, which sends poisoned updates in some rounds.

    Poisoned updates raise the loss of the audited samples. In the honest rounds that follow, a
    client that trains on a sample lowers its loss again, while the loss of an unseen sample stays
    high.

    Attributes:
        kind: What the client does in poisoned rounds. "mislabel": it trains on the audited samples
            with wrong labels, which are the same in every poisoned round. "ascent": it maximises
            the loss on the audited samples, up to twice the loss of uniform predictions. "none": it
            sends honest updates; the same rounds are measured, for comparison.
        client: Number of the malicious client; by default the last client that is not audited.
        first: First poisoned round.
        every: Number of rounds from one poisoned round to the next. The last honest round before
            each further poisoned round is measured.
        strength: Factor by which poisoned updates are multiplied. At one over the client's weight
            in the average, the poisoned model replaces the global model.

    Examples:
        >>> import fedaudit as fa
        >>> fa.Attacker(kind="ascent", first=3).kind
        'ascent'
    """

    kind: Literal["mislabel", "ascent", "none"] = "mislabel"
    client: Count | None = None
    first: Positive = 5
    every: Annotated[int, Field(ge=2, le=MAX_ROUND, strict=True)] = 2
    strength: LearningRate = 1.0


OPTIONAL_SECTIONS: Mapping[str, type[Section]] = {
    "shadow": ShadowSection,
    "references": ReferencesSection,
    "canaries": CanariesSection,
    "unlearning": UnlearningSection,
    "secure_sum": SecureSumSection,
    "label_inference": LabelInferenceSection,
    "attacker": AttackerSection,
}
"""Optional tables by name. If a study lacks a table, the field with this name is None."""
