"""Puts the folder of the fixture pair's scripts on the path: the drafter's model is theirs."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "pair"))
