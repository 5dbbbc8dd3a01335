"""``python -m bench [name]``: print the figures that README and docs quote; all of them without a name."""

from __future__ import annotations

import sys

from bench import accuracy, http, load, method, page, ranking, search, sweeps

BENCHES = {
    "search": search.main,
    "http": http.main,
    "sweeps": sweeps.main,
    "load": load.main,
    "page": page.main,
    "method": method.main,
    "accuracy": accuracy.main,
    "ranking": ranking.main,
}

if __name__ == "__main__":
    for chosen in sys.argv[1:] or BENCHES:
        BENCHES[chosen]()
