"""The page of `drafter serve` in a headless Chromium, by its DevTools protocol.

    python3 tests/page.py DRAFTER [SCREENSHOTS]

DRAFTER is the program; with a folder, screenshots are written there. Needs nothing but `chromium`.
"""

import base64
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from serving import serve

SCRIPT_IN_TEXT = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


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
        self.problems = []
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

    def screen(self, width, height, scheme="light"):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 500)
        self.send("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": scheme}])

    def shot(self, folder, name):
        data = self.send("Page.captureScreenshot")["data"]
        if folder:
            (Path(folder) / name).write_bytes(base64.b64decode(data))

    def key(self, key, code, **more):
        for kind in ["keyDown", "keyUp"]:
            self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **more)

    def type(self, text):
        self.send("Input.insertText", text=text)


def check(browser, url, shots):
    send_enabled = "document.getElementById('send').textContent === 'Send'"
    done = f"{send_enabled} && document.querySelectorAll('article').length"
    browser.screen(1200, 800)
    browser.send("Page.navigate", url=url)
    browser.until("document.getElementById('model')?.textContent.includes('context')")

    # By keyboard alone: the message has the focus, Enter sends.
    assert browser.js("document.activeElement.id") == "text"
    browser.type(f"Where is the lamp? {SCRIPT_IN_TEXT}")
    browser.key("Enter", 13, text="\r")
    browser.until(f"{done} === 2 && document.getElementById('status').textContent === 'done'")
    origins = browser.js("[...new Set([...document.querySelectorAll('article .piece')].map(p => p.className))]")
    assert "piece draft" in origins and "piece target" in origins, origins
    figures = browser.js("document.querySelector('.figures').textContent")
    assert "tokens per round" in figures and "tok/s" in figures and "speculation on" in figures, figures
    spoken = browser.js("document.querySelector('article.assistant').innerText")
    # Text is text: nothing of it became an element or ran.
    assert browser.js("document.querySelectorAll('article img, article script').length") == 0
    assert browser.js("document.title") == "drafter"
    assert "<script>" in browser.js("document.querySelector('article.user').textContent")
    browser.shot(shots, "wide-light.png")

    # The same words without speculation.
    browser.js("document.getElementById('clear').click()")
    browser.js("document.getElementById('speculation').click()")
    browser.type(f"Where is the lamp? {SCRIPT_IN_TEXT}")
    browser.key("Enter", 13, text="\r")
    browser.until(f"{done} === 2 && document.getElementById('status').textContent === 'done'")
    assert browser.js("document.querySelectorAll('article .piece.draft').length") == 0
    plain = browser.js("document.querySelector('article.assistant').innerText")
    words = lambda text: text.split("tokens per round")[0].rsplit("\n", 1)[0]
    assert words(plain) == words(spoken), (plain, spoken)

    # A conversation goes on.
    browser.js("document.getElementById('speculation').click()")
    browser.type("And who lives there? Tell all of it.")
    browser.key("Enter", 13, text="\r")
    browser.until(f"{done} === 4 && document.getElementById('status').textContent === 'done'")
    assert browser.js("document.querySelectorAll('article.assistant .piece.draft').length") > 0
    # Escape stops; a question without answer comes back.
    browser.js("""
        document.getElementById('text').value = 'And now?';
        document.getElementById('form').requestSubmit();
        document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}));
    """)
    browser.until(f"{done} === 4 && document.getElementById('status').textContent === 'stopped'")
    assert browser.js("document.getElementById('text').value") == "And now?"
    browser.js("document.getElementById('text').value = ''")

    for width, scheme in [(360, "light"), (360, "dark"), (1200, "dark")]:
        browser.screen(width, 740, scheme)
        browser.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        wide = browser.js("document.documentElement.scrollWidth")
        assert wide <= width, f"{wide} pixels on a screen of {width}"
        browser.shot(shots, f"{width}-{scheme}.png")
    names = browser.js(
        "[...document.querySelectorAll('button, input, textarea')].every("
        "e => e.labels?.length || e.textContent.trim())")
    assert names, "every control has a name"
    loaded = browser.js("performance.getEntriesByType('resource').map(e => e.name)")
    assert all(name.startswith(url) for name in loaded), loaded
    assert browser.problems == [], browser.problems


def main():
    program, shots = sys.argv[1], (sys.argv[2:] or [None])[0]
    server, url = serve(program, "--default-temperature", "0")
    locked, locked_url = serve(program, "--default-temperature", "0", "--api-key", "s3cret")
    # Its processes end after it, and write to their folder until then.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(folder)
        try:
            check(browser, url, shots)
            # With a key, the page asks for it.
            browser.send("Page.navigate", url=locked_url)
            browser.until("document.getElementById('model')?.textContent.includes('context')")
            browser.type("hello")
            browser.key("Enter", 13, text="\r")
            browser.until("!document.getElementById('key-label').hidden")
            browser.js("document.getElementById('key').value = 's3cret'")
            browser.js("document.getElementById('text').value = 'hello'")
            browser.js("document.getElementById('form').requestSubmit()")
            browser.until("document.getElementById('status').textContent === 'done'")
            browser.close()
        finally:
            browser.process.kill()
            browser.process.wait()
            server.terminate()
            locked.terminate()
    print("the page: ok")


main()
