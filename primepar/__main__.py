"""`python -m primepar` is the command `primepar`."""

from primepar.cli import main

if __name__ == "__main__":
    main()
