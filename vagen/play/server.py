"""A game in the browser: one page, and the calls that it makes.

It listens on this machine only, unless told otherwise, and answers only its own page: a call
carries the key that the page was given.
"""

import asyncio
import secrets
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Header, HTTPException
from fastapi.responses import HTMLResponse
from markupsafe import Markup
from pydantic import BaseModel, Field

from vagen.clients import EndpointError, NoAnswerError
from vagen.envs.images import png_url
from vagen.envs.parsing import SectionName
from vagen.play.agents import Agent
from vagen.play.game import Game, GameError, Shown
from vagen.report.payload import script_safe_json
from vagen.report.viewer import render

PERSON = "you"


class Level(BaseModel):
    """Which level to begin."""

    level: int = Field(ge=0, lt=2**31)


class Answer(BaseModel):
    """A person's answer: its texts by section, or as a whole."""

    texts: dict[SectionName, str] = {}
    whole: str | None = None


def game_app(game: Game, agent: Agent, agent_name: str, outputs: Path) -> FastAPI:
    """The application."""
    key, busy = secrets.token_urlsafe(16), asyncio.Lock()
    app = FastAPI(title="vagen play", docs_url=None, redoc_url=None, openapi_url=None)

    def allowed(x_key: Annotated[str, Header()] = "") -> None:
        if not secrets.compare_digest(x_key, key):
            raise HTTPException(403, "this page is of another game: load it again")

    def seen(shown: Shown) -> dict[str, Any]:
        frames = [png_url(png) for png in shown.frames]
        return {**asdict(shown), "frames": frames, "whole": game.finished is not None}

    @app.get("/")
    async def page() -> HTMLResponse:
        about = {
            "key": key,
            "agent": agent_name,
            "person": PERSON,
            "actions": game.actions,
            "sections": [name for name in game.about.config.layout.sections if name != "memory"],
            "separator": game.about.config.action_sep,
            "prompt": game.about.system_prompt(),
        }
        return HTMLResponse(
            render(
                "play.html.j2",
                ("report.css", "play.css"),
                ("play.js",),
                title=game.config_id,
                data=Markup(script_safe_json(about)),
            )
        )

    async def turn(work: Any) -> dict[str, Any]:
        async with busy:
            try:
                return seen(await work())
            except GameError as error:
                raise HTTPException(409, str(error)) from error
            except (EndpointError, NoAnswerError) as error:
                raise HTTPException(502, f"{agent_name}: {error}") from error

    @app.post("/start")
    async def start(level: Level, x_key: Annotated[str, Header()] = "") -> dict[str, Any]:
        allowed(x_key)
        return await turn(lambda: game.start(level.level))

    @app.post("/answer")
    async def answer(given: Answer, x_key: Annotated[str, Header()] = "") -> dict[str, Any]:
        allowed(x_key)
        text = game.write(given.texts) if given.whole is None else given.whole
        return await turn(lambda: game.play(text, PERSON))

    @app.post("/agent")
    async def agent_plays(x_key: Annotated[str, Header()] = "") -> dict[str, Any]:
        allowed(x_key)

        async def one() -> Shown:
            return await game.play(await agent(game.asked), agent_name)

        return await turn(one)

    @app.post("/save")
    async def save(x_key: Annotated[str, Header()] = "") -> dict[str, str]:
        allowed(x_key)
        try:
            return {"page": str(game.save(free_folder(outputs, game)))}
        except GameError as error:
            raise HTTPException(409, str(error)) from error

    return app


def free_folder(outputs: Path, game: Game) -> Path:
    """A folder of this game's level that is not there yet."""
    level = game.shown.level if game.shown else 0
    names = (f"{game.config_id}-{level}-{number}" for number in range(1, 10**6))
    return next(path for name in names if not (path := outputs / name).exists())


def serve(app: FastAPI, host: str, port: int) -> None:
    """Answers until it is interrupted."""
    uvicorn.run(app, host=host, port=port, log_level="warning")
