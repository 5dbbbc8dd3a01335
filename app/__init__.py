"""Shardplan: how to shard one training run, what it costs, and the file that does it."""

ENGINE_VERSION = "0.4.0"
"""Version of the prediction engine. A change that moves any prediction changes it (CHANGELOG, "Numbers that changed")."""
