"""The HTTP interface: sessions, sequence numbers, clients, limits."""

import json
import time
import uuid

import pytest
from service_calls import OPTIONS, expert, open_session, post, reset, same, shown, step

from vagen.envs import make

ONE, OTHER = "a-token-of-one-client", "a-token-of-another"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(f"# clients\none:{ONE}\n\nother: {OTHER}\n")
    return path


def test_an_episode_is_the_one_played_here(app) -> None:
    client, env = app(), make("FrozenLake", OPTIONS)
    key, created = open_session(client)
    assert created["system_prompt"] == env.system_prompt()
    observation, info = env.reset(seed=7)
    answer = reset(client, key)
    assert same(shown(answer), observation) and answer["info"] == info
    for sequence in range(2, 9):
        response = env.expert_response()
        assert expert(client, key) == response
        observation, reward, terminated, truncated, info = env.step(response)
        answer = step(client, key, sequence, response)
        assert same(shown(answer), observation)
        assert answer["info"] == json.loads(json.dumps(info))
        ended = (answer["reward"], answer["terminated"], answer["truncated"])
        assert ended == (reward, terminated, truncated)
        if terminated:
            break
    assert answer["info"]["success"]


def test_a_step_repeated_is_answered_again_and_not_taken_twice(app) -> None:
    client = app()
    key, _ = open_session(client, env_config=OPTIONS | {"size": 8, "min_distance": 8})
    reset(client, key)
    moves = [step(client, key, k, expert(client, key)) for k in (2, 3)]
    again = step(client, key, 3, "another response, which is not looked at")
    assert again == moves[-1]
    assert step(client, key, 4, expert(client, key))["info"]["state"] != again["info"]["state"]


@pytest.mark.parametrize(("sequence", "operation"), [(1, step), (4, step), (2, reset)])
def test_a_call_out_of_turn_changes_nothing(app, sequence, operation) -> None:
    client = app()
    key, _ = open_session(client)
    reset(client, key)
    before = step(client, key, 2, expert(client, key))
    out_of_turn = (key, sequence, "x") if operation is step else (key, sequence)
    assert operation(client, *out_of_turn)["error"]["kind"] == "conflict"
    assert step(client, key, 2, "again") == before


def test_opening_a_session_again_changes_nothing(app) -> None:
    client = app()
    key, _ = open_session(client)
    state = reset(client, key)["info"]["state"]
    assert open_session(client, session=key)[1]["system_prompt"]
    assert reset(client, key)["info"]["state"] == state, "the same call, answered again"
    (listed,) = client.get("/v1/sessions").json()["sessions"]
    assert (listed["session"], listed["sequence"]) == (key, 1)


def test_half_a_character_is_a_wrong_response_and_no_mistake_of_the_service(app) -> None:
    client = app()
    key, _ = open_session(client)
    reset(client, key)
    response = expert(client, key).replace("<observation>", "<observation>\ud800 ", 1)
    parsed = step(client, key, 2, response)["info"]["parsed"]
    assert parsed["format_correct"] and parsed["observation"].startswith("\ufffd ")


def test_what_an_environment_raises_is_told_and_the_session_goes_on(app) -> None:
    client = app()
    key, _ = open_session(client)
    early = step(client, key, 1, "before any reset")
    assert early["error"]["kind"] == "environment" and "ResetNeeded" in early["error"]["message"]
    assert "info" in reset(client, key, sequence=2)


@pytest.mark.parametrize(
    ("order", "told"),
    [
        ({"env_name": "FrozenLakes"}, "not served here: FrozenLake"),
        ({"env_config": {"size": 99}}, "size: Input should be less than or equal to 16"),
        ({"env_config": {"sizes": 4}}, "sizes: Extra inputs are not permitted"),
    ],
)
def test_a_wrong_order_is_refused_in_one_line(app, order, told) -> None:
    _, answer = open_session(app(), **order)
    assert answer["error"]["kind"] == "invalid" and told in answer["error"]["message"]
    assert "\n" not in answer["error"]["message"]


def test_code_of_a_clients_choice_is_served_only_if_asked_for(app) -> None:
    _, answer = open_session(app(), "os:system", {})
    assert answer["error"]["kind"] == "invalid"
    names = {e["env_name"] for e in app().get("/v1/environments").json()["environments"]}
    assert "FrozenLake" in names and not names & {"Gymnasium", "GymImageEnv", "OpenEnv"}


def test_a_session_belongs_to_its_client(app, tokens) -> None:
    client = app(tokens_file=str(tokens))
    client.headers = bearer(ONE)
    key, _ = open_session(client)
    reset(client, key)
    client.headers = bearer(OTHER)
    assert step(client, key, 2, "x")["error"]["kind"] == "unknown"
    assert open_session(client, session=key)[1]["error"]["kind"] == "conflict"
    post(client, "/v1/sessions/close", sessions=[key])
    assert client.get("/v1/sessions").json() == {"sessions": []}
    client.headers = bearer(ONE)
    assert len(client.get("/v1/sessions").json()["sessions"]) == 1, "still open"


