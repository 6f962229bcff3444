"""Plays tasks of BrowserGym, such as those of MiniWoB++, by its own actions."""

import ast
import importlib
import os
from collections.abc import Callable
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import gymnasium
import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, field_validator

from vagen.envs.adapters import AdapterError, SeedLevel, seed_level
from vagen.envs.adapters.foreign import ForeignConfig, ForeignEnv
from vagen.envs.adapters.pictures import frame_of
from vagen.envs.adapters.threads import DaemonThread
from vagen.envs.answers import unpacked
from vagen.envs.base import IMAGE_PLACEHOLDER, State
from vagen.envs.levels import Split
from vagen.envs.parsing import ActionReader
from vagen.envs.web.browser import installed

ResultT = TypeVar("ResultT")

INSTALL = "pip install --no-deps browsergym-core browsergym-miniwob miniwob beautifulsoup4 lxml"
"""Without dependencies, of which an old Playwright is one."""
LONGEST = 2000
"""Longest action in characters."""
MOST_WAIT = 5000.0
"""Longest `noop` in milliseconds."""


class BrowserGymConfig(ForeignConfig):
    """Options of a task of BrowserGym."""

    task: str = Field(pattern=r"^\w+(\.[\w.-]+)?$")
    """Its id, such as `miniwob.click-test`."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of BrowserGym's environment."""
    action_subsets: tuple[str, ...] = ("miniwob_all",)
    """Subsets of BrowserGym's actions; some open any address or file."""
    marks: bool = False
    """Whether images have the elements' ids."""
    actions: dict[str, Any] = Field(default_factory=dict, max_length=0)
    """Empty: see `action_subsets`."""
    prompt: str = ""
    """Empty: BrowserGym's description of its actions."""
    action_sep: str = "|"
    """Separator of actions."""
    timeout: PositiveFloat = 60.0
    """Timeout of a call in seconds."""

    @field_validator("action_subsets")
    @classmethod
    def _are_known(cls, subsets: tuple[str, ...]) -> tuple[str, ...]:
        _actions(subsets)
        return subsets


