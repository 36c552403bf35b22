"""What a node does: it trains whichever of the study's clients it is sent."""

from pathlib import Path

from fedaudit.integrations.flower import study_client

app = study_client(Path(__file__).with_name("study.toml"))
