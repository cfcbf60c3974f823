"""Starts `drafter serve`, for the tests beside this file and what measures it in tools."""

import json
import subprocess
from pathlib import Path

PAIR = Path(__file__).parent / "fixtures" / "pair"


def serve(program, *args):
    """The process of a server of the trained pair on a free port, and its URL. All drafts in every round."""
    return serve_models(program, PAIR / "target.gguf", PAIR / "drafter", "--draft-max", "7", *args)


def serve_models(program, target, drafter, *args):
    """The process of a server on a free port, and its URL."""
    process = subprocess.Popen(
        [program, "serve", "--port", "0", "--json", "--target", target, "--drafter", drafter, *args],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    document = ""
    while not document.rstrip().endswith("\n}"):
        line = process.stdout.readline()
        assert line, "the server did not start"
        document += line
    return process, json.loads(document)["url"]
