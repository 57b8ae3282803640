"""A browser for looking at the page, and the server of scenes that it looks at."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    """Run the server of scenes in a process of its own."""
    command = [sys.executable, "-m", "tests.web.page_server"]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Server(process, int(process.stdout.readline()))
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Server:
    """Where the scenes are."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"

    def records(self, scene: str) -> Any:
        """Return what has been asked of a scene."""
        with urllib.request.urlopen(f"{self.url}/records/{scene}", timeout=10) as answer:
            return json.load(answer)

    def let_move(self, scene: str, moves: bool) -> None:
        """Have a scene change whenever it is looked at, or no more."""
        request = urllib.request.Request(f"{self.url}/records/{scene}?moves={int(moves)}", b"", method="POST")
        urllib.request.urlopen(request, timeout=10).close()


@contextlib.contextmanager
def browsing(directory: Path) -> Iterator[Any]:
    """Start Debian's chromium, with its files in a directory."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
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
