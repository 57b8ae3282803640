"""A browser for looking at the page."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")


@contextlib.contextmanager
def browsing(directory: Path) -> Iterator[Any]:
    """Start Debian's chromium, with its files in a directory."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(DRIVER, env={**os.environ, "TMPDIR": str(directory), "HOME": str(directory)})
    driver = webdriver.Chrome(options=options, service=service)
    try:
        driver.set_script_timeout(60)
        yield driver
    finally:
        driver.quit()


def look(driver: Any, width: int = 1280, height: int = 800, dark: bool = False) -> None:
    """Have the page be so large, and light or dark."""
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    motion = {"name": "prefers-reduced-motion", "value": "reduce"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme, motion]})


class Viewer:
    """Somebody who looks at a page.

    Parameters
    ----------
    driver : WebDriver
        The browser.
    """

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        #: What the console may say in this test: part of a message.
        self.expected: list[str] = []
        self._origins: set[str] = set()

    def open(self, address: str) -> None:
        self._origins.add(_origin(address))
        self.driver.get(address)

    def leave(self) -> None:
        """Close the page, so that it asks for nothing more."""
        self.driver.get("about:blank")

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def text(self, selector: str = "body") -> str:
        """Return what can be read in the elements that a selector finds."""
        script = "return [...document.querySelectorAll(arguments[0])].map(one => one.innerText).join('\\n')"
        return self.driver.execute_script(script, selector)

    def value(self, script: str) -> Any:
        return self.driver.execute_script(f"return {script}")

    def wait(self, condition: Callable[[], Any], timeout_s: float = 20) -> Any:
        """Wait for something to come true, and return it."""
        deadline = time.monotonic() + timeout_s
        while not (found := condition()):
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.05)
        return found

    def reads(self, words: str, selector: str = "body") -> None:
        """Wait until some words can be read."""
        self.wait(lambda: words in self.text(selector))

    def press(self, selector: str) -> None:
        """Click, once it is there."""
        self.wait(lambda: self.all(selector))[0].click()

    def type(self, *keys: str) -> None:
        """Type where the focus is."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def tab_to(self, condition: str) -> None:
        """Press the tab key until a condition (of `one`, the element with the focus) holds."""
        for _ in range(60):
            self.type("\ue004")
            if self.value(f"(one => {condition})(document.activeElement)"):
                return
        raise AssertionError(f"the tab key never leads there: {condition}")

    def complaints(self) -> list[str]:
        """Return what the console said and nobody expected, and requests to others than the service."""
        said = [line["message"] for line in self.driver.get_log("browser")]
        found = [message for message in said if not any(words in message for words in self.expected)]
        for line in self.driver.get_log("performance"):
            message = json.loads(line["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                if url.startswith(("http", "ws")) and _origin(url) not in self._origins:
                    found.append(url)
        return found


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
