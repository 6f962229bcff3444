"""Requests of tests, by hand: what a client in another language would send."""

import base64
import json
import uuid
from typing import Any

from vagen.envs.base import Observation
from vagen.envs.images import decode_png

OPTIONS = {"p_frozen": 1.0, "min_distance": 3}


def open_session(client: Any, env_name: str = "FrozenLake", env_config: Any = OPTIONS, **fields):
    """Opens a session; returns its key and the answer."""
    key = fields.pop("session", uuid.uuid4().hex)
    order = {"session": key, "env_name": env_name, "env_config": env_config, **fields}
    (answer,) = post(client, "/v1/sessions", sessions=[order])
    return key, answer


def reset(client: Any, key: str, sequence: int = 1, seed: int = 7) -> dict[str, Any]:
    order = {"session": key, "sequence": sequence, "seed": seed}
    (answer,) = post(client, "/v1/sessions/reset", resets=[order])
    return answer


def step(client: Any, key: str, sequence: int, response: str) -> dict[str, Any]:
    order = {"session": key, "sequence": sequence, "response": response}
    (answer,) = post(client, "/v1/sessions/step", steps=[order])
    return answer


def expert(client: Any, key: str) -> str:
    (answer,) = post(client, "/v1/sessions/expert", sessions=[key])
    return answer["response"]


def post(client: Any, path: str, **body: Any) -> list[dict[str, Any]]:
    content = json.dumps(body)  # httpx's own would not send half a surrogate pair
    response = client.post(path, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 200, response.text
    return response.json()["results"]


def shown(answer: dict[str, Any]) -> Observation:
    images = tuple(decode_png(base64.b64decode(i)) for i in answer["observation"]["images"])
    return Observation(text=answer["observation"]["text"], images=images)


def same(one: Observation, other: Observation) -> bool:
    return one["text"] == other["text"] and all(
        (a == b).all() for a, b in zip(one["images"], other["images"], strict=True)
    )
