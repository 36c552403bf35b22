"""The policy of a gate: which figures of a record are judged, and what each may be at most."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Hashable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from fedaudit.plan.toml import parsed_toml, read_toml
from fedaudit.plan.values import settings_from
from fedaudit.results.guessing import LEAST_LEARNED

Share = Annotated[float, Field(ge=0, le=1, strict=True)]
Budget = Annotated[float, Field(ge=0, le=1e15, strict=True)]
Count = Annotated[int, Field(ge=0, le=10**9, strict=True)]
Contrast = Literal["unseen", "other_client", "mixed"]
Control = Literal["permuted members", "untrained model", "blind classifier", "planted leak"]
Value = TypeVar("Value", bound=Hashable)


def _refuse_repeated(values: tuple[Value, ...]) -> tuple[Value, ...]:
    """Raise if a list names something twice: it would be judged, and listed, as often."""
    repeated = [value for value, count in Counter(values).items() if count > 1]
    if repeated:
        raise ValueError(f"{str(repeated[0])[:80]!r} stands there twice; name it once")
    return values


_Once = AfterValidator(_refuse_repeated)
Names = Annotated[tuple[str, ...], Field(max_length=1000), _Once]
Over = Literal["each", "these runs", "further runs", "mean"]
Otherwise = Literal["inconclusive", "fail"]

_NAME = r"^[A-Za-z0-9][A-Za-z0-9 ._=,+-]{0,199}$"


class Table(BaseModel):
    """A table of a policy: no unknown key, read once and never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class MembershipPolicy(Table):
    """Ceilings on telling members from non-members; one that is left out is not judged.

    Attributes:
        auc: Of every attack on every client in every run.
        tpr: Of the true-positive rate, by false-positive rate: ``"0.01" = 0.05``.
        balanced_accuracy: Likewise, at a threshold from the other half of the samples.
        group_auc: Of the AUC within each class and against each client's samples: the worst group.
        epsilon: Of lower bounds on epsilon. A bound above it fails; none makes a pass.
        formal_epsilon: Of the epsilon that is proven of the whole training.
        contrasts: Kinds of non-members, each judged by itself.
        attacks: Those that must be there, and that are judged; all of the record if empty.
        targets: Audited clients that must be there, and that are judged; all if empty.
        clients: "each" judges every client by its own limits. "pooled" judges clients that are too
            small for that together, where the record has a figure over all of them; a client
            for which a leak is shown, or whose own lower limit is above a ceiling, is judged by
            its own limits all the same.
        small_audits: What becomes of a true-positive rate that this many samples could not show to
            be below its ceiling even if the attack found no member: "inconclusive", or
            "not judged", which the verdict says.
        seeds: "each" judges every run by its own limits, "these runs" their mean, "further runs"
            what another run of the procedure would give, which takes five seeds; "mean" is the
            last one's older name.
        smallest_group: Groups with fewer samples than this on a side are counted, not judged.
    """

    auc: Share | None = None
    tpr: Annotated[dict[str, Share], Field(max_length=20)] = Field(default_factory=dict)
    balanced_accuracy: Share | None = None
    group_auc: Share | None = None
    epsilon: Budget | None = None
    formal_epsilon: Budget | None = None
    contrasts: Annotated[tuple[Contrast, ...], Field(min_length=1), _Once] = (
        "unseen",
        "other_client",
    )
    attacks: Names = ()
    targets: Annotated[tuple[Count, ...], Field(max_length=1000), _Once] = ()
    clients: Literal["each", "pooled"] = "each"
    small_audits: Literal["inconclusive", "not judged"] = "inconclusive"
    seeds: Over = "each"
    smallest_group: Count = 10

    @field_validator("tpr")
    @classmethod
    def _rates(cls, given: dict[str, float]) -> dict[str, float]:
        named = {f"{_rate(text):g}": ceiling for text, ceiling in given.items()}
        if len(named) < len(given):
            raise ValueError("a false-positive rate stands there twice")
        return named


class SourcesPolicy(Table):
    """Ceilings on naming the client that a sample is from.

    Attributes:
        above_label_distributions: Of the success less what the clients' label distributions alone
            explain.
        attacks: Those that must be there, and that are judged; all of the record if empty.
        seeds: As for membership.
    """

    above_label_distributions: Annotated[float, Field(ge=-1, le=1, strict=True)]
    attacks: Names = ()
    seeds: Over = "each"


class ClustersPolicy(Table):
    """Ceilings on the models of a clustered federation.

    Attributes:
        risk: Of the real membership risk (balanced accuracy) of each model that clients use at
            the end, in every run.
    """

    risk: Share


class GamesPolicy(Table):
    """Ceilings on what a server that plants a neuron wins, for records of games.

    Attributes:
        success: Of the share of games that is won (Adv).
        epsilon: Of what the success proves of epsilon, at least. A bound above it fails; none
            makes a pass.
        actual_epsilon: Of the epsilon that the mechanism's probabilities give.
        contradicted: Whether a point fails whose success refutes the epsilon that it names.
        mechanisms: Points of these are judged, and each must be there; all points if empty.
    """

    success: Share | None = None
    epsilon: Budget | None = None
    actual_epsilon: Budget | None = None
    contradicted: bool = True
    mechanisms: Names = ()


