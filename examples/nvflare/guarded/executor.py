"""Executor of the sites. It has no arguments, so that a job cannot choose a script or command."""

from pathlib import Path

from nvflare.app_common.executors.client_api_executor import ClientAPIExecutor


class SiteTraining(ClientAPIExecutor):
    def __init__(self) -> None:
        super().__init__(
            execution_mode="in_process",
            task_script_path=str(Path(__file__).with_name("client.py").absolute()),
            params_exchange_format="pytorch",
        )
