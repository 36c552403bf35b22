"""A study, as a TOML file says it: every setting named, checked and given a default.

Unknown keys are refused with the nearest known one. Everything that changes a result is in
here; what does not (folders, workers, progress) is not.
"""

import copy
import tomllib
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)

from fedaudit.core import Setting
from fedaudit.errors import BadInput, unknown_name
from fedaudit.observe.store import MAX_ROUND
from fedaudit.study.grid import grid_points
from fedaudit.study.text import MAX_DEPTH, deeper_than

MAX_BYTES = 1_000_000
_LONGEST = 80


def _setting(value: object) -> Setting:
    """An option of a catalogue entry; the entry itself says what it takes."""
    if isinstance(value, str) or (isinstance(value, int | float) and abs(value) <= 1e15):
        return value
    raise ValueError("it should be a number up to 1e15 in size, a text, or true or false")


Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=0, le=10**9, strict=True)]
Positive = Annotated[int, Field(ge=1, le=10**9, strict=True)]
Settings = dict[str, Annotated[Setting, PlainValidator(_setting)]]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataSection(_Section):
    """Which data set; ``options`` are its source's own."""

    name: str = "digits"
    options: Settings = Field(default_factory=dict)


class PartitionSection(_Section):
    """How data is dealt to clients; ``options`` are the scheme's own (beta, per_client)."""

    scheme: str = "iid"
    clients: Annotated[int, Field(ge=2, le=10**6, strict=True)] = 10
    samples_per_client: Count = 0
    options: Settings = Field(default_factory=dict)


class ModelSection(_Section):
    """Which architecture; ``options`` are its own."""

    name: str = "mlp"
    options: Settings = Field(default_factory=dict)


class TrainingSection(_Section):
    """Federated averaging: rounds, participation, and each client's local training."""

    rounds: Annotated[int, Field(ge=1, le=MAX_ROUND, strict=True)] = 30
    participation: Share = 1.0
    epochs: Positive = 1
    batch_size: Positive = 32
    lr: Annotated[float, Field(gt=0, le=1e3)] = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0, le=1e3)] = 0.0
    schedule: str = "constant"
    optimizer: str = "sgd"


class AuditSection(_Section):
    """What is audited, and through whose eyes.

    Attributes:
        draw: "fair" (the default draw) or a published split by name.
        targets: Clients under audit.
        options: A published draw's own settings (share, n_unseen, n_other).
        fair: Samples whose owner a fair draw decides, for each target.
        extra_other: Further audited samples of other clients.
        extra_unseen: Further audited samples of nobody.
        background: Samples of each target beside the audited ones; None tops it up.
        every: Measured rounds are this far apart; 0 means every max(1, rounds // 10).
        view: What the adversary sees.
        merge: Clients that the adversary attacks as one, through the weighted mean of their
            uploads: a coalition whose single uploads hide behind each other. Their data
            together are then the members. None if empty.
        keep: "signals" keeps measurements only; "snapshots" also the global models of measured
            rounds; "full" also every client's update there.
    """

    draw: str = "fair"
    targets: tuple[Count, ...] = (0,)
    fair: Count = 300
    extra_other: Count = 0
    extra_unseen: Count = 0
    background: Count | None = None
    options: Settings = Field(default_factory=dict)
    every: Count = 0
    view: str = "uploads"
    merge: tuple[Count, ...] = ()
    keep: Literal["signals", "snapshots", "full"] = "signals"


class ShadowSection(_Section):
    """Where attacks that learn take their examples from; never from the audited samples.

    Attributes:
        mode: "federation" trains an undefended federation of the same settings on data that
            the audited run does not touch; "known-split" takes for known which of some samples
            that are not audited one other client of the run trained on.
        fair: Samples whose owner in the shadow federation a fair draw decides; 0 for as many
            as the audit's own, or twice the target's size under a published draw.
        client: Whose samples are known in a known split; the last that is not audited if left out.
        known: Samples of a known split, half of them members.
    """

    mode: Literal["federation", "known-split"] = "federation"
    fair: Count = 0
    client: Count | None = None
    known: Positive = 400


class PartSection(_Section):
    """One more defense in a chain, by catalogue name and with its own settings."""

    name: str
    options: Settings = Field(default_factory=dict)


class GroupSection(PartSection):
    """What further clients do; clients of one group are each other's coalition."""

    clients: Annotated[tuple[Count, ...], Field(min_length=1)]
    chain: tuple[PartSection, ...] = ()


