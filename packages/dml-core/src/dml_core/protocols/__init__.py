"""The protocols of components: only what the trainer, the wrappers and the registry use.

You need not inherit from a protocol: a class follows it by having the attributes and methods. All names can also be
imported from `dml_core`.
"""
