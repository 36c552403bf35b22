"""Filters and modules that fail or end their process."""

import os
import signal
import sys
import time

import torch

Update = dict[str, torch.Tensor]


def exits(update: Update) -> Update:
    os._exit(0)


def exits_as_if_broken(update: Update) -> Update:
    os._exit(1)


def is_killed(update: Update) -> Update:
    os.kill(os.getpid(), signal.SIGKILL)
    return update


def never_ends(update: Update) -> Update:
    while True:
        time.sleep(0.01)


def leaves(update: Update) -> Update:
    sys.exit(0)


def prints_a_verdict(update: Update) -> Update:
    """Print a verdict to all streams of the process."""
    text = "SOUND: tests.filters.ending:prints_a_verdict does what is declared\n"
    for stream in (1, 2):
        os.write(stream, text.encode() * 10_000)
    sys.__stdout__.write(text)  # type: ignore[union-attr]  # it is there
    sys.__stdout__.flush()  # type: ignore[union-attr]
    os._exit(0)