class DefenseSection(_Section):
    """What clients do about leakage.

    Attributes:
        clients: Clients that use it, together where it takes a coalition; if left out, all but
            those of ``also``.
        chain: Further defenses of the same clients, applied after this one in the order given:
            a ``[[defense.chain]]`` table of ``name`` and ``options`` each.
        also: Further groups of clients with a defense of their own: a ``[[defense.also]]`` table
            of ``name``, ``clients``, ``options`` and ``chain`` each.
    """

    name: str = "none"
    clients: tuple[Count, ...] | None = None
    options: Settings = Field(default_factory=dict)
    chain: tuple[PartSection, ...] = ()
    also: tuple[GroupSection, ...] = ()

    @property
    def label(self) -> str:
        """All that is used by its names, as records and reports have it; "none" for nothing."""
        groups: tuple[DefenseSection | GroupSection, ...] = (self, *self.also)
        used = [[p.name for p in (g, *g.chain) if p.name != "none"] for g in groups]
        return ", ".join(dict.fromkeys(" + ".join(names) for names in used if names)) or "none"


class FiguresSection(_Section):
    """Which figures are printed.

    Attributes:
        fprs: False-positive rates at which the true-positive rate is given.
        evaluation: "aligned", or "redraw" for the published code's way (parity only).
        nobody_is_a_member: Calls half of the unseen samples members: what an evaluation finds
            where there is nothing to find.
        permutations: Of the membership labels, for the permuted control.
        blind_classifier: Trains the control that sees inputs only; some seconds a target.
        alpha: Error level of the corrected family of tests.
        most_exposed: How many members are listed.
        planted_leak: Also trains a small twin run with a leak that every attack must find.
    """

    fprs: tuple[Share, ...] = (0.01, 0.001)
    evaluation: Literal["aligned", "redraw"] = "aligned"
    nobody_is_a_member: bool = False
    permutations: Annotated[int, Field(ge=20, le=10**6, strict=True)] = 200
    blind_classifier: bool = True
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.05
    most_exposed: Count = 10
    planted_leak: bool = False


