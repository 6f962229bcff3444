"""MLflow with accounts, as the component mlflow-accounts starts it: who sees what."""

from pathlib import Path

import httpx
import postgres_server
import pytest
from mlflow_server import MlflowServer

from vagen.models.tiny import build_tiny_model
from vagen.tracking import (
    Example,
    RegistrationError,
    Tracker,
    TrackingError,
    open_client,
    register_model,
)

pytestmark = pytest.mark.slow
ADMIN = ("admin", "the-password-of-admin")
MODEL = "lake"


class Accounts(MlflowServer):
    """The server with `basic_auth.ini` of docs/kubernetes.md, and accounts `a` and `b`."""

    def __init__(self, folder: Path, database: str) -> None:
        ini = folder / "basic_auth.ini"
        ini.write_text(
            "[mlflow]\ndefault_permission = NO_PERMISSIONS\nauth_cache_ttl_seconds = 300\n"
            f"admin_username = admin\nadmin_password = {ADMIN[1]}\ndatabase_uri = {database}\n"
        )
        super().__init__(
            folder,
            database,
            app="basic-auth",
            MLFLOW_AUTH_CONFIG_PATH=str(ini),
            MLFLOW_FLASK_SERVER_SECRET_KEY="k" * 32,
        )

    def tell(self, path: str, **body: str) -> None:
        """A request of the administrator."""
        answer = httpx.post(f"{self.uri}/api/{path}", auth=ADMIN, json=body, timeout=30)
        assert answer.status_code == 200, answer.text


@pytest.fixture
def server(tmp_path: Path):
    if reason := postgres_server.missing():
        pytest.skip(reason)
    with postgres_server.PostgresServer() as database:
        server = Accounts(tmp_path, database.uri)
        server.start()
        try:
            for name in "ab":
                server.tell(
                    "2.0/mlflow/users/create", username=name, password=f"password-of-{name}"
                )
            yield server
        finally:
            server.stop()


def test_accounts_see_their_own_and_what_they_are_granted(
    server: Accounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def be(name: str, password: str = "") -> None:
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", name)
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", password or f"password-of-{name}")

    def start() -> Tracker:
        return Tracker.start(
            experiment="x", run_name="r", run_dir=tmp_path, output_dir=tmp_path, uri=server.uri
        )

    def register(run: Tracker) -> str | None:
        return register_model(
            tmp_path / "model",
            MODEL,
            run.run_id,
            uri=server.uri,
            results={"level": 1.0},
            examples=[Example("Hello")],
        ).alias

    build_tiny_model("tiny:text", tmp_path / "model", corpus=["Hello"], tags=[], seed=0)
    with pytest.raises(
        TrackingError, match=r"set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD$"
    ):
        open_client(server.uri)
    be("a", "another")
    with pytest.raises(TrackingError, match="refuses the user 'a': correct"):
        open_client(server.uri)

    be("a")
    run = start()
    run.log_metrics({"success": 1.0}, 0)
    run.log_artifact(tmp_path / "basic_auth.ini")
    assert run.flush()
    [experiment] = open_client(server.uri).search_experiments()
    assert register(run) == "champion"

    be("b")
    client = open_client(server.uri)
    assert not client.search_experiments() and not client.search_registered_models()
    for refused in (
        start,
        lambda: Tracker.attach(
            run_id=run.run_id, run_dir=tmp_path, output_dir=tmp_path, uri=server.uri
        ),
    ):
        with pytest.raises(TrackingError, match="user 'b' needs the permission EDIT"):
            refused()

    server.tell(
        "3.0/mlflow/users/permissions/grant",
        username="b",
        permission="EDIT",
        resource_type="experiment",
        resource_id=experiment.experiment_id,
    )
    with pytest.raises(RegistrationError, match="user 'b' needs the permission EDIT"):
        register(start())
