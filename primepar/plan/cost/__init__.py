"""What operators, and what moves between them, cost on a cluster: derived from maps and layouts."""
