"""Turns that are carried as packets to whoever deals the study's data by himself change nothing."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import pytest

from fedaudit.core.errors import BadInput
from fedaudit.engines.local import LOCAL
from fedaudit.fl.visits import Done, Job, TurnContext, refuse_unfit, visited
from fedaudit.fl.wire.packets import pack_done, pack_jobs, unpack_done, unpack_jobs
from fedaudit.study.running.run import run_study
from fedaudit.study.settings.sections import Study
from fedaudit.study.setup.build import data_key, federation_of, federation_seeds
from tests.study.studies import quick_study

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Elsewhere:
    """Takes turns as a machine would that is told of nothing but packets and the study."""

    study: Study
    count: int = 1

    @contextmanager
    def session(
        self, work: Callable[[Shared, Item], Result], shared: Shared
    ) -> Iterator[Callable[[Iterable[Item]], Iterator[Result]]]:
        def run(items: Iterable[Item]) -> Iterator[Result]:
            given = list(items)
            if work is visited:
                jobs = [one for one in given if isinstance(one, Job)]
                taken = taken_elsewhere(self.study, cast(TurnContext, shared), jobs)
                yield from cast(Iterator[Result], iter(taken))
                return
            with LOCAL.session(work, shared) as here:
                yield from here(given)

        yield run


def taken_elsewhere(study: Study, federation: TurnContext, jobs: Sequence[Job]) -> list[Done]:
    seed, algorithm = jobs[0].visit.seed, federation.algorithm
    assert seed in federation_seeds(study)
    asked = pack_jobs(jobs, algorithm)
    dealt = federation_of(study, seed, None)
    assert data_key(dealt) == data_key(federation)
    with LOCAL.session(visited, dealt) as there:
        answer = pack_done(there(unpack_jobs(asked, dealt.algorithm)))
    done = unpack_done(answer)
    for job, one in zip(jobs, done, strict=True):
        refuse_unfit(job, one, algorithm)
    return done


FEDMD: dict[str, dict[str, object]] = {
    "algorithm": {
        "name": "fedmd",
        "options": {
            "public": "digits",
            "public_samples": 60,
            "public_epochs": 1,
            "private_epochs": 1,
            "student": "",
            "student_epochs": 1,
            "nets": "4,4; 4,8",
        },
    },
    "data": {"name": "digits", "classes": [7, 8, 9], "first_class": 10},
    "partition": {"clients": 3, "samples_per_client": 30},
    "audit": {"draw": "sia", "fair": 1, "options": {"per_client": 12}},
    "attacks": {"sia": {}},
}
CLUSTERS = {"risk": {"shadows": 2, "epochs": 1, "samples": 200}, "partition": {"clients": 3}}
STUDIES: dict[str, dict[str, object]] = {
    "fedsgd": {"algorithm": {"name": "fedsgd"}},
    "fedadam": {"algorithm": {"name": "fedadam"}},
    "fedmd": {**FEDMD},
    "ifca-mir": {"algorithm": {"name": "ifca-mir", "options": {"every": 1}}, **CLUSTERS},
    "ifca-mir-clients": {"algorithm": {"name": "ifca-mir-clients"}, **CLUSTERS},
    # States of defenses travel with the turns: what was learned over rounds, and data prepared.
    "compensation": {"defense": {"name": "compensation"}},
    "cofedmid": {"defense": {"name": "cofedmid", "clients": [0, 1], "options": {"start": 2}}},
    "chain": {
        "defense": {
            "name": "ldp-laplace",
            "options": {"epsilon": 100.0, "clip": 1.0},
            "chain": [
                {"name": "sparsification", "options": {"ratio": 0.5}},
                {"name": "quantization", "options": {"bits": 4}},
            ],
        }
    },
    "dp-sgd": {"defense": {"name": "dp-sgd", "options": {"clip": 1.0, "noise_multiplier": 1.0}}},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_a_study_has_the_same_hash_when_its_turns_are_taken_elsewhere(
    name: str, tmp_path: Path
) -> None:
    small = {"training": {"rounds": 3, "epochs": 1}, "partition": {"samples_per_client": 60}}
    study = quick_study(**{**small, **STUDIES[name]})
    here, there = (
        run_study(study, tmp_path / place, engine=engine)
        for place, engine in (("here", None), ("there", Elsewhere(study)))
    )
    assert there.content_hash == here.content_hash


def test_a_seed_of_no_federation_is_refused() -> None:
    with pytest.raises(BadInput, match="no federation of the study 'small' has the seed 5"):
        federation_of(quick_study(), 5, None)
