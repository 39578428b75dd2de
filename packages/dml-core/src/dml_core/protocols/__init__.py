"""The protocols of components: only what the trainer, the wrappers and the registry use.

You need not inherit from a protocol: a class follows it by having its members. `dml_core` exports all names, too.
"""
