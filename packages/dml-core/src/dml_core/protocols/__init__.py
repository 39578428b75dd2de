"""The protocols of components: only members that are used by the trainer, the wrappers and the registry.

You need not inherit from a protocol: a class with the members follows the protocol. `dml_core` exports all names, too.
"""
