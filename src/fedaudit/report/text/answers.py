"""An answer to a question that assessments of a model ask."""

from typing import Literal, NamedTuple

from fedaudit.results.estimate import Estimate
from fedaudit.results.record import Record

Kind = Literal["figure", "stated", "inconclusive", "not tested", "not stated", "out of scope"]


class Answer(NamedTuple):
    """A record's answer to one question.

    Attributes:
        kind: "figure" for numbers of this record; "stated" for other facts that it holds.
            "Inconclusive" was asked, and refused for want of samples. "Not tested" could be found
            out with fedaudit and was not; "not stated" is not in the record; "out of scope" no
            part of fedaudit asks.
        text: In a line.
        more: What it rests on.
    """

    kind: Kind
    text: str
    more: str = ""


def not_tested(why: str) -> Answer:
    """The answer of a record that does not ask, though it could."""
    return Answer("not tested", "Not tested", why)


AT_THE_CEILING = "The test can show no more: the truth may be any amount larger."


def at_ceiling(one: Estimate) -> bool:
    """True where a lower bound is all that its test could have shown."""
    return bool(one.ceiling) and one.number >= (one.ceiling or 0.0) * (1 - 1e-9)


def canary_noise(record: Record) -> list[str]:
    """That canary clients' noise lies in every audited model, where there are such clients."""
    if not isinstance(record.config.get("canaries"), dict):
        return []
    return ["All models here hold the noise of canary clients: without them more may be told."]
