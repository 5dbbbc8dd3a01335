"""Use case: read what a run printed when it failed or was slow, and say why and what helps.

The question (``asked``) is known to clients, which need no engine: so nothing is imported here.
"""
