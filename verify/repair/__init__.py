"""The smallest reordering of a wrong program that passes every property."""
