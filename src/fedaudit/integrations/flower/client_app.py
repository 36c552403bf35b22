"""A node of a study: it deals the study's data and takes the turns of clients that it is sent."""

from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedaudit.core.errors import BadInput, Refusal
from fedaudit.engines.local import one_thread
from fedaudit.fl.visits import TurnContext, visited
from fedaudit.fl.wire.packets import pack_done, unpack_jobs
from fedaudit.integrations.flower.study_messages import (
    MADE,
    Question,
    answering,
    question_in,
    refusing,
    studies_of,
)
from fedaudit.study.running.identity import study_key, with_code
from fedaudit.study.setup.build import data_key, federation_of

DATA_DIR = "data-dir"
"""Setting of a node: the folder with its data sets."""

_KEPT = 2
"""Federations that stay with a process: an audited one and its shadow take turns."""


class _Dealt(NamedTuple):
    federation: TurnContext
    data: str


_dealt: OrderedDict[tuple[str, str, int, str], _Dealt] = OrderedDict()


def study_client(study: Path) -> ClientApp:
    """The ClientApp of a study, which takes the turns of whichever clients it is sent.

    Every node deals the study's data by itself, from the study's own file and the data sets in
    its ``--node-config 'data-dir="..."'`` (or ``FEDAUDIT_DATA``), so that no data travel. A node
    keeps nothing from message to message: a turn that it did not finish is taken by another.

    Args:
        study: The TOML file, which is part of the app.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        try:
            content = _answer(study, message, context)
        except Refusal as refusal:
            content = refusing(refusal)
        return Message(content, reply_to=message)

    return app


def _answer(file: Path, message: Message, context: Context) -> RecordDict:
    question = question_in(message)
    if question.made != MADE:
        raise BadInput(
            f"results depend on versions, and this node has {MADE} instead of {question.made}; "
            "install the same everywhere"
        )
    folder = str(context.node_config.get(DATA_DIR, ""))
    with one_thread():
        dealt = _federation(file, question, context, folder)
        if dealt.data != question.data:
            raise BadInput(
                "this node has other data than the server; give it the same data sets, in "
                f"FEDAUDIT_DATA or in its setting {DATA_DIR}"
            )
        jobs = unpack_jobs(question.packet, dealt.federation.algorithm)
        strangers = sorted({job.visit.client for job in jobs} - dealt.federation.data.keys())
        if strangers:
            raise BadInput(f"the study has no clients {strangers[:5]}")
        return answering(pack_done([visited(dealt.federation, job) for job in jobs]))


def _federation(file: Path, question: Question, context: Context, folder: str) -> _Dealt:
    """The federation that is asked for, dealt once for each process."""
    name = (str(file), question.study, question.seed, folder)
    if name not in _dealt:
        studies = {study_key(with_code(one)): one for one in studies_of(file, context.run_config)}
        if question.study not in studies:
            raise BadInput(
                f"the server carries out another study than {file.name} is here; install the same "
                "app and fedaudit everywhere"
            )
        found = federation_of(
            studies[question.study], question.seed, Path(folder) if folder else None
        )
        while len(_dealt) >= _KEPT:
            _dealt.popitem(last=False)
        _dealt[name] = _Dealt(found, data_key(found))
    return _dealt[name]
