"""Replies of Flower's nodes, as the bytes that come over the network; needs Flower."""

from functools import cache
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as Proto
from flwr.supercore.task_identity import TaskIdentity

from fedaudit.core.errors import BadInput, FedauditError
from fedaudit.integrations.flower.collector import FlowerRoundCollector
from fedaudit.live.recorder import Recorder
from fedaudit.live.recording import Recording, new_recording
from fuzz import nodes

# What Flower's own processes say of themselves when they start; messages ask for it.
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


class Listening(Recorder):
    """Takes rounds as a recorder does, and measures nothing."""

    def __init__(self) -> None:
        self.refusal: FedauditError | None = None

    @property
    def recording(self) -> Recording:
        settings = {"view": "uploads", "every": 1, "keep": "signals", "attacks": (), "classes": 2}
        return new_recording(Path("fuzzed"), "", targets=(1,), **settings)

    @property
    def sees_uploads(self) -> bool:
        return True

    def check_first_round(self, index: int, what: str) -> None:
        """Nothing was recorded before."""

    def round(self, index: int, **told: object) -> None:
        uploads = told["uploads"]
        assert isinstance(uploads, dict)
        for upload in uploads.values():
            try:
                nodes.recorded(upload)
            except FedauditError as refusal:
                self.refusal = refusal

    def missed(self, index: int, reason: str, **told: object) -> None:
        self.refusal = BadInput(reason)


def _message(content: bytes) -> Message:
    """The message with this content; what Flower itself makes nothing of never reaches us."""
    try:
        return Message(recorddict_from_proto(Proto.FromString(content)), 7, "train")
    except Exception as error:
        raise BadInput(f"Flower refuses it: {error}") from error


def _content(content: RecordDict) -> bytes:
    return bytes(recorddict_to_proto(content).SerializeToString())


def reply(content: bytes) -> None:
    """A client's reply, for a recorder."""
    sent = Message(RecordDict({"arrays": _arrays()}), 7, "train")
    vars(sent.metadata)["_message_id"] = "1"
    came = _message(content)
    vars(came.metadata)["_reply_to_message_id"] = "1"
    listening = Listening()
    collector = FlowerRoundCollector(listening, weighted_by="num-examples", reads_metrics=True)
    collector.add_messages(1, [sent])
    collector.add_replies([came])
    collector.close()
    if listening.refusal is not None:
        raise listening.refusal


@cache
def _arrays() -> ArrayRecord:
    return ArrayRecord(dict(nodes.module().state_dict()))


def reply_seeds() -> list[bytes]:
    said = {
        "arrays": _arrays(),
        "metrics": MetricRecord({"num-examples": 3, "losses": [0.1, 0.2]}),
        "fedaudit": ConfigRecord({"partition-id": 1}),
    }
    listed = [Array(value.numpy()) for value in nodes.module().state_dict().values()]
    older = ArrayRecord({str(place): array for place, array in enumerate(listed)})
    return [_content(RecordDict(one)) for one in (said, {**said, "arrays": older})]
