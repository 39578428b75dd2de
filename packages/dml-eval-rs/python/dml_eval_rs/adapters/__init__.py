"""Adapters to other libraries' evaluation interfaces, a module per library.

A library is imported when the adapter is imported; `dml_eval_rs` does not import adapters.
"""
