"""``python -m bench [search|method|accuracy|ranking]``: print the figures that README and docs quote; all of them without a name."""

from __future__ import annotations

import sys

from bench import accuracy, method, ranking, search

BENCHES = {"search": search.main, "method": method.main, "accuracy": accuracy.main, "ranking": ranking.main}

if __name__ == "__main__":
    for chosen in sys.argv[1:] or BENCHES:
        BENCHES[chosen]()
