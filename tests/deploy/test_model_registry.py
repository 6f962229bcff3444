"""Kubeflow's Model Registry is told: by the answers that its server gave (bd07139, MariaDB)."""

import pytest
from fastapi import Body, FastAPI, HTTPException
from threaded_server import ThreadedServer

from vagen.deploy.agent import Agent
from vagen.deploy.deployment import tell_model_registry

ROOT = "/api/model_registry/v1alpha3"


@pytest.fixture
def registry():
    """Models, versions and artifacts by id, as the server keeps them; names are unique."""
    app, models, versions, artifacts = FastAPI(), {}, {}, {}

    def found(objects, **wanted):
        for number, each in objects.items():
            if wanted.items() <= each.items():
                return {"id": number, **each}
        raise HTTPException(404)

    def added(objects, body):
        number = str(len(models) + len(versions) + len(artifacts) + 1)
        objects[number] = body
        return {"id": number, **body}

    @app.get(f"{ROOT}/registered_model")
    def model(name: str):
        return found(models, name=name)

    @app.post(f"{ROOT}/registered_models", status_code=201)
    def add_model(body: dict = Body()):  # noqa: B008
        return added(models, body)

    @app.get(f"{ROOT}/model_version")
    def version(name: str, parentResourceId: str):
        return found(versions, name=name, registeredModelId=parentResourceId)

    @app.post(f"{ROOT}/model_versions", status_code=201)
    def add_version(body: dict = Body()):  # noqa: B008
        return added(versions, body)

    @app.patch(f"{ROOT}/model_versions/{{number}}")
    def change(number: str, body: dict = Body()):  # noqa: B008
        versions[number] |= body
        return {"id": number, **versions[number]}

    @app.get(f"{ROOT}/model_versions/{{number}}/artifacts")
    def of_version(number: str):
        return {"items": [each for each in artifacts.values() if each["version"] == number]}

    @app.post(f"{ROOT}/model_versions/{{number}}/artifacts", status_code=201)
    def add_artifact(number: str, body: dict = Body()):  # noqa: B008
        if of_version(number)["items"]:
            raise HTTPException(409)
        return added(artifacts, {**body, "version": number})

    with ThreadedServer(app) as running:
        yield running.root, versions, artifacts


def test_a_version_is_told_once_and_updated_afterwards(registry) -> None:
    address, versions, artifacts = registry
    agent = Agent("lake", "3", "s3://b/lake-1", "s3://b/lake-1/checkpoints/0009")
    for success in (0.5, 0.75):
        tell_model_registry(address, agent, success, "not worse")
    tell_model_registry(address + "/", Agent("lake", "4", "s3://b/x", "s3://b/x/c"), 1.0, "fine")
    told = [each["customProperties"]["success"]["double_value"] for each in versions.values()]
    assert told == [0.75, 1.0]
    assert [each["uri"] for each in artifacts.values()] == [agent.checkpoint, "s3://b/x/c"]
    assert {each["registeredModelId"] for each in versions.values()} == {"1"}
