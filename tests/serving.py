"""Starts `drafter serve` with the trained pair, for the tests beside this file."""

import json
import subprocess
from pathlib import Path

PAIR = Path(__file__).parent / "fixtures" / "pair"


def serve(program, *args):
    """The process of a server on a free port, and its URL. All drafts in every round."""
    process = subprocess.Popen(
        [program, "serve", "--port", "0", "--json", "--target", PAIR / "target.gguf", "--drafter",
         PAIR / "drafter", "--draft-max", "7", *args],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    document = ""
    while not document.rstrip().endswith("\n}"):
        line = process.stdout.readline()
        assert line, "the server did not start"
        document += line
    return process, json.loads(document)["url"]