class BrowserGymEnv(ForeignEnv):
    """A task of BrowserGym: its goal, and the screenshot or the accessibility tree."""

    env_name: ClassVar[str] = "BrowserGym"
    config_class: ClassVar[type[BrowserGymConfig]] = BrowserGymConfig
    needs_process: ClassVar[bool] = True

    config: BrowserGymConfig
    _gym: Any = None

    @classmethod
    def sample_level(cls, config: BrowserGymConfig, seed: int, split: Split) -> SeedLevel:
        """The task's seed for `reset(seed=seed)` in this split."""
        return seed_level(f"BrowserGym {config.task}", config.kwargs, seed, split)

    @cached_property
    def observation_space(self) -> Any:
        """Not known: pages may have any size."""
        raise AttributeError("a task of BrowserGym does not say the size of its pictures")

    def _frame_size(self) -> tuple[int, int]:
        return 0, 0

    def _step_name(self) -> str:
        return f"{self.config.task} step"

    def _load_level(self, level: SeedLevel, seed: int) -> None:
        result = self._call(lambda: self._inner().reset(seed=level.seed), "reset")
        self._begin(level.seed)
        self._keep(unpacked(result, f"{self.config.task} reset", ("observation", "info"))[0])

    def _move(self, action: str) -> tuple[float, bool]:
        result = self._call(lambda: self._gym.step(action), "step")
        return self._keep_step(result, self._keep, facts="task_info")

    def _inner(self) -> Any:
        """The environment, in the thread of browsers."""
        if self._gym is None:
            task, kwargs = self.config.task, dict(self.config.kwargs)
            package = task.partition(".")[0]
            importlib.import_module(f"browsergym.{package}" if "." in task else "browsergym.core")
            if package == "miniwob" and "MINIWOB_URL" not in os.environ:
                kwargs["task_kwargs"] = {"base_url": _pages(), **kwargs.get("task_kwargs", {})}
            mapping = _actions(self.config.action_subsets).to_python_code
            self._gym = gymnasium.make(
                f"browsergym/{task}", disable_env_checker=True, action_mapping=mapping, **kwargs
            ).unwrapped
        return self._gym

    def _call(self, work: Callable[[], ResultT], what: str) -> ResultT:
        """Calls `work` in the thread of browsers; after a failure the next reset starts again."""
        try:
            return _thread(os.getpid()).submit(work).result(self.config.timeout)
        except Exception as error:  # any failure of BrowserGym, of Playwright, of the browser
            told = f"{type(error).__name__}: {error}"
            if isinstance(error, TimeoutError):
                _thread.cache_clear()  # leaves the browser that hangs
                told = f"took more than {self.config.timeout:g} s"
            self.close()
            raise AdapterError(f"{self.config.task} {what}: {told}") from error

    def _keep(self, observation: dict[str, Any]) -> None:
        from browsergym.utils import obs

        elements = self._elements = observation["extra_element_properties"]
        tree = obs.flatten_axtree_to_str(
            observation["axtree_object"],
            extra_properties=elements,
            with_clickable=True,
            filter_visible_only=True,
            # The address of a page on disk is another on each machine.
            ignored_properties=(*obs.IGNORED_AXTREE_PROPERTIES, "url"),
        )
        failed = observation["last_action_error"].partition("\n")[0]  # then a log with times
        texts = (observation["goal"], failed, tree)
        self._goal, self._error, self._tree = (
            text.replace(IMAGE_PLACEHOLDER, "image") for text in texts
        )
        shot = observation["screenshot"]
        shot = obs.overlay_som(shot, extra_properties=elements) if self.config.marks else shot
        self._frame = frame_of(shot, f"{self.config.task}'s screenshot")

    def _read_state(self) -> State:
        """What the accessibility tree shows; the true state is unknown."""
        state = {"env_name": self.env_name, "task": self.config.task, "goal": self._goal}
        return {**state, "page": self._tree, "error": self._error}

    def picture(self) -> NDArray[np.uint8]:
        """The screenshot, uint8 [height, width, 3] in the units of mouse actions."""
        return self._frame.copy()

    def text_view(self) -> str:
        """The accessibility tree with the ids of elements."""
        return self._tree

    def _shown(self) -> tuple[str, tuple[NDArray[np.uint8], ...]]:
        shown, images = super()._shown()
        failed = f"The action failed: {self._error}\n" if self._error else ""
        return f"Goal: {self._goal}\n{failed}{shown}", images

    def _action_reader(self) -> ActionReader:
        known = _actions(self.config.action_subsets).action_set

        def read(text: str) -> str | None:
            try:
                call = ast.parse(text[: LONGEST + 1], mode="eval").body
                match call:
                    case ast.Call(func=ast.Name(id=name)) if name in known:
                        given = [*call.args, *(each.value for each in call.keywords)]
                        values = [ast.literal_eval(each) for each in given]
                        waits = name == "noop" and any(not 0 <= ms <= MOST_WAIT for ms in values)
                        return None if waits or len(text) > LONGEST else ast.unparse(call)
            except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                pass
            return None

        return read

    def _plan(self, count: int) -> list[str]:
        """A random click on an element."""
        centres = [
            (bid, x + wide / 2, y + high / 2)
            for bid, found in self._elements.items()
            if found["clickable"] and found["visibility"] >= 0.5
            for x, y, wide, high in [found["bbox"]]
        ]
        if not centres:
            return ["noop(100)"]
        bid, x, y = self._random.choice(centres)
        has_ids = "click" in _actions(self.config.action_subsets).action_set
        return [f"click({bid!r})" if has_ids else f"mouse_click({x:g}, {y:g})"]

    def example_response(self) -> str:
        """A response that waits."""
        return self._write(["noop(500)"], {}, {})

    def _rules(self) -> str:
        return self.config.prompt or (
            "You reach a goal in a web browser.\n"
            + _actions(self.config.action_subsets).describe().strip()
        )

    def close(self) -> None:
        """Ends the session."""
        inner, self._gym = self._gym, None
        if inner is not None:
            _thread(os.getpid()).submit(inner.close)


@cache
def _actions(subsets: tuple[str, ...]) -> Any:
    """BrowserGym's set of actions, one a call."""
    try:
        from browsergym.core.action.highlevel import HighLevelActionSet
    except ModuleNotFoundError as error:
        raise AdapterError(f"BrowserGym needs {error.name}: {INSTALL}") from error
    return HighLevelActionSet(list(subsets), multiaction=False, strict=True)


def _pages() -> str:
    """Address of MiniWoB++'s pages, those of the package `miniwob`."""
    if (found := find_spec("miniwob")) is None or found.origin is None:
        raise AdapterError(f"MINIWOB_URL is not set, and there is no package miniwob: {INSTALL}")
    return f"{(Path(found.origin).parent / 'html' / 'miniwob').as_uri()}/"


@cache
def _thread(_: int) -> DaemonThread:
    """The thread of all browsers of this process, as Playwright's synchronous interface asks."""
    thread = DaemonThread()
    thread.submit(_share_browsers)
    return thread


def _share_browsers() -> None:
    """Gives BrowserGym, which starts and ends two browsers an episode, those of the process.

    There is one for each set of options, this machine's Chromium.
    """
    import browsergym.core
    from playwright.sync_api import sync_playwright

    playwright: Any = sync_playwright().start()
    start, started = playwright.chromium.launch, dict[str, Any]()

    def launch(**options: Any) -> Any:
        key = repr(sorted(options.items()))
        if key not in started or not started[key].is_connected():
            started[key] = start(**{"executable_path": installed(), **options})
            started[key].close = lambda: None  # BrowserGym closes what it opened in it
        return started[key]

    playwright.chromium.launch = launch
    browsergym.core._set_global_playwright(playwright)
