"""The reports of `ternarize` and `drafter eval` in a headless Chromium.

    python3 tests/report_page.py TERNARIZE DRAFTER [SCREENSHOTS]

With a folder, screenshots are written there. Needs nothing but `chromium`.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from browser import Browser

PAIR = Path(__file__).parent / "fixtures/pair"
# Text of a page that would be more than text.
HOSTILE = "<img src=x onerror=document.title=1>"


def reports(ternarize, drafter, folder):
    """Makes reports of both programs."""
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    name = folder / HOSTILE
    name.mkdir()
    pages = [folder / "ternarize.html", folder / "calibrated.html", folder / "eval.html"]
    convert = [ternarize, PAIR / "drafter", "--block", "256"]
    subprocess.run([*convert, "-o", name / "m.gguf", "--report", pages[0]], **quiet)
    subprocess.run([*convert, "--calib", "prior", "-o", name / "p.gguf", "--report", pages[1]], **quiet)
    suite = folder / "suite.jsonl"
    suite.write_text((PAIR / "prompts.jsonl").read_text().replace('"prose"', f'"{HOSTILE}"'))
    subprocess.run([drafter, "eval", "-t", PAIR / "target.gguf", "-d", f"float={PAIR / 'drafter'}",
                    "-d", name / "m.gguf", "-d", name / "p.gguf", "--suite", suite, "--limit", "8", "-n", "32",
                    "--speed", "--served", "0", "--report", pages[2]], **quiet)
    return pages


def check(browser, page, shots):
    browser.requests.clear()
    browser.screen(1200, 800)
    browser.send("Page.navigate", url=page.as_uri())
    browser.until("document.readyState === 'complete' && document.querySelector('h1') !== null")
    assert len(browser.js("document.body.innerText")) > 500
    for width, scheme, media in [(1200, "light", "screen"), (360, "light", "screen"),
                                 (360, "dark", "screen"), (1200, "dark", "screen"),
                                 (800, "light", "print")]:
        browser.screen(width, 800, scheme, media)
        browser.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        wide = browser.js("document.documentElement.scrollWidth")
        assert wide <= width, f"{page.name}: {wide} pixels on a screen of {width}"
        # Nothing in a chart is cut off at its sides, and no text stands on another.
        cut = browser.js("""[...document.querySelectorAll('svg text')].filter(text => {
            const box = text.ownerSVGElement.getBoundingClientRect(), own = text.getBoundingClientRect();
            return own.left < box.left - 1 || own.right > box.right + 1;
        }).map(text => text.textContent)""")
        assert cut == [], f"{page.name} at {width}: {cut}"
        over = browser.js("""[...document.querySelectorAll('figure > svg')].flatMap(svg => {
            const texts = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
            return texts.flatMap(([a, p], n) => texts.slice(n + 1).filter(([b, q]) =>
                p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 4 && q.top < p.bottom - 4)
                .map(([b]) => a + ' over ' + b));
        })""")
        assert over == [], f"{page.name} at {width}: {over}"
        browser.shot(shots, f"{page.stem}-{width}-{scheme}-{media}.png", whole=True)
    # Every chart has a name and a description, and a table.
    unnamed = browser.js("""[...document.querySelectorAll('svg[role=img]')].filter(svg =>
        !svg.getAttribute('aria-labelledby').split(' ').every(id => document.getElementById(id)?.textContent)
        || !svg.closest('figure').querySelector('table tbody tr')).length""")
    assert unnamed == 0 and browser.js("document.querySelectorAll('svg[role=img]').length") > 3
    ids = browser.js("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    assert browser.js("document.querySelectorAll('img, script').length") == 0
    assert HOSTILE in browser.js("document.body.textContent")
    assert browser.send("Page.printToPDF")["data"]
    assert browser.requests == [page.as_uri()], browser.requests
    assert browser.problems == [], browser.problems


def main():
    ternarize, drafter, shots = *sys.argv[1:3], (sys.argv[3:] or [None])[0]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        folder = Path(folder)
        pages = reports(ternarize, drafter, folder)
        (folder / "browser").mkdir()
        browser = Browser(folder / "browser")
        try:
            for page in pages:
                check(browser, page, shots)
            browser.close()
        finally:
            browser.process.kill()
            browser.process.wait()
    print("the reports: ok")


main()
