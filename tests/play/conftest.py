"""A real browser."""

import pytest

from vagen.envs.web.browser import installed

CHROMIUM = installed()


MOST_MS = 200_000
"""Milliseconds that it may take on a busy machine."""


@pytest.fixture
def browser():
    """Chromium of this machine, headless; one per test, as it brings a running event loop."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=MOST_MS
        )
        yield opened
        opened.close()
