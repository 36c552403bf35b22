"""What the server does: it carries the study out."""

from pathlib import Path

from fedaudit.integrations.flower import study_server

app = study_server(Path(__file__).with_name("study.toml"))
