"""Adapters to the evaluation interfaces of other libraries, a module for each.

A module imports its library when it is imported itself; `dml_eval_rs` imports no adapter.
"""
