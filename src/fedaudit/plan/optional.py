"""Settings of a study's defenses and optional tables; each such table has an extension."""

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, model_validator

from fedaudit.core.arguments import LearningRate
from fedaudit.core.values import ClientId
from fedaudit.observe.tensors import MAX_ROUND
from fedaudit.plan.base import Count, DefenseName, Positive, Rounds, Section, Settings, public

NONE = "none"


def _each_once(clients: tuple[ClientId, ...]) -> tuple[ClientId, ...]:
    if len(set(clients)) < len(clients):
        raise ValueError("each client may stand once")
    return clients


Clients = Annotated[tuple[Count, ...], AfterValidator(_each_once)]


COALITION: Mapping[str, str] = dict.fromkeys(("coalition", "members"), "the clients of the defense")


class PartSection(Section):
    """One more defense in a chain, by catalogue name and with its own settings."""

    set_elsewhere = COALITION

    name: DefenseName
    options: Settings = Field(default_factory=dict)


class Group(NamedTuple):
    """Clients that use the same defenses, and which these are, in order."""

    clients: tuple[ClientId, ...]
    parts: tuple[PartSection, ...]


class GroupSection(PartSection):
    """Defenses of further clients; clients of one group are each other's coalition."""

    clients: Annotated[Clients, Field(min_length=1)]
    chain: tuple[PartSection, ...] = ()


class DefenseSection(Section):
    """The clients' defenses.

    Attributes:
        clients: Clients that use it, together where it takes a coalition; if left out, all but
            those of ``also``.
        chain: Further defenses of the same clients, applied after this one in the order given:
            a ``[[defense.chain]]`` table of ``name`` and ``options`` each.
        also: Further groups of clients with a defense of their own: a ``[[defense.also]]`` table
            of ``name``, ``clients``, ``options`` and ``chain`` each.
    """

    set_elsewhere = COALITION

    name: DefenseName = NONE
    clients: Clients | None = None
    options: Settings = Field(default_factory=dict)
    chain: tuple[PartSection, ...] = ()
    also: tuple[GroupSection, ...] = ()

    @property
    def label(self) -> str:
        """All that is used by its names, as records and reports have it; "none" for nothing."""
        groups: tuple[DefenseSection | GroupSection, ...] = (self, *self.also)
        used = [" + ".join(part.name for part in _used(group)) for group in groups]
        return ", ".join(dict.fromkeys(names for names in used if names)) or NONE

    def groups(self, clients: int) -> list[Group]:
        """Groups of clients by defense in a federation of so many, this table's own first."""
        elsewhere = {client for group in self.also for client in group.clients}
        rest = [client for client in range(clients) if client not in elsewhere]
        own = rest if self.clients is None else sorted(self.clients)
        return [
            Group(tuple(own), _used(self)),
            *(Group(tuple(sorted(one.clients)), _used(one)) for one in self.also),
        ]


def _used(group: DefenseSection | GroupSection) -> tuple[PartSection, ...]:
    """Defenses of a group's clients, in order; a variant that takes one away may leave options."""
    rest = tuple(part for part in group.chain if part.name != NONE)
    if group.name == NONE:
        return rest
    return PartSection(name=group.name, options=group.options), *rest


LONGEST_CANARY = 1e6
"""What is far longer has a square beyond single precision, and is clipped to nothing."""


