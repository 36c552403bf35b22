"""The seed inputs of fuzzing are readable."""

import time
from random import Random
from warnings import catch_warnings, simplefilter

import pytest

from fuzz.target import TOKENS, damaged, refused, stretched

with catch_warnings():
    # Flower, if installed, imports further modules here.
    simplefilter("ignore", DeprecationWarning)
    from fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_every_reader_accepts_its_seed_input(name: str) -> None:
    target = TARGETS[name]
    assert not refused(target.read, target.seeds()[0])


@pytest.mark.parametrize("name", [name for name, target in TARGETS.items() if target.document])
def test_documents_are_embedded_back_unchanged(name: str) -> None:
    target = TARGETS[name]
    assert target.document is not None
    for seed in target.seeds()[:3]:
        document = target.document(seed)
        assert document.replace_document(document.text) == seed


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_repeated_tokens_are_parsed_quickly(name: str) -> None:
    target, rng = TARGETS[name], Random(name)
    seed = target.seeds()[0]
    for token in TOKENS * 2:
        content = stretched(seed, token, rng)
        start = time.process_time()
        refused(target.read, content)
        assert time.process_time() - start < 5, content[:200]


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_files_are_either_refused_or_read(name: str) -> None:
    target, rng = TARGETS[name], Random(name)
    seeds, start, counts = target.seeds()[:3], time.process_time(), [0, 0]
    # The programs in `fuzz/` try many more inputs.
    for _ in range(100):
        counts[refused(target.read, damaged(rng.choice(seeds), rng))] += 1
        if sum(counts) > 3 and time.process_time() - start > 0.2:
            break
    assert sum(counts) > 3
