"""The only room that knows a model or a thread.

Whatever leaves it towards ``service`` is a frozen struct of builtins.
"""