@pytest.mark.parametrize(
    "header", [{}, bearer("wrong"), {"Authorization": ONE}, {"Authorization": f"Basic {ONE}"}]
)
def test_without_a_token_there_is_nothing_but_health(app, tokens, header) -> None:
    client = app(tokens_file=str(tokens))
    client.headers = header
    assert client.get("/v1/sessions").status_code == 401
    response = client.post("/v1/sessions", json={"sessions": []})
    assert response.status_code == 401 and ONE not in response.text
    for path in ("/healthz", "/readyz", "/metrics"):
        assert client.get(path).status_code == 200


def test_sessions_are_limited_per_client_and_in_all(app, tokens) -> None:
    client = app(tokens_file=str(tokens), max_sessions=3, max_sessions_per_client=2)
    client.headers = bearer(ONE)
    keys = [open_session(client)[0] for _ in range(2)]
    assert open_session(client)[1]["error"]["kind"] == "full"
    client.headers = bearer(OTHER)
    assert "error" not in open_session(client)[1]
    assert open_session(client)[1]["error"]["kind"] == "full"
    client.headers = bearer(ONE)
    post(client, "/v1/sessions/close", sessions=keys[:1])
    assert "error" not in open_session(client)[1]


def test_requests_are_limited_in_sessions_and_bytes(app) -> None:
    client = app(max_batch=2, max_body_bytes=10_000)
    orders = [{"session": uuid.uuid4().hex, "env_name": "FrozenLake"} for _ in range(3)]
    refused = client.post("/v1/sessions", json={"sessions": orders})
    assert refused.status_code == 413 and "2 sessions" in refused.json()["detail"]
    huge = json.dumps({"steps": [{"session": "0" * 32, "sequence": 1, "response": "x" * 20_000}]})
    for content in (huge, iter([huge.encode()])):  # announced, and in pieces of unknown length
        refused = client.post("/v1/sessions/step", content=content)
        assert refused.status_code == 413 and "10000 bytes" in refused.json()["detail"]


def test_too_much_work_is_turned_away_for_the_moment(app) -> None:
    client = app(max_pending=5)
    key, _ = open_session(client)
    client.app.state.service.sessions.pending = 5
    response = client.post("/v1/sessions/expert", json={"sessions": [key]})
    assert response.status_code == 503 and response.headers["Retry-After"] == "1"
    client.app.state.service.sessions.pending = 0
    assert reset(client, key)["info"]


def test_while_it_drains_open_sessions_are_served_and_no_new_ones(app) -> None:
    client = app()
    key, _ = open_session(client)
    client.app.state.service.draining = True
    order = {"session": uuid.uuid4().hex, "env_name": "FrozenLake"}
    assert client.post("/v1/sessions", json={"sessions": [order]}).status_code == 503
    assert client.get("/readyz").status_code == 503
    assert client.get("/healthz").status_code == 200
    assert reset(client, key)["info"]


def test_an_idle_session_expires(app) -> None:
    client = app(idle_seconds=0.3)
    idle, _ = open_session(client)
    used, _ = open_session(client)
    deadline = time.monotonic() + 20
    while len(client.get("/v1/sessions").json()["sessions"]) > 1 and time.monotonic() < deadline:
        expert(client, used) if "info" in reset(client, used) else None
        time.sleep(0.05)
    (left,) = client.get("/v1/sessions").json()["sessions"]
    assert left["session"] == used
    assert reset(client, idle)["error"]["kind"] == "unknown"
    assert "vagen_env_expired_sessions_total 1.0" in client.get("/metrics").text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[1, 2",
        b"\xff\xfe",
        b'{"steps": []}',
        b'{"steps": [{"session": "../../etc", "sequence": 1, "response": "x"}]}',
        b'{"steps": [{"session": "00000000000000000000", "sequence": 0, "response": "x"}]}',
        b'{"steps": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_a_malformed_request_is_the_clients_mistake(app, body) -> None:
    response = app().post(
        "/v1/sessions/step", content=body, headers={"Content-Type": "application/json"}
    )
    assert response.status_code in (400, 422) and response.json()["detail"]


def test_prometheus_is_told(app) -> None:
    client = app()
    key, _ = open_session(client)
    reset(client, key)
    step(client, key, 2, "nonsense")
    text = client.get("/metrics").text
    assert 'vagen_env_sessions{env_name="FrozenLake"} 1.0' in text
    assert 'vagen_env_calls_total{env_name="FrozenLake",operation="step"} 1.0' in text
    assert 'vagen_env_request_seconds_count{operation="reset"} 1.0' in text
    post(client, "/v1/sessions/close", sessions=[key])
    assert 'vagen_env_sessions{env_name="FrozenLake"} 0.0' in client.get("/metrics").text
