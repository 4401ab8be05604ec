"""The commands, one file each; `primepar.cli` puts them together."""
