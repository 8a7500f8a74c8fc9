"""Models: loading a base, new classifier heads, adapters."""

PACKAGED = {  # the bases that come with fedseed
    "small": "a language model of LLaMA's architecture with 1,195,392 parameters, for the "
    "quickstart and tests",
    "words": "a language model of OPT's architecture with 78,656 parameters, for zeroth-order "
    "methods",
    "digits": "a ResNet with 78,069 parameters that classifies handwritten digits, for image "
    "classification",
}
