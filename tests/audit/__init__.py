"""Tests of the audit's rules."""
