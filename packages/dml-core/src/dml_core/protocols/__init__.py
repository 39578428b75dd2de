"""The protocols of components, with only the members that the trainer, the wrappers or the registry
use.

You need not inherit from a protocol: a class with the members follows the protocol. `dml_core`
exports all names, too.
"""
