"""Messages and settings of a study that the server and its nodes share."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedaudit import __version__
from fedaudit.core.errors import BadInput, Refusal
from fedaudit.fl.wire.packets import Packet
from fedaudit.integrations.flower.contents import array_of
from fedaudit.results.text import plain
from fedaudit.study.settings.file import read_studies
from fedaudit.study.settings.sections import Study


def studies_of(file: Path, run_config: Mapping[str, object]) -> list[Study]:
    """The study of a file and its variants, with the settings of a run.

    Args:
        file: The TOML file.
        run_config: Of the run; names with a dot are settings of the study, such as
            ``training.rounds``. Flower knows only names that stand in the app's ``pyproject.toml``.

    Raises:
        BadInput: As :func:`fedaudit.study.settings.file.read_studies`.
    """
    return read_studies(file, {name: value for name, value in run_config.items() if "." in name})


MADE = f"fedaudit {__version__} with torch {torch.__version__}"
"""What results depend on beside the study."""

_TURNS, _TENSORS, _BYTES, _REFUSED = "turns", "tensors", "bytes", "refused"


class Question(NamedTuple):
    """A request to a node.

    Attributes:
        made: The server's versions.
        study: Key of the study.
        seed: Of the federation.
        data: Key of what its clients train on.
        packet: The turns to take.
    """

    made: str
    study: str
    seed: int
    data: str
    packet: Packet


def asking(question: Question) -> RecordDict:
    """A question as the content of a message."""
    said = {name: value for name, value in question._asdict().items() if name != "packet"}
    return _content(question.packet, said)


def question_in(message: Message) -> Question:
    """Reads a request to a node.

    Raises:
        BadInput: The message is no question.
    """
    packet, said = _packet_in(message), message.content.config_records[_TURNS]
    made, study, seed, data = (said.get(name) for name in Question._fields[:4])
    if not (
        isinstance(made, str)
        and isinstance(study, str)
        and isinstance(seed, int)
        and isinstance(data, str)
    ):
        raise _no_packet("it lacks what a question says")
    return Question(made, study, seed, data, packet)


def answering(packet: Packet) -> RecordDict:
    """Results of turns as the content of a reply."""
    return _content(packet, {})


def refusing(refusal: Refusal) -> RecordDict:
    """A node's refusal as the content of a reply."""
    return RecordDict({_REFUSED: ConfigRecord({"said": plain(str(refusal))})})


def refusal_in(reply: Message) -> str:
    """Reason why a node refuses; empty if it does not."""
    record = reply.content.config_records.get(_REFUSED)
    return "" if record is None else plain(str(record.get("said", "")))[:1000] or "no reason given"


def answer_in(reply: Message) -> Packet:
    """Reads a node's results of its turns.

    Raises:
        BadInput: The reply is no answer.
    """
    return _packet_in(reply)


def _content(packet: Packet, said: dict[str, str | int]) -> RecordDict:
    # One array and not one a tensor: Flower sends each by a request of its own.
    tensors = Array(np.frombuffer(packet.tensors, dtype=np.uint8))
    return RecordDict(
        {
            _TURNS: ConfigRecord({**said, "values": packet.values}),
            _TENSORS: ArrayRecord({_BYTES: tensors}),
        }
    )


def _packet_in(message: Message) -> Packet:
    content = message.content
    try:
        values = content.config_records[_TURNS]["values"]
        array = array_of(content.array_records[_TENSORS][_BYTES])
    except (KeyError, TypeError, ValueError) as error:
        raise _no_packet(" ".join(str(error).split())[:200]) from error
    if not isinstance(values, str) or array.dtype != np.uint8 or array.ndim != 1:
        raise _no_packet("it is of another form")
    return Packet(values, array.tobytes())


def _no_packet(why: str) -> BadInput:
    return BadInput(
        f"a message is none of a study's ({why}); use the same fedaudit on every machine"
    )
