"""A real browser for tests, driven by its own protocol: Chromium where there is one."""

import base64
import json
import shutil
import subprocess
import time
import urllib.request

import websocket

_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in _NAMES if (path := shutil.which(name))), None)
_SECONDS = 120.0


class Browser:
    """One tab of a Chromium without a window; a context manager.

    Args:
        folder: Where its profile and its log go.
    """

    def __init__(self, folder):
        self._folder = folder
        self._number = 0

    def __enter__(self):
        self._folder.mkdir()
        command = [
            *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-dev-shm-usage", "--hide-scrollbars", "--remote-allow-origins=*"),
            *("--remote-debugging-port=0", f"--user-data-dir={self._folder}", "about:blank"),
        ]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        port = self._await_port()
        tabs = f"http://127.0.0.1:{port}/json/list"
        with urllib.request.urlopen(tabs, timeout=_SECONDS) as reply:
            pages = [one for one in json.load(reply) if one["type"] == "page"]
        self._socket = websocket.create_connection(
            pages[0]["webSocketDebuggerUrl"], timeout=_SECONDS
        )
        self.messages = []
        self._call("Page.enable")
        self._call("Log.enable")
        self._call("Runtime.enable")
        return self

    def __exit__(self, *_error):
        self._socket.close()
        self._process.terminate()
        self._process.wait(_SECONDS)

    def open(self, address):
        self._call("Page.navigate", url=address)

    def resize(self, width, height):
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def evaluate(self, expression):
        """The value of an expression of JavaScript in the page."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"].get("value")

    @property
    def text(self):
        """What a person reads."""
        return self.evaluate("document.body.innerText") or ""

    def wait_for(self, expression):
        until = time.monotonic() + _SECONDS
        while time.monotonic() < until:
            if found := self.evaluate(expression):
                return found
            time.sleep(0.2)
        raise AssertionError(f"never true: {expression}\n{self.text}")

    def screenshot(self, path):
        """Keeps a picture of the whole page, and returns its height."""
        height = self.evaluate("document.documentElement.scrollHeight")
        width = self.evaluate("document.documentElement.clientWidth")
        found = self._call(
            "Page.captureScreenshot",
            captureBeyondViewport=True,
            clip={"x": 0, "y": 0, "width": width, "height": height, "scale": 1},
        )
        path.write_bytes(base64.b64decode(found["data"]))
        return height

    def _await_port(self):
        file = self._folder / "DevToolsActivePort"
        until = time.monotonic() + _SECONDS
        while time.monotonic() < until:
            if file.exists() and (lines := file.read_text().split()):
                return lines[0]
            assert self._process.poll() is None, (self._folder / "log").read_text()
            time.sleep(0.1)
        raise AssertionError("the browser does not start")

    def _call(self, method, **parameters):
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            if message["method"] == "Log.entryAdded":
                self.messages.append(message["params"]["entry"]["text"])
            if message["method"] == "Runtime.exceptionThrown":
                self.messages.append(str(message["params"]["exceptionDetails"]))
