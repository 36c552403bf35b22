"""The command line. Heavy imports stand inside the commands, so that help answers at once."""

from fedaudit.cli.application import app, main
from fedaudit.cli.checking import check_dp
from fedaudit.cli.filing import summary
from fedaudit.cli.releasing import gate, pack, verify
from fedaudit.cli.running import attack, demo, run_command
from fedaudit.cli.showing import compare, explain, list_command, report

__all__ = [
    "app",
    "attack",
    "check_dp",
    "compare",
    "demo",
    "explain",
    "gate",
    "list_command",
    "main",
    "pack",
    "report",
    "run_command",
    "summary",
    "verify",
]
