"""Policy of a gate: ceilings on figures of a record, and requirements on the evidence."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Hashable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from fedaudit.plan.values import parsed_toml, read_toml, settings_from
from fedaudit.results.guessing import LEAST_LEARNED

Share = Annotated[float, Field(ge=0, le=1, strict=True)]
Budget = Annotated[float, Field(ge=0, le=1e15, strict=True)]
Count = Annotated[int, Field(ge=0, le=10**9, strict=True)]
Contrast = Literal["unseen", "other_client", "mixed"]
Control = Literal["permuted members", "untrained model", "blind classifier", "planted leak"]
Value = TypeVar("Value", bound=Hashable)


def _refuse_repeated(values: tuple[Value, ...]) -> tuple[Value, ...]:
    """Raise if a list names something twice, which would be judged twice."""
    repeated = [value for value, count in Counter(values).items() if count > 1]
    if repeated:
        raise ValueError(f"{str(repeated[0])[:80]!r} is named twice; name it once")
    return values


_Once = AfterValidator(_refuse_repeated)
Names = Annotated[tuple[str, ...], Field(max_length=1000), _Once]
Over = Literal["each", "these runs", "further runs", "mean"]
Otherwise = Literal["inconclusive", "fail"]

_NAME = r"^[A-Za-z0-9][A-Za-z0-9 ._=,+-]{0,199}$"


class Table(BaseModel):
    """Frozen table of a policy without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class MembershipPolicy(Table):
    """Ceilings on membership inference; a ceiling that is left out is not judged.

    Attributes:
        auc: Ceiling on the AUC of every attack on every client in every run.
        tpr: Ceilings on the true-positive rate, by false-positive rate: ``"0.01" = 0.05``.
        balanced_accuracy: Ceiling on the balanced accuracy, at a threshold chosen on the other half
            of the samples.
        group_auc: Ceiling on the AUC of the worst group: within a class, or against one client's
            samples.
        epsilon: Ceiling on lower bounds on epsilon. A bound above it fails the gate; a bound below
            it never proves a pass.
        formal_epsilon: Ceiling on the epsilon that is proven for the whole training.
        contrasts: Kinds of non-members; the figures of each are judged separately.
        attacks: Attacks that are required and judged; all attacks of the record if empty.
        targets: Audited clients that are required and judged; all if empty.
        clients: "each" judges every client by its own limits. "pooled" judges small clients
            together, if the record has a figure over all clients. A client that is shown to leak,
            or has a lower limit above a ceiling, is always judged by its own limits.
        small_audits: Outcome of a true-positive rate that could not be shown to be below its
            ceiling with this many samples: "inconclusive" or "not judged".
        seeds: "each" judges every run by its own limits. "these runs" judges the mean over the runs
            by its confidence interval. "further runs" judges the mean over all possible seeds by
            Student-t limits, and needs five seeds. "mean" is an older name of "further runs".
        smallest_group: Least number of members and of non-members in a judged group. Smaller groups
            are counted and not judged.
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

    @property
    def judges_each(self) -> bool:
        """True if every client is judged by its own limits, and none together with others."""
        return self.clients == "each" or bool(self.targets)

    @field_validator("tpr")
    @classmethod
    def _rates(cls, ceilings: dict[str, float]) -> dict[str, float]:
        named = {f"{_rate(text):g}": ceiling for text, ceiling in ceilings.items()}
        if len(named) < len(ceilings):
            raise ValueError("a false-positive rate is given twice; give each once")
        return named


class SourcesPolicy(Table):
    """Ceilings on source inference.

    Attributes:
        above_label_distributions: Ceiling on the success minus what the clients' label
            distributions alone explain.
        attacks: Attacks that are required and judged; all attacks of the record if empty.
        seeds: As ``membership.seeds``.
    """

    above_label_distributions: Annotated[float, Field(ge=-1, le=1, strict=True)]
    attacks: Names = ()
    seeds: Over = "each"


class ClustersPolicy(Table):
    """Ceilings on the models of a clustered federation.

    Attributes:
        risk: Ceiling on the membership risk (balanced accuracy) of each model that clients use at
            the end, in every run.
    """

    risk: Share


class GamesPolicy(Table):
    """Ceilings on the success of a server that plants a neuron, for records of games.

    Attributes:
        success: Ceiling on the share of games that the server wins (Adv).
        epsilon: Ceiling on the lower bound on epsilon. A bound above it fails the gate; a bound
            below it never proves a pass.
        actual_epsilon: Ceiling on the epsilon that follows from the mechanism's probabilities.
        contradicted: Whether a point fails if its success refutes its claimed epsilon.
        mechanisms: Mechanisms that are required and judged; all points if empty.
    """

    success: Share | None = None
    epsilon: Budget | None = None
    actual_epsilon: Budget | None = None
    contradicted: bool = True
    mechanisms: Names = ()


class ControlsPolicy(Table):
    """Controls that a record must have; a failed control always counts.

    Source attacks have the "untrained model" alone, and models of clusters no control.

    Attributes:
        required: Controls that must pass for every judged attack. A live recording needs no
            "planted leak", which only a simulation can have.
        otherwise: Outcome of a missing or failed control.
    """

    required: Annotated[tuple[Control, ...], _Once] = (
        "permuted members",
        "untrained model",
        "blind classifier",
        "planted leak",
    )
    otherwise: Otherwise = "inconclusive"


class EvidencePolicy(Table):
    """Requirements on the evidence.

    Attributes:
        least_seeds: Number of runs that a record must have.
        views: Views that the adversary may have had; any if empty.
        confidence: Confidence level that limits must have, in (0, 1).
        least_learned: Share of the range from chance to 1 that the training accuracy must reach in
            every run, in [0, 1]; below it, the gate is inconclusive. It is also inconclusive if the
            task has no accuracy and no attack beats chance. 0 disables the check.
        sampled_rounds: Whether to accept live recordings that measured only some rounds
            (``every``).
    """

    least_seeds: Count = 1
    views: Names = ()
    confidence: Annotated[float, Field(gt=0, lt=1, strict=True)] = 0.95
    least_learned: Share = LEAST_LEARNED
    sampled_rounds: bool = False


class Policy(Table):
    """Ceilings and requirements for a record.

    Attributes:
        name: Name of the policy.
        owner: Person or office that set the policy, printed in summaries; empty if not stated.
        membership: Ceilings for studies; membership is not judged without this table.
        sources: Ceilings for studies.
        clusters: Ceilings for studies.
        games: Ceilings for records of games.
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
        """Return the SHA-256 of all settings, defaults included."""
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
contrasts = ["unseen", "other_client"]    # or "mixed"; each is judged separately, if it is fair
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
"""Policy that is printed as an example. Above its thresholds, a report speaks of a clear leak.
`figures.planted_leak` runs the last control. The owner of a release decides what it may leak."""


def asks_further(seeds: Over) -> bool:
    """Return True if a policy judges the mean over all possible seeds."""
    return seeds in ("further runs", "mean")


def read_policy(path: Path) -> Policy:
    """Read the policy in a TOML file.

    Args:
        path: The file; short, and treated as hostile.

    Raises:
        BadInput: No such file, not TOML, or a wrong setting: which, and what is allowed.
    """
    return settings_from(read_toml(path, "the policy"), Policy, source=str(path))


def policy_from(text: str, *, source: str = "the policy") -> Policy:
    """Read the policy in a TOML text; see :func:`read_policy`."""
    return settings_from(parsed_toml(text, source), Policy, source=source)


def _rate(text: str) -> float:
    if not re.fullmatch(r"(0?\.\d{1,12}|1|1\.0|\d(\.\d{1,6})?e-\d{1,2})", text):
        raise ValueError(f"a false-positive rate is written like 0.01, not {text[:40]!r}")
    rate = float(text)
    if not 0 < rate <= 1:
        raise ValueError(f"a false-positive rate is {text[:40]}; give a share in (0, 1]")
    return rate
