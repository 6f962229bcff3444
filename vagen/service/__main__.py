"""`python -m vagen.service`: serves environments over HTTP."""

import sys
import time
from types import FrameType

import uvicorn
from pydantic import ValidationError

from vagen.service.app import Service, make_app
from vagen.service.limits import TokenError, check_open, listen
from vagen.service.settings import ServiceSettings, read_settings


class DrainingServer(uvicorn.Server):
    """Stops in two steps: rejects new sessions, then ends when open sessions are closed."""

    def __init__(self, config: uvicorn.Config, service: Service):
        super().__init__(config)
        self._service = service
        self._deadline: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drains after the first signal, ends at once after the second."""
        if self._service.draining:
            super().handle_exit(sig, frame)
            return
        self._service.draining = True
        self._deadline = time.monotonic() + self._service.settings.drain_seconds

    async def on_tick(self, counter: int) -> bool:
        """Ends when the last session is closed, or after the time limit."""
        if self._deadline is not None and (
            not len(self._service.sessions) or time.monotonic() > self._deadline
        ):
            self.should_exit = True
        return await super().on_tick(counter)


def serve(settings: ServiceSettings) -> None:
    """Serves until SIGTERM or SIGINT, and then until the open sessions are closed."""
    app = make_app(settings)
    listen(settings, app, "environments", lambda config: DrainingServer(config, app.state.service))


def main() -> int:
    """Reads the settings and serves; exit code 2 for invalid settings."""
    try:
        settings = read_settings()
        if settings.tokens_file is None:
            check_open(settings, "give --tokens-file")
        serve(settings)
    except ValidationError as error:
        for mistake in error.errors(include_url=False):
            name = str(mistake["loc"][0]).replace("_", "-")
            print(f"--{name}: {mistake['msg']}", file=sys.stderr)
        return 2
    except (TokenError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
