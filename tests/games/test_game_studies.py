"""Studies of games in the studies folder can be started."""

from pathlib import Path

import pytest

from fedaudit.games.playing import raise_if_invalid_settings
from fedaudit.games.run import read_points

FILES = sorted((Path(__file__).parents[2] / "studies" / "games").glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_game_studies_match_their_file_name_and_are_playable(path: Path) -> None:
    base, *others = read_points(path)
    assert base.study.name == path.stem
    assert base.study.about
    assert base.study.hours
    assert len({point.label for point in others}) == len(others)
    for point in (base, *others):
        raise_if_invalid_settings(point.study)
