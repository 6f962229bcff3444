"""Passwords in addresses are refused where they are given, and shown nowhere."""

import pytest

from vagen import progress
from vagen.cli.main import USER_ERROR, main
from vagen.config import ConfigError
from vagen.config.base import redact
from vagen.experiment.load import load_infra


@pytest.mark.parametrize(
    ("override", "instead"),
    [
        ("mlflow_tracking_uri=HTTP://Me:s3cret@host:5000", "MLFLOW_TRACKING_PASSWORD"),
        ("mlflow_tracking_uri=https://s3cret@host", "MLFLOW_TRACKING_TOKEN"),
        ("mlflow_tracking_uri=postgresql+psycopg2://me:s3cret@db/mlflow", "PGPASSWORD"),
        ("mlflow_tracking_uri=postgresql://db/mlflow?user=me&PassWord=s3cret", "PGPASSWORD"),
        ("store=s3://key:s3cret@bucket/runs", "AWS_SECRET_ACCESS_KEY"),
        ("s3.endpoint_url=Https://key:s3cret@store", "AWS_SECRET_ACCESS_KEY"),
        ("s3.endpoint_url=https://store?X-Amz-Security-Token=s3cret", "AWS_SECRET_ACCESS_KEY"),
        ("verl.ray_address=ray://:s3cret@head:10001", "RAY_AUTH_TOKEN"),
        ("environments.url=http://me:s3cret@host", "token_env"),
    ],
)
def test_an_address_holds_no_password(override, instead, tmp_path, capsys):
    with pytest.raises(ConfigError, match=instead) as caught:
        load_infra(None, [override])
    assert "s3cret" not in str(caught.value) and "***" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert main(["plan", "frozenlake-tiny", f"infra.{override}"]) == USER_ERROR
    assert "s3cret" not in "".join(capsys.readouterr())


def test_addresses_without_a_password_are_as_they_were():
    for override in (
        "mlflow_tracking_uri=postgresql+psycopg2://vagen@db:5432/mlflow?sslmode=require",
        "mlflow_tracking_uri=http://host:5000/a@b",
        "store=s3://bucket/prefix",
        "s3.endpoint_url=http://store:9000",
        "verl.ray_address=ray://head:10001",
    ):
        load_infra(None, [override])
    text = "see https://host/a:b@c?page=2 and file:///folder, or me@host"
    assert redact(text) == text


def test_what_gets_through_is_not_recorded(tmp_path):
    events = tmp_path / "events.jsonl"
    progress.append_event(events, "note", text="no answer from HTTP://Me:s3cret@host")
    assert progress.read_events(events)[0]["text"] == "no answer from HTTP://Me:***@host"
