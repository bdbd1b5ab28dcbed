"""The codec's pure Python twins: the same bytes as the compiled one, where that cannot be loaded.

Imports `codec`'s batch format. Used by `codec` alone, through `codec.choice`.
"""
