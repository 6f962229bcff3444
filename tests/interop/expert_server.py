"""A server with OpenAI's API that answers with the expert's words.

It knows the level by the first observation, pixel for pixel, and repeats the conversation in an
environment of its own.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any

from vagen import envs
from vagen.envs.images import png_bytes
from vagen.interop.episodes import levels
from vagen.rollout.demonstrations import user_content


def key(content: Any) -> str:
    """An observation as text, whether as parts or not."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return json.dumps([part.get("text") or part["image_url"]["url"] for part in parts])


@contextmanager
def expert_server(env_name: str, env_config: dict[str, Any], count: int) -> Iterator[Any]:
    """Serves the first test levels; yields `base_url` and `requests`, the messages of each."""
    env = envs.make(env_name, env_config, "test")

    def begin(seed: int) -> str:
        seen, _ = env.reset(seed=seed)
        return key(user_content(seen["text"], [png_bytes(frame) for frame in seen["images"]]))

    seeds = {begin(each.seed): each.seed for each in levels(env_name, env_config, "test", count, 1)}
    assert len(seeds) == count
    requests: list[list[dict[str, Any]]] = []

    class Expert(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append(messages := body["messages"])
            mine = envs.make(env_name, env_config, "test")
            mine.reset(seed=seeds[key(messages[1]["content"])])
            for message in messages:
                if message["role"] == "assistant":
                    text = message["content"]
                    mine.step(text if isinstance(text, str) else text[0]["text"])
            said = {"role": "assistant", "content": mine.expert_response()}
            usage = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
            part, kind = ("delta", ".chunk") if body.get("stream") else ("message", "")
            choice = {"index": 0, part: said, "finish_reason": "stop"}
            answer = {"id": "1", "object": f"chat.completion{kind}", "created": 0}
            answer |= {"model": "expert", "choices": [choice], "usage": usage}
            content = json.dumps(answer)
            if body.get("stream"):
                content = f"data: {content}\n\ndata: [DONE]\n\n"
            self.send_response(200)
            kind = "text/event-stream" if body.get("stream") else "application/json"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Expert)
    Thread(target=server.serve_forever, daemon=True).start()
    yield SimpleNamespace(base_url=f"http://127.0.0.1:{server.server_port}/v1", requests=requests)
    server.shutdown()
    server.server_close()