class Study(_Section):
    """A whole study.

    Attributes:
        name: Of the study and its folder.
        about: One sentence for the reader of the report.
        hours: What it takes, as its author measured it; for people, changes nothing.
        seeds: One run each.
        shadow: Examples for attacks that learn. Without this table they run only where they are
            named, on a shadow federation.
        attacks: Settings by attack name; all attacks of the catalogue if there is no table.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._=,+-]{0,199}$")]
    about: str = ""
    hours: str = ""
    seeds: Annotated[tuple[Count, ...], Field(min_length=1)] = (1,)
    data: DataSection = DataSection()
    partition: PartitionSection = PartitionSection()
    model: ModelSection = ModelSection()
    training: TrainingSection = TrainingSection()
    audit: AuditSection = AuditSection()
    shadow: ShadowSection | None = None
    defense: DefenseSection = DefenseSection()
    figures: FiguresSection = FiguresSection()
    attacks: dict[str, Settings] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_run_a_seed(self) -> "Study":
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"each seed may stand once, got {list(self.seeds)}")
        if self.audit.draw == "fair" and self.audit.fair == 0:
            raise ValueError("audit.fair is 0, so that nobody would be a member; give at least 1")
        if self.audit.draw == "fair" and self.audit.options:
            raise ValueError("audit.options are of published draws; the fair draw has none")
        self._check_merge()
        return self

    def _check_merge(self) -> None:
        merged, targets = self.audit.merge, self.audit.targets
        if merged and (len(set(merged)) < max(2, len(merged))):
            raise ValueError(f"audit.merge names at least two clients, each once: {list(merged)}")
        if len(set(merged) & set(targets)) > 1:
            raise ValueError(
                f"audit.targets {list(targets)} are several of audit.merge, which are attacked as "
                "one; name one of them"
            )

    @property
    def measured_every(self) -> int:
        """Distance of measured rounds: as asked, or a tenth of the run."""
        return self.audit.every or max(1, self.training.rounds // 10)


def study_from(values: dict[str, object], *, source: str = "the study") -> Study:
    """A checked study from plain values.

    Raises:
        BadInput: One sentence naming the first setting that is wrong, and what is allowed.
    """
    if deeper_than(values, MAX_DEPTH):
        raise BadInput(f"{source} nests over {MAX_DEPTH} levels deep, and no setting does")
    try:
        return Study.model_validate(values)
    except ValidationError as error:
        raise _refusal(error, source) from error


def read_study(path: Path, overrides: dict[str, object] | None = None) -> Study:
    """The study of a TOML file without its variants; see :func:`read_studies`."""
    return read_studies(path, overrides)[0]


def read_studies(path: Path, overrides: dict[str, object] | None = None) -> list[Study]:
    """The study of a TOML file, and after it each of its variants.

    A variant is a table ``[variants.NAME]`` of settings by dotted name that differ from the
    study's own; its study is named after both. Every point of a ``[grid]`` is a variant too.

    Args:
        path: The file.
        overrides: Values by dotted name, such as ``{"training.rounds": 10}``; they hold for
            the study and for all variants.

    Raises:
        BadInput: No such file, not TOML, or a wrong setting.
    """
    values = _toml(path)
    variants, grid = values.pop("variants", {}), values.pop("grid", None)
    if not isinstance(variants, dict) or not all(isinstance(v, dict) for v in variants.values()):
        raise BadInput(f"variants in {path} are tables, such as [variants.small]")
    if "" in variants:
        raise BadInput(f"a variant in {path} has no name; give it one, as in [variants.small]")
    for label, changes in grid_points(grid, str(path)) if grid is not None else ():
        if label in variants:
            raise BadInput(f"{path} has a variant and a point of its grid named {label!r}")
        variants[label] = changes
    studies = []
    for label, changes in {"": {}, **variants}.items():
        varied = copy.deepcopy(values)
        for name, value in {**changes, **(overrides or {})}.items():
            _set(varied, name, value)
        if label:
            varied["name"] = f"{varied.get('name', '')}-{label}"
        studies.append(study_from(varied, source=str(path)))
    return studies


def chosen_studies(studies: list[Study], variant: str) -> list[Study]:
    """The study itself, one of its variants, or "all" of them.

    Raises:
        BadInput: There is no variant of that name.
    """
    if variant == "all":
        return studies
    labels = {study.name.removeprefix(f"{studies[0].name}-"): study for study in studies[1:]}
    if not variant:
        return studies[:1]
    if variant not in labels:
        raise unknown_name("variant", variant, [*labels, "all"])
    return [labels[variant]]


def _toml(path: Path) -> dict[str, object]:
    try:
        if path.exists() and not path.is_file():
            raise BadInput(f"the study {path} is not a regular file; give the path of a TOML file")
        if path.stat().st_size > MAX_BYTES:
            raise BadInput(f"{path} has more than {MAX_BYTES} bytes; a study is a short file")
        values: dict[str, object] = tomllib.loads(path.read_text(encoding="utf-8"))
        if deeper_than(values, MAX_DEPTH):
            raise BadInput(f"{path} nests over {MAX_DEPTH} levels deep, and no setting does")
        return values
    except OSError as error:
        raise BadInput(f"the study {path} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"the study {path} is not valid TOML: {error}") from error


def _set(values: dict[str, object], dotted: str, value: object) -> None:
    *sections, last = dotted.split(".")
    place = values
    for section in sections:
        inner = place.setdefault(section, {})
        if not isinstance(inner, dict):
            raise BadInput(f"{dotted!r} cannot be set: {section!r} is a value, not a table")
        place = inner
    place[last] = value


def _refusal(error: ValidationError, source: str) -> BadInput:
    faults = error.errors()
    first = faults[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        *path, key = (str(part) for part in first["loc"])
        return unknown_name(f"setting in {source}", ".".join([*path, key]), _known(path))
    # A list whose entries are refused is also called too short, which is no fault of its own.
    others = [fault for fault in faults[1:] if fault["loc"] != first["loc"][:-1]]
    more = f" (and {len(others)} more)" if others else ""
    wanted = _IN_WORDS.get(first["type"], first["msg"].removeprefix("Value error, "))
    wanted = wanted.replace("Input should be", "it should be", 1)
    given = repr(first["input"])
    if len(given) > _LONGEST:
        given = f"{given[:_LONGEST]}... ({len(given)} characters)"
    return BadInput(f"{where or 'the study'} in {source}: {wanted}, got {given}{more}")


_IN_WORDS = {
    "tuple_type": "it should be a list",
    "too_short": "it should have at least one entry",
    "dict_type": "it should be a table of settings",
    "model_type": "it should be a table of settings",
    "float_parsing": "it should be a number",
    "string_type": "it should be a text",
    "bool_parsing": "it should be true or false",
    "bool_type": "it should be true or false",
    "int_type": "it should be a whole number",
    "string_pattern_mismatch": "it should be of letters, digits and '._=,+-' (at most 200), "
    "beginning with a letter or digit",
}
"""What pydantic's messages mean to somebody who writes TOML."""


def _known(path: list[str]) -> list[str]:
    section: type[BaseModel] = Study
    for part in path:
        if part.isdigit():  # a place in a list of tables
            continue
        kind = section.model_fields[part].annotation
        # A table that may be left out is a section or None.
        kind = next((k for k in get_args(kind) if k is not type(None)), kind)
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            return []
        section = kind
    return [".".join([*path, name]) for name in section.model_fields]
