"""What serving costs over `drafter bench`: tokens per second and milliseconds a round, by turns.

    python3 tools/serving_rate.py target/release/drafter --target T --drafter D [--draft-max 0,3] [-n 24]

Starts one server, then lets `drafter bench` and requests to the server take turns, so that what disturbs the
machine disturbs both. Needs nothing but Python's standard library and a drafter built for release.
"""

import argparse
import json
import statistics
import subprocess
import sys
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from serving import serve_models  # noqa: E402

IDS = list(range(1, 17))


def bench(options: argparse.Namespace, draft_max: str) -> tuple[float, float]:
    """Tokens per second and milliseconds a round of `drafter bench`."""
    command = [options.drafter_program, "bench", "--json", "--tests", "e2e", "--draft-max", draft_max,
               "--ids", ",".join(map(str, IDS)), "-n", str(options.tokens), "--warmup", "1", "--trials", "2",
               "--target", options.target, "--drafter", options.drafter]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    answer = json.loads(done.stdout)["answers"][0]
    return answer["tokens_per_second"], answer["ms_per_round"]


def served(url: str, options: argparse.Namespace) -> tuple[float, float]:
    """The same of a request; without drafts every token after the first is a round."""
    body = {"prompt": IDS, "max_tokens": options.tokens, "temperature": 0}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        timings = json.load(answer)["timings"]
    assert timings["predicted_n"] == options.tokens, timings
    ms = timings["predicted_ms"]
    return (options.tokens - 1) / ms * 1e3, ms / timings.get("draft_rounds", options.tokens - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("drafter_program")
    parser.add_argument("--target", required=True)
    parser.add_argument("--drafter", required=True)
    parser.add_argument("--draft-max", default="0,3")
    parser.add_argument("-n", "--tokens", type=int, default=24)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    for draft_max in options.draft_max.split(","):
        server, url = serve_models(options.drafter_program, options.target, options.drafter,
                                   "--draft-max", draft_max)
        try:
            served(url, options)
            pairs = []
            for turn in range(options.turns):
                first = served(url, options) if turn % 2 else None
                benched = bench(options, draft_max)
                pairs.append((benched, first or served(url, options)))
        finally:
            server.terminate()
            server.wait()
        rate = statistics.median(s[0] / b[0] for b, s in pairs)
        rounds = statistics.median(s[1] - b[1] for b, s in pairs)
        for b, s in pairs:
            print(f"draft-max {draft_max}: bench {b[0]:.3f} tok/s {b[1]:.2f} ms a round, served {s[0]:.3f} {s[1]:.2f}")
        print(f"draft-max {draft_max}: served at {rate:.3f} of the rate, {rounds:+.2f} ms a round")


if __name__ == "__main__":
    main()