@public
class ShadowSection(Section):
    """The source of examples for attacks that learn; never the audited samples.

    Attributes:
        mode: "federation" trains a federation of the same settings on data that the audited run
            does not touch; "known-split" takes for known which of some samples that are not audited
            one other client of the run trained on.
        defense: "same" defends each client of the shadow federation as the audited run defends it,
            with other random choices: the adversary knows the defense. "none" trains an undefended
            shadow federation.
        fair: Samples whose owner in the shadow federation a fair draw decides; 0 for as many
            as the audit's own, or twice the target's size under a published draw.
        client: Whose samples are known in a known split. If left out, the last that is not audited
            and defends itself as the first audited client does, or else the last not audited.
        known: Samples of a known split, half of them members.

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
    def _of_a_federation(self) -> "ShadowSection":
        if self.mode == "known-split" and self.defense == "none":
            raise ValueError(
                'shadow.defense = "none" trains an undefended federation, and a known split trains '
                'none; leave it out, or set shadow.mode = "federation"'
            )
        return self


@public
class ReferencesSection(Section):
    """Federations that the adversary trains itself, for attacks that compare with their models.

    Each is a federation of the same settings on data that the audited run does not touch, and takes
    as long as the audited run's training.

    Attributes:
        count: Reference federations of each run.
        defense: "same" defends each client as the audited run defends it, with other random
            choices: the adversary knows the defense. "none" trains undefended references.
        online: Whether each of them trains on half of the audited samples, drawn at random, so
            that every sample is in half of the federations; ``count`` is even then, and at least
            4. Otherwise none of them has seen an audited sample.

    Examples:
        >>> import fedaudit as fa
        >>> fa.References(count=8).count
        8
    """

    count: Annotated[int, Field(ge=1, le=256, strict=True)] = 4
    defense: Literal["same", "none"] = "same"
    online: bool = False

    @model_validator(mode="after")
    def _halves(self) -> "ReferencesSection":
        if self.online and (self.count < 4 or self.count % 2):
            raise ValueError(
                f"references.count is {self.count}, and with references.online every sample is in "
                "half of the federations; give an even number of at least 4"
            )
        return self


@public
class CanariesSection(Section):
    """Canary clients, which tell how well one client's update is hidden in the released models.

    Each sends the same random direction in every round in which it is asked, or zeros, as a fair
    coin decided. They cost accuracy: each is one client's worth of noise.

    Attributes:
        count: Canary clients, at least 20; about half of them send a direction.
        length: Of what these send, which "client-dp" clips like any upload; 0 for its clip.

    Examples:
        >>> import fedaudit as fa
        >>> fa.Canaries(count=100).count
        100
    """

    count: Annotated[int, Field(ge=20, le=100_000, strict=True)] = 100
    length: Annotated[float, Field(ge=0, le=LONGEST_CANARY, allow_inf_nan=False)] = 0.0


@public
class UnlearningSection(Section):
    """Unlearning of the audited clients' audited samples, and what is left of them.

    A federation that is trained anew without these samples is the yardstick.

    Attributes:
        method: "retrain" trains anew without them; "continue" trains on without them; "ascent"
            first lets each owner climb the loss of its own; "nothing" is the control that must
            fail.
        rounds: That "continue" and "ascent" train on, at the learning rates of a run of so many.
        margin: Largest difference of AUCs from the yardstick that counts as none.
        epochs: Passes of "ascent" over an owner's samples.
        lr: Learning rate of "ascent".
        radius: How far "ascent" may move the model, as a share of the distance from a freshly
            initialised one.

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


@public
class SecureSumSection(Section):
    """Secure aggregation's own protection: one upload in a round's sum, in the view "sum".

    After the last round the other clients train again from the model that was sent, on data drawn
    anew from all training samples but the audited client's; their sum is what hides its update.

    Attributes:
        draws: Sums that are drawn; half of them are counted. Each takes the other clients' training
            of one round.

    Examples:
        >>> import fedaudit as fa
        >>> fa.SecureSum(draws=400).draws
        400
    """

    draws: Annotated[int, Field(ge=80, le=100_000, strict=True)] = 400


@public
class AttackerSection(Section):
    """A malicious client: in some rounds it sends a poison on the audited samples.

    It raises their loss, which the training of their owner undoes and nobody's of an unseen one.

    Attributes:
        kind: "mislabel" trains on the audited samples with wrong labels, the same in every
            poisoned round, in the place of the client's own samples; "ascent" climbs the loss on
            them, up to twice that of guessing among all classes; "none" does neither: the control,
            of which the same rounds are measured.
        client: Its number; the last that is not audited if left out.
        first: The first poisoned round.
        every: Poisoned rounds are this far apart; the last honest one before the next is measured.
        strength: Factor of what is sent in poisoned rounds. At one over the client's share of the
            average the poisoned model takes the place of the global one.

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


OPTIONAL: Mapping[str, type[Section]] = {
    "shadow": ShadowSection,
    "references": ReferencesSection,
    "canaries": CanariesSection,
    "unlearning": UnlearningSection,
    "secure_sum": SecureSumSection,
    "attacker": AttackerSection,
}
"""The tables by name; a study without one has None in its place."""
