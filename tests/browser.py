"""A headless Chromium by its DevTools protocol, through pipes. Needs nothing but `chromium`."""

import base64
import json
import os
import subprocess
import time
from pathlib import Path


class Browser:
    """Messages end with a zero byte on file descriptors 3 and 4."""

    def __init__(self, folder):
        to_read, self.to = os.pipe()
        self.of, to_write = os.pipe()

        def pipes():
            # Out of the way first: any of them may be 3 or 4.
            a, b = os.dup(to_read), os.dup(to_write)
            a, b = os.dup2(a, 50), os.dup2(b, 51)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"],
            preexec_fn=pipes, close_fds=False, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.rest, self.last, self.session = b"", 0, None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.problems, self.requests = [], []
        for domain in ["Page", "Runtime", "Log", "Network"]:
            self.send(f"{domain}.enable")

    def close(self):
        self.session = None
        self.send("Browser.close")
        self.process.wait(30)

    def message(self):
        while b"\0" not in self.rest:
            more = os.read(self.of, 1 << 16)
            assert more, "the browser ended"
            self.rest += more
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def send(self, method, **params):
        self.last += 1
        message = {"id": self.last, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.message()
            if answer.get("id") == self.last:
                assert "error" not in answer, answer
                return answer["result"]
            if answer.get("method") == "Network.requestWillBeSent":
                self.requests.append(answer["params"]["request"]["url"])
            if answer.get("method") == "Runtime.exceptionThrown":
                self.problems.append(answer["params"]["exceptionDetails"]["text"])
            if answer.get("method") == "Log.entryAdded":
                self.problems.append(answer["params"]["entry"]["text"])

    def js(self, expression):
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, expression, seconds=60):
        end = time.monotonic() + seconds
        while not self.js(expression):
            assert time.monotonic() < end, f"never: {expression}: {self.js('document.body.innerText')}"
            time.sleep(0.05)

    def screen(self, width, height, scheme="light", media="screen"):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 500)
        self.send("Emulation.setEmulatedMedia", media=media,
                  features=[{"name": "prefers-color-scheme", "value": scheme}])

    def shot(self, folder, name, whole=False):
        """Of the window, or of the whole page."""
        data = self.send("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        if folder:
            (Path(folder) / name).write_bytes(base64.b64decode(data))

    def key(self, key, code, **more):
        for kind in ["keyDown", "keyUp"]:
            self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **more)

    def type(self, text):
        self.send("Input.insertText", text=text)
