"""The pure authority core: what may a call do? (L1)"""
