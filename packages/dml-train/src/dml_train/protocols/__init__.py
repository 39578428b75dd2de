"""Protocols of evaluation that need more than one run."""
