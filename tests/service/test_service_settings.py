"""Flags, environment variables, tokens, and infra options that do not go together."""

import os
import subprocess
import sys
import time

import pytest
from pydantic import ValidationError

from vagen.config.base import ConfigError
from vagen.config.infra import InfraConfig
from vagen.envs.registry import EnvironmentEntry
from vagen.experiment.checks_infra import check_infra
from vagen.service import limits
from vagen.service.limits import ClientTokens, TokenError
from vagen.service.settings import ServiceSettings, read_settings


def test_flags_come_before_the_environment_and_that_before_defaults() -> None:
    environment = {"VAGEN_SERVICE_PORT": "9000", "VAGEN_SERVICE_MAX_BATCH": "7", "PORT": "1"}
    settings = read_settings(
        ["--port", "9001", "--environments", "Sokoban,FrozenLake"], environment
    )
    assert (settings.port, settings.max_batch) == (9001, 7)
    assert settings.environments == ("Sokoban", "FrozenLake")
    assert settings.max_sessions == ServiceSettings().max_sessions
    assert read_settings([], {"VAGEN_SERVICE_OPEN": "true"}).open


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)]
)
def test_loopback_is_told_from_the_network(host, local) -> None:
    assert ServiceSettings(host=host).is_loopback == local


@pytest.mark.slow
def test_it_does_not_serve_everybody_by_mistake() -> None:
    command = [sys.executable, "-m", "vagen.service", "--host", "0.0.0.0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and "--tokens-file" in ended.stderr


def test_changed_tokens_are_taken_over_and_broken_ones_are_not(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(limits, "_POLL_SECONDS", 0.0)
    path = tmp_path / "tokens"
    path.write_text("one:0123456789abcdef\n")
    tokens = ClientTokens(str(path))
    assert tokens.client("Bearer 0123456789abcdef") == "one"
    path.write_text("two:fedcba9876543210\n")
    os.utime(path, (time.time() + 5, time.time() + 5))
    assert tokens.client("bearer fedcba9876543210") == "two"
    assert tokens.client("Bearer 0123456789abcdef") is None
    path.write_text("short:abc\n")
    assert tokens.client("Bearer fedcba9876543210") == "two"
    path.unlink()
    assert tokens.client("Bearer fedcba9876543210") == "two"


@pytest.mark.parametrize(
    ("content", "told"),
    [("", "no token"), ("one", "line 1"), ("# x\none:short", "line 2.*16 characters")],
)
def test_a_wrong_file_of_tokens_is_told(tmp_path, content, told) -> None:
    path = tmp_path / "tokens"
    path.write_text(content)
    with pytest.raises(TokenError, match=told):
        ClientTokens(str(path))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"placement": "service"}, r"`infra.environments.url`: .* needs the address"),
        ({"url": "http://vagen-env:8000"}, r"`infra.environments.placement`: auto does not use"),
    ],
)
def test_placements_that_cannot_work_are_refused(make_experiment, options, told) -> None:
    infra = InfraConfig.model_validate({"environments": options})
    with pytest.raises(ConfigError, match=told):
        check_infra(make_experiment(), infra)


def test_a_simulator_with_globals_is_kept_out_of_this_process(make_experiment, monkeypatch) -> None:
    experiment = make_experiment()
    infra = InfraConfig.model_validate({"environments": {"placement": "process"}})
    check_infra(experiment, infra)
    env_class = EnvironmentEntry.load

    def with_globals(entry: EnvironmentEntry):
        return type("Simulator", (env_class(entry),), {"needs_process": True})

    monkeypatch.setattr(EnvironmentEntry, "load", with_globals)
    with pytest.raises(ConfigError, match=r"FrozenLake .* has globals"):
        check_infra(experiment, infra)


@pytest.mark.parametrize("url", ["vagen-env:8000", "ftp://x", "http://user:pw@host", "http://"])
def test_an_address_is_checked(url) -> None:
    with pytest.raises(ValidationError, match="write http"):
        InfraConfig.model_validate({"environments": {"url": url}})
