"""The drawing engine: a script that a serving process starts and talks to over pipes; it imports nothing of the service.

A line of JSON comes in, ``{"kind": "svg" | "png", "spec": "…Vega-Lite as JSON…", "scale": 2.0}``. Out goes a line with the number of
bytes that follow, and these: the drawing, or behind a minus what went wrong. It ends with its input, so never outlives who started it.
"""

from __future__ import annotations

import json
import sys

import vl_convert


def main() -> None:
    """Draw until the input ends. Data of a specification comes with it: no address is allowed."""
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        try:
            if asked["kind"] == "png":
                drawn = vl_convert.vegalite_to_png(asked["spec"], scale=asked["scale"], allowed_base_urls=[])
            else:
                drawn = vl_convert.vegalite_to_svg(asked["spec"], allowed_base_urls=[]).encode()
            head = f"{len(drawn)}\n"
        except ValueError as error:
            drawn = str(error).encode()
            head = f"-{len(drawn)}\n"
        sys.stdout.buffer.write(head.encode() + drawn)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
