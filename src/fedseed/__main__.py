"""`python -m fedseed`: the command line."""

from fedseed.cli import main

if __name__ == "__main__":
    main()
