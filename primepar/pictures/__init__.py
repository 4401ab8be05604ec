"""Pictures of a program: the space-time grid, as text and as SVG."""
