"""``python -m bench [search|method|accuracy]``: print the figures that README and docs quote; all of them without a name."""

from __future__ import annotations

import sys

from bench import accuracy, method, search

BENCHES = {"search": search.main, "method": method.main, "accuracy": accuracy.main}

if __name__ == "__main__":
    for chosen in sys.argv[1:] or BENCHES:
        BENCHES[chosen]()
