"""Whether what came of a turn elsewhere can be what comes of that turn."""

from math import inf

import torch
from torch import Tensor

from fedaudit.core import Params
from fedaudit.errors import BadInput
from fedaudit.fl.algorithms.base import Algorithm, KeepsModels
from fedaudit.fl.visits import Done, Job
from fedaudit.observe.round import Gradient, Sent, Update, Upload
from fedaudit.observe.usage import COUNTS

_MOST = 2**40
"""Beyond any sample's number, and any bytes that a client sends or samples that it has."""


def refuse_unfit(job: Job, done: Done, algorithm: Algorithm) -> None:
    """Refuses an answer of another form than the question has: names, shapes and types.

    Numbers of models are not judged; a training that has come to nothing is a result. Those that
    are only counted (seconds, which samples were used) are.

    Args:
        job: The turn.
        done: What is said to have come of it.
        algorithm: That it was a turn of.

    Raises:
        BadInput: It does not fit; what of it is named.
    """
    fault = (
        _upload_fault(job.sent, done.upload, algorithm)
        or _memory_fault(job, done.memory, algorithm)
        or _differs(done.defense, job.defense, "the defense's state", growing=True)
        or next((fault for n, v in done.facts.items() if (fault := _note_fault(n, v))), "")
        or ("" if 0 <= done.seconds < inf else f"it took {done.seconds} seconds")
    )
    if fault:
        raise BadInput(
            f"what came back for client {job.visit.client} in round {job.visit.round} does not "
            f"fit what was sent: {fault}; use the same fedaudit and study on every machine"
        )


def _upload_fault(sent: Sent, upload: Upload, algorithm: Algorithm) -> str:
    if not isinstance(upload, algorithm.upload_kind):
        return f"a {type(upload).__name__} instead of a {algorithm.upload_kind.__name__}"
    if not isinstance(upload, Update | Gradient):
        return _differs(upload.values, sent.extra, "the outputs")
    choice = upload.choice if isinstance(upload, Update) else 0
    if not 0 <= choice < len(sent.models):
        return f"it is of model {str(choice)[:20]}, and {len(sent.models)} were sent"
    if not 0 <= upload.samples <= _MOST:
        return f"it is of {str(upload.samples)[:20]} samples"
    model = sent.models[choice]
    return _differs(upload.values, model.params, "the upload") or _differs(
        upload.buffers, model.buffers, "the uploaded buffers"
    )


def _memory_fault(job: Job, memory: Params, algorithm: Algorithm) -> str:
    """What is wrong with a client's own model; what else clients remember is checked in use."""
    if not isinstance(algorithm, KeepsModels):
        return ""
    if job.memory:
        return _differs(memory, job.memory, "the client's own model")
    fits = any(not _differs(memory, net.initial(0).tensors(), "") for net in algorithm.nets)
    return "" if fits else "the client's own model is of none of the algorithm's networks"


def _note_fault(name: str, noted: Tensor) -> str:
    if noted.dim() != 1:
        return f"the note {name[:80]!r} is no row"
    if name in COUNTS and not (
        noted.dtype == torch.int64 and bool(((noted >= 0) & (noted <= _MOST)).all())
    ):
        return f"the note {name!r} holds no whole numbers that can be"
    # Summed as floats: whole numbers would start again from below.
    if name == "extra_bytes" and float(noted.double().sum()) > _MOST:
        return f"the note {name!r} adds up to more than a client sends"
    return ""


def _differs(found: Params, like: Params, what: str, *, growing: bool = False) -> str:
    """How tensors differ in name, order, shape or type from others; empty if they do not."""
    if list(found) != list(like):
        return f"{what} has other names than it should"
    for name, value in like.items():
        there, skip = found[name], 1 if growing else 0
        same = (there.dim(), there.shape[skip:], there.dtype) == (
            value.dim(),
            value.shape[skip:],
            value.dtype,
        )
        if not same:
            return (
                f"{what} has {name!r} of shape {tuple(there.shape)} and type {there.dtype} "
                f"instead of {tuple(value.shape)} and {value.dtype}"
            )
    return ""
