"""Every command by name: of which module it is, and what it does in a line.

A module has, for each of its commands, a function ``add_NAME`` that adds the command's options to its parser. Only the module of the
command that was typed is imported, since all of them together are the whole service.
"""

from __future__ import annotations

COMMANDS = {
    "serve": ("serve", "serve the page and the API"),
    "worker": ("worker", "work on the sweeps in a PostgreSQL; start as many as there are cores"),
    "plan": ("plan", "plan a request from a JSON or YAML file"),
    "audit": ("audit", "read an existing configuration against its model and GPUs"),
    "diagnose": ("diagnose", "say why a run failed or was slow, from the end of its log"),
    "sweep": ("sweep", "plan many requests from a file, into a file"),
    "probe": ("measure", "print a Python snippet that measures a training run"),
    "measure": ("measure", "tell a service what a run of a saved plan really took"),
    "catalog": ("catalog", "list GPUs, instances and models that a request can name"),
    "export": ("data", "write every saved plan as JSON Lines"),
    "import": ("data", "add the plans of an export that are not there yet"),
    "migrate": ("migrate", "bring the database to the schema of this version"),
    "keys": ("keys", "make, list, rotate and revoke API keys"),
}
"""In the order that help lists them."""
