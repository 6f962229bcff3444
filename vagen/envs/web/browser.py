"""Chromium, one for each process: pages that are drawn, used and photographed.

A page keeps nothing of a session, whose state is a `Screen`: any number of sessions share the pages
of a process, as many as its threads use at once.

Playwright runs in a thread of its own with an event loop, so that environments may be played from
any thread, beside a running loop or not.
"""

import asyncio
import atexit
import base64
import io
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import cache
from importlib import resources
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vagen.envs.web.screen import LINE, Action, Element, Event, Screen

ResultT = TypeVar("ResultT")
Size = tuple[int, int, float]
"""Width and height in CSS pixels, and the scale from those to a picture's."""

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CALL_SECONDS = 30.0
"""Time limit of what a page is asked for."""
START_SECONDS = 120.0
"""Time limit of the start of a browser, on a busy machine."""
ARGUMENTS = (
    "--disable-background-networking",
    "--disable-gpu",
    "--disable-lcd-text",
    "--disable-threaded-scrolling",
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--process-per-site",
)


def installed() -> str | None:
    """This machine's Chromium, or that of `PLAYWRIGHT_CHROMIUM`; None takes Playwright's own."""
    named = os.environ.get("PLAYWRIGHT_CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


class BrowserLost(RuntimeError):
    """The browser does not start, or failed twice in a row; the next call starts another."""


class Page:
    """A page of the browser, used by one thread at a time."""

    def __init__(
        self, browser: "Browser", context: Any, page: Any, devtools: Any, size: Size
    ) -> None:
        self._browser, self._page, self._devtools = browser, page, devtools
        self.context, self.size = context, size
        self.shown: object = None
        """The session that drew it last."""

    def draw(self, screen: Screen, session: object, *, marks: bool) -> list[Element]:
        """Shows a screen; returns its elements as the document has them."""
        shown = json.dumps([screen.elements, screen.focus, screen.selected, marks])
        self.shown = None
        elements = self._browser.call(self._evaluate(f"draw(...{shown}); taken(); look()"))
        self.shown = session
        return elements

    def act(self, action: Action) -> list[Event]:
        """Uses mouse and keyboard; returns the events that the page saw."""
        return self._browser.call(self._act(action))

    def picture(self) -> NDArray[np.uint8]:
        """What the page looks like, uint8 [height, width, 3]; a new array."""
        width, height, scale = self.size
        options: dict[str, Any] = {"format": "png", "optimizeForSpeed": True}
        if scale != 1:  # which Chromium would not apply
            options["clip"] = {"x": 0, "y": 0, "width": width, "height": height, "scale": scale}
        shot = self._devtools.send("Page.captureScreenshot", options)
        with Image.open(
            io.BytesIO(base64.b64decode(self._browser.call(shot)["data"])), formats=["PNG"]
        ) as image:
            return np.array(image.convert("RGB"))

    async def _act(self, action: Action) -> list[Event]:
        if action.verb in ("click", "drag"):
            (x, y), (u, v) = action.points[0], action.points[-1]
            button = {"button": "left", "clickCount": 1}
            down = {"type": "mousePressed", "x": x, "y": y, **button}
            up = {"type": "mouseReleased", "x": u, "y": v, **button}
            # Sent at once, they arrive in order.
            await asyncio.gather(
                *(self._devtools.send("Input.dispatchMouseEvent", each) for each in (down, up))
            )
        elif action.verb == "type":
            await self._page.keyboard.insert_text(action.text)
        elif action.verb == "key":
            await self._page.keyboard.press(action.text)
        elif action.verb == "scroll":
            await self._page.mouse.wheel(0, LINE if action.text == "down" else -LINE)
        else:
            return [[action.verb]]
        return await self._evaluate("taken()")

    async def _evaluate(self, expression: str) -> Any:
        options = {"expression": expression, "returnByValue": True}
        answer = await self._devtools.send("Runtime.evaluate", options)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"]["value"]


class Browser:
    """Starts Chromium when the first page is wanted, and again after it is lost; thread-safe."""

    def __init__(self) -> None:
        """Starts the thread that all pages are used from."""
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="browser", daemon=True).start()
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self.seconds = CALL_SECONDS
        self._playwright: Any = None
        self._chromium: Any = None
        self.pid = 0
        """Process id of Chromium; 0 before its start."""
        self._free: dict[Size, list[Page]] = {}
        atexit.register(self.close)

    def call(self, work: Coroutine[Any, Any, ResultT], seconds: float | None = None) -> ResultT:
        """The result of a coroutine of Playwright's, within `seconds` (None: those of a call).

        Raises:
            BrowserLost: It fails, or takes too long.
        """
        from playwright.async_api import Error

        seconds = seconds or self.seconds
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, seconds), self._loop)
        try:
            return future.result()
        except TimeoutError:
            raise BrowserLost(f"the browser did not answer within {seconds:g} s") from None
        except Error as error:
            raise BrowserLost(f"the browser failed: {str(error).splitlines()[0]}") from None

    def use(
        self, size: Size, session: object, work: Callable[[Page], ResultT], *, again: bool = True
    ) -> ResultT:
        """Calls `work` with a page.

        Args:
            size: Size of the page.
            session: The session; a page that another one drew last does as well.
            work: Changes nothing but the page.
            again: Whether to call it once more, with a new page, if the first dies or hangs.

        Raises:
            BrowserLost: No Chromium starts, or both pages failed.
        """
        page = self._take(size, session)
        try:
            result = work(page)
        except BrowserLost:
            with self._lock:
                if page.context.browser is self._chromium:
                    self.kill()
            if not again:
                raise
            return self.use(size, session, work, again=False)
        with self._lock:
            if page.context.browser is self._chromium:
                self._free.setdefault(size, []).append(page)
        return result

    def _take(self, size: Size, session: object) -> Page:
        with self._lock:
            if self._chromium is None or not self._chromium.is_connected():
                self.kill()
                self.call(self._start(), START_SECONDS)
            if free := self._free.get(size):
                own = (at for at, page in enumerate(free) if page.shown is session)
                return free.pop(next(own, -1))
            return self.call(self._open(size), START_SECONDS)

    def kill(self) -> None:
        """Ends Chromium, whatever it does."""
        self._chromium, self._free = None, {}
        if self.pid and self._owner == os.getpid():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.pid = 0

    def close(self) -> None:
        """Ends Chromium and Playwright's driver."""
        self.kill()
        if self._playwright is not None and self._owner == os.getpid():
            with suppress(BrowserLost):
                self.call(self._playwright.stop())
            self._playwright = None

    async def _start(self) -> None:
        from playwright.async_api import Error, async_playwright

        if self._playwright is None:
            self._playwright = await async_playwright().start()
        try:
            self._chromium = await self._playwright.chromium.launch(
                executable_path=installed(), args=list(ARGUMENTS), timeout=1000 * START_SECONDS
            )
        except Error as error:
            driver, self._playwright = self._playwright, None  # which may have died
            with suppress(Error):
                await driver.stop()
            raise BrowserLost(
                f"no Chromium starts ({str(error).splitlines()[0]}): install Debian's package "
                "chromium, run `playwright install chromium`, or name one by PLAYWRIGHT_CHROMIUM"
            ) from None
        devtools = await self._chromium.new_browser_cdp_session()
        processes = (await devtools.send("SystemInfo.getProcessInfo"))["processInfo"]
        self.pid = next(each["id"] for each in processes if each["type"] == "browser")

    async def _open(self, size: Size) -> Page:
        width, height, scale = size
        context = await self._chromium.new_context(
            viewport={"width": width, "height": height},
            device_scale_factor=scale,
            accept_downloads=False,
            service_workers="block",
            offline=True,
        )
        await context.route("**/*", lambda route: route.abort())
        page = await context.new_page()
        await page.set_content(resources.files("vagen.envs.web").joinpath("page.html").read_text())
        return Page(self, context, page, await context.new_cdp_session(page), size)


@cache
def _browser(_: int) -> Browser:
    return Browser()


def browser() -> Browser:
    """The browser of this process; one that was started before a fork stays the parent's."""
    return _browser(os.getpid())