class ControlsPolicy(Table):
    """Which controls a record must have. One that failed is never ignored, required or not.

    Source attacks have the "untrained model" alone, and models of clusters none.

    Attributes:
        required: Kinds that must be there, and hold, for every attack that is judged. Nobody can
            plant a leak in a live recording, so that it needs no "planted leak".
        otherwise: What a missing or failed control makes of the gate.
    """

    required: Annotated[tuple[Control, ...], _Once] = (
        "permuted members",
        "untrained model",
        "blind classifier",
        "planted leak",
    )
    otherwise: Otherwise = "inconclusive"


class EvidencePolicy(Table):
    """The kinds of evidence that count.

    Attributes:
        least_seeds: Runs that a record must have.
        views: What the adversary must have seen: one of these; anything if empty.
        confidence: That limits must have, in (0, 1).
        least_learned: Share of what guessing leaves to be learned that the training accuracy must
            reach in every run, in [0, 1]; below it the gate is inconclusive, as where a task has
            no accuracy and no attack is above guessing. 0 asks for nothing.
        sampled_rounds: Whether a live recording counts that measured some rounds only (``every``),
            so that what clients sent in the others was not looked at.
    """

    least_seeds: Count = 1
    views: Names = ()
    confidence: Annotated[float, Field(gt=0, lt=1, strict=True)] = 0.95
    least_learned: Share = LEAST_LEARNED
    sampled_rounds: bool = False


class Policy(Table):
    """Ceilings that a record is held against.

    Attributes:
        name: Of the policy.
        owner: Who set it; a summary prints it. Empty where nobody is named.
        membership: For records of studies; nothing of the kind is judged without this table.
        sources: For records of studies.
        clusters: For records of studies.
        games: For records of games.
    """

    name: Annotated[str, Field(pattern=_NAME)]
    owner: Annotated[str, Field(max_length=200)] = ""
    membership: MembershipPolicy | None = None
    sources: SourcesPolicy | None = None
    clusters: ClustersPolicy | None = None
    games: GamesPolicy | None = None
    controls: ControlsPolicy = ControlsPolicy()
    evidence: EvidencePolicy = EvidencePolicy()

    def digest(self) -> str:
        """SHA-256 over all settings, defaults included; comments of the file do not count."""
        # Policies without an owner keep the digest that they had before policies could have one.
        unset = None if self.owner else {"owner"}
        text = json.dumps(self.model_dump(mode="json", exclude=unset), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


DEFAULT_POLICY = """\
# Ceilings for `fedaudit gate`: upper confidence limits must lie at or below them.
name = "default"
# owner = "data protection office"        # who set it; a summary prints it

[membership]                              # who was in the training data?
auc = 0.6
tpr = { "0.01" = 0.05, "0.001" = 0.02 }   # by false-positive rate
epsilon = 2.0                             # lower bounds: above it fails, below it proves nothing
contrasts = ["unseen", "other_client"]    # or "mixed"; each is judged by itself, if it is fair
clients = "pooled"                        # small clients together; or "each"
small_audits = "not judged"               # rates that need more samples; or "inconclusive"
seeds = "each"                            # the worst run; or "these runs", "further runs"
# balanced_accuracy = 0.6
# group_auc = 0.7                         # the worst class, and against the worst client
# formal_epsilon = 8.0                    # proven of the whole training
# attacks = ["fedmia-2"]                  # all of the record without this line
# targets = [0]                           # all audited clients

# [sources]                               # whose sample is it?
# above_label_distributions = 0.1

# [clusters]                              # clustered federations
# risk = 0.6

[games]                                   # records of security games
success = 0.6
contradicted = true                       # success that refutes the claimed epsilon fails
# actual_epsilon = 8.0
# mechanisms = ["bitwise-rr"]

[controls]
required = ["permuted members", "untrained model", "blind classifier", "planted leak"]
otherwise = "inconclusive"                # or "fail"

[evidence]
least_seeds = 1
views = []                                # such as ["uploads"]
confidence = 0.95
least_learned = 0.1                       # a model near guessing has nothing to leak
sampled_rounds = false                    # live recordings that measure some rounds (every > 1)
"""
"""Thresholds are those that a report calls a clear leak; `figures.planted_leak` makes the last
control. What a release may leak is for its owner to say: copy it and change it."""


def asks_further(seeds: Over) -> bool:
    """True if a policy judges what further runs would give."""
    return seeds in ("further runs", "mean")


def read_policy(path: Path) -> Policy:
    """The policy in a TOML file.

    Args:
        path: The file; short, and treated as hostile.

    Raises:
        BadInput: No such file, not TOML, or a wrong setting: which, and what is allowed.
    """
    return settings_from(read_toml(path, "the policy"), Policy, source=str(path))


def policy_from(text: str, *, source: str = "the policy") -> Policy:
    """The policy in a TOML text; see :func:`read_policy`."""
    return settings_from(parsed_toml(text, source), Policy, source=source)


def _rate(text: str) -> float:
    if not re.fullmatch(r"(0?\.\d{1,12}|1|1\.0|\d(\.\d{1,6})?e-\d{1,2})", text):
        raise ValueError(f"a false-positive rate is written like 0.01, not {text[:40]!r}")
    rate = float(text)
    if not 0 < rate <= 1:
        raise ValueError(f"a false-positive rate lies in (0, 1], not at {text[:40]}")
    return rate
