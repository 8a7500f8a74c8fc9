"""Models: loading a base, new classifier heads, adapters."""

PACKAGED = ("small", "words", "digits")  # the project's own bases: two language models, an image classifier
