"""The page of `drafter serve` in a headless Chromium, by its DevTools protocol.

    python3 tests/page.py DRAFTER [SCREENSHOTS]

DRAFTER is the program; with a folder, screenshots are written there. Needs nothing but `chromium`.
"""

import sys
import tempfile

from browser import Browser
from serving import serve

SCRIPT_IN_TEXT = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


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
