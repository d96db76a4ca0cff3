"""The OpenAI Responses API on a local MLX model, built on trio.

``ARCHITECTURE.md`` beside this file is the page to read first.
"""
