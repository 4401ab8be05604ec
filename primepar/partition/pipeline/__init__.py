"""Pipelines: layers over stages, micro-batches over time, in five published schedules."""
