"""The protocols of components: what the trainer, the wrappers and the registry rely on, and nothing else.

Nothing here is inherited: a class follows a protocol by having its attributes and methods. All names are also in
`dml_core`.
"""
