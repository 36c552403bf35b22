"""Statement of whoever packs a record: role, purpose, validity, and questions that do not apply."""

from collections.abc import Mapping
from datetime import date
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from fedaudit.core.errors import similar_names
from fedaudit.report.clauses import CLAUSES

TOPICS: Mapping[str, str] = {row.id: row.topic for row in CLAUSES}
"""Topics of the questions by their ids."""


def _raise_if_unprintable(text: str) -> str:
    # A line break or control character could imitate other lines of a terminal or page.
    if not text.isprintable() or not text.strip():
        raise ValueError("it should be one line of printable characters")
    return text


def _raise_if_other_than_dates(value: object) -> object:
    try:
        # A time would be ambiguous without a time zone. Times are a subclass of dates.
        return value if type(value) is date else date.fromisoformat(str(value))
    except ValueError:
        raise ValueError("it should be a date, such as 2027-06-30") from None


def _raise_if_unknown_questions(reasons: dict[str, str]) -> dict[str, str]:
    for name in reasons:
        if name not in TOPICS:
            close = " or ".join(map(repr, similar_names(name, TOPICS)))
            hint = f"did you mean {close}" if close else f"allowed: {', '.join(TOPICS)}"
            raise ValueError(f"{name[:40]!r} is not the id of a question; {hint}")
    return reasons


_Line = AfterValidator(_raise_if_unprintable)
Reason = Annotated[str, Field(max_length=300, strict=True), _Line]


class Statement(BaseModel):
    """Statement of the packer, which fedaudit cannot check.

    Attributes:
        role: Role of the packer, such as "provider", "deployer" or "data holder".
        purpose: Purpose of the model.
        valid_until: Last day on which the evidence may be relied on; None if not stated.
        not_applicable: Reasons why questions do not apply, by the ids of the questions.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    # Short, since a summary prints both, and has two pages.
    role: Annotated[str, Field(max_length=60, strict=True), _Line]
    purpose: Annotated[str, Field(max_length=200, strict=True), _Line]
    valid_until: Annotated[date, BeforeValidator(_raise_if_other_than_dates)] | None = None
    not_applicable: Annotated[dict[str, Reason], AfterValidator(_raise_if_unknown_questions)] = (
        Field(default_factory=dict)
    )

    @property
    def last_day(self) -> str:
        """The last day of validity, such as "2027-06-30"; empty if not stated."""
        return "" if self.valid_until is None else self.valid_until.isoformat()

    def has_expired(self, today: date) -> bool:
        """Return True if the last day of validity has passed."""
        return self.valid_until is not None and self.valid_until < today
